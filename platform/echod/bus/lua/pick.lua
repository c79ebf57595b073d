-- Pick jobs by state, lane, error and age, in the order of their place: a bounded stretch of it, and where to go on.
-- KEYS    job: lane: jobs dead done
-- ARGV    states lane cause match older_ms newer_ms upto cursor limit scan
-- RETURNS [now_ms, upto, [id], cursor ('' at the end)]
-- FLAGS   no-writes
-- INCLUDE time filter
-- Drain, move, purge and redrive then get these ids. Each compares the state that it finds, so it may be sent again.
-- Age counts from the end of a job that ended, else from when it began to wait. `upto` is '' in a sweep's first call, then the
-- answer of that call: the last job there was, or in morgue and archive the last end. Later jobs are not picked, so that a sweep
-- ends even if its jobs fail again at once.
local wanted, ends_only = {}, true
for state in string.gmatch(states, '%a') do
  wanted[state] = true
  if state ~= 'd' and state ~= 'c' then ends_only = false end
end
local place = q.jobs
if states == 'x' then
  place = q.dead
elseif ends_only then
  place = q.done
elseif states == 'p' and lane ~= '' then
  place = lane_key(q, lane)
end
local by_end = place == q.dead or place == q.done
if upto == '' then
  local last = redis.call('ZRANGE', by_end and place or q.jobs, -1, -1, 'WITHSCORES')
  upto = by_end and text(math.max(now, tonumber(last[2]) or 0)) or last[1] or '-'
end

-- Ids in the order of the server's sets: by their bytes. Lua's own `<` goes by the server's locale.
local function precedes(one, other)
  for i = 1, math.min(#one, #other) do
    local a, b = string.byte(one, i), string.byte(other, i)
    if a ~= b then return a < b end
  end
  return #one < #other
end

-- How many entries lie up to the cursor, its own included, whether that is still there or not.
local function rank_after(score, id)
  local low, high = 0, redis.call('ZCARD', place)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local at = redis.call('ZRANGE', place, middle, middle, 'WITHSCORES')
    local other = tonumber(at[2])
    if other < score or (other == score and not precedes(id, at[1])) then low = middle + 1 else high = middle end
  end
  return low
end

local asked = {'m', 's', 'l', 'w', 'e', (cause ~= '' or match ~= '') and 'er' or nil}
local function is_meant(id, ended)
  local row = redis.call('HMGET', job_key(q, id), unpack(asked))
  weigh(row[6])
  local state = row[2] or 'p'
  if not row[1] or not wanted[state] or (lane ~= '' and lane ~= (row[3] or '-')) then return false end
  local has_ended = state == 'd' or state == 'x' or state == 'c'
  if by_end and ended > (tonumber(upto) or 0) or not by_end and precedes(upto, id) then return false end
  if not is_of_age(tonumber(has_ended and row[5] or row[4] or row[1]), older_ms, newer_ms) then return false end
  return has_error(state ~= 'd' and row[6], cause, match)
end

local found, scanned, at, rank = {}, 0, cursor, 0
if cursor ~= '' then
  local score, id = string.match(cursor, '^([^:]+):(.+)$')
  rank = rank_after(tonumber(score), id)
end
while scanned < tonumber(scan) do
  local entries = redis.call('ZRANGE', place, rank, rank + 99, 'WITHSCORES')
  if #entries == 0 then return {now, upto, found, ''} end
  for i = 1, #entries, 2 do
    at, rank, scanned = entries[i + 1] .. ':' .. entries[i], rank + 1, scanned + 1
    if is_meant(entries[i], tonumber(entries[i + 1])) then
      found[#found + 1] = entries[i]
    end
    if #found == tonumber(limit) or bytes_read > MOST_READ then return {now, upto, found, at} end
  end
end
return {now, upto, found, at}
