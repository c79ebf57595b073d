-- Lease a free node number for a node.
-- KEYS    global.nodes
-- ARGV    node lease_ms info
-- RETURNS [now_ms, number]
-- ERRORS  NONODE all numbers are leased
-- FLAGS   allow-oom
-- INCLUDE time
-- It runs although memory is out: a node must start on a full server, or nobody would settle and trim.
-- A node that joins again (same id) gets its number back, so a resend leases nothing twice.
local taken, own = {}, nil
local all = redis.call('HGETALL', g.nodes)
for i = 1, #all, 2 do
  local entry = cmsgpack.unpack(all[i + 1])
  if entry[1] == node then own = tonumber(all[i]) end
  if entry[2] > now then taken[tonumber(all[i])] = true end
end
local number = own
if not number then
  for candidate = 0, 1023 do
    if not taken[candidate] then number = candidate break end
  end
end
if not number then return redis.error_reply('NONODE all 1024 node numbers are leased') end
redis.call('HSET', g.nodes, number, cmsgpack.pack({node, now + tonumber(lease_ms), now, 0, info}))
return {now, number}
