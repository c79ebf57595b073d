-- Set a queue or a lane by hand: pause, weight, limits. A setting holds until it is set back, whatever the code says.
-- KEYS    lanes meta named
-- ARGV    lane written changes call
-- RETURNS ok
-- ERRORS  WHAT a setting that a queue, or a lane, does not have
-- FLAGS   allow-oom
-- INCLUDE time counters news ring bell close judge again
-- lane '': the queue; `written` is how people write the lane. `changes` is msgpack: [[what, value]]; value false sets back.
-- paused true · weight 1–100 (a queue's: of its lanes without one of their own) · concurrency n · rate [n, ms] ·
-- of a queue lane_concurrency n, lane_rate [n, ms]. '-' lifts a limit that code, or the queue, has.
local before = answered(q, call)
if before then return before end
local QUEUE = {paused = 'paused', weight = 'w', concurrency = 'c', rate = 'r', lane_concurrency = 'lc', lane_rate = 'lr'}
local LANE = {paused = ':p', weight = ':w', concurrency = ':c', rate = ':r'}
local fields = lane == '' and QUEUE or LANE
local unpacked = cmsgpack.unpack(changes)
for _, change in ipairs(unpacked) do
  if not fields[change[1]] then
    return redis.error_reply('WHAT ' .. (lane == '' and 'a queue' or 'a lane') .. ' has no setting ' .. change[1])
  end
end

local function has_limits()
  local own = redis.call('HMGET', q.lanes, lane .. ':c', lane .. ':r')
  return own[1] or own[2]
end

local function set_queue()
  local hand = redis.call('HGET', q.meta, 'hand')
  hand = hand and cmsgpack.unpack(hand) or {}
  local is_of_lanes = false
  for _, change in ipairs(unpacked) do
    local name, value = fields[change[1]], change[2]
    if name == 'paused' then
      if value then redis.call('HSET', q.meta, 'paused', 1) else redis.call('HDEL', q.meta, 'paused') end
    else
      hand[name] = value ~= '-' and (value or nil)
      is_of_lanes = is_of_lanes or name == 'lc' or name == 'lr'
    end
  end
  local is_any = false
  for _ in pairs(hand) do is_any = true end
  if is_any then redis.call('HSET', q.meta, 'hand', cmsgpack.pack(hand)) else redis.call('HDEL', q.meta, 'hand') end
  apply_limits(q)
  if is_of_lanes then judge_from(q, 'active') end
  woken = true
end

local function set_lane()
  local had = has_limits()
  for _, change in ipairs(unpacked) do
    local what, value = change[1], change[2]
    local field = lane .. fields[what]
    if what == 'rate' and value and value ~= '-' then value = value[1] .. ' ' .. text(value[2]) end
    if value then
      redis.call('HSET', q.lanes, field, value == true and 1 or value)
    else
      redis.call('HDEL', q.lanes, field)
    end
  end
  local has = has_limits()
  if (has and 1 or 0) ~= (had and 1 or 0) then
    if redis.call('HINCRBY', q.meta, 'own', has and 1 or -1) == 0 then redis.call('HDEL', q.meta, 'own') end
    apply_limits(q)
    judge_from(q, 'active')
  end
  if has or redis.call('HGET', q.lanes, lane .. ':w') or redis.call('HGET', q.lanes, lane .. ':p') then
    redis.call('HSET', q.named, lane, written)
  else
    redis.call('HDEL', q.named, lane)
  end
  reseat(q, lane)
end

if lane == '' then set_queue() else set_lane() end
judge_lanes(q)
close(q)
return answer(q, call, 'ok')
