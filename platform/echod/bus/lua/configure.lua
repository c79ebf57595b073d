-- Write a queue's policy, so that scripts can charge lost runs and bound what is kept; an older generation is refused.
-- KEYS    later meta
-- ARGV    queue generation retries backoff keep_ms max_pending batch batch_wait_ms redact
-- RETURNS ok | older
-- FLAGS   allow-oom
-- INCLUDE time counters news ring bell close rows birth generation
-- It runs although memory is out: a node that starts then must serve, or nobody settles and trims.
-- `redact` is opaque here: pages ask for it when no version has the function any more.
local LANES_JUDGED = 200
if is_older(q, generation) then return 'older' end
redis.call('HSET', q.meta, 'gen', generation, 'retries', retries, 'backoff', backoff, 'keep', keep_ms, 'reg', 1)
if redact == '' then redis.call('HDEL', q.meta, 'redact') else redis.call('HSET', q.meta, 'redact', redact) end
if max_pending == '' then redis.call('HDEL', q.meta, 'max') else redis.call('HSET', q.meta, 'max', max_pending) end
register(q, queue)
local old = redis.call('HMGET', q.meta, 'batch', 'batch_wait')
if (old[1] or '') ~= batch or (old[2] or '0') ~= batch_wait_ms then
  redis.call('HDEL', q.meta, 'batch', 'batch_wait')
  if batch ~= '' then redis.call('HSET', q.meta, 'batch', batch, 'batch_wait', batch_wait_ms) end
  -- The first lanes that gather are judged anew; those behind them wait as they were told to.
  for _, lane in ipairs(redis.call('ZRANGE', q.later, 0, LANES_JUDGED - 1)) do reseat(q, lane) end
  close(q)
end
return 'ok'
