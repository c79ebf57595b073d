-- News: one channel tells all nodes; the beat makes a lost message good.
-- KEYS global.news
local function publish(kind, ...)
  redis.call('PUBLISH', g.news, cmsgpack.pack({kind, ...}))
end

-- If `member` is the first of a timed set now, pumps that sleep longer than `due` must hear of it.
local function tell_if_first(q, key, member, due)
  if redis.call('ZRANGE', key, 0, 0)[1] == member then
    publish('due', name_of(q), math.max(due - now, 0))
  end
end
