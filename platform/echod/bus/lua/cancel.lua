-- Cancel a job: one that waits ends at once, one that runs is asked to stop (its next extend says so).
-- KEYS    job: schedule
-- ARGV    id
-- RETURNS cancelled | cancelling | ended | unknown
-- FLAGS   allow-oom
-- INCLUDE time counters news ring bell close rows trim
local got = redis.call('HMGET', job_key(q, id), 'm', 's', 'l', 'p', 'u', 'wt', 'lb')
if not got[1] then return 'unknown' end
local row = {p = got[4], u = got[5] or nil, wt = got[6] or nil, lb = got[7]}
if got[2] == 'c' then return 'cancelled' end
if got[2] == 'd' or got[2] == 'x' then return 'ended' end
if got[2] == 'a' then
  redis.call('HSET', job_key(q, id), 'x', 1)
  publish('cancel', name_of(q), id)
  return 'cancelling'
end
if got[2] == 's' then
  redis.call('ZREM', q.schedule, id)
else
  dequeue(q, id, got[3] or '-')
end
make_ended(q, id, 'c', row, {})
count('cancelled')
file_archived(q)
trim_archive(q, 2)
close(q)
return 'cancelled'
