-- The bell: one global list of queue names, each at most once.
-- `meta.rung` is set while a name is on its way: in the list, or popped by a node that has not claimed yet. Who claims after a pop clears it, or rings again for what is left.
-- A node that dies with the news leaves `rung` set and the name missing: the beat, which reads the list, rings again.
-- KEYS ring meta global.wake
local function ring(q)
  redis.call('HSET', q.meta, 'rung', now)
  redis.call('RPUSH', g.wake, name_of(q))
end

-- Ring if there is something to serve and nobody was told.
local function ring_if_serviceable(q)
  local state = redis.call('HMGET', q.meta, 'rung', 'paused')
  if not state[1] and not state[2] and redis.call('EXISTS', q.ring) == 1 then ring(q) end
end

-- The claim that follows a pop: the name has left the list.
local function answer_bell(q)
  redis.call('HDEL', q.meta, 'rung')
  ring_if_serviceable(q)
end
