-- Switch the active version: its generation grows by one, and all nodes hear of it.
-- KEYS    global.active global.versions global.version:
-- ARGV    version errors
-- RETURNS [generation]
-- ERRORS  UNKNOWN the version is not stored
-- INCLUDE time counters news
-- The version that is active already keeps its generation, so that a resend switches nothing twice.
local VERSIONS_KEPT = 50
if redis.call('EXISTS', g.base .. 'version:' .. version .. ':manifest') == 0 then
  return redis.error_reply('UNKNOWN version ' .. version .. ' is not stored')
end
local active = redis.call('HMGET', g.active, 'version', 'generation', 'errors')
if active[1] == version and active[3] == errors then return {tonumber(active[2])} end
local generation = redis.call('HINCRBY', g.active, 'generation', 1)
redis.call('HSET', g.active, 'version', version, 'errors', errors, 'at', now)
-- Strictly after the one before, so that "the version before" is known even where two were activated in one millisecond.
local newest = redis.call('ZRANGE', g.versions, -1, -1, 'WITHSCORES')
redis.call('ZADD', g.versions, math.max(now, (tonumber(newest[2]) or 0) + 1), version)
for _, old in ipairs(redis.call('ZRANGE', g.versions, 0, -1 - VERSIONS_KEPT)) do
  for piece = 0, tonumber(redis.call('GET', g.base .. 'version:' .. old .. ':pieces') or 0) - 1 do
    redis.call('DEL', g.base .. 'version:' .. old .. ':' .. piece)
  end
  redis.call('DEL', g.base .. 'version:' .. old .. ':pieces', g.base .. 'version:' .. old .. ':manifest')
  redis.call('ZREM', g.versions, old)
end
publish('switched', version, generation)
return {generation}
