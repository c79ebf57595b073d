-- Unique keys: who owns one now, and taking one. A key is free if its owner's row no longer claims it.
-- KEYS job: unique:
--
-- A row claims its key with `u` (mode and key) until the job ends; with mode `s` until it is first claimed. A key of a fixed
-- time needs no row: it holds whatever becomes of its job.
local function owner_of(q, name)
  local held = redis.call('HMGET', unique_key(q, name), 'o', 'm', 'b', 'x')
  if not held[1] then return nil end
  if held[2] == 't' then
    if tonumber(held[4]) <= now then return nil end
    return held[1], held[3]
  end
  local row = redis.call('HMGET', job_key(q, held[1]), 'u', 's', 'a', 'm')
  local ended = row[2] == 'd' or row[2] == 'x' or row[2] == 'c'
  if row[4] and row[1] == held[2] .. ':' .. name and not ended and not (held[2] == 's' and row[3]) then
    return held[1], held[3]
  end
  return nil
end

-- `unique` is [key, mode, ms, body].
local function own(q, unique, id)
  local key = unique_key(q, unique[1])
  redis.call('DEL', key)
  if unique[2] == 't' then
    redis.call('HSET', key, 'o', id, 'm', 't', 'b', unique[4], 'x', now + unique[3])
    redis.call('PEXPIRE', key, unique[3])
  else
    redis.call('HSET', key, 'o', id, 'm', unique[2], 'b', unique[4])
  end
end
