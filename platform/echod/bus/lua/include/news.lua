-- News: what all nodes must hear goes out on one channel; a lost message is made good by the beat.
-- KEYS global.news
local function publish(kind, ...)
  redis.call('PUBLISH', g.news, cmsgpack.pack({kind, ...}))
end

-- The head of a timed set moved to the front: pumps that sleep longer than `due` must hear of it.
local function tell_if_first(q, key, member, due)
  if redis.call('ZRANGE', key, 0, 0)[1] == member then
    publish('due', name_of(q), math.max(due - now, 0))
  end
end
