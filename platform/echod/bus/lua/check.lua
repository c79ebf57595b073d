-- Look whether the jobs of a sample are each in exactly one place, and lanes with jobs in exactly one of ring, later, held.
-- KEYS    job: lane: ring later held active schedule dead done jobs
-- ARGV    sample
-- RETURNS [looked at, [[what is wrong, id or lane]]]
-- FLAGS   no-writes
local faults, most = {}, tonumber(sample)
local places = {{'schedule', q.schedule}, {'active', q.active}, {'dead', q.dead}, {'done', q.done}}
local PLACE_OF = {s = 'schedule', a = 'active', x = 'dead', d = 'done', c = 'done'}

local function fault(what, which)
  if #faults < 100 then faults[#faults + 1] = {what, which} end
end

local function look_at_job(id)
  local row = redis.call('HMGET', job_key(q, id), 'm', 's', 'l')
  local lane = row[3] or '-'
  local found = {}
  for _, place in ipairs(places) do
    if redis.call('ZSCORE', place[2], id) then found[#found + 1] = place[1] end
  end
  if redis.call('ZSCORE', lane_key(q, lane), id) then found[#found + 1] = 'lane' end
  local place = row[2] and PLACE_OF[row[2]] or 'lane'
  if not row[1] then
    fault('a job without a row', id)
  elseif #found == 0 then
    fault('a job in no place', id)
  elseif #found > 1 then
    fault('a job in ' .. table.concat(found, ' and '), id)
  elseif found[1] ~= place then
    fault('a job in ' .. found[1] .. ' whose row says ' .. place, id)
  end
  return found[1] == 'lane' and lane or nil
end

local function look_at_lane(lane)
  local seats = 0
  if redis.call('ZSCORE', q.ring, lane) then seats = seats + 1 end
  if redis.call('ZSCORE', q.later, lane) then seats = seats + 1 end
  if redis.call('SISMEMBER', q.held, lane) == 1 then seats = seats + 1 end
  local jobs = redis.call('ZCARD', lane_key(q, lane))
  if jobs > 0 and seats ~= 1 then fault('a lane with jobs in ' .. seats .. ' of ring, later and held', lane) end
  if jobs == 0 and redis.call('ZSCORE', q.ring, lane) then fault('an empty lane in the ring', lane) end
end

local looked, lanes = redis.call('ZRANDMEMBER', q.jobs, most), {}
for _, id in ipairs(looked) do
  local lane = look_at_job(id)
  if lane then lanes[lane] = true end
end
for _, key in ipairs({q.ring, q.later}) do
  for _, lane in ipairs(redis.call('ZRANGE', key, 0, most - 1)) do lanes[lane] = true end
end
for _, lane in ipairs(redis.call('SRANDMEMBER', q.held, most)) do lanes[lane] = true end
for lane in pairs(lanes) do look_at_lane(lane) end
return {#looked, faults}
