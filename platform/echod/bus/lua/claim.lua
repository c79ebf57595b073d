-- Claim up to `want` turns under a lease, lanes in turn, a turn one job or one batch; the same sequence again gets the same.
-- ARGV    claimer sequence want lease_ms holder popped begun
-- RETURNS [now_ms, [], [job], blocked: empty|paused|capped|full|nil, retry_in_ms|nil, limited, rebuilt_ms|absent]
-- FLAGS   allow-oom (second head: after -OOM)
-- INCLUDE time counters news ring bell close rows serve full last
-- A job is [id, attempts, holder, failures, payload, lane, due, minted, version, occurrence,
-- turn: the batch it belongs to, absent in a queue without], nil where default.
-- `begun` is msgpack: holds [id, attempts, holder] that started since the last call. `popped` is 1 when the bell rang for us.
-- `want` 0 answers the bell and claims nothing.
-- `limited` is 1 if limits are set: then a claimer takes no more jobs than it can start at once.
local again = rebuild(q, claimer, sequence)
if again then return again end
mark_begun(q, cmsgpack.unpack(begun))
local jobs, blocked, retry_in_ms = {}, false, false
if tonumber(want) > 0 then jobs, blocked, retry_in_ms = serve_within_memory(q, tonumber(want), tonumber(lease_ms), holder) end
remember(q, claimer, sequence, holder, {}, jobs, blocked, retry_in_ms)
close(q)
if popped == '1' then answer_bell(q) end
return {now, {}, jobs, blocked, retry_in_ms, is_limited(q)}
