-- A new row and its place, in one step: what mint, occur and run-now have in common.
-- KEYS job: schedule jobs meta global.queues
local LARGE_BYTES = 16 * 1024  -- as many as one claim hands out are as much as it hands out
-- So much of a recurrence's payload is copied into jobs by one call, or one payload: the caller goes on where it stopped.
local COPIED_BYTES = 8 * 1024 * 1024
local function register(q, queue)
  if redis.call('HSETNX', g.queues, name_of(q), queue) == 1 then publish('queues', name_of(q)) end
end

-- `fields` are pairs for the row, its payload first. A job without a due, or with one that has come, goes straight to its
-- lane. `behind` has the ids of jobs that must end before.
local function birth(q, id, fields, lane, priority, due, reason, behind)
  local key = job_key(q, id)
  if lane ~= '-' then fields[#fields + 1] = 'l'; fields[#fields + 1] = lane end
  if priority ~= 0 then fields[#fields + 1] = 'pr'; fields[#fields + 1] = priority end
  if due then fields[#fields + 1] = 'd'; fields[#fields + 1] = due end
  redis.call('HSET', key, 'm', now, unpack(fields))
  if #fields[2] > LARGE_BYTES then redis.call('HSET', q.meta, 'large', 1) end
  redis.call('ZADD', q.jobs, 0, id)
  if behind then
    redis.call('HSET', key, 's', 's', 'bh', table.concat(behind, ' '))
    redis.call('ZADD', q.schedule, NEVER_MS, id)
  elseif due and due > now then
    redis.call('HSET', key, 's', 's', 'r', reason)
    redis.call('ZADD', q.schedule, due, id)
    tell_if_first(q, q.schedule, id, due)
  else
    enqueue(q, id, lane, priority)
  end
  count('minted')
end
