-- Retention: the archive by age, count and bytes, the morgue by age; a bounded step at a time, no TTL on any row.
-- KEYS job: unique: log: done dead meta jobs logged
--
-- Jobs that ended in the last ten seconds stay, so that a mint that is sent again (within five) still finds its row. An archive
-- of twice the byte limit overrides that; then `cut` remembers until when a missing row proves nothing. A child stays longer, up
-- to the same bytes: if its parent's node died before it cleared `out`, the beat's sweep mints the child again and must still
-- find its row.
-- When memory is out, the whole archive counts as over its limits, and jobs of the last ten seconds may fill FULL_BYTES.
local KEEP_MS, KEEP_COUNT, KEEP_BYTES, MORGUE_MS = 7 * 86400000, 10000, 64 * 1024 * 1024, 30 * 86400000
local YOUNG_MS, CHILD_MS, FULL_BYTES = 10000, 30000, 8 * 1024 * 1024

-- Forget a row. A unique key of mode `k` counts for as long as its owner's row is kept. `unique` and `log_bytes` are the row's
-- `u` and `lb`. The caller takes the ids out of `jobs`.
local function erase(q, id, unique, log_bytes)
  if unique and string.sub(unique, 1, 2) == 'k:' then redis.call('UNLINK', unique_key(q, string.sub(unique, 3))) end
  redis.call('UNLINK', job_key(q, id))
  if not log_bytes then return end
  redis.call('UNLINK', log_key(q, id))
  redis.call('ZREM', q.logged, id)
end

-- So many bytes have left the archive. What an evicted row counted for, nobody knows: it is forgotten with the last job.
local function count_out(q, bytes)
  if redis.call('EXISTS', q.done) == 0 then
    redis.call('HDEL', q.meta, 'ab')
  elseif bytes > 0 then
    redis.call('HINCRBY', q.meta, 'ab', -bytes)
  end
end

-- What ended before the clock went back would outlast all that ends until the clock is there again: it counts as ended now.
-- Its row says still when that was. Ids of one score are in mint order.
local function redate(q, limit)
  local found = 0
  for _, key in ipairs({q.done, q.dead}) do
    local places = {}
    for i, id in ipairs(redis.call('ZRANGEBYSCORE', key, '(' .. text(now), '+inf', 'LIMIT', 0, limit)) do
      places[2 * i - 1], places[2 * i], found = now, id, found + 1
    end
    call_with('ZADD', key, places)
  end
  return found
end

local function trim_archive(q, limit, memory_is_out)
  local state = redis.call('HMGET', q.meta, 'keep', 'ab', 'keep_count', 'keep_bytes')
  local keep, bytes = tonumber(state[1]) or KEEP_MS, tonumber(state[2]) or 0
  local max_bytes = tonumber(state[4]) or KEEP_BYTES
  local most_bytes = memory_is_out and math.min(2 * max_bytes, FULL_BYTES) or 2 * max_bytes
  local excess = redis.call('ZCARD', q.done) - (tonumber(state[3]) or KEEP_COUNT)
  local before_bytes, gone = bytes, {}
  local oldest = redis.call('ZRANGE', q.done, 0, limit - 1, 'WITHSCORES')
  for i = 1, #oldest, 2 do
    local id, age = oldest[i], now - tonumber(oldest[i + 1])
    local over = memory_is_out or excess > 0 or bytes > max_bytes
    if not (age > keep or (over and age > YOUNG_MS) or bytes > most_bytes) then break end
    local row = redis.call('HMGET', job_key(q, id), 'sz', 'pa', 'u', 'lb')
    if row[2] and age <= CHILD_MS and bytes <= 2 * max_bytes then break end
    if age <= YOUNG_MS then redis.call('HSET', q.meta, 'cut', now) end
    bytes = bytes - (tonumber(row[1]) or 0)
    excess = excess - 1
    erase(q, id, row[3], row[4] or not row[1])
    gone[#gone + 1] = id
  end
  if #gone > 0 then
    call_with('ZREM', q.done, gone)
    call_with('ZREM', q.jobs, gone)
    count_out(q, before_bytes - bytes)
  end
  return #gone
end

local function trim_morgue(q, limit)
  local old = redis.call('ZRANGEBYSCORE', q.dead, '-inf', now - MORGUE_MS, 'LIMIT', 0, limit)
  for _, id in ipairs(old) do
    local row = redis.call('HMGET', job_key(q, id), 'sz', 'u', 'lb')
    erase(q, id, row[2], row[3] or not row[1])
  end
  call_with('ZREM', q.dead, old)
  call_with('ZREM', q.jobs, old)
  return #old
end
