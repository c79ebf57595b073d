-- Generations: who writes for a version that another has replaced is refused.
-- Also where the newer one has nothing to write: a slow pump would write the recurrence of a gone function back, and nobody
-- would look at it again.
-- KEYS meta global.active
local function is_older(q, generation)
  local newest = math.max(tonumber(redis.call('HGET', q.meta, 'gen')) or 0, tonumber(redis.call('HGET', g.active, 'generation')) or 0)
  return tonumber(generation) < newest
end
