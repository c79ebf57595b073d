-- What is due in a queue: scheduled jobs, lanes that wait for an instant, leases that ended; and when something is due next.
-- KEYS job: schedule later active counted repeat repeat: ring meta
-- INCLUDE judge steps
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
  return #ids, #ids == limit or #lanes == limit, #lanes
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

-- One bounded turn over a queue: promoted, recovered, more, next event in ms (or false), and what else it looked at.
local function turn(q, limit, roll, found)
  local more_judged, judged = keep_limits(q, limit)
  local promoted, more_due, lanes = promote(q, limit)
  local recovered, more_lost, hold_ms = recover(q, limit, roll)
  local dues = due_recurrences(q, limit, found)
  local more = more_due or more_lost or more_judged or dues == limit
  return promoted, recovered, more, next_event(q, hold_ms, dues), judged + lanes
end
