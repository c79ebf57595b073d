-- Settle occurrences, each once: mint its job (or drop it with a counted reason) and advance its recurrence to the next due.
-- KEYS    job: repeat repeat: global.active
-- ARGV    occurrences
-- RETURNS [per occurrence: [1, id] minted | [2, id or ''] already, with the job of that due | [3] dropped, by the caller or by its overlap | [4] stale: ask tick again | [5] unreadable: its row is damaged | [6] older: of a version that another had replaced by then | [7] malformed: it is not as below]
-- INCLUDE time counters news ring bell close rows cancel overlap birth
-- `occurrences` is msgpack, a hundred or so, in order: [recurrence, revision, due_ms, next_ms or false: nothing follows, id or
-- false: a drop, lane, lane as written or false, missed or skipped: which a drop is, of how many dues, at_ms, last_ms]. `at_ms`:
-- when the job itself is due, later than its instant by the rule's jitter. `last_ms`: the newest of the dues. The answers end
-- before the first whose payload is too much for this call: ask again from there.
local function is_whole(value) return type(value) == 'number' and value % 1 == 0 and math.abs(value) <= NEVER_MS end

local function is_text(value, or_false) return type(value) == 'string' or (or_false and value == false) end

local function is_well_formed(one)
  return type(one) == 'table' and is_text(one[1]) and is_whole(one[2]) and is_whole(one[3])
    and (one[4] == false or is_whole(one[4])) and is_text(one[5], true) and is_text(one[6]) and is_text(one[7], true)
    and (one[8] == 'missed' or one[8] == 'skipped') and is_whole(one[9]) and is_whole(one[10]) and is_whole(one[11])
end

-- A schedule of the code ends with the switch to another version, even if its pump has not heard of the switch. Dues after the
-- switch wait until the row is written for the new version. Dues before it get their outcome by the old rule.
local active = redis.call('HMGET', g.active, 'generation', 'at')

local function is_replaced(generation, due_ms, next_ms, is_drop)
  if not (generation and active[1] and active[2] and tonumber(generation) < tonumber(active[1])) then return false end
  return due_ms > tonumber(active[2]) or (is_drop and (not next_ms or next_ms > tonumber(active[2])))
end

-- What a row remembers, nil if it cannot be read. No error may break the call off here: other occurrences are written already.
local function remembered(packed)
  if not packed then return {} end
  local is_read, list = pcall(cmsgpack.unpack, packed)
  return is_read and type(list) == 'table' and list or nil
end

local function advance(name, next_ms)
  if next_ms then
    redis.call('ZADD', q['repeat'], next_ms, name)
    redis.call('HSET', repeat_key(q, name), 'next', next_ms)
  else
    redis.call('ZREM', q['repeat'], name)
    redis.call('HDEL', repeat_key(q, name), 'next')
  end
end

-- Only a job that is minted needs the payload, and those of one recurrence have the same: for the rest it is enough to know how
-- long it is. nil: there is none.
local payloads, copied = {}, 0

local function payload_bytes(key)
  local bytes = redis.call('HSTRLEN', key, 'payload')
  return (bytes > 0 or redis.call('HEXISTS', key, 'payload') == 1) and bytes or nil
end

local function payload_of(key)
  payloads[key] = payloads[key] or redis.call('HGET', key, 'payload')
  return payloads[key]
end

-- Its answer; nil, and nothing is written, if its payload is too much for this call.
local function settle_one(name, revision, due_ms, next_ms, id, lane, lane_name, drop, dropped, at_ms, last_ms)
  local key = repeat_key(q, name)
  local rule = redis.call('HMGET', key, 'rev', 'next', 'gen', 'recent', 'paused', 'prio', 'last', 'gone', 'ov', 'jobs', 'err', 'missed',
    'skipped')
  if not rule[1] then return {4} end
  local recent, jobs, known, bytes = remembered(rule[4]), remembered(rule[10]), nil, payload_bytes(key)
  if not (recent and jobs and bytes and is_whole(tonumber(rule[12] or 0)) and is_whole(tonumber(rule[13] or 0))) then return {5} end
  for _, pair in ipairs(recent) do
    if tonumber(pair[1]) == due_ms then known = pair[2] end
  end
  if tonumber(rule[1]) ~= revision or tonumber(rule[2]) ~= due_ms or rule[5] or rule[8] then return known and {2, known} or {4} end
  if is_replaced(rule[3], due_ms, next_ms, not id and dropped > 1) then return {6} end
  -- This due has its outcome already: a rule that was changed from an outdated `last` asks for it again. Advance, or the due
  -- would stay for ever.
  if known or due_ms <= (tonumber(rule[7]) or -1) then
    advance(name, next_ms)
    return {2, known or ''}
  end
  -- As mint's TAKEN: another job has this id. The next question comes with another.
  if id and redis.call('EXISTS', job_key(q, id)) == 1 then return {4} end
  if id and copied > 0 and copied + bytes > COPIED_BYTES then return nil end

  local overlap, behind = rule[9] or 'allow', nil
  if id and overlap ~= 'allow' then
    local open, is_dropped
    open, jobs = earlier_jobs(q, jobs)
    is_dropped, behind = overlapping(q, overlap, open)
    if is_dropped then id, drop = false, 'skipped' end
  end

  -- Several dues are kept, not one: a pump may lag, and its question must still get the same answer.
  recent[#recent + 1] = {due_ms, id or ''}
  if #recent > 8 then table.remove(recent, 1) end
  if id then
    jobs[#jobs + 1] = id
    if #jobs > REMEMBERED then table.remove(jobs, 1) end
  end
  redis.call('HSET', key, 'last', last_ms, 'recent', cmsgpack.pack(recent), 'jobs', cmsgpack.pack(jobs))
  if rule[11] then redis.call('HDEL', key, 'err') end
  advance(name, next_ms)
  if not id then
    redis.call('HINCRBY', key, drop, dropped)
    count(drop, dropped)
    return {3}
  end
  for _, other in ipairs(behind or {}) do redis.call('HSET', job_key(q, other), 'nx', id) end
  copied = copied + bytes
  local fields = {'p', payload_of(key), 'oc', cmsgpack.pack({name, due_ms, 0})}
  if lane_name then
    fields[#fields + 1] = 'ln'
    fields[#fields + 1] = lane_name
  end
  birth(q, id, fields, lane, tonumber(rule[6]) or 0, at_ms, 'at', behind)
  return {1, id}
end

-- A row that is damaged may ask for what cannot be, an instant past all counting: the others of its call go on.
local answers = {}
for i, one in ipairs(cmsgpack.unpack(occurrences)) do
  local answer = {7}
  if is_well_formed(one) then answer = settle_one(unpack(one, 1, 11)) end
  if not answer then break end
  answers[i] = answer
end
file_archived(q)
close(q)
return answers
