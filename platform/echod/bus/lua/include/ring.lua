-- Lanes: which can be served, and at which virtual time.
-- KEYS job: lane: ring later held lanes counted meta
-- INCLUDE limits
--
-- Every non-empty lane is in exactly one of ring, later, held. `held` has paused lanes, and lanes with as many active jobs as
-- they may have: these are back as soon as one job leaves `active`. `later` has lanes that wait for an instant.
-- A lane joins at V + charge(1), V being the virtual time at which the last-served lane was picked. Joining at the ring's
-- minimum instead would let a lane that empties and comes back be served every other turn, for ever, before all others.
-- In a queue with a batch and a batch_wait, a lane with fewer jobs than a batch lies in `later` until its first job has waited
-- for batch_wait.
local TURN = 5040
local pending_delta, woken = 0, false
local left_behind = {}  -- lanes whose first job, for which they gathered, has left them

local function charge(weight) return math.floor(TURN / weight) end

local function virtual_time(q) return tonumber(redis.call('HGET', q.meta, 'V')) or 0 end

-- When the lane's batch window ends, nil if none is open. Only the first FIRSTS jobs are read: a later one can have waited
-- longer only after a retry or by priority, and both end the window. A job of the future (the clock went back) waits from now on.
-- Of the lanes for which a call has no more of MOST_FIRSTS left, it reads the first job alone.
local FIRSTS, MOST_FIRSTS = 32, 500
local firsts_read = 0
local function gathers_until(q, lane)
  local policy = policy_of(q)
  if policy.batch_wait == 0 or redis.call('ZCARD', lane_key(q, lane)) >= policy.batch then return nil end
  local first, ids = nil, redis.call('ZRANGE', lane_key(q, lane), 0, firsts_read < MOST_FIRSTS and FIRSTS - 1 or 0)
  firsts_read = firsts_read + #ids
  for _, id in ipairs(ids) do
    local row = redis.call('HMGET', job_key(q, id), 'w', 'm')
    local since = tonumber(row[1] or row[2])
    if since then first = math.min(first or now, since) end
  end
  return first and first + policy.batch_wait
end

local function latest(one, other) return one and other and math.max(one, other) or one or other end

-- Put a non-empty lane into its place by its settings (`set`: of lane_set), its counts and its jobs, at the virtual time `at`.
-- `gathered`: its batch window is over.
local function seat(q, lane, at, set, gathered)
  local is_held, until_ms, limits = set[2], nil, lane_limits(q)
  if limits then
    local room, ends = lane_room(limits, set)
    if room <= 0 and ends then until_ms = ends elseif room <= 0 then is_held = true end
  end
  if not (is_held or gathered) then until_ms = latest(until_ms, gathers_until(q, lane)) end
  if is_held then
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
  local set = lane_set(q, lane, true)
  seat(q, lane, virtual_time(q) + charge(weight_of(q, lane, set[1])), set)
end

-- Put a lane back after its settings, counts or jobs changed, or after its instant came. It comes at max(its own time, V), so
-- that waiting earns no credit.
local function reseat(q, lane, gathered)
  local score = redis.call('ZSCORE', q.ring, lane)
  redis.call('ZREM', q.ring, lane)
  redis.call('ZREM', q.later, lane)
  redis.call('SREM', q.held, lane)
  local set = lane_set(q, lane)
  redis.call('HDEL', q.lanes, lane .. ':v')
  if redis.call('EXISTS', lane_key(q, lane)) == 1 then
    seat(q, lane, math.max(tonumber(score or set[3]) or 0, virtual_time(q)), set, gathered)
  end
end

-- One job fewer of a lane is active.
local function uncount(q, lane)
  local active, limits = redis.call('HINCRBY', q.lanes, lane .. ':a', -1), lane_limits(q)
  if active <= 0 then redis.call('HDEL', q.lanes, lane .. ':a') end
  -- One that was not full does not wait for this.
  if limits and limits.lc and not limits.own and active + 1 < limits.lc then return end
  if redis.call('SISMEMBER', q.held, lane) == 1 then reseat(q, lane) end
end

local vacated = {}

-- Jobs that are counted no more, in one step. Every caller of vacate must call it, before any of them can be served again.
local function file_vacated(q)
  call_with('HDEL', q.counted, vacated)
  vacated = {}
end

-- A job leaves `active`: its place in a limit is free, and the lanes that wait for one must hear of it. `counted` is the
-- row's `k`.
local function vacate(q, id, counted, lane)
  if counted then
    redis.call('HDEL', job_key(q, id), 'k')
    vacated[#vacated + 1] = id
    uncount(q, lane or '-')
  end
  if is_limited(q) == 1 then woken = true end
end

local function reset_if_idle(q)
  if redis.call('EXISTS', q.ring, q.later, q.held) == 0 then redis.call('HDEL', q.meta, 'V') end
end

local function enqueue(q, id, lane, priority)
  local key = lane_key(q, lane)
  pending_delta = pending_delta + redis.call('ZADD', key, number_in(priority) or 0, id)
  local policy, jobs = policy_of(q), redis.call('ZCARD', key)
  if jobs == 1 then
    join(q, lane)
  elseif jobs == policy.batch and policy.batch_wait > 0 then
    reseat(q, lane)
  else
    woken = true
  end
end

-- Take one job out of its lane. An emptied lane leaves nothing behind but its settings. A lane that gathered for this job
-- gathers for its next one; that is judged at the end of the call, as one call may take many jobs out of a lane.
local function dequeue(q, id, lane)
  local key = lane_key(q, lane)
  pending_delta = pending_delta - redis.call('ZREM', key, id)
  if redis.call('EXISTS', key) == 0 then
    redis.call('ZREM', q.ring, lane)
    redis.call('ZREM', q.later, lane)
    redis.call('SREM', q.held, lane)
    redis.call('HDEL', q.lanes, lane .. ':v')
    reset_if_idle(q)
  elseif policy_of(q).batch_wait > 0 then
    left_behind[lane] = true
  end
end

local function gather_anew(q)
  for lane in pairs(left_behind) do reseat(q, lane) end
  left_behind = {}
end
