-- Set a recurrence's state: park it with its error, pause it, or resume it at an instant.
-- KEYS    repeat repeat:
-- ARGV    name action revision error next_ms skipped last_ms call
-- RETURNS ok | unknown | stale
-- INCLUDE time counters news ring bell close again
-- park: its due stays, and the pump looks again in a minute; stale if that due is still to come, since others went on. pause: it
-- leaves `repeat`, and its due stays. resume: it goes on from next_ms ('': never again), which was computed by the rule of that
-- revision (0: any); `last_ms`: the newest of those `skipped`, or ''.
local PARK_MS = 60000
local before = answered(q, call)
if before then return before end
local key = repeat_key(q, name)
local rule = redis.call('HMGET', key, 'rev', 'paused', 'gone', 'last', 'next')
if not rule[1] or rule[3] then return 'unknown' end
if action == 'park' then
  if rule[1] ~= revision or (tonumber(rule[5]) or 0) > now then return 'stale' end
  redis.call('HSET', key, 'err', error)
  if not rule[2] then redis.call('ZADD', q['repeat'], now + PARK_MS, name) end
elseif action == 'pause' then
  redis.call('HSET', key, 'paused', 1)
  redis.call('ZREM', q['repeat'], name)
elseif revision ~= '0' and rule[1] ~= revision then
  return 'stale'
elseif rule[2] then
  redis.call('HDEL', key, 'paused', 'next', 'err')
  if tonumber(skipped) > 0 then
    redis.call('HINCRBY', key, 'skipped', skipped)
    count('skipped', tonumber(skipped))
  end
  if last_ms ~= '' then redis.call('HSET', key, 'last', math.max(tonumber(last_ms), tonumber(rule[4]) or 0)) end
  if next_ms ~= '' then
    redis.call('HSET', key, 'next', next_ms)
    redis.call('ZADD', q['repeat'], next_ms, name)
    tell_if_first(q, q['repeat'], name, tonumber(next_ms))
  end
end
close(q)
return answer(q, call, 'ok')
