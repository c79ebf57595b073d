-- Switch the active version: its generation grows by one, and all nodes hear of it.
-- KEYS    global.active global.versions global.version: global.uploads global.nodes global.switches
-- ARGV    version errors call
-- RETURNS [generation, at_ms]
-- ERRORS  UNKNOWN the version is not stored whole
-- INCLUDE time counters news
-- The version that is active already keeps its generation. `call` is the caller's own word for this call: sent again, it is
-- answered as before, even where another was switched to since, among the last calls.
local VERSIONS_KEPT = 11  -- the active one and the ten before it; and what a node says that it runs
local UPLOAD_MS = 3600000
local SWITCHES_KEPT = 200
local CALLS_KEPT = 20
local calls = redis.call('HGET', g.active, 'calls')
calls = calls and cmsgpack.unpack(calls) or {}
for _, each in ipairs(calls) do
  if each[1] == call then return {each[2], each[3]} end
end
local prefix = g.base .. 'version:'
local whole = redis.call('EXISTS', prefix .. version .. ':manifest') == 1
for piece = 0, tonumber(redis.call('GET', prefix .. version .. ':pieces') or 0) - 1 do
  whole = whole and redis.call('EXISTS', prefix .. version .. ':' .. piece) == 1
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

local function forget(old)
  local piece = 0
  while redis.call('DEL', prefix .. old .. ':' .. piece) == 1 do piece = piece + 1 end
  redis.call('DEL', prefix .. old .. ':pieces', prefix .. old .. ':manifest')
  redis.call('ZREM', g.versions, old)
end
local running = {}
local nodes = redis.call('HGETALL', g.nodes)
for i = 2, #nodes, 2 do
  local entry = cmsgpack.unpack(nodes[i])
  if entry[2] > now then
    for _, each in ipairs(entry[6] or {}) do running[each] = true end
  end
end
for _, old in ipairs(redis.call('ZRANGE', g.versions, 0, -1 - VERSIONS_KEPT)) do
  if not running[old] then forget(old) end
end
-- Whoever was killed while it stored a version left pieces that nobody activates.
for _, left in ipairs(redis.call('ZRANGEBYSCORE', g.uploads, '-inf', now - UPLOAD_MS)) do
  if not redis.call('ZSCORE', g.versions, left) then forget(left) end
  redis.call('ZREM', g.uploads, left)
end
publish('switched', version, generation)
return note(generation, now)
