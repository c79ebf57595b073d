-- Drain: cancel those of these jobs that wait in a lane or in the schedule; running ones go on.
-- KEYS    job: schedule
-- ARGV    ids call
-- RETURNS [id cancelled]
-- FLAGS   allow-oom
-- INCLUDE time counters news ring bell close rows trim again
-- `ids` is msgpack, a few hundred.
local before = answered(q, call)
if before then return cmsgpack.unpack(before) end
local drained = {}
for _, id in ipairs(cmsgpack.unpack(ids)) do
  local got = redis.call('HMGET', job_key(q, id), 'm', 's', 'l', unpack(ENDING))
  local state = got[2] or 'p'
  if got[1] and (state == 'p' or state == 's') then
    if state == 's' then redis.call('ZREM', q.schedule, id) else dequeue(q, id, got[3] or '-') end
    make_ended(q, id, 'c', ending(got, 4), {})
    count('cancelled')
    drained[#drained + 1] = id
  end
end
file_archived(q)
trim_archive(q, 2 * #drained)
close(q)
answer(q, call, cmsgpack.pack(drained))
return drained
