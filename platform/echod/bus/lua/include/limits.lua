-- Limits: how many jobs of a queue, or of one of its lanes, may be active, and how many of them may start in a window.
-- KEYS active lanes meta named
--
-- `meta.limits` has the limits in force, and is absent if there are none: c active jobs, r starts [n, ms], lc and lr the same
-- of each lane, w the lanes' weight, ws weights by lane, own: how many lanes have limits of their own.
-- `meta.window` and `<lane>:s` are windows as 'end started'. A window begins with the first start in it. A window that would
-- begin in the future (the clock went back), or that has another length, counts as over: no step of the clock wedges anything.
local ASK_AGAIN_MS = 20
local LANE_FIELDS = {':w', ':p', ':v', ':c', ':r', ':a', ':s'}
local policies = {}

-- The part of a queue's policy by which lanes are served: batch (nil: none), batch_wait, limits (nil: none), judge.
local function policy_of(q)
  local policy = policies[q.base]
  if not policy then
    local meta = redis.call('HMGET', q.meta, 'batch', 'batch_wait', 'limits', 'judge')
    policy = {batch = tonumber(meta[1]), batch_wait = tonumber(meta[2]) or 0, judge = meta[4]}
    if meta[3] then
      local limits = cmsgpack.unpack(meta[3])
      limits.of_lanes = limits.lc or limits.lr or limits.own
      policy.limits = limits
    end
    policies[q.base] = policy
  end
  return policy
end

-- The limits, if any of them is of lanes.
local function lane_limits(q)
  local limits = policy_of(q).limits
  return limits and limits.of_lanes and limits
end

-- Whether more than weights is set: then a claimer takes no more jobs than it can start at once.
local function is_limited(q)
  local limits = policy_of(q).limits
  return limits and (limits.c or limits.r or limits.of_lanes) and 1 or 0
end

local function weight_of(q, lane, own)
  local limits = policy_of(q).limits
  return number_in(own) or limits and (limits.ws and limits.ws[lane] or limits.w) or 1
end

-- Whether the active jobs of lanes are counted: only if a limit asks for their number.
local function counts_active(q)
  local limits = lane_limits(q)
  return limits and (limits.lc or limits.own)
end

-- The fields of LANE_FIELDS worth reading for this queue, without the virtual time: each one skipped saves a memory access in
-- a hash of all lanes. An operator's fields exist only if `named` does.
local function fields_of(q)
  local policy, limits = policy_of(q), lane_limits(q)
  if not policy.fields then
    local is_named, own, fields = redis.call('EXISTS', q.named) == 1, limits and limits.own, {}
    local has = {is_named, is_named, false, own, own, counts_active(q), limits and (limits.lr or own)}
    for field = 1, #LANE_FIELDS do
      if has[field] then fields[#fields + 1] = field end
    end
    policy.fields = fields
  end
  return policy.fields
end

-- One lane's fields by their place in LANE_FIELDS: `got` has them in the order of `fields`, from `first` on.
local function set_of(fields, got, first)
  local set = {false, false, false, false, false, false, false}
  for i, field in ipairs(fields) do set[field] = got[first + i - 1] end
  return set
end

-- A lane's weight, pause and virtual time; if lanes are limited, also its own concurrency and rate, active jobs and window.
-- `is_new`: the lane has no virtual time yet.
local function lane_set(q, lane, is_new)
  local fields, asked = fields_of(q), {}
  for i, field in ipairs(fields) do asked[i] = lane .. LANE_FIELDS[field] end
  if not is_new then asked[#asked + 1] = lane .. ':v' end
  if #asked == 0 then return {} end
  local got = redis.call('HMGET', q.lanes, unpack(asked))
  local set = set_of(fields, got, 1)
  if not is_new then set[3] = got[#asked] end
  return set
end

-- When the open window ends (nil: none is open), and how many jobs started in it.
local function window_of(rate, written)
  if not written then return nil, 0 end
  local ends, started = string.match(written, '(%d+) (%d+)')
  ends = tonumber(ends)
  if not ends or ends <= now or ends - now > rate[2] then return nil, 0 end
  return ends, tonumber(started)
end

-- A lane's own limit comes before that of all lanes; '-' means no limit, whatever the others have.
local function lane_concurrency(limits, set)
  if set[4] then return number_in(set[4]) end
  return limits.lc
end

local function lane_rate(limits, set)
  if not set[5] then return limits.lr end
  local count, period_ms = string.match(set[5], '(%d+) (%d+)')
  return count and {tonumber(count), tonumber(period_ms)}
end

-- How many jobs of a lane may start; if none may, until when (nil: until one of its jobs leaves `active`).
local function lane_room(limits, set)
  local room, most, rate = math.huge, lane_concurrency(limits, set), lane_rate(limits, set)
  if most then room = most - (number_in(set[6]) or 0) end
  if room <= 0 or not rate then return room, nil end
  local ends, started = window_of(rate, set[7])
  return math.min(room, rate[1] - started), ends
end

-- How many jobs of a queue may start; if none may, until when (nil: until one of its jobs leaves `active`).
local function queue_room(q)
  local policy = policy_of(q)
  local limits = policy.limits
  if not limits then return math.huge, nil end
  -- The active jobs of lanes are being counted: no job starts on an incomplete count.
  if limits.of_lanes and string.match(policy.judge or '', '^active') then return 0, now + ASK_AGAIN_MS end
  local room, ends, started = math.huge, nil, nil
  if limits.c then room = limits.c - redis.call('ZCARD', q.active) end
  if limits.r then
    ends, started = window_of(limits.r, redis.call('HGET', q.meta, 'window'))
    if started < limits.r[1] then ends = nil end
    room = math.min(room, limits.r[1] - started)
  end
  return room, ends
end
