-- List lanes: those that have work, the next to be served first, then those that wait, then idle ones that an operator set.
-- KEYS    job: lane: ring later held named
-- ARGV    limit
-- RETURNS [[lane, as written|nil, ring|later|held|idle, pending, weight, why|nil, until_ms|nil, active|nil, concurrency|nil, rate [n, ms]|nil, started in its window, by hand: letters of w p c r]]
-- FLAGS   no-writes
-- INCLUDE time limits
-- why: paused · concurrency · rate · batch (it gathers one). At most `limit` of each kind. The number of a lane's active jobs
-- is known only if lanes have a limit of concurrency.
local found, limits = {}, lane_limits(q)

local function written_of(lane)
  local id = redis.call('ZRANGE', lane_key(q, lane), 0, 0)[1]
  return id and redis.call('HGET', job_key(q, id), 'ln') or redis.call('HGET', q.named, lane) or false
end

local function why_waits(set, until_ms, ends)
  if not until_ms then return set[2] and 'paused' or 'concurrency' end
  return until_ms == ends and 'rate' or 'batch'
end

local function add(lane, place, until_ms)
  local set = lane_set(q, lane)
  local row = {lane, written_of(lane), place, redis.call('ZCARD', lane_key(q, lane)), weight_of(q, lane, set[1])}
  local rate, ends, started = limits and lane_rate(limits, set) or false, nil, 0
  if rate then ends, started = window_of(rate, set[7]) end
  row[6] = (place == 'later' or place == 'held') and why_waits(set, until_ms, ends)
  row[7] = until_ms and math.max(until_ms - now, 0) or false
  row[8] = counts_active(q) and tonumber(set[6] or 0) or false
  row[9] = limits and lane_concurrency(limits, set) or false
  row[10], row[11] = rate, started
  row[12] = (set[1] and 'w' or '') .. (set[2] and 'p' or '') .. (set[4] and 'c' or '') .. (set[5] and 'r' or '')
  found[#found + 1] = row
end

for _, lane in ipairs(redis.call('ZRANGE', q.ring, 0, limit - 1)) do add(lane, 'ring', nil) end
local later = redis.call('ZRANGE', q.later, 0, limit - 1, 'WITHSCORES')
for i = 1, #later, 2 do add(later[i], 'later', tonumber(later[i + 1])) end
for _, lane in ipairs(redis.call('SRANDMEMBER', q.held, limit)) do add(lane, 'held', nil) end
local named = redis.call('HSCAN', q.named, 0, 'COUNT', limit)[2]
for i = 1, math.min(#named, 2 * limit), 2 do
  if redis.call('EXISTS', lane_key(q, named[i])) == 0 then add(named[i], 'idle', nil) end
end
return found
