-- Mint a recurrence's job by hand, now, without touching its due.
-- KEYS    job: repeat:
-- ARGV    name id lane lane_name
-- RETURNS [1, id] minted or sent again | [4] no such recurrence | [5] taken: another job has this id
-- INCLUDE time counters news ring bell close rows birth
local rule = redis.call('HMGET', repeat_key(q, name), 'payload', 'prio', 'gone')
if redis.call('EXISTS', job_key(q, id)) == 1 then
  local occurrence = redis.call('HGET', job_key(q, id), 'oc')
  occurrence = occurrence and cmsgpack.unpack(occurrence)
  if occurrence and occurrence[1] == name and occurrence[3] == 1 then return {1, id} end
  return {5}
end
if not rule[1] or rule[3] then return {4} end
local fields = {'p', rule[1], 'oc', cmsgpack.pack({name, now, 1})}
if lane_name ~= '' then
  fields[#fields + 1] = 'ln'
  fields[#fields + 1] = lane_name
end
birth(q, id, fields, lane, tonumber(rule[2]) or 0, nil, nil)
close(q)
return {1, id}
