-- Lanes: which can be served, and at which virtual time.
-- KEYS job: lane: ring later held lanes meta
--
-- Every non-empty lane is in exactly one of ring, later, held.
-- A lane joins at V + charge(1), V being the virtual time at which the last-served lane was picked. Joining at the ring's
-- minimum instead would let a lane that empties and comes back be served every other turn, for ever, before all others.
-- A queue with a batch and a batch_wait: a lane with fewer jobs than a batch lies in `later` until its first has waited so long.
local TURN = 5040
local pending_delta, woken, batches = 0, false, {}

local function charge(weight) return math.floor(TURN / (tonumber(weight) or 1)) end

local function virtual_time(q) return tonumber(redis.call('HGET', q.meta, 'V')) or 0 end

-- How many jobs a turn takes (nil: one, and not as a batch), and how long a lane with fewer waits for more.
local function batch_of(q)
  local known = batches[q.base]
  if not known then
    local meta = redis.call('HMGET', q.meta, 'batch', 'batch_wait')
    known = {tonumber(meta[1]), tonumber(meta[2]) or 0}
    batches[q.base] = known
  end
  return known[1], known[2]
end

-- Until when a lane gathers jobs; nil where it does not: at most a batch of rows is looked at.
local function gathers_until(q, lane)
  local size, wait_ms = batch_of(q)
  if wait_ms == 0 or redis.call('ZCARD', lane_key(q, lane)) >= size then return nil end
  local first = nil
  for _, id in ipairs(redis.call('ZRANGE', lane_key(q, lane), 0, -1)) do
    local row = redis.call('HMGET', job_key(q, id), 'w', 'm')
    local since = tonumber(row[1] or row[2])
    if since and (not first or since < first) then first = since end
  end
  return first and first + wait_ms
end

local function latest(one, other) return one and other and math.max(one, other) or one or other end

-- Put a non-empty lane where its settings say, at the virtual time `at`.
local function seat(q, lane, at, paused, until_ms)
  if paused then
    redis.call('SADD', q.held, lane)
    redis.call('HSET', q.lanes, lane .. ':v', at)
  elseif until_ms and until_ms > now then
    redis.call('ZADD', q.later, until_ms, lane)
    redis.call('HSET', q.lanes, lane .. ':v', at)
    tell_if_first(q, q.later, lane, until_ms)
  else
    redis.call('ZADD', q.ring, at, lane)
    woken = true
  end
end

local function join(q, lane)
  local set = redis.call('HMGET', q.lanes, lane .. ':w', lane .. ':p', lane .. ':u')
  seat(q, lane, virtual_time(q) + charge(set[1]), set[2], latest(tonumber(set[3]), gathers_until(q, lane)))
end

-- A lane whose settings or jobs changed, or whose instant came (`is_due`): back at max(its own time, V), so that waiting
-- earns no credit.
local function reseat(q, lane, is_due)
  local score = redis.call('ZSCORE', q.ring, lane)
  redis.call('ZREM', q.ring, lane)
  redis.call('ZREM', q.later, lane)
  redis.call('SREM', q.held, lane)
  local set = redis.call('HMGET', q.lanes, lane .. ':v', lane .. ':p', lane .. ':u')
  redis.call('HDEL', q.lanes, lane .. ':v')
  if redis.call('EXISTS', lane_key(q, lane)) == 1 then
    local own = tonumber(score or set[1]) or 0
    local gathers = not is_due and gathers_until(q, lane) or nil
    seat(q, lane, math.max(own, virtual_time(q)), set[2], latest(tonumber(set[3]), gathers))
  end
end

local function reset_if_idle(q)
  if redis.call('EXISTS', q.ring, q.later, q.held) == 0 then redis.call('HDEL', q.meta, 'V') end
end

local function enqueue(q, id, lane, priority)
  local key = lane_key(q, lane)
  pending_delta = pending_delta + redis.call('ZADD', key, priority or 0, id)
  local size, wait_ms = batch_of(q)
  local jobs = redis.call('ZCARD', key)
  if jobs == 1 then
    join(q, lane)
  elseif jobs == size and wait_ms > 0 then
    reseat(q, lane)
  else
    woken = true
  end
end

-- Take one job out of its lane; an emptied lane leaves nothing behind but its settings, and one that gathered for this
-- job gathers for its next.
local function dequeue(q, id, lane)
  local key, _, wait_ms = lane_key(q, lane), batch_of(q)
  pending_delta = pending_delta - redis.call('ZREM', key, id)
  if redis.call('EXISTS', key) == 0 then
    redis.call('ZREM', q.ring, lane)
    redis.call('ZREM', q.later, lane)
    redis.call('SREM', q.held, lane)
    redis.call('HDEL', q.lanes, lane .. ':v')
    reset_if_idle(q)
  elseif wait_ms > 0 then
    reseat(q, lane)
  end
end
