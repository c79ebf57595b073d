-- Redrive jobs from the morgue: pending again, failures 0, id and history kept; sent again, it answers the same.
-- KEYS    job: unique: dead
-- ARGV    token ids
-- RETURNS [id redriven]
-- INCLUDE time counters news ring bell close rows
-- `ids` is msgpack. A unique key that another job took meanwhile stays with it.
local redriven = {}
for _, id in ipairs(cmsgpack.unpack(ids)) do
  local key = job_key(q, id)
  local row = redis.call('HMGET', key, 's', 'l', 'pr', 'u', 'rt', 'z', 'y', 'er', 'a')
  if row[1] == 'x' then
    redis.call('ZREM', q.dead, id)
    if row[6] then
      local cause = row[8] and cmsgpack.unpack(row[8]).cause or 'error'
      redis.call('HSET', key, 'y', chronicle(row[7], {tonumber(row[9]), 'dead', cause, 0, row[6]}))
    end
    redis.call('HDEL', key, 'f', 'n', 'e', 'x', 'd', 'sz', 'z')
    redis.call('HSET', key, 'rt', token)
    if row[4] and string.sub(row[4], 1, 2) == 'd:' then
      local claim_key = unique_key(q, string.sub(row[4], 3))
      if redis.call('HSETNX', claim_key, 'o', id) == 1 then redis.call('HSET', claim_key, 'm', 'd', 'b', '') end
    end
    make_pending(q, id, row[2], row[3])
    count('redriven')
    redriven[#redriven + 1] = id
  elseif row[5] == token then
    redriven[#redriven + 1] = id
  end
end
close(q)
return redriven
