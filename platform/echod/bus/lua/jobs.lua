-- List jobs, newest first: a bounded stretch of the queue's ids in mint order, filtered by state, lane, error and age.
-- KEYS    job: jobs
-- ARGV    states lane cause match older_ms newer_ms before limit scan
-- RETURNS [[id, row without payload and result]], cursor ('' at the end)
-- FLAGS   no-writes
-- INCLUDE time filter
-- Age as in `pick`: since the end of a job that ended, else since it waits.
local wanted, any = {}, states == ''
for state in string.gmatch(states, '%a') do wanted[state] = true end
local found, cursor, scanned = {}, before, 0
local BRIEF = {'l', 'ln', 's', 'r', 'd', 'm', 'w', 'a', 'f', 'st', 'e', 'oc', 'pa', 'v', 'z', 'er', 'x', 'pg', 'bh'}

local function is_meant(row)
  local state = row[3] or 'p'
  if not row[6] or not (any or wanted[state]) or (lane ~= '' and lane ~= (row[1] or '-')) then return false end
  local has_ended = state == 'd' or state == 'x' or state == 'c'
  if not is_of_age(tonumber(has_ended and row[11] or row[7] or row[6]), older_ms, newer_ms) then return false end
  return has_error(state ~= 'd' and row[16], cause, match)
end

while scanned < tonumber(scan) do
  local ids = redis.call('ZRANGE', q.jobs, cursor == '' and '+' or '(' .. cursor, '-', 'BYLEX', 'REV', 'LIMIT', 0, 100)
  if #ids == 0 then return {found, ''} end
  for _, id in ipairs(ids) do
    cursor, scanned = id, scanned + 1
    local row = redis.call('HMGET', job_key(q, id), unpack(BRIEF))
    weigh(row[16])
    if is_meant(row) then
      found[#found + 1] = {id, row}
    end
    if #found == tonumber(limit) or bytes_read > MOST_READ then return {found, cursor} end
  end
end
return {found, cursor}
