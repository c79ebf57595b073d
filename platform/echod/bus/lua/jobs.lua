-- List jobs, newest first: a bounded stretch of the queue's ids in mint order, filtered by state and lane.
-- KEYS    job: jobs
-- ARGV    states lane before limit scan
-- RETURNS [[id, row without payload and result]], cursor ('' at the end)
-- FLAGS   no-writes
local wanted, any = {}, states == ''
for state in string.gmatch(states, '%a') do wanted[state] = true end
local found, cursor, scanned = {}, before, 0
local BRIEF = {'l', 'ln', 's', 'r', 'd', 'm', 'w', 'a', 'f', 'st', 'e', 'oc', 'pa', 'v', 'z', 'er', 'x', 'pg', 'bh'}
while scanned < tonumber(scan) do
  local ids = redis.call('ZRANGE', q.jobs, cursor == '' and '+' or '(' .. cursor, '-', 'BYLEX', 'REV', 'LIMIT', 0, 100)
  if #ids == 0 then return {found, ''} end
  for _, id in ipairs(ids) do
    cursor, scanned = id, scanned + 1
    local row = redis.call('HMGET', job_key(q, id), unpack(BRIEF))
    if row[6] and (any or wanted[row[3] or 'p']) and (lane == '' or lane == (row[1] or '-')) then
      found[#found + 1] = {id, row}
      if #found == tonumber(limit) then return {found, cursor} end
    end
  end
end
return {found, cursor}
