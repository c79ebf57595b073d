-- Write a queue's policy, so that scripts can charge lost runs and bound what is kept; an older generation is refused.
-- KEYS    meta
-- ARGV    queue generation retries backoff keep_ms max_pending
-- RETURNS ok | older
-- INCLUDE time counters news ring bell close rows birth generation
if is_older(q, generation) then return 'older' end
redis.call('HSET', q.meta, 'gen', generation, 'retries', retries, 'backoff', backoff, 'keep', keep_ms, 'reg', 1)
if max_pending == '' then redis.call('HDEL', q.meta, 'max') else redis.call('HSET', q.meta, 'max', max_pending) end
register(q, queue)
return 'ok'
