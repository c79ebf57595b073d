-- Write a recurrence of this generation: created, changed (its revision grows) or the same; an older generation is refused.
-- KEYS    rules repeat repeat: meta
-- ARGV    queue name rule tz trigger payload next_ms generation lane lane_name priority
-- RETURNS same | created | changed | older
-- INCLUDE time counters news ring bell close rows birth generation
if is_older(q, generation) then return 'older' end
local key = repeat_key(q, name)
local old = redis.call('HMGET', key, 'rule', 'tz', 'trigger', 'payload', 'lane', 'rev', 'paused', 'next', 'prio')
local same_rule = old[1] == rule and old[2] == tz
redis.call('HSET', q.meta, 'gen', generation)
register(q, queue)
redis.call('SADD', q.rules, name)
if same_rule and old[3] == trigger and old[4] == payload and old[5] == lane and old[9] == priority then
  redis.call('HSET', key, 'gen', generation)
  return 'same'
end
redis.call('HSET', key, 'rule', rule, 'tz', tz, 'trigger', trigger, 'payload', payload, 'lane', lane, 'lane_name', lane_name,
  'prio', priority, 'gen', generation, 'rev', (tonumber(old[6]) or 0) + 1)
redis.call('HDEL', key, 'err')
-- The due stands when only payload or policy changed; a changed rule starts from what the caller computed from the last due.
if not same_rule and next_ms ~= '' then
  redis.call('HSET', key, 'next', next_ms)
  if not old[7] then
    redis.call('ZADD', q['repeat'], next_ms, name)
    tell_if_first(q, q['repeat'], name, tonumber(next_ms))
  end
elseif not same_rule then
  redis.call('HDEL', key, 'next')
  redis.call('ZREM', q['repeat'], name)
end
return old[1] and 'changed' or 'created'
