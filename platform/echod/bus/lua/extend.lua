-- Renew leases: answers which jobs are no longer ours, and which were asked to stop.
-- KEYS    job: active
-- ARGV    lease_ms holds begun
-- RETURNS [now_ms, [id lost], [id asked to stop]]
-- FLAGS   allow-oom
-- INCLUDE time counters news ring bell close rows serve
-- `holds` and `begun` are msgpack: [id, attempts, holder]; of `begun` also the instant where it is known.
mark_begun(q, cmsgpack.unpack(begun))
local lost, stopping = {}, {}
for _, hold in ipairs(cmsgpack.unpack(holds)) do
  local row = redis.call('HMGET', job_key(q, hold[1]), 's', 'a', 'h', 'x')
  if row[1] == 'a' and tonumber(row[2]) == hold[2] and row[3] == hold[3] then
    redis.call('ZADD', q.active, now + tonumber(lease_ms), hold[1])
    if row[4] then stopping[#stopping + 1] = hold[1] end
  else
    lost[#lost + 1] = hold[1]
  end
end
return {now, lost, stopping}
