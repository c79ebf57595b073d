-- Counters and log-1.1 histograms of this call, written once at its end to the hash of the minute and of the hour.
-- KEYS m: h: totals
local MINUTE_TTL_S, HOUR_TTL_S = 7200 + 120, 8 * 86400
local LOG_BASE = 0.09531017980432493  -- log 1.1
local tally, histograms, tallied = {}, {D = {}, W = {}, L = {}}, false

local function count(name, by)
  tally[name] = (tally[name] or 0) + (by or 1)
  tallied = true
end

-- Buckets are floor(log(ms) / log 1.1); anything below a millisecond is in bucket 0.
local function observe(kind, ms)
  local buckets, bucket = histograms[kind], ms > 1 and math.floor(math.log(ms) / LOG_BASE) or 0
  buckets[bucket] = (buckets[bucket] or 0) + 1
  tallied = true
end

local function write_counts(q)
  if not tallied then return end
  local minute = q.base .. 'm:' .. text(math.floor(now / 60000))
  local hour = q.base .. 'h:' .. text(math.floor(now / 3600000))
  for name, by in pairs(tally) do redis.call('HINCRBY', q.totals, name, by) end
  for kind, buckets in pairs(histograms) do
    for bucket, by in pairs(buckets) do tally[kind .. bucket] = by end
  end
  for name, by in pairs(tally) do
    redis.call('HINCRBY', minute, name, by)
    redis.call('HINCRBY', hour, name, by)
  end
  redis.call('EXPIRE', minute, MINUTE_TTL_S)
  redis.call('EXPIRE', hour, HOUR_TTL_S)
  tally, histograms, tallied = {}, {D = {}, W = {}, L = {}}, false
end
