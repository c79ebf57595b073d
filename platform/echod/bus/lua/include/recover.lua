-- What is due in a queue: scheduled jobs, lanes that wait for an instant, leases that ended; and when something is due next.
-- KEYS job: schedule later active counted repeat repeat: ring meta global.hold
-- INCLUDE judge
local UNBEGUN_LIMIT = 10
local DEFAULT_RETRIES, DEFAULT_LEASE_MS = 3, 15000

local function promote(q, limit)
  local ids = redis.call('ZRANGEBYSCORE', q.schedule, '-inf', now, 'LIMIT', 0, limit)
  for _, id in ipairs(ids) do
    redis.call('ZREM', q.schedule, id)
    local row = redis.call('HMGET', job_key(q, id), 'l', 'pr')
    make_pending(q, id, row[1], row[2])
  end
  local lanes = redis.call('ZRANGEBYSCORE', q.later, '-inf', now, 'LIMIT', 0, limit)
  for _, lane in ipairs(lanes) do reseat(q, lane, true) end
  return #ids, #ids == limit or #lanes == limit
end

-- As policy/backoff.py: full jitter over min(cap, base * 2^(failures - 1)); linear; constant; list, whose last repeats.
local function wait_of(backoff, failures, roll)
  if backoff.type == 'constant' then return backoff.wait_ms end
  if backoff.type == 'linear' then return math.min(backoff.cap_ms, backoff.base_ms * failures) end
  if backoff.type == 'list' then
    local waits = backoff.waits_ms
    return waits[math.min(failures, #waits)] or 0
  end
  return math.floor(roll * math.min(backoff.cap_ms or 600000, (backoff.base_ms or 500) * 2 ^ (failures - 1)))
end

-- By the default where nobody can read what was asked for.
local function backoff_ms(q, failures, roll)
  local packed = redis.call('HGET', q.meta, 'backoff')
  local is_read, wait = pcall(function() return wait_of(cmsgpack.unpack(packed), failures, roll) + 0 end)
  return is_read and wait or wait_of({type = 'exponential'}, failures, roll)
end

-- A lease has ended. A job that had begun is charged, cause `lost`; one that had not goes back uncharged, but not for ever.
-- Whatever its row has: one job that broke a tick off would break off every pump's beats.
local function lose(q, id, roll)
  local got = redis.call('HMGET', job_key(q, id), 'a', 'b', 'f', 'n', 'l', 'pr', 'x', 'y', 'st', 'w', 'm', 'k', unpack(ENDING))
  local row = ending(got, 13)
  if not got[1] then
    local lane = redis.call('HGET', q.counted, id)
    redis.call('ZREM', q.active, id)
    bury_missing(q, id)
    return vacate(q, id, lane, lane)
  end
  local begun = got[2] == got[1]
  local history = got[8]
  if begun then
    local started = tonumber(got[9]) or now
    local run = cmsgpack.pack({'', '', started, now, 0, 0, false})
    history = chronicle(history, {tonumber(got[1]) or 0, 'lost', 'lost', math.max(started - (tonumber(got[10] or got[11]) or started), 0), run})
  end
  local failures, losses = (tonumber(got[3]) or 0) + (begun and 1 or 0), (tonumber(got[4]) or 0) + (begun and 0 or 1)
  local retries = tonumber(redis.call('HGET', q.meta, 'retries')) or DEFAULT_RETRIES
  local dies = begun and failures > retries or losses > UNBEGUN_LIMIT
  local due = begun and not dies and now + backoff_ms(q, failures, roll)
  redis.call('ZREM', q.active, id)
  vacate(q, id, got[12], got[5])
  count('lost')
  if got[7] then
    count('cancelled')
    return make_ended(q, id, 'c', row, history and {'y', history} or {})
  end
  if begun then count('failed') end
  if dies then
    local message = begun and 'its lease ended: the node that ran it died or was cut off' or 'its lease ended before the start, too often'
    local error_value = cmsgpack.pack({type = 'Lost', message = message, cause = 'lost'})
    count('dead')
    local more = {'f', failures, 'n', losses, 'er', error_value}
    if history then more[7], more[8] = 'y', history end
    return make_ended(q, id, 'x', row, more)
  end
  if begun then
    redis.call('HSET', job_key(q, id), 'f', failures, 'y', history)
    count('retried')
    make_scheduled(q, id, due, 'retry', got[5], got[6])
  else
    redis.call('HSET', job_key(q, id), 'n', losses)
    make_pending(q, id, got[5], got[6])
  end
end

-- If the server's clock went forward by more than a lease, or the server was out of reach, holders had no chance to renew: for
-- one lease more nothing is recovered. A pump that was merely silent is no reason: its own monotonic time passed as well.
-- Leases that expired before the outage are recovered at once; else flapping connections could postpone recovery for ever.
-- A step is on record for as long as it is long, an hour at most: it matters to leases that are shorter, and to them for one lease.
-- Queues differ in their leases, so a small step must not end the hold of a large one.
-- A pump at its first tick knows no time: if no pump has beaten for longer than pumps do, that is an outage, too; and so is a
-- last beat in the future, for TIME went back, and who knows where it was meanwhile.
-- `hold` has steps [at, by ms, since: leases that end from here on are on hold] and `seen`: a pump's last beat.
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

-- Ticks of many queues leave together, and all of them see one step.
local function record_step(step, since)
  local steps, is_known = {}, false
  local before = since > 0 and math.min(since, now) or now
  for _, each in ipairs(known_steps()) do
    if not is_known and now - each[1] <= SAME_MS and math.abs(each[3] - since) <= SAME_MS then
      each[1], each[2], each[3], is_known = now, math.max(each[2], step), math.min(each[3], since), true
      steps[#steps + 1] = each
    elseif before < each[1] + math.min(each[2], STEP_KEPT_MS) then
      steps[#steps + 1] = each
    end
  end
  if not is_known then steps[#steps + 1] = {now, step, since} end
  if #steps > STEPS_KEPT then table.remove(steps, 1) end
  redis.call('HSET', g.hold, 'steps', cmsgpack.pack(steps))
end

-- Answers the step in ms, -1 for an outage, 0 for a step too small to mention.
local function note_step(expected_ms)
  if expected_ms == 0 then
    local seen = tonumber(redis.call('HGET', g.hold, 'seen'))
    if not seen or math.abs(now - seen) <= SILENCE_MS then return 0 end
    expected_ms = seen > now and -1 or -seen
  end
  local step, since = now - expected_ms, 0
  if expected_ms < 0 then step, since = OUTAGE_STEP_MS, -expected_ms end
  if step < 0 then known_steps() end
  if step <= 1000 then return 0 end
  record_step(step, since)
  return step == OUTAGE_STEP_MS and -1 or step
end

-- The earliest end of a lease that is on hold now, nil where none is; and for how long.
-- An outage that began within the hold of a step holds all, as the step did: TIME may have stepped over that hold meanwhile.
-- One within the hold of another outage does not, or flapping connections could postpone recovery for ever.
local function held_from(lease_ms)
  local from, left, stepped = nil, nil, {}
  for _, each in ipairs(known_steps()) do
    local at, step, since = each[1], each[2], each[3]
    if step > lease_ms then
      if step < OUTAGE_STEP_MS then stepped[#stepped + 1] = at end
      for _, one in ipairs(stepped) do
        if one <= since and since < one + lease_ms then since = 0 end
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

local function fraction(roll, index) return (roll + index * 0.61803398875) % 1 end

-- Answers recovered, more, and for how long recovery is on hold.
local function recover(q, limit, roll)
  local ids = redis.call('ZRANGEBYSCORE', q.active, '-inf', now, 'LIMIT', 0, limit)
  if #ids == 0 then return 0, false, nil end
  local lease = tonumber(redis.call('HGET', q.meta, 'lease')) or DEFAULT_LEASE_MS
  local from, left = held_from(lease)
  if from then ids = redis.call('ZRANGEBYSCORE', q.active, '-inf', text(math.min(now, from - 1)), 'LIMIT', 0, limit) end
  for index, id in ipairs(ids) do lose(q, id, fraction(roll, index)) end
  file_vacated(q)
  file_archived(q)
  free_waiters(q)
  return #ids, #ids == limit, left
end

-- Due recurrences: they stay in `repeat` until `occur` advances them.
local function due_recurrences(q, limit, found)
  local names = redis.call('ZRANGEBYSCORE', q['repeat'], '-inf', now, 'LIMIT', 0, limit)
  for _, name in ipairs(names) do
    local rule = redis.call('HMGET', repeat_key(q, name), 'rev', 'next')
    if tonumber(rule[1]) and tonumber(rule[2]) then
      found[#found + 1] = {name_of(q), name, rule[1], rule[2]}
    elseif rule[2] then
      -- Damaged beyond reading: parked as `recurrence` does, or every tick would ask for it again.
      redis.call('HSET', repeat_key(q, name), 'err', 'its row cannot be read; deploy or register it again')
      redis.call('ZADD', q['repeat'], now + 60000, name)
    else
      redis.call('ZREM', q['repeat'], name)
    end
  end
  return #names
end

local function next_event(q, hold_ms, skip_due)
  local soonest = nil
  for _, key in ipairs({q.schedule, q.later, q.active}) do
    local at = tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])
    if at and key == q.active and hold_ms then at = math.max(at, now + hold_ms) end
    if at and at < NEVER_MS and (not soonest or at < soonest) then soonest = at end
  end
  -- Dues that were answered are the caller's to settle; the next event is the first after them.
  local rule = redis.call('ZRANGE', q['repeat'], skip_due, skip_due, 'WITHSCORES')
  soonest = sooner(soonest, tonumber(rule[2]))
  if redis.call('EXISTS', q.ring) == 1 then
    local room, ends = queue_room(q)
    if room <= 0 and ends then soonest = sooner(soonest, ends) end
  end
  return soonest and math.max(soonest - now, 0) or false
end

-- One bounded turn over a queue: promoted, recovered, more, next event in ms (or false).
local function turn(q, limit, roll, found)
  local more_judged = keep_limits(q)
  local promoted, more_due = promote(q, limit)
  local recovered, more_lost, hold_ms = recover(q, limit, roll)
  local dues = due_recurrences(q, limit, found)
  local more = more_due or more_lost or more_judged or dues == limit
  return promoted, recovered, more, next_event(q, hold_ms, dues)
end
