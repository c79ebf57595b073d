-- A node's beat: renew its number, ring again for queues whose news died, and, for a pump, tick and trim all queues.
-- KEYS    schedule later active repeat ring held windows out done dead global.nodes global.queues global.active global.wake global.hold
-- ARGV    node number lease_ms pump limit roll expected_ms running told channel cursor
-- RETURNS [now_ms, rank, nodes, [version, generation, at_ms]|nil, [[queue, next_in_ms|nil]], [due], more, promoted, recovered, [queue with unsent children], stepped_ms, names on the bell, cursor]
-- ERRORS  LEASE the node number is another's now
-- FLAGS   allow-oom
-- INCLUDE time counters news ring bell close rows recover trim versions nodes
-- A pump's beat also forgets versions that nobody needs any more. After a step of the clock nodes have one lease to say what they
-- run, and that they live.
-- An empty word goes out on `channel`, the caller's own: if it does not arrive, the connection for news is deaf.
-- If names are on the bell while the caller's own pop is out, that pop may never have arrived.
-- A call looks at a few hundred queues, from `cursor` on ('0': the first); the call that answers '0' has looked at the last.
-- A small hash answers a scan with all that it has, be it 512: then the cursor is 'place.done', and the next call goes on in that answer.
-- Their bases are derived from the global one by the queue's name.
local QUEUES_A_CALL = 200
local mine = redis.call('HGET', g.nodes, number)
mine = mine and cmsgpack.unpack(mine)
if not mine or mine[1] ~= node then return redis.error_reply('LEASE node number ' .. number .. ' is not held by ' .. node) end
mine[2], mine[4] = now + tonumber(lease_ms), tonumber(pump)
mine[6], mine[7], mine[8] = cmsgpack.unpack(running), cmsgpack.unpack(told), tonumber(lease_ms)
redis.call('HSET', g.nodes, number, cmsgpack.pack(mine))

redis.call('PUBLISH', channel, '')

local stepped = note_step(tonumber(expected_ms))
if pump == '1' then redis.call('HSET', g.hold, 'seen', now) end
local may_be_alive = has_stepped_within(tonumber(lease_ms))

local rank, nodes = 0, 0
for other, entry in pairs(node_entries(lease_ms)) do
  if entry[2] > now then
    nodes = nodes + 1
    if entry[4] == 1 and other < tonumber(number) then rank = rank + 1 end
  elseif entry[2] < now - 3600000 and not may_be_alive then
    redis.call('HDEL', g.nodes, other)
  end
end

local listed = {}
for _, name in ipairs(redis.call('LRANGE', g.wake, 0, -1)) do
  if listed[name] then redis.call('LREM', g.wake, 1, name) end
  listed[name] = true
end

-- Whether time changes nothing in the queue: nothing waits or runs there, and nothing is kept.
local function is_at_rest(q)
  return redis.call('EXISTS', q.schedule, q.later, q.active, q['repeat'], q.ring, q.held, q.windows, q.out, q.done, q.dead) == 0
end

local queues, due, unsent = {}, {}, {}
local promoted, recovered, more, budget = 0, 0, false, tonumber(limit)
local place, done = string.match(cursor, '^(%d+)%.?(%d*)$')
local first = (tonumber(done) or 0) + 1
local scan = redis.call('HSCAN', g.queues, place, 'COUNT', QUEUES_A_CALL)
local last = #scan[2] / 2
if last >= first + QUEUES_A_CALL * 1.5 then last = first + QUEUES_A_CALL - 1 end
for i = first, last do
  local name = scan[2][2 * i - 1]
  local q = space((string.gsub(g.base, '~}:$', name .. '}:')))
  local heal_in_ms = heal(q, listed[name])
  local next_in_ms = false
  if pump == '1' and is_at_rest(q) then
    next_in_ms = heal_in_ms
  elseif pump == '1' then
    local dues_before = #due
    local to_lanes, lost, cut, soonest, others = turn(q, math.max(math.min(budget, 200), 1), tonumber(roll), due)
    promoted, recovered, more, next_in_ms = promoted + to_lanes, recovered + lost, more or cut, sooner(soonest, heal_in_ms)
    budget = budget - to_lanes - lost - others - (#due - dues_before)
    local share = math.max(math.min(budget, 100), 1)
    local redated, trimmed, buried = redate(q, share), trim_archive(q, share), trim_morgue(q, share)
    budget = budget - redated - trimmed - buried
    more = more or redated >= share or trimmed == share or buried == share
    if redis.call('EXISTS', q.out) == 1 then unsent[#unsent + 1] = name end
  end
  queues[#queues + 1] = {name, next_in_ms}
  close(q)
end
if pump == '1' and not may_be_alive then collect_versions(VERSIONS_AT_ONCE) end
local active = redis.call('HMGET', g.active, 'version', 'generation', 'at')
return {now, rank, nodes, active[1] and active or false, queues, due, more and 1 or 0, promoted, recovered, unsent, stepped, redis.call('LLEN', g.wake),
  last < #scan[2] / 2 and place .. '.' .. last or scan[1]}
