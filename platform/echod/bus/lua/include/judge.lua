-- Limits that changed: they are put together anew, and lanes are judged by them, a bounded number a call; ticks do the rest.
-- KEYS active counted held job: lanes later meta ring windows
--
-- `meta.judge` is how far that has come, 'set cursor'. First come active jobs that are not counted yet: each is counted once,
-- and nothing starts before all are. Then come lanes with an open window, lanes in `later`, lanes in `held`.
-- `meta.coded` has the limits of the code, `meta.hand` those that an operator set; false there lifts a limit of the code.
local LANES_JUDGED, GATHERING_JUDGED = 200, 20  -- of lanes that gather, the first rows are read
local NEXT_JUDGED = {active = 'windows 0', windows = 'later 0', later = 'held 0'}
local PLACE_IN_LINE = {active = 1, windows = 2, later = 3, held = 4}
local CLOCK_BACK_MS = 1000

-- Count an active job in its lane if it is not yet; a lane that becomes full leaves the ring.
local function recount(q, id)
  local row = redis.call('HMGET', job_key(q, id), 'k', 'l', 'm')
  local lane = row[2] or '-'
  if not row[3] then return end
  if counts_active(q) and not row[1] then
    redis.call('HSET', job_key(q, id), 'k', 1)
    redis.call('HSET', q.counted, id, lane)
    redis.call('HINCRBY', q.lanes, lane .. ':a', 1)
  end
  if redis.call('ZSCORE', q.ring, lane) then reseat(q, lane) end
end

-- Go on judging, if there is anything to judge. Answers whether something is left, and how many were looked at.
local function judge_lanes(q)
  local policy, done = policy_of(q), 0
  if not policy.judge then return false, 0 end
  local most = policy.batch_wait > 0 and GATHERING_JUDGED or LANES_JUDGED
  while policy.judge and done < most do
    local set, cursor = string.match(policy.judge, '(%a+) (%d+)')
    local key = ({active = q.active, windows = q.windows, later = q.later, held = q.held})[set]
    local scan = redis.call(set == 'held' and 'SSCAN' or 'ZSCAN', key, cursor, 'COUNT', most)
    local step = set == 'held' and 1 or 2
    for i = 1, #scan[2], step do
      done = done + 1
      if set == 'active' then recount(q, scan[2][i]) else reseat(q, scan[2][i]) end
    end
    policy.judge = scan[1] ~= '0' and set .. ' ' .. scan[1] or NEXT_JUDGED[set]
  end
  if policy.judge then
    redis.call('HSET', q.meta, 'judge', policy.judge)
    publish('due', name_of(q), 0)
  else
    redis.call('HDEL', q.meta, 'judge')
  end
  woken = true
  return policy.judge, done
end

-- Never past what an unfinished judgement has still to do: jobs that are not counted yet would stay so.
local function judge_from(q, set)
  local unfinished = string.match(policy_of(q).judge or '', '%a+')
  if unfinished and PLACE_IN_LINE[unfinished] < PLACE_IN_LINE[set] then return end
  policy_of(q).judge = set .. ' 0'
  redis.call('HSET', q.meta, 'judge', set .. ' 0')
end

-- Put the limits together: an operator's before the code's.
local function apply_limits(q)
  local meta = redis.call('HMGET', q.meta, 'coded', 'hand', 'own')
  local limits, hand = meta[1] and cmsgpack.unpack(meta[1]) or {}, meta[2] and cmsgpack.unpack(meta[2]) or {}
  if hand.w then limits.ws = nil end
  for name, value in pairs(hand) do limits[name] = value or nil end
  limits.own = tonumber(meta[3])
  local is_any = false
  for _ in pairs(limits) do is_any = true end
  if is_any then
    redis.call('HSET', q.meta, 'limits', cmsgpack.pack(limits))
  else
    redis.call('HDEL', q.meta, 'limits', 'window', 'seen')
  end
  redis.call('HDEL', q.meta, 'told')
  policies[q.base] = nil
end

-- A tick's part: windows that are over leave nothing behind, and after the clock stepped back, lanes do not stay where an
-- instant of the old time has put them. Answers whether something is left, and how much was done; a call that may do no more than
-- one thing leaves the lanes to the queue's own tick.
local function keep_limits(q, limit)
  local most = limit > 1 and LANES_JUDGED or 1
  local over = redis.call('ZRANGEBYSCORE', q.windows, '-inf', now, 'LIMIT', 0, most)
  call_with('ZREM', q.windows, over)
  for _, lane in ipairs(over) do redis.call('HDEL', q.lanes, lane .. ':s') end
  if lane_limits(q) or policy_of(q).batch_wait > 0 then
    local seen = tonumber(redis.call('HGET', q.meta, 'seen'))
    if seen and now < seen - CLOCK_BACK_MS then judge_from(q, 'windows') end
    if not seen or seen ~= now then redis.call('HSET', q.meta, 'seen', now) end
  end
  if limit <= 1 then return policy_of(q).judge or #over == most, #over end
  local is_left, judged = judge_lanes(q)
  return is_left or #over == most, #over + judged
end
