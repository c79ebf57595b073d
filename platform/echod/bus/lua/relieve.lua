-- Memory is out: let the archives give way to work, oldest rows first, a bounded step over all queues.
-- KEYS    global.queues
-- ARGV    limit
-- RETURNS [trimmed, used_bytes, limit_bytes: 0 without one]
-- FLAGS   allow-oom
-- INCLUDE time trim
-- Called after -OOM until there is room again. The morgue is not touched: dead jobs may be redriven.
local trimmed, budget = 0, tonumber(limit)
for _, name in ipairs(redis.call('HKEYS', g.queues)) do
  if trimmed >= budget then break end
  trimmed = trimmed + trim_archive(space((string.gsub(g.base, '~}:$', name .. '}:'))), budget - trimmed, true)
end
local memory = redis.call('INFO', 'memory')
return {trimmed, tonumber(string.match(memory, '\nused_memory:(%d+)')), tonumber(string.match(memory, '\nmaxmemory:(%d+)'))}
