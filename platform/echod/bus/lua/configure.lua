-- Write a queue's policy, so that scripts can charge lost runs and bound what is kept; an older generation is refused.
-- KEYS    meta
-- ARGV    queue generation retries backoff keep_ms max_pending batch batch_wait_ms limits redact
-- RETURNS ok | older
-- FLAGS   allow-oom
-- INCLUDE time counters news ring bell close rows birth generation judge
-- It runs although memory is out: a node that starts then must serve, or nobody would settle and trim.
-- `limits` is msgpack as in include/limits.lua, '' for none. They are the code's; an operator's come before them. `redact` is
-- opaque here: pages ask for it when no version has the function any more.
if is_older(q, generation) then return 'older' end
redis.call('HSET', q.meta, 'gen', generation, 'retries', retries, 'backoff', backoff, 'keep', keep_ms, 'reg', 1)
if redact == '' then redis.call('HDEL', q.meta, 'redact') else redis.call('HSET', q.meta, 'redact', redact) end
if max_pending == '' then redis.call('HDEL', q.meta, 'max') else redis.call('HSET', q.meta, 'max', max_pending) end
register(q, queue)
local old = redis.call('HMGET', q.meta, 'batch', 'batch_wait', 'coded')
local is_batch_new, are_limits_new = (old[1] or '') ~= batch or (old[2] or '0') ~= batch_wait_ms, (old[3] or '') ~= limits
if is_batch_new then
  redis.call('HDEL', q.meta, 'batch', 'batch_wait')
  if batch ~= '' then redis.call('HSET', q.meta, 'batch', batch, 'batch_wait', batch_wait_ms) end
end
if are_limits_new then
  if limits ~= '' then redis.call('HSET', q.meta, 'coded', limits) else redis.call('HDEL', q.meta, 'coded') end
end
if is_batch_new or are_limits_new then
  apply_limits(q)
  judge_from(q, are_limits_new and 'active' or 'later')
  judge_lanes(q)
  close(q)
end
return 'ok'
