-- Nodes: who holds which number, and until when.
-- KEYS global.nodes
-- INCLUDE time
--
-- An entry is [node, when its lease ends, joined, is a pump, info, versions it runs, told, its lease in ms]. Its node lives as
-- long as the lease goes on. One that ends further ahead than it is long was renewed before the clock went back: it goes on for
-- one lease from now, in which a node that lives renews it.
local function node_entries(lease_ms)
  local all, entries = redis.call('HGETALL', g.nodes), {}
  for i = 1, #all, 2 do
    local entry = cmsgpack.unpack(all[i + 1])
    local latest = now + (entry[8] or tonumber(lease_ms))
    if entry[2] > latest then
      entry[2] = latest
      redis.call('HSET', g.nodes, all[i], cmsgpack.pack(entry))
    end
    entries[tonumber(all[i])] = entry
  end
  return entries
end
