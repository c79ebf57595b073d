-- Mint a recurrence's jobs by hand for instants of the past, each once while its row is kept; its due does not move.
-- KEYS    job: unique: repeat:
-- ARGV    name lane lane_name instants
-- RETURNS [per instant: id of its job, minted now or before; '': another job has the id], empty: no such recurrence
-- INCLUDE time counters news ring bell close rows birth
-- `instants` is msgpack: [due_ms, id, unique key], a few hundred, oldest first. What is past is not measured as late. The
-- answers end before the first whose payload is too much for this call: ask again from there.
local rule = redis.call('HMGET', repeat_key(q, name), 'payload', 'prio', 'gone')
if not rule[1] or rule[3] then return {} end
local made, copied = {}, 0
for i, instant in ipairs(cmsgpack.unpack(instants)) do
  local due_ms, id, key = instant[1], instant[2], instant[3]
  local owner = redis.call('HGET', unique_key(q, key), 'o')
  if owner and redis.call('EXISTS', job_key(q, owner)) == 1 then
    made[i] = owner
  elseif redis.call('EXISTS', job_key(q, id)) == 1 then
    made[i] = ''
  else
    if copied > 0 and copied + #rule[1] > COPIED_BYTES then break end
    copied = copied + #rule[1]
    redis.call('HSET', unique_key(q, key), 'o', id, 'm', 'k', 'b', '')
    local fields = {'p', rule[1], 'oc', cmsgpack.pack({name, due_ms, 1}), 'u', 'k:' .. key}
    if lane_name ~= '' then
      fields[#fields + 1] = 'ln'
      fields[#fields + 1] = lane_name
    end
    birth(q, id, fields, lane, tonumber(rule[2]) or 0, nil, nil)
    made[i] = id
  end
end
close(q)
return made
