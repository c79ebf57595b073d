-- Remove a recurrence of code, unless a newer generation wrote this queue since, or one of nobody's; jobs it minted stay.
-- KEYS    rules repeat repeat: meta
-- ARGV    name generation
-- RETURNS removed | absent | older | taken (without a generation: it is code's; with one: it is not)
-- FLAGS   allow-oom
-- INCLUDE generation
local is_code = generation ~= ''
if is_code and is_older(q, generation) then return 'older' end
local row = redis.call('HMGET', repeat_key(q, name), 'rule', 'own')
if row[1] and (row[2] == '1') == is_code then return 'taken' end
if is_code then redis.call('HSET', q.meta, 'gen', generation) end
redis.call('SREM', q.rules, name)
redis.call('ZREM', q['repeat'], name)
return redis.call('DEL', repeat_key(q, name)) == 1 and 'removed' or 'absent'
