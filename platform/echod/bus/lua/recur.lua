-- Write a recurrence, of a generation or registered at run time: created, changed (its revision grows) or the same.
-- KEYS    rules repeat repeat: meta
-- ARGV    queue name rule tz trigger payload next_ms last_ms generation lane lane_name priority overlap call
-- RETURNS same | created | changed | older (a newer generation wrote this queue) | taken (the name is code's, or not code's) | moved (its last due is not last_ms)
-- INCLUDE time counters news ring bell close rows birth generation again
-- A recurrence without a generation was registered at run time (`own`): no version's convergence changes or removes it.
-- A parked one (`err`) is never the same: the unreadable part of its row is dropped, and its due is asked for again at once.
-- `last_ms`: the last due that `next_ms` was computed from, 0: there was none, '': any. It is asked where `next_ms` counts: an
-- instant may have had its outcome by the old rule, and the new one must go on from there.
-- One that comes back (`gone`) keeps its counts, its pause and its last due, so that a late question gets the same answer.
local before = answered(q, call)
if before then return before end
local is_code = generation ~= ''
if is_code and is_older(q, generation) then return 'older' end
local key = repeat_key(q, name)
local old = redis.call('HMGET', key, 'rule', 'tz', 'trigger', 'payload', 'lane', 'rev', 'paused', 'next', 'prio', 'own', 'gone', 'err',
  'recent', 'jobs', 'missed', 'skipped', 'last')
local is_back = old[11]
if old[1] and not is_back and (old[10] == '1') == is_code then return 'taken' end
if is_back and not is_code then
  forget_recurrence(q, name)
  old = {}
end
local same_rule = not is_back and old[1] == rule and old[2] == tz
local last = tonumber(string.match(old[17] or '', '^%d+$')) or 0
if not same_rule and last_ms ~= '' and tonumber(last_ms) ~= last then return 'moved' end
if is_code then redis.call('HSET', q.meta, 'gen', generation) end
register(q, queue)
redis.call('SADD', q.rules, name)
if same_rule and not old[12] and old[3] == trigger and old[4] == payload and old[5] == lane and old[9] == priority then
  if is_code then redis.call('HSET', key, 'gen', generation) end
  return 'same'
end
redis.call('HSET', key, 'rule', rule, 'tz', tz, 'trigger', trigger, 'payload', payload, 'lane', lane, 'lane_name', lane_name,
  'prio', priority, 'ov', overlap, 'rev', (tonumber(old[6] or redis.call('HGET', q.meta, 'rev')) or 0) + 1)
redis.call('HSET', key, is_code and 'gen' or 'own', is_code and generation or 1)
redis.call('HDEL', key, 'err', 'gone')
if old[12] then
  for i, field in ipairs({'recent', 'jobs'}) do
    local is_read, list = pcall(cmsgpack.unpack, old[12 + i] or '')
    if not is_read or type(list) ~= 'table' then redis.call('HDEL', key, field) end
  end
  for i, field in ipairs({'missed', 'skipped'}) do
    if not string.match(old[14 + i] or '', '^%d+$') then redis.call('HDEL', key, field) end
  end
  if tonumber(old[8]) then next_ms = same_rule and old[8] or next_ms end
end
-- The due stays if only payload or policy changed. A changed rule starts from the instant that the caller computed from the
-- last due.
if (not same_rule or old[12]) and next_ms ~= '' then
  redis.call('HSET', key, 'next', next_ms)
  if not old[7] then
    redis.call('ZADD', q['repeat'], next_ms, name)
    tell_if_first(q, q['repeat'], name, tonumber(next_ms))
  end
elseif not same_rule then
  redis.call('HDEL', key, 'next')
  redis.call('ZREM', q['repeat'], name)
end
return answer(q, call, old[1] and not is_back and 'changed' or 'created')
