-- Generations: a write for a version that another has replaced is refused.
-- It is refused even if the newer version has nothing to write here: a slow pump would write back the recurrence of a function
-- that is gone, and nobody would look at it again.
-- KEYS meta repeat: global.active
local function is_older(q, generation)
  local newest = math.max(tonumber(redis.call('HGET', q.meta, 'gen')) or 0, tonumber(redis.call('HGET', g.active, 'generation')) or 0)
  return tonumber(generation) < newest
end

-- No revision is used again under a name that comes anew: pumps remember by it what a row says.
local function forget_recurrence(q, name)
  local key = repeat_key(q, name)
  local newest = math.max(tonumber(redis.call('HGET', key, 'rev')) or 0, tonumber(redis.call('HGET', q.meta, 'rev')) or 0)
  if newest > 0 then redis.call('HSET', q.meta, 'rev', newest) end
  return redis.call('DEL', key)
end
