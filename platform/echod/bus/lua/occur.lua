-- Settle one occurrence, once: mint its job (or drop it with a counted reason) and advance the recurrence to its next due.
-- KEYS    job: repeat repeat:
-- ARGV    name revision due_ms next_ms id lane lane_name drop dropped at_ms
-- RETURNS [1, id] minted | [2, id or ''] already, with the job of that due | [3] dropped, by the caller or by its overlap | [4] stale: ask tick again
-- INCLUDE time counters news ring bell close rows cancel overlap birth
-- `next_ms` is '' when nothing follows. `id` is '' for a drop; `drop` is then missed or skipped, `dropped` how many dues.
-- `at_ms`: when the job itself is due, later than its instant by the rule's jitter.
local key = repeat_key(q, name)
local rule = redis.call('HMGET', key, 'rev', 'next', 'payload', 'recent', 'paused', 'prio', 'last', 'gone', 'ov', 'jobs')
if not rule[1] then return {4} end
local recent, known = rule[4] and cmsgpack.unpack(rule[4]) or {}, nil
for _, pair in ipairs(recent) do
  if pair[1] == due_ms then known = pair[2] end
end
if rule[1] ~= revision or rule[2] ~= due_ms or rule[5] or rule[8] then return known and {2, known} or {4} end

local function advance()
  if next_ms == '' then
    redis.call('ZREM', q['repeat'], name)
    redis.call('HDEL', key, 'next')
  else
    redis.call('ZADD', q['repeat'], next_ms, name)
    redis.call('HSET', key, 'next', next_ms)
  end
end
-- A rule that was changed from a `last` which moved on meanwhile asks again for what had its outcome: on, or that due would
-- stay for ever.
if known or (rule[7] and tonumber(due_ms) <= tonumber(rule[7])) then
  advance()
  return {2, known or ''}
end
if id ~= '' and redis.call('EXISTS', job_key(q, id)) == 1 then
  advance()
  return {2, id}
end

local overlap, jobs, behind = rule[9] or 'allow', rule[10] and cmsgpack.unpack(rule[10]) or {}, nil
if id ~= '' and overlap ~= 'allow' then
  local open, is_dropped
  open, jobs = earlier_jobs(q, jobs)
  is_dropped, behind = overlapping(q, overlap, open)
  if is_dropped then id, drop, dropped = '', 'skipped', 1 end
end

-- Several dues back, not one: a pump may lag, and its question must still meet the same answer.
recent[#recent + 1] = {due_ms, id}
if #recent > 8 then table.remove(recent, 1) end
redis.call('HSET', key, 'last', due_ms, 'recent', cmsgpack.pack(recent))
redis.call('HDEL', key, 'err')
advance()
if id == '' then
  redis.call('HINCRBY', key, drop, dropped)
  count(drop, tonumber(dropped))
  close(q)
  return {3}
end
jobs[#jobs + 1] = id
if #jobs > REMEMBERED then table.remove(jobs, 1) end
redis.call('HSET', key, 'jobs', cmsgpack.pack(jobs))
for _, other in ipairs(behind or {}) do redis.call('HSET', job_key(q, other), 'nx', id) end
local fields = {'p', rule[3], 'oc', cmsgpack.pack({name, tonumber(due_ms), 0})}
if lane_name ~= '' then
  fields[#fields + 1] = 'ln'
  fields[#fields + 1] = lane_name
end
birth(q, id, fields, lane, tonumber(rule[6]) or 0, tonumber(at_ms), 'at', behind)
file_archived(q)
close(q)
return {1, id}
