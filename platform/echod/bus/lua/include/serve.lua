-- Serving: lanes in turn by virtual time, a turn one job or one batch; the same outcome taken one by one or at once.
-- KEYS job: lane: ring later held active dead meta lanes
local MOST_JOBS, BATCH_BYTES, ASK_AGAIN_MS = 1000, 8 * 1024 * 1024, 20
local WANTED = {'p', 'a', 'f', 'l', 'ln', 'd', 'm', 'v', 'oc', 'u'}

local function before(a, b) return a.at < b.at or (a.at == b.at and a.name < b.name) end

-- Which lanes serve the next `count` turns: a lane served in them is among the `count` first of the ring, whatever its length.
local function plan_turns(q, count)
  local ring_head = redis.call('ZRANGE', q.ring, 0, count - 1, 'WITHSCORES')
  if #ring_head == 0 then return {}, {} end
  local line, lanes, asked = {}, {}, {}
  for i = 1, #ring_head, 2 do
    local lane = {name = ring_head[i], at = tonumber(ring_head[i + 1]), turns = 0}
    lanes[#lanes + 1], line[#line + 1], asked[#asked + 1] = lane, lane, lane.name .. ':w'
  end
  local weights = redis.call('HMGET', q.lanes, unpack(asked))
  for i, lane in ipairs(lanes) do lane.charge = charge(weights[i]) end
  local turns, head, tail, picked_at = {}, 1, #line, 0
  while #turns < count and head <= tail do
    local lane = line[head]
    head = head + 1
    picked_at = lane.at
    lane.size = lane.size or redis.call('ZCARD', lane_key(q, lane.name))
    if lane.turns < lane.size then
      lane.turns = lane.turns + 1
      turns[#turns + 1] = lane
      lane.at = lane.at + lane.charge
    end
    if lane.turns < lane.size then
      tail = tail + 1
      local seat_at = tail
      while seat_at > head and before(lane, line[seat_at - 1]) do
        line[seat_at] = line[seat_at - 1]
        seat_at = seat_at - 1
      end
      line[seat_at] = lane
    end
  end
  return turns, lanes, picked_at
end

local function why_blocked(q)
  local later = redis.call('ZRANGE', q.later, 0, 0, 'WITHSCORES')
  -- Where its instant has come no pump has ticked yet: soon, but not in a loop.
  if #later > 0 then return 'capped', math.max(tonumber(later[2]) - now, ASK_AGAIN_MS) end
  if redis.call('EXISTS', q.held) == 1 then return 'paused', false end
  return 'empty', false
end

-- A row that an eviction took: its job ends in the morgue rather than running with nothing.
local function bury_missing(q, id)
  local cause = cmsgpack.pack({type = 'Missing', message = 'the row was gone: evicted or deleted', cause = 'missing'})
  redis.call('HSET', job_key(q, id), 'm', now, 's', 'x', 'e', now, 'er', cause)
  redis.call('ZADD', q.dead, now, id)
  count('dead')
end

-- `turn`: the batch it is claimed in, nil in a queue without. Answers the payload's bytes.
local function lease_out(q, id, lease_end, holder, jobs, leases, turn)
  local key = job_key(q, id)
  local row = redis.call('HMGET', key, unpack(WANTED))
  if not row[1] then
    bury_missing(q, id)
    return 0
  end
  local attempts = (tonumber(row[2]) or 0) + 1
  redis.call('HSET', key, 's', 'a', 'a', attempts, 'h', holder)
  free_unique(q, id, row[10], 's')
  leases[#leases + 1] = lease_end
  leases[#leases + 1] = id
  jobs[#jobs + 1] = {id, attempts, holder, row[3], row[1], row[5] or row[4], row[6], row[7], row[8], row[9], turn}
  return #row[1]
end

-- One turn of a lane: a batch of its jobs, as far as their payloads fit into one; how many those were.
local function take_batch(q, lane, size, lease_end, holder, jobs, leases, turn)
  local popped = redis.call('ZPOPMIN', lane_key(q, lane), size)
  local taken, bytes = 0, 0
  while taken < #popped / 2 and (taken == 0 or bytes < BATCH_BYTES) do
    bytes = bytes + lease_out(q, popped[taken * 2 + 1], lease_end, holder, jobs, leases, turn)
    taken = taken + 1
  end
  for i = taken * 2 + 1, #popped, 2 do redis.call('ZADD', lane_key(q, lane), popped[i + 1], popped[i]) end
  pending_delta = pending_delta - taken
  return taken
end

local function serve_batches(q, count, size, lease_end, holder)
  local jobs, leases, turn = {}, {}, 0
  while turn < count and #jobs < MOST_JOBS do
    local head = redis.call('ZRANGE', q.ring, 0, 0, 'WITHSCORES')
    if #head == 0 then break end
    turn = turn + 1
    local lane, at = head[1], tonumber(head[2])
    local taken = take_batch(q, lane, size, lease_end, holder, jobs, leases, turn)
    local weight = tonumber(redis.call('HGET', q.lanes, lane .. ':w')) or 1
    redis.call('HSET', q.meta, 'V', at)
    redis.call('ZREM', q.ring, lane)
    if redis.call('EXISTS', lane_key(q, lane)) == 1 then
      seat(q, lane, at + math.floor(taken * TURN / weight), false, gathers_until(q, lane))
    else
      reset_if_idle(q)
    end
  end
  if turn == 0 then return {}, why_blocked(q) end
  if #leases > 0 then redis.call('ZADD', q.active, unpack(leases)) end
  return jobs, false, false
end

-- Up to `count` turns under a lease: their jobs, why there are none, and in how many milliseconds to ask again.
local function serve(q, count, lease_ms, holder)
  local state = redis.call('HMGET', q.meta, 'paused', 'lease')
  if state[1] then return {}, 'paused', false end
  if state[2] ~= text(lease_ms) then redis.call('HSET', q.meta, 'lease', lease_ms) end
  local batch = batch_of(q)
  if batch then return serve_batches(q, count, batch, now + lease_ms, holder) end
  local turns, lanes, picked_at = plan_turns(q, count)
  if #turns == 0 then return {}, why_blocked(q) end
  local stay, gone = {}, {}
  for _, lane in ipairs(lanes) do
    if lane.size then
      lane.ids, lane.taken = redis.call('ZPOPMIN', lane_key(q, lane.name), math.max(lane.turns, 1)), 0
      if lane.turns < lane.size then
        stay[#stay + 1] = lane.at
        stay[#stay + 1] = lane.name
      else
        gone[#gone + 1] = lane.name
      end
    end
  end
  if #stay > 0 then redis.call('ZADD', q.ring, unpack(stay)) end
  if #gone > 0 then redis.call('ZREM', q.ring, unpack(gone)) end
  redis.call('HSET', q.meta, 'V', picked_at)
  if #gone > 0 then reset_if_idle(q) end
  pending_delta = pending_delta - #turns
  local jobs, leases = {}, {}
  for _, lane in ipairs(turns) do
    lane.taken = lane.taken + 1
    lease_out(q, lane.ids[lane.taken * 2 - 1], now + lease_ms, holder, jobs, leases)
  end
  if #leases > 0 then redis.call('ZADD', q.active, unpack(leases)) end
  return jobs, false, false
end

-- Jobs whose run was begun are charged when their lease is lost; the others are not. A hold's fourth is when that was, for people:
-- a driven clock may have moved since.
local function mark_begun(q, begun)
  for _, hold in ipairs(begun) do
    local key = job_key(q, hold[1])
    local row = redis.call('HMGET', key, 's', 'a', 'h', 'b')
    if row[1] == 'a' and tonumber(row[2]) == hold[2] and row[3] == hold[3] and row[4] ~= row[2] then
      redis.call('HSET', key, 'b', hold[2], 'st', math.min(hold[4] or now, now))
    end
  end
end
