-- Drive the clock: read it, move it forward, stop it, let it run again; what runs keeps its lease.
-- ARGV    action to_ms
-- RETURNS [now_ms, frozen]
-- KEYS    active global.clock global.hold global.nodes global.queues
-- INCLUDE time news
-- Loaded for a driven clock only (`dev --clock`, `echofn.testing`). `to` moves to an instant and never back; `start` stands
-- still at any instant, on an empty bus. Each action may be sent again: none says by how much.
local set = redis.call('GET', g.clock)
local frozen = set and string.sub(set, 1, 1) == '='

local function put(at_ms, stands)
  frozen = stands
  redis.call('SET', g.clock, stands and '=' .. text(at_ms) or string.format('%+.0f', at_ms - server_clock()))
end

-- Move the leases along: their holders had no chance to renew in the time that was skipped.
local function move_leases(by_ms)
  for _, name in ipairs(redis.call('HKEYS', g.queues)) do
    local q = space((string.gsub(g.base, '~}:$', name .. '}:')))
    for _, id in ipairs(redis.call('ZRANGE', q.active, 0, -1)) do redis.call('ZINCRBY', q.active, by_ms, id) end
  end
  local nodes = redis.call('HGETALL', g.nodes)
  for i = 1, #nodes, 2 do
    local entry = cmsgpack.unpack(nodes[i + 1])
    entry[2] = entry[2] + by_ms
    redis.call('HSET', g.nodes, nodes[i], cmsgpack.pack(entry))
  end
  if redis.call('HEXISTS', g.hold, 'seen') == 1 then redis.call('HINCRBY', g.hold, 'seen', by_ms) end
end

local at_ms = now
if action == 'start' then
  at_ms = tonumber(to_ms)
  put(at_ms, true)
elseif action == 'to' and tonumber(to_ms) > now then
  at_ms = tonumber(to_ms)
  move_leases(at_ms - now)
  put(at_ms, frozen)
elseif action == 'freeze' then
  put(now, true)
elseif action == 'thaw' and frozen then
  put(now, false)
end
if action ~= 'read' then publish('clock', at_ms, frozen and 1 or 0) end
return {at_ms, frozen and 1 or 0}
