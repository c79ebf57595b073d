-- Serving: lanes in turn by virtual time, a turn one job or one batch; the same outcome taken one by one or at once.
-- KEYS job: lane: ring later held active counted meta lanes windows
--
-- Limits count jobs, a batch's too: a claim, a turn and a batch are cut to the number that may start. One call serves at most
-- MOST_JOBS, MOST_TURNS of batches, and MOST_BYTES of payloads; one batch may exceed them. For the rest the bell rings as for
-- what any claim leaves. Without these bounds a reply could take longer than its leases, so that its jobs would be claimed and
-- lost for ever; and the server would be held up, because a turn of a batch costs more commands than a job.
-- `meta.large` says that the queue has had payloads of which MOST_JOBS are too many bytes.
local MOST_JOBS, MOST_TURNS, MOST_BYTES = 500, 200, 8 * 1024 * 1024
local MOST_ASIDE = 100
local WANTED = {'p', 'a', 'f', 'l', 'ln', 'd', 'm', 'v', 'oc', 'u'}

local function before(a, b) return a.at < b.at or (a.at == b.at and a.name < b.name) end

-- The charges and limits of lanes in the ring. Many are read in one command, because a command each would be most of what a lane
-- costs. Fields that a lane in the ring has no use for (pause, its own virtual time) are not read.
local LANES_ASKED = 500
local function know_lanes(q, lanes)
  local limits, fields = lane_limits(q), {}
  for _, field in ipairs(fields_of(q)) do
    if field ~= 2 then fields[#fields + 1] = field end
  end
  for first = 1, #lanes, LANES_ASKED do
    local asked, last = {}, math.min(first + LANES_ASKED - 1, #lanes)
    for i = first, last do
      for _, field in ipairs(fields) do asked[#asked + 1] = lanes[i].name .. LANE_FIELDS[field] end
    end
    local got = #asked > 0 and redis.call('HMGET', q.lanes, unpack(asked)) or {}
    for i = first, last do
      local set = set_of(fields, got, (i - first) * #fields + 1)
      lanes[i].charge = charge(weight_of(q, lanes[i].name, set[1]))
      if limits then lanes[i].set, lanes[i].most = set, math.max(lane_room(limits, set), 0) end
    end
  end
end

-- The turns whose payloads go into one reply, or the first.
local function cut_to_bytes(q, turns)
  local bytes = 0
  for i, lane in ipairs(turns) do
    lane.ahead = lane.ahead or redis.call('ZRANGE', lane.key, 0, lane.turns - 1)
    lane.weighed = (lane.weighed or 0) + 1
    if lane.ahead[lane.weighed] then bytes = bytes + redis.call('HSTRLEN', job_key(q, lane.ahead[lane.weighed]), 'p') end
    if i > 1 and bytes > MOST_BYTES then
      for last = #turns, i, -1 do
        local cut = table.remove(turns)
        cut.turns, cut.at = cut.turns - 1, cut.at - cut.charge
      end
      return
    end
  end
end

local function size_up(lane) lane.most, lane.is_sized = math.min(lane.most, redis.call('ZCARD', lane.key)), true end

-- Plan the next `count` turns. Their lanes are among the first `count` of the ring, however long the ring is. A lane in the
-- ring has a job; how many is asked before its second turn, as among many lanes most have one turn a claim; or before it jumps
-- the line by its weight, which costs a look at all whom it jumps. `most`: how many may start, as far as known. All the members of a
-- lane are named at once, because a table that grows costs more than it holds.
local function plan_turns(q, count, large)
  local ring_head = redis.call('ZRANGE', q.ring, 0, count - 1, 'WITHSCORES')
  if #ring_head == 0 then return {}, {} end
  local line, lanes = {}, {}
  for i = 1, #ring_head, 2 do
    local lane = {
      name = ring_head[i], at = tonumber(ring_head[i + 1]), key = lane_key(q, ring_head[i]), charge = 0, turns = 0, taken = 0,
      most = math.huge, set = false, ids = false, is_seen = false, is_sized = false
    }
    lanes[#lanes + 1], line[#line + 1] = lane, lane
  end
  know_lanes(q, lanes)
  local turns, ats, head, tail = {}, {}, 1, #line
  while #turns < count and head <= tail do
    local lane = line[head]
    head = head + 1
    lane.is_seen = true
    if lane.turns == 1 and not lane.is_sized then size_up(lane) end
    if lane.turns < lane.most then
      lane.turns = lane.turns + 1
      turns[#turns + 1], ats[#ats + 1] = lane, lane.at
      lane.at = lane.at + lane.charge
    end
    if lane.turns == 1 and not lane.is_sized and head <= tail and before(lane, line[tail]) then size_up(lane) end
    if lane.turns < lane.most then
      tail = tail + 1
      local seat_at = tail
      while seat_at > head and before(lane, line[seat_at - 1]) do
        line[seat_at] = line[seat_at - 1]
        seat_at = seat_at - 1
      end
      line[seat_at] = lane
    end
  end
  if large then cut_to_bytes(q, turns) end
  return turns, lanes, ats[#turns]
end

-- `count` jobs of a lane start: `set` tells it, and count_starts writes it.
local counted, opened = {}, {}
local told_ends, told_text = nil, nil
local function start_in_lane(limits, lane, set, count)
  if limits.lc or limits.own then
    set[6] = (number_in(set[6]) or 0) + count
    counted[#counted + 1] = lane .. ':a'
    counted[#counted + 1] = set[6]
  end
  local rate = lane_rate(limits, set)
  if not rate then return end
  local ends, started = window_of(rate, set[7])
  if not ends then
    ends = now + rate[2]
    opened[#opened + 1] = ends
    opened[#opened + 1] = lane
  end
  if told_ends ~= ends then told_ends, told_text = ends, text(ends) .. ' ' end
  set[7] = told_text .. (started + count)
  counted[#counted + 1] = lane .. ':s'
  counted[#counted + 1] = set[7]
end

local function count_starts(q)
  call_with('HSET', q.lanes, counted)
  call_with('ZADD', q.windows, opened)
  counted, opened = {}, {}
end

-- `count` jobs of the queue start.
local function start(q, count)
  local limits = policy_of(q).limits
  if count == 0 or not limits or not limits.r then return end
  local ends, started = window_of(limits.r, redis.call('HGET', q.meta, 'window'))
  redis.call('HSET', q.meta, 'window', text(ends or now + limits.r[2]) .. ' ' .. (started + count))
end

local function why_blocked(q)
  local later = redis.call('ZRANGE', q.later, 0, 0, 'WITHSCORES')
  -- Its instant has come, but no pump has ticked yet: ask again soon, but not in a loop.
  if #later > 0 then return 'capped', math.max(tonumber(later[2]) - now, ASK_AGAIN_MS) end
  for _, lane in ipairs(redis.call('SRANDMEMBER', q.held, 10)) do
    if not redis.call('HGET', q.lanes, lane .. ':p') then return 'capped', false end
  end
  if redis.call('EXISTS', q.held) == 1 then return 'paused', false end
  return 'empty', false
end

-- Lanes by the jobs that are counted in them: of a row that is gone, nobody else knows whose place was taken.
local marked = {}

local function file_leases(q, leases)
  call_with('ZADD', q.active, leases)
  call_with('HSET', q.counted, marked)
  marked = {}
end

-- `turn` is the job's batch, nil in a queue without batches. Answers the bytes of the payload, nil if its row was gone.
local function lease_out(q, id, lane, lease_end, holder, jobs, leases, turn)
  local key, is_counted = job_key(q, id), counts_active(q)
  local row = redis.call('HMGET', key, unpack(WANTED))
  if not row[1] then
    bury_missing(q, id)
    if is_counted then uncount(q, lane) end
    return nil
  end
  local attempts = (tonumber(row[2]) or 0) + 1
  if is_counted then
    redis.call('HSET', key, 's', 'a', 'a', attempts, 'h', holder, 'k', 1)
    marked[#marked + 1] = id
    marked[#marked + 1] = lane
  else
    redis.call('HSET', key, 's', 'a', 'a', attempts, 'h', holder)
  end
  free_unique(q, id, row[10], 's')
  leases[#leases + 1] = lease_end
  leases[#leases + 1] = id
  jobs[#jobs + 1] = {id, attempts, holder, row[3], row[1], row[5] or row[4], row[6], row[7], row[8], row[9], turn}
  return #row[1]
end

-- One turn of a lane: a batch of its jobs, as far as their payloads fit. All are counted before any is leased; otherwise a job
-- whose row is gone would be subtracted before it was added.
local function take_batch(q, lane, set, size, lease_end, holder, jobs, leases, turn)
  local popped = redis.call('ZPOPMIN', lane_key(q, lane), size)
  local taken, bytes, limits = 0, 0, lane_limits(q)
  while taken < #popped / 2 and bytes < MOST_BYTES do
    if limits then
      start_in_lane(limits, lane, set, 1)
      count_starts(q)
    end
    local size = lease_out(q, popped[taken * 2 + 1], lane, lease_end, holder, jobs, leases, turn)
    if not size and counts_active(q) then set[6] = set[6] - 1 end
    bytes, taken = bytes + (size or 0), taken + 1
  end
  for i = taken * 2 + 1, #popped, 2 do redis.call('ZADD', lane_key(q, lane), popped[i + 1], popped[i]) end
  pending_delta = pending_delta - taken
  return taken, bytes
end

local function serve_batches(q, count, size, room, lease_end, holder)
  local jobs, leases, turn, started, bytes, aside, limits = {}, {}, 0, 0, 0, 0, lane_limits(q)
  count = math.min(count, MOST_TURNS)
  while turn < count and #jobs < MOST_JOBS and bytes < MOST_BYTES and started < room and aside < MOST_ASIDE do
    local head = redis.call('ZRANGE', q.ring, 0, 0, 'WITHSCORES')
    if #head == 0 then break end
    local lane, at = head[1], tonumber(head[2])
    local set = lane_set(q, lane, true)
    local most = math.min(size, room - started)
    if limits then most = math.min(most, (lane_room(limits, set))) end
    if most <= 0 then
      aside = aside + 1
      reseat(q, lane)
    else
      turn = turn + 1
      local taken, more = take_batch(q, lane, set, most, lease_end, holder, jobs, leases, turn)
      started, bytes = started + taken, bytes + more
      redis.call('HSET', q.meta, 'V', at)
      redis.call('ZREM', q.ring, lane)
      if redis.call('EXISTS', lane_key(q, lane)) == 1 then
        seat(q, lane, at + math.floor(taken * TURN / weight_of(q, lane, set[1])), set)
      else
        reset_if_idle(q)
      end
    end
  end
  start(q, started)
  file_leases(q, leases)
  return jobs, turn
end

-- Which of these lanes have a job left; nearly always all have, or none.
local function know_left(lanes)
  local keys = {}
  for i, lane in ipairs(lanes) do keys[i] = lane.key end
  local left = #keys > 0 and redis.call('EXISTS', unpack(keys)) or 0
  for _, lane in ipairs(lanes) do
    lane.is_left = left == #keys or left > 0 and redis.call('EXISTS', lane.key) == 1
  end
end

-- Take the jobs of planned turns out of their lanes, and answer how many they are: fewer than planned if a lane in the ring had
-- none. A lane that may start no more jobs leaves the ring.
local function take_turns(q, lanes, picked_at)
  local seen, stay, gone, full, taken, limits = {}, {}, {}, {}, 0, lane_limits(q)
  for _, lane in ipairs(lanes) do
    if lane.turns > 0 then
      lane.ids = redis.call('ZPOPMIN', lane.key, lane.turns)
      local count = #lane.ids / 2
      taken = taken + count
      if limits and count > 0 then start_in_lane(limits, lane.name, lane.set, count) end
    end
    if lane.is_seen then seen[#seen + 1] = lane end
  end
  know_left(seen)
  for _, lane in ipairs(seen) do
    if not lane.is_left then
      gone[#gone + 1] = lane.name
    elseif lane.turns == lane.most then
      full[#full + 1] = lane
    else
      stay[#stay + 1] = lane.at
      stay[#stay + 1] = lane.name
    end
  end
  count_starts(q)
  call_with('ZADD', q.ring, stay)
  call_with('ZREM', q.ring, gone)
  for _, lane in ipairs(full) do
    redis.call('ZREM', q.ring, lane.name)
    seat(q, lane.name, lane.at, lane.set)
    -- The lane was full already: its planned turns go to another lane, whose claimer may not have been told.
    if lane.turns == 0 then woken = true end
  end
  if taken > 0 then redis.call('HSET', q.meta, 'V', picked_at) end
  if #gone > 0 then reset_if_idle(q) end
  pending_delta = pending_delta - taken
  start(q, taken)
  return taken
end

local function serve_singly(q, count, lease_end, holder, large)
  local turns, lanes, picked_at, taken, aside = {}, {}, 0, 0, 0
  repeat
    turns, lanes, picked_at = plan_turns(q, count, large)
    taken = take_turns(q, lanes, picked_at)
    aside = aside + #lanes
  until taken > 0 or #lanes == 0 or aside >= MOST_ASIDE
  local jobs, leases = {}, {}
  for _, lane in ipairs(turns) do
    lane.taken = lane.taken + 1
    local id = lane.ids[lane.taken * 2 - 1]
    if id then lease_out(q, id, lane.name, lease_end, holder, jobs, leases) end
  end
  file_leases(q, leases)
  return jobs, taken
end

-- Serve up to `count` turns under a lease. Answers their jobs, why there are none, and in how many milliseconds to ask again.
local function serve(q, count, lease_ms, holder)
  local state = redis.call('HMGET', q.meta, 'paused', 'lease', 'large')
  if state[1] then return {}, 'paused', false end
  if state[2] ~= text(lease_ms) then redis.call('HSET', q.meta, 'lease', lease_ms) end
  local room, ends = queue_room(q)
  if room <= 0 then
    if redis.call('EXISTS', q.ring) == 0 then return {}, why_blocked(q) end
    return {}, 'capped', ends and ends - now or false
  end
  local batch, jobs, turns = policy_of(q).batch, nil, nil
  if batch then
    jobs, turns = serve_batches(q, count, batch, room, now + lease_ms, holder)
  else
    jobs, turns = serve_singly(q, math.min(count, room, MOST_JOBS), now + lease_ms, holder, state[3])
  end
  free_waiters(q)
  if turns > 0 then return jobs, false, false end
  if redis.call('EXISTS', q.ring) == 1 then return {}, 'capped', ASK_AGAIN_MS end
  return {}, why_blocked(q)
end

-- Note which runs have begun: these are charged when their lease is lost, the others are not. A hold's fourth member is the
-- instant of the start, for people to read: a driven clock may have moved since.
local function mark_begun(q, begun)
  for _, hold in ipairs(begun) do
    local key = job_key(q, hold[1])
    local row = redis.call('HMGET', key, 's', 'a', 'h', 'b')
    if row[1] == 'a' and tonumber(row[2]) == hold[2] and row[3] == hold[3] and row[4] ~= row[2] then
      redis.call('HSET', key, 'b', hold[2], 'st', math.min(hold[4] or now, now))
    end
  end
end
