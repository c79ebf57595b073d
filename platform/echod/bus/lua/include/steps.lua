-- Steps of the server's clock, and outages: what is on hold after them.
-- KEYS global.hold
-- INCLUDE time
--
-- If the server's clock went forward by more than a lease, or the server was out of reach, holders had no chance to renew: for
-- one lease more nothing is recovered. A pump that was merely silent is no reason: its own monotonic time passed as well.
-- Leases that expired before the outage are recovered at once; else flapping connections could postpone recovery for ever.
-- A step is on record for as long as it is long, an hour at most: it matters to leases that are shorter, and to them for one lease.
-- Queues differ in their leases, so a small step must not end the hold of a large one.
-- A pump at its first tick knows no time: if no pump has beaten for longer than pumps do, that is an outage, too; and so is a
-- last beat in the future, for TIME went back, and who knows where it was meanwhile.
-- `hold` has steps [at, by ms, since: leases that end from here on are on hold] and `seen`: a pump's last beat, or its last look
-- that noticed a step, were it one back.
local OUTAGE_STEP_MS, SILENCE_MS, STEP_KEPT_MS, STEPS_KEPT, SAME_MS = 2 ^ 50, 25000, 3600000, 16, 1000

-- What is on record. If TIME has gone back since, perhaps by less than the step, a record counts from now on.
local function known_steps()
  local packed, went_back = redis.call('HGET', g.hold, 'steps'), false
  local steps = packed and cmsgpack.unpack(packed) or {}
  for _, each in ipairs(steps) do
    if each[1] > now then each[1], went_back = now, true end
  end
  if went_back then redis.call('HSET', g.hold, 'steps', cmsgpack.pack(steps)) end
  return steps
end

-- Ticks of many queues leave together, and all of them see one step. Of one silence all tell who look, for as long as it lasts. Of
-- too many before this one the outage goes that was told longest ago, or else the smallest step: only a step puts live leases far into
-- the past.
local function record_step(step, since)
  local steps, is_known = {}, false
  local before = since > 0 and math.min(since, now) or now
  for _, each in ipairs(known_steps()) do
    local is_same = (since > SAME_MS or now - each[1] <= SAME_MS) and math.abs(each[3] - since) <= SAME_MS
    if not is_known and is_same then
      each[1], each[2], each[3], is_known = now, math.max(each[2], step), math.min(each[3], since), true
      steps[#steps + 1] = each
    elseif before < each[1] + math.min(each[2], STEP_KEPT_MS) then
      steps[#steps + 1] = each
    end
  end
  if not is_known then steps[#steps + 1] = {now, step, since} end
  if #steps > STEPS_KEPT then
    local least = 1
    for i = 2, STEPS_KEPT do
      local by, least_by = steps[i][2] % OUTAGE_STEP_MS, steps[least][2] % OUTAGE_STEP_MS
      if by < least_by or by == least_by and steps[i][1] < steps[least][1] then least = i end
    end
    table.remove(steps, least)
  end
  redis.call('HSET', g.hold, 'steps', cmsgpack.pack(steps))
end

-- The last beat of a pump, if TIME is far from it.
local function silent_since()
  local seen = tonumber(redis.call('HGET', g.hold, 'seen'))
  return seen and math.abs(now - seen) > SILENCE_MS and seen
end

-- Answers the step in ms, -1 for an outage, 0 for a step too small to mention. An outage began when the caller last looked, or at
-- `seen` where TIME has gone back since, as another pump has noticed; nobody knows when if that is still ahead.
local function note_step(expected_ms)
  local step, since, seen = now - expected_ms, 0, silent_since()
  if expected_ms == 0 then
    if not seen then return 0 end
    step, since = OUTAGE_STEP_MS, seen > now and 1 or seen
  else
    if expected_ms < 0 then
      step, since = OUTAGE_STEP_MS, -expected_ms
      if seen and since - seen > SILENCE_MS then since = seen end
      if since > now then since = 1 end
    end
    if math.abs(step) > 1000 then redis.call('HSET', g.hold, 'seen', now) end
  end
  if step < 0 then known_steps() end
  if step <= 1000 then return 0 end
  record_step(step, since)
  return step == OUTAGE_STEP_MS and -1 or step
end

-- The earliest end of a lease that is on hold now, nil where none is; and for how long.
-- An outage that began within the hold of a step holds all, as the step did: TIME may have stepped over that hold meanwhile.
-- A pump that noticed the step may have looked just before another one did, which moved `at`. An outage of which nobody knows when
-- it began counts as a step. One within the hold of another outage does not hold all, or flapping connections could postpone
-- recovery for ever.
local function held_from(lease_ms)
  local from, left, stepped = nil, nil, {}
  for _, each in ipairs(known_steps()) do
    local at, step, since = each[1], each[2], each[3]
    if step > lease_ms then
      if step < OUTAGE_STEP_MS or since <= 1 then stepped[#stepped + 1] = at end
      for _, one in ipairs(stepped) do
        if one - SAME_MS <= since and since < one + lease_ms then since = 0 end
      end
      if now < at + lease_ms then
        from, left = math.min(from or math.huge, since), math.max(left or 0, at + lease_ms - now)
      end
    end
  end
  return from, left
end

-- Whether TIME has stepped within so long: who has not been heard of since may be alive.
local function has_stepped_within(ms)
  for _, each in ipairs(known_steps()) do
    if now < each[1] + ms then return true end
  end
  return false
end
