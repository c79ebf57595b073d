-- Switch the active version: its generation grows by one, and all nodes hear of it.
-- KEYS    global.active global.versions global.uploads global.switches
-- ARGV    version errors call lease_ms
-- RETURNS [generation, at_ms]
-- ERRORS  UNKNOWN the version is not stored whole
-- FLAGS   allow-oom
-- INCLUDE time counters news versions steps
-- A version that is active already keeps its generation. `call` is the caller's own word for this call: among the last calls,
-- one that is sent again gets its first answer, even if another version was switched to since.
-- It runs although memory is out: it is the way back from a version that filled it. After a step of the clock, nodes that live may
-- look dead, so the versions stay that any node has said it runs.
local SWITCHES_KEPT = 200
local CALLS_KEPT = 20
local calls = redis.call('HGET', g.active, 'calls')
calls = calls and cmsgpack.unpack(calls) or {}
for _, each in ipairs(calls) do
  if each[1] == call then return {each[2], each[3]} end
end
local whole = redis.call('EXISTS', version_key(version, 'manifest')) == 1
for piece = 0, tonumber(redis.call('GET', version_key(version, 'pieces')) or 0) - 1 do
  whole = whole and redis.call('EXISTS', version_key(version, piece)) == 1
end
if not whole then return redis.error_reply('UNKNOWN version ' .. version .. ' is not stored whole; deploy its folder again') end
redis.call('ZREM', g.uploads, version)
local active = redis.call('HMGET', g.active, 'version', 'generation', 'errors', 'at')
local function note(generation, at)
  table.insert(calls, 1, {call, generation, at})
  calls[CALLS_KEPT + 1] = nil
  redis.call('HSET', g.active, 'calls', cmsgpack.pack(calls))
  return {generation, at}
end
if active[1] == version and active[3] == errors then return note(tonumber(active[2]), tonumber(active[4]) or now) end
local generation = redis.call('HINCRBY', g.active, 'generation', 1)
redis.call('HSET', g.active, 'version', version, 'errors', errors, 'at', now)
if active[1] ~= version then
  redis.call('LPUSH', g.switches, cmsgpack.pack({version, now}))
  redis.call('LTRIM', g.switches, 0, SWITCHES_KEPT - 1)
end
-- Strictly after the one before, so that "the version before" is known even where two were activated in one millisecond.
local newest = redis.call('ZRANGE', g.versions, -1, -1, 'WITHSCORES')
redis.call('ZADD', g.versions, math.max(now, (tonumber(newest[2]) or 0) + 1), version)

collect_versions(VERSIONS_AT_ONCE, silent_since() or has_stepped_within(tonumber(lease_ms)))
publish('switched', version, generation)
return note(generation, now)
