-- Move waiting jobs to another lane of their queue: there they stand by priority and mint order. Running jobs stay.
-- KEYS    job:
-- ARGV    lane lane_name ids call
-- RETURNS [id that is of that lane now]
-- INCLUDE time counters news ring bell close again
-- `ids` is msgpack, a few hundred. `lane_name` is the lane as written if that differs, else ''.
local before = answered(q, call)
if before then return cmsgpack.unpack(before) end
local moved, arrived = {}, false
for _, id in ipairs(cmsgpack.unpack(ids)) do
  local key = job_key(q, id)
  local row = redis.call('HMGET', key, 'm', 's', 'l', 'pr')
  local state, from = row[2] or 'p', row[3] or '-'
  if row[1] and (state == 'p' or state == 's') then
    moved[#moved + 1] = id
    if from ~= lane then
      if state == 'p' then dequeue(q, id, from) end
      redis.call('HDEL', key, 'l', 'ln')
      if lane ~= '-' then redis.call('HSET', key, 'l', lane) end
      if lane_name ~= '' then redis.call('HSET', key, 'ln', lane_name) end
      if state == 'p' then
        enqueue(q, id, lane, row[4])
        arrived = true
      end
    end
  end
end
-- A moved job may have waited longer than the lane's own first: a lane that gathers is judged anew.
if arrived and policy_of(q).batch_wait > 0 then reseat(q, lane) end
close(q)
answer(q, call, cmsgpack.pack(moved))
return moved
