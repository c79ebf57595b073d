-- List the lanes that have work, the next to be served first.
-- KEYS    job: lane: ring later held lanes
-- ARGV    limit
-- RETURNS [[lane, as written|nil, ring|later|held, pending, weight|nil, rests_ms|nil]]
-- FLAGS   no-writes
-- INCLUDE time
local found = {}
local function add(lane, seat, rests_ms)
  local id = redis.call('ZRANGE', lane_key(q, lane), 0, 0)[1]
  local written = id and redis.call('HGET', job_key(q, id), 'ln')
  found[#found + 1] = {lane, written or false, seat, redis.call('ZCARD', lane_key(q, lane)),
    redis.call('HGET', q.lanes, lane .. ':w'), rests_ms}
end
for _, lane in ipairs(redis.call('ZRANGE', q.ring, 0, limit - 1)) do add(lane, 'ring', false) end
local later = redis.call('ZRANGE', q.later, 0, limit - 1, 'WITHSCORES')
for i = 1, #later, 2 do add(later[i], 'later', math.max(tonumber(later[i + 1]) - now, 0)) end
for _, lane in ipairs(redis.call('SRANDMEMBER', q.held, limit)) do add(lane, 'held', false) end
return found
