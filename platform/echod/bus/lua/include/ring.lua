-- Lanes: which can be served, and at which virtual time.
-- KEYS lane: ring later held lanes meta
--
-- Every non-empty lane is in exactly one of ring, later, held.
-- A lane joins at V + charge(1), V being the virtual time at which the last-served lane was picked. Joining at the ring's
-- minimum instead would let a lane that empties and comes back be served every other turn, for ever, before all others.
local TURN = 5040
local pending_delta, woken = 0, false

local function charge(weight) return math.floor(TURN / (tonumber(weight) or 1)) end

local function virtual_time(q) return tonumber(redis.call('HGET', q.meta, 'V')) or 0 end

-- Put a non-empty lane where its settings say, at the virtual time `at`.
local function seat(q, lane, at, paused, until_ms)
  if paused then
    redis.call('SADD', q.held, lane)
    redis.call('HSET', q.lanes, lane .. ':v', at)
  elseif until_ms and tonumber(until_ms) > now then
    redis.call('ZADD', q.later, until_ms, lane)
    redis.call('HSET', q.lanes, lane .. ':v', at)
    tell_if_first(q, q.later, lane, tonumber(until_ms))
  else
    redis.call('ZADD', q.ring, at, lane)
    woken = true
  end
end

local function join(q, lane)
  local set = redis.call('HMGET', q.lanes, lane .. ':w', lane .. ':p', lane .. ':u')
  seat(q, lane, virtual_time(q) + charge(set[1]), set[2], set[3])
end

-- A lane whose settings changed, or whose instant came: back at max(its own time, V), so that waiting earns no credit.
local function reseat(q, lane)
  local score = redis.call('ZSCORE', q.ring, lane)
  redis.call('ZREM', q.ring, lane)
  redis.call('ZREM', q.later, lane)
  redis.call('SREM', q.held, lane)
  local set = redis.call('HMGET', q.lanes, lane .. ':v', lane .. ':p', lane .. ':u')
  redis.call('HDEL', q.lanes, lane .. ':v')
  if redis.call('EXISTS', lane_key(q, lane)) == 1 then
    local own = tonumber(score or set[1]) or 0
    seat(q, lane, math.max(own, virtual_time(q)), set[2], set[3])
  end
end

local function reset_if_idle(q)
  if redis.call('EXISTS', q.ring, q.later, q.held) == 0 then redis.call('HDEL', q.meta, 'V') end
end

local function enqueue(q, id, lane, priority)
  local key = lane_key(q, lane)
  pending_delta = pending_delta + redis.call('ZADD', key, priority or 0, id)
  if redis.call('ZCARD', key) == 1 then join(q, lane) else woken = true end
end

-- Take one job out of its lane; an emptied lane leaves nothing behind but its settings.
local function dequeue(q, id, lane)
  local key = lane_key(q, lane)
  pending_delta = pending_delta - redis.call('ZREM', key, id)
  if redis.call('EXISTS', key) == 0 then
    redis.call('ZREM', q.ring, lane)
    redis.call('ZREM', q.later, lane)
    redis.call('SREM', q.held, lane)
    redis.call('HDEL', q.lanes, lane .. ':v')
    reset_if_idle(q)
  end
end
