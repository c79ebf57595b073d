-- Stored versions: those that nobody needs any more are forgotten, a bounded step at a time.
-- KEYS global.versions global.version: global.uploads global.nodes
--
-- Needed are the active version, the ten before it, and those that a node says it runs. A version that was stored and not
-- activated is kept for an hour: a deployer that was killed leaves pieces that nobody will activate.
-- `in_doubt`: TIME may have stepped. Then who looks dead may be alive, and what looks old may be new.
local VERSIONS_KEPT, UPLOAD_MS, VERSIONS_AT_ONCE = 11, 3600000, 20

local function version_key(version, part) return g.base .. 'version:' .. version .. ':' .. part end

local function forget_version(old)
  local piece = 0
  while redis.call('UNLINK', version_key(old, piece)) == 1 do piece = piece + 1 end
  redis.call('UNLINK', version_key(old, 'pieces'), version_key(old, 'manifest'))
  redis.call('ZREM', g.versions, old)
end

local function collect_versions(limit, in_doubt)
  local count = 0
  local old = redis.call('ZRANGE', g.versions, 0, -1 - VERSIONS_KEPT)
  if #old > 0 then
    local running = {}
    local nodes = redis.call('HGETALL', g.nodes)
    for i = 2, #nodes, 2 do
      local entry = cmsgpack.unpack(nodes[i])
      if in_doubt or entry[2] > now then
        for _, each in ipairs(entry[6] or {}) do running[each] = true end
      end
    end
    for _, version in ipairs(old) do
      if count < limit and not running[version] and not redis.call('ZSCORE', g.uploads, version) then
        forget_version(version)
        count = count + 1
      end
    end
  end
  if in_doubt then return end
  for _, left in ipairs(redis.call('ZRANGEBYSCORE', g.uploads, '-inf', now - UPLOAD_MS, 'LIMIT', 0, limit)) do
    if not redis.call('ZSCORE', g.versions, left) then forget_version(left) end
    redis.call('ZREM', g.uploads, left)
  end
end
