-- Hand the bell on: a node that popped a queue it cannot serve puts its name back, unless somebody has already.
-- KEYS    meta global.wake
-- RETURNS ok
-- FLAGS   allow-oom
-- INCLUDE time counters news ring bell close
if not redis.call('LPOS', g.wake, name_of(q)) then
  redis.call('HDEL', q.meta, 'rung')
  ring_if_serviceable(q)
end
return 'ok'
