-- Give a node's number back.
-- KEYS    global.nodes
-- ARGV    node number
-- RETURNS ok
-- FLAGS   allow-oom
local entry = redis.call('HGET', g.nodes, number)
if entry and cmsgpack.unpack(entry)[1] == node then redis.call('HDEL', g.nodes, number) end
return 'ok'
