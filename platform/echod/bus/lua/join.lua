-- Lease a free node number for a node.
-- KEYS    global.nodes global.numbered
-- ARGV    node lease_ms info
-- RETURNS [now_ms, number]
-- ERRORS  NONODE all numbers are leased
-- FLAGS   allow-oom
-- INCLUDE time nodes
-- It runs although memory is out: a node must start on a full server, or nobody would settle and trim.
-- A node that joins again (same id) gets its number back, so a resend leases nothing twice.
-- Numbers go round: the next one after the last that was given, so that the one given up longest ago comes first. Were the lowest
-- free one taken, a step of the clock could make a live node's number free, or a successor start in milliseconds whose ids its
-- predecessor has made: TIME says nothing certain about either. A number that has an entry, even one that is over, comes last.
local NUMBERS = 1024
local entries, own = node_entries(lease_ms), nil
for number, entry in pairs(entries) do
  if entry[1] == node then own = number end
end

local function next_free(may_be_over)
  local last = tonumber(redis.call('GET', g.numbered)) or -1
  for step = 1, NUMBERS do
    local number = (last + step) % NUMBERS
    local entry = entries[number]
    if not entry or may_be_over and entry[2] <= now then return number end
  end
end

local number = own
if not number then
  number = next_free(false) or next_free(true)
  if not number then return redis.error_reply('NONODE all 1024 node numbers are leased') end
  redis.call('SET', g.numbered, number)
end
redis.call('HSET', g.nodes, number, cmsgpack.pack({node, now + tonumber(lease_ms), now, 0, info, {}, {}, tonumber(lease_ms)}))
return {now, number}
