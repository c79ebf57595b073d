-- Remove a recurrence: of the code, unless a newer generation wrote this queue since, or one of run time. Its jobs stay.
-- KEYS    rules repeat repeat: meta global.active
-- ARGV    name generation call
-- RETURNS removed | absent | older | taken (without a generation: it is code's; with one: it is not)
-- FLAGS   allow-oom
-- INCLUDE time generation again
-- A recurrence of the code stays for a week as `gone`, from the switch that removed it. A rollback then goes on from its last
-- due: no instant comes twice, and none that was due before is lost.
local FORGET_MS = 7 * 86400000
local before = answered(q, call)
if before then return before end
local is_code = generation ~= ''
if is_code and is_older(q, generation) then return 'older' end
local key = repeat_key(q, name)
local row = redis.call('HMGET', key, 'rule', 'own', 'gone')
if row[1] and not row[3] and (row[2] == '1') == is_code then return 'taken' end
if is_code then redis.call('HSET', q.meta, 'gen', generation) end
if row[3] and (not is_code or tonumber(row[3]) > now - FORGET_MS) then return 'absent' end
redis.call('ZREM', q['repeat'], name)
if is_code and row[1] and not row[3] then
  redis.call('HSET', key, 'gone', redis.call('HGET', g.active, 'at') or now)
  return answer(q, call, 'removed')
end
redis.call('SREM', q.rules, name)
return answer(q, call, forget_recurrence(q, name) == 1 and not row[3] and 'removed' or 'absent')
