-- Hand the bell on: a node that popped a queue it cannot serve puts its name back.
-- KEYS    meta
-- INCLUDE time counters news ring bell close
-- RETURNS ok
redis.call('HDEL', q.meta, 'rung')
ring_if_serviceable(q)
return 'ok'
