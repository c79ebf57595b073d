-- The last claim or settle of a claimer: a call sent again after a lost reply gets that reply rebuilt, and changes nothing.
-- A rebuilt reply ends with the present instant: its leases have run since the first reply, however late it is fetched.
-- KEYS job: last:
local LAST_TTL_MS = 600000

local function rebuild(q, claimer, sequence)
  local last = redis.call('HMGET', last_key(q, claimer), 'seq', 'refused', 'ids', 'holder', 'at', 'blocked', 'retry')
  if last[1] ~= sequence then return nil end
  local jobs = {}
  for id, turn in string.gmatch(last[3], '([^%s:]+):?(%d*)') do
    local row = redis.call('HMGET', job_key(q, id), 's', 'h', 'a', 'f', 'p', 'l', 'ln', 'd', 'm', 'v', 'oc')
    if row[1] == 'a' and row[2] == last[4] then
      jobs[#jobs + 1] = {id, tonumber(row[3]), row[2], row[4], row[5], row[7] or row[6], row[8], row[9], row[10], row[11], tonumber(turn)}
    end
  end
  local refused = {}
  for id in string.gmatch(last[2], '%S+') do refused[#refused + 1] = id end
  return {tonumber(last[5]), refused, jobs, last[6] ~= '' and last[6], tonumber(last[7]) or false, is_limited(q), now}
end

local function remember(q, claimer, sequence, holder, refused, jobs, blocked, retry_in_ms)
  local ids = {}
  for i, job in ipairs(jobs) do ids[i] = job[11] and job[1] .. ':' .. job[11] or job[1] end
  local key = last_key(q, claimer)
  redis.call('HSET', key, 'seq', sequence, 'refused', table.concat(refused, ' '), 'ids', table.concat(ids, ' '),
    'holder', holder, 'at', now, 'blocked', blocked or '', 'retry', retry_in_ms or '')
  redis.call('PEXPIRE', key, LAST_TTL_MS)
end
