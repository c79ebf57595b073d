-- Purge: delete those of these jobs that have ended in one of these states, with their logs.
-- KEYS    job: dead done meta jobs
-- ARGV    states ids
-- RETURNS [id that is gone]
-- FLAGS   allow-oom
-- INCLUDE time counters news ring bell close trim
-- `ids` is msgpack, a few hundred; `states` are letters. A call that lost its reply may mint a job again that has just ended:
-- `cut` says until when a missing row proves nothing. A child that young stays, as it does in trim.
local wanted, gone, purged, bytes = {}, {}, 0, 0
for state in string.gmatch(states, '%a') do wanted[state] = true end
for _, id in ipairs(cmsgpack.unpack(ids)) do
  local row = redis.call('HMGET', job_key(q, id), 'm', 's', 'e', 'sz', 'pa', 'u', 'lb')
  if not row[1] then  -- evicted, or purged by this very call before
    redis.call('ZREM', q.dead, id)
    redis.call('ZREM', q.done, id)
    erase(q, id, nil, true)
    gone[#gone + 1] = id
  elseif wanted[row[2] or 'p'] and (row[2] == 'd' or row[2] == 'c' or row[2] == 'x') then
    local place = row[2] == 'x' and q.dead or q.done
    local age = now - tonumber(redis.call('ZSCORE', place, id) or row[3])  -- of what ended before a step back, since the step
    if not (row[5] and age <= CHILD_MS) then
      if age <= YOUNG_MS then redis.call('HSET', q.meta, 'cut', now) end
      redis.call('ZREM', place, id)
      if row[2] ~= 'x' then bytes = bytes + (tonumber(row[4]) or 0) end
      erase(q, id, row[6], row[7] or not row[4])  -- of a row that was gone nobody knows what it wrote
      gone[#gone + 1] = id
      purged = purged + 1
    end
  end
end
call_with('ZREM', q.jobs, gone)
count_out(q, bytes)
if purged > 0 then count('purged', purged) end
close(q)
return gone
