-- Overlap: what becomes of an occurrence while earlier jobs of its recurrence have not ended.
-- KEYS job:
--
-- A recurrence remembers its last jobs by id; their rows tell how they stand. A job that is trimmed, done or cancelled has
-- ended, and is forgotten. A job in the morgue has ended, too, but is remembered: it may be redriven, and then counts again.
local REMEMBERED = 16

-- Its jobs that have not ended, oldest first, and the ids to remember.
local function earlier_jobs(q, ids)
  local open, kept = {}, {}
  for _, id in ipairs(ids) do
    local row = redis.call('HMGET', job_key(q, id), 'm', 's', 'a', 'bh')
    if row[1] and row[2] ~= 'd' and row[2] ~= 'c' then
      kept[#kept + 1] = id
      if row[2] ~= 'x' then open[#open + 1] = {id = id, has_begun = row[3], waits = row[4]} end
    end
  end
  -- The job that it waited for was evicted, so it never ended: nobody else would let this one go on.
  if #open == 1 and open[1].waits then go_on(q, open[1].id) end
  return open, kept
end

-- Answers whether the occurrence is dropped, and the ids of the jobs that its own must wait for (nil: none).
-- queue: one job that has begun, and one that has not. replace: waiting jobs end at once, running ones are asked to stop.
local function overlapping(q, overlap, open)
  if #open == 0 then return false, nil end
  if overlap == 'skip' then return true, nil end
  local behind = {}
  for _, job in ipairs(open) do
    if overlap == 'queue' then
      if not job.has_begun then return true, nil end
      behind[#behind + 1] = job.id
    elseif cancel_job(q, job.id) == 'cancelling' then
      behind[#behind + 1] = job.id
    end
  end
  return false, #behind > 0 and behind or nil
end
