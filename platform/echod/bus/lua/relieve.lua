-- Memory is out: let the archives give way to work, oldest rows first, a bounded step at a time.
-- KEYS    global.queues
-- ARGV    limit cursor
-- RETURNS [trimmed, used_bytes, limit_bytes: 0 without one, cursor]
-- FLAGS   allow-oom
-- INCLUDE time trim
-- Called after -OOM until there is room again. The morgue is not touched: dead jobs may be redriven.
-- A call looks at a few hundred queues, from `cursor` on ('0': the first); the call that answers '0' has looked at the last. One
-- that has taken `limit` rows answers the cursor that it was given: there may be more.
local QUEUES_A_CALL = 200
local trimmed, budget = 0, tonumber(limit)
local scan = redis.call('HSCAN', g.queues, cursor, 'COUNT', QUEUES_A_CALL)
for i = 1, #scan[2], 2 do
  if trimmed >= budget then break end
  trimmed = trimmed + trim_archive(space((string.gsub(g.base, '~}:$', scan[2][i] .. '}:'))), budget - trimmed, true)
end
local memory = redis.call('INFO', 'memory')
return {trimmed, tonumber(string.match(memory, '\nused_memory:(%d+)')), tonumber(string.match(memory, '\nmaxmemory:(%d+)')),
  trimmed >= budget and cursor or scan[1]}
