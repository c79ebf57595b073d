-- Redrive jobs from the morgue: pending again, or from an instant on; failures 0, id and history kept.
-- KEYS    job: dead
-- ARGV    jobs call
-- RETURNS [id redriven], [[id refused, owner of its unique key]]
-- INCLUDE time counters news ring bell close rows unique again
-- `jobs` is msgpack: [id, due_ms, 0 for now], a few hundred. They run on the active version, even if they were pinned to another.
-- If another job has taken a job's unique key since, the job stays in the morgue: it would be the second one.
local before = answered(q, call)
if before then return cmsgpack.unpack(before) end
local redriven, refused = {}, {}

local function revive(id, due_ms, row)
  local key = job_key(q, id)
  redis.call('ZREM', q.dead, id)
  if row.z then
    redis.call('HSET', key, 'y', chronicle(row.y, {tonumber(row.a), 'dead', row.ca or 'error', 0, row.z}))
  end
  redis.call('HDEL', key, 'f', 'n', 'e', 'x', 'd', 'sz', 'z', 'ca', 'v', 'pg')
  if due_ms > now then
    make_scheduled(q, id, due_ms, 'delay', row.l, row.pr)
  else
    make_pending(q, id, row.l, row.pr)
  end
  count('redriven')
end

for _, job in ipairs(cmsgpack.unpack(jobs)) do
  local id = job[1]
  local got = redis.call('HMGET', job_key(q, id), 's', 'l', 'pr', 'u', 'z', 'y', 'ca', 'a', 'ub')
  if got[1] == 'x' then
    local unique = got[4] and string.sub(got[4], 1, 2) == 'd:' and string.sub(got[4], 3)
    local owner = unique and owner_of(q, unique)
    if owner then
      refused[#refused + 1] = {id, owner}
    else
      if unique then own(q, {unique, 'd', 0, got[9] or ''}, id) end
      revive(id, job[2], {l = got[2], pr = got[3], z = got[5], y = got[6], ca = got[7], a = got[8]})
      redriven[#redriven + 1] = id
    end
  end
end
close(q)
answer(q, call, cmsgpack.pack({redriven, refused}))
return {redriven, refused}
