-- Claims when memory is out: a job that runs and ends frees more than its lease costs.
-- KEYS out
-- Children are the exception: they cannot be minted now, and lie in `out`. So a queue whose children wait rests until they
-- are minted.
local RESTS_MS = 1000
local function serve_within_memory(q, count, lease_ms, holder)
  if MEMORY_IS_OUT and redis.call('EXISTS', q.out) == 1 then return {}, 'full', RESTS_MS end
  return serve(q, count, lease_ms, holder)
end
