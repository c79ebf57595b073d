-- Count a queue's jobs by state, and tell since when the longest-waiting pending job waits.
-- KEYS    job: lane: ring later active schedule dead done meta
-- RETURNS [pending, active, scheduled, dead, done, paused, oldest_ms|nil, limits msgpack|nil, by hand msgpack|nil, capped: concurrency|rate|nil, until_ms|nil]
-- FLAGS   no-writes
-- INCLUDE time limits
-- The oldest is looked for at the head of thirty-two lanes, not of all.
local oldest = nil
for _, seats in ipairs({q.ring, q.later}) do
  for _, lane in ipairs(redis.call('ZRANGE', seats, 0, 15)) do
    local id = redis.call('ZRANGE', lane_key(q, lane), 0, 0)[1]
    if id then
      local row = redis.call('HMGET', job_key(q, id), 'w', 'm')
      local since = tonumber(row[1] or row[2])
      if since and (not oldest or since < oldest) then oldest = since end
    end
  end
end
local meta = redis.call('HMGET', q.meta, 'n', 'paused', 'limits', 'hand')
local room, ends = queue_room(q)
local capped = room <= 0 and (ends and 'rate' or 'concurrency')
return {tonumber(meta[1]) or 0, redis.call('ZCARD', q.active), redis.call('ZCARD', q.schedule), redis.call('ZCARD', q.dead),
  redis.call('ZCARD', q.done), meta[2] and 1 or 0, oldest or false,
  meta[3], meta[4], capped, ends and ends - now or false}
