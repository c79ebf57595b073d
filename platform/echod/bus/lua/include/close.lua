-- The end of every call that changes a queue: the pending count, the counters, the bell.
-- KEYS meta
local function close(q)
  gather_anew(q)
  if pending_delta ~= 0 then redis.call('HINCRBY', q.meta, 'n', pending_delta) end
  write_counts(q)
  if woken then ring_if_serviceable(q) end
  pending_delta, woken = 0, false
end
