-- Remove a recurrence, unless a newer generation wrote this queue since; jobs it minted stay.
-- KEYS    rules repeat repeat: meta
-- ARGV    name generation
-- RETURNS removed | absent | older
-- FLAGS   allow-oom
-- INCLUDE generation
if is_older(q, generation) then return 'older' end
redis.call('HSET', q.meta, 'gen', generation)
redis.call('SREM', q.rules, name)
redis.call('ZREM', q['repeat'], name)
return redis.call('DEL', repeat_key(q, name)) == 1 and 'removed' or 'absent'
