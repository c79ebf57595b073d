-- The bell: one global list of queue names, each at most once.
-- `meta.rung` is set while a name is on its way: in the list, or popped by a node that has not claimed yet. The claim
-- after a pop clears it, or rings again for the jobs that are left.
-- A node that dies with the news leaves `rung` set and the name missing: beat and tick, which look into the list, ring again.
-- KEYS ring meta global.wake
-- INCLUDE limits
local function ring(q)
  redis.call('HSET', q.meta, 'rung', now)
  redis.call('RPUSH', g.wake, name_of(q))
end

-- Ring if there is something that may be served and nobody was told. If a rate forbids it, the pumps are told once a window,
-- and the tick at the window's end rings.
local function ring_if_serviceable(q)
  local state = redis.call('HMGET', q.meta, 'rung', 'paused', 'told')
  if state[1] or state[2] or redis.call('EXISTS', q.ring) == 0 then return end
  local room, ends = queue_room(q)
  if room > 0 then
    ring(q)
  elseif ends and state[3] ~= text(ends) then
    redis.call('HSET', q.meta, 'told', ends)
    publish('due', name_of(q), ends - now)
  end
end

-- The claim that follows a pop: the name has left the list.
local function answer_bell(q)
  redis.call('HDEL', q.meta, 'rung')
  ring_if_serviceable(q)
end

-- Popped and not claimed within this: its popper has died, or is so slow that a second ring does no harm.
local IN_FLIGHT_MS = 1000

-- A name that is neither in the list nor just popped has died with its popper: ring again. If the name may still be in
-- flight, answers in how many milliseconds to look again, else false.
local function heal(q, is_listed)
  local rung = tonumber(redis.call('HGET', q.meta, 'rung'))
  if rung and not is_listed then
    local age = now - rung
    if age >= 0 and age < IN_FLIGHT_MS then return IN_FLIGHT_MS - age end
    redis.call('HDEL', q.meta, 'rung')
  end
  ring_if_serviceable(q)
  return false
end

local function sooner(one, other) return one and other and math.min(one, other) or one or other end
