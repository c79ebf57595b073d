-- Cancel a job: one that waits ends at once, one that runs is asked to stop (its next extend says so).
-- KEYS job: schedule
-- Answers cancelled, cancelling, ended or unknown. The caller must call file_archived afterwards.
local function cancel_job(q, id)
  local got = redis.call('HMGET', job_key(q, id), 'm', 's', 'l', unpack(ENDING))
  if not got[1] then return 'unknown' end
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
  make_ended(q, id, 'c', ending(got, 4), {})
  count('cancelled')
  return 'cancelled'
end
