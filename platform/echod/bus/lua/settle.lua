-- Settle a batch of claims, each by its verdict, and claim the next `want` turns in the same step.
-- KEYS    job: active out meta
-- ARGV    claimer sequence want lease_ms holder popped begun verdicts
-- RETURNS [now_ms, [id refused: its fence was stale], [job], blocked: empty|paused|capped|full|nil, retry_in_ms|nil, limited, rebuilt_ms|absent]
-- ERRORS  MALFORMED a verdict is not as below; none of them is settled
-- FLAGS   allow-oom (second head: after -OOM)
-- INCLUDE time counters news ring bell close rows serve full last trim
-- `verdicts` is msgpack: [kind, id, attempts, holder, run, started, ended, …]; run is packed, for the page to read:
-- [worker, version, started, ended, cpu_us, peak_bytes, cold]. done: result, children [[id, packed]] or false
-- · retry: error, cause, after_ms · dead: error, cause · delay: after_ms · cancelled: error or false · release (run false).
-- The first settle wins: a `done` stands although a cancel was asked for.
local TEXTS = {done = 1, retry = 2, dead = 2, delay = 0, cancelled = 0, release = 0} -- so many after the run, by kind
local NUMBERS = {retry = 10, delay = 8} -- where a kind has one

local function is_whole(value) return type(value) == 'number' and value % 1 == 0 end

local function is_children(listed)
  if type(listed) ~= 'table' then return not listed end
  for _, child in ipairs(listed) do
    if not (type(child) == 'table' and type(child[1]) == 'string' and type(child[2]) == 'string') then return false end
  end
  return true
end

-- What is wrong with a verdict, nil if nothing is. An error raised only later would leave half a batch.
local function fault_of(verdict)
  local texts = type(verdict) == 'table' and TEXTS[verdict[1]]
  if not texts then return 'kind' end
  if not (type(verdict[2]) == 'string' and is_whole(verdict[3]) and type(verdict[4]) == 'string') then return 'fence' end
  local is_run = type(verdict[5]) == 'string' or (verdict[1] == 'release' and verdict[5] == false)
  if not (is_run and is_whole(verdict[6]) and is_whole(verdict[7])) then return 'run' end
  for i = 8, 7 + texts do
    if type(verdict[i]) ~= 'string' then return 'result, error or cause' end
  end
  if texts == 0 and verdict[1] ~= 'delay' and verdict[8] and type(verdict[8]) ~= 'string' then return 'error' end
  if NUMBERS[verdict[1]] and not is_whole(verdict[NUMBERS[verdict[1]]]) then return 'delay' end
  if verdict[1] == 'done' and not is_children(verdict[9]) then return 'children' end
end

local again = rebuild(q, claimer, sequence)
if again then return again end
local wanted = cmsgpack.unpack(verdicts)
for i, verdict in ipairs(wanted) do
  local fault = fault_of(verdict)
  if fault then return redis.error_reply('MALFORMED verdict ' .. i .. ': expected another ' .. fault .. '; nothing was settled') end
end
mark_begun(q, cmsgpack.unpack(begun))

local retries = tonumber(redis.call('HGET', q.meta, 'retries')) or 3
local refused, left, ended = {}, {}, 0
local ACT = {}

-- What the row cannot tell (somebody wrote into it) measures as nothing: an error would break off the verdicts that follow.
local function measure(row, verdict)
  local started = verdict[6]
  local wait = math.max(started - (number_in(row.w or row.m) or started), 0)
  observe('D', verdict[7] - started)
  observe('W', wait)
  if row.d then observe('L', started - (number_in(row.d) or started)) end
  return wait
end

-- The history of a run that did not end the job. The run that ended it is in `z` and the row's state.
local function record(id, row, verdict, outcome, cause)
  local wait = measure(row, verdict)
  local past = redis.call('HGET', job_key(q, id), 'y')
  return chronicle(past, {tonumber(row.a), outcome, cause, wait, verdict[5]})
end

function ACT.done(id, row, verdict)
  measure(row, verdict)
  local children = verdict[9]
  if children then
    local kept = {}
    for _, child in ipairs(children) do
      kept[#kept + 1] = child[1]
      kept[#kept + 1] = text(now) .. child[2]
    end
    call_with('HSET', q.out, kept)
  end
  count('done')
  ended = ended + 1
  local result = verdict[8]
  make_ended(q, id, 'd', row, result == '\192' and {'z', verdict[5]} or {'z', verdict[5], 'o', result})
end

function ACT.cancelled(id, row, verdict)
  local more = {}
  if verdict[5] then
    measure(row, verdict)
    more = {'z', verdict[5]}
  end
  if verdict[8] then
    more[#more + 1] = 'er'
    more[#more + 1] = verdict[8]
  end
  count('cancelled')
  ended = ended + 1
  make_ended(q, id, 'c', row, more)
end

local function charge_run(cause)
  count('failed')
  if cause == 'timeout' then count('timeouts') end
end

function ACT.dead(id, row, verdict)
  measure(row, verdict)
  charge_run(verdict[9])
  count('dead')
  local more = {'z', verdict[5], 'f', row.failures + 1, 'er', verdict[8]}
  if verdict[9] ~= 'error' then more[7], more[8] = 'ca', verdict[9] end
  make_ended(q, id, 'x', row, more)
end

function ACT.retry(id, row, verdict)
  if row.x then return ACT.cancelled(id, row, verdict) end
  if row.failures + 1 > retries then return ACT.dead(id, row, verdict) end
  charge_run(verdict[9])
  count('retried')
  redis.call('HSET', job_key(q, id), 'st', verdict[6], 'f', row.failures + 1, 'er', verdict[8],
    'y', record(id, row, verdict, 'retry', verdict[9]))
  make_scheduled(q, id, now + verdict[10], 'retry', row.l, row.pr)
end

function ACT.delay(id, row, verdict)
  if row.x then return ACT.cancelled(id, row, {verdict[1], id, 0, '', verdict[5], verdict[6], verdict[7], false}) end
  count('snoozed')
  redis.call('HSET', job_key(q, id), 'st', verdict[6], 'y', record(id, row, verdict, 'delay', ''))
  make_scheduled(q, id, now + verdict[8], 'snooze', row.l, row.pr)
end

function ACT.release(id, row, verdict)
  if row.x then return ACT.cancelled(id, row, verdict) end
  make_pending(q, id, row.l, row.pr)
end

local function row_of(got)
  local row = ending(got, 12)
  row.a, row.failures, row.m, row.w, row.d = got[2], tonumber(got[4]) or 0, got[5], got[6], got[7]
  row.x, row.l, row.pr, row.k = got[8], got[9], got[10], got[11]
  return row
end

for _, verdict in ipairs(wanted) do
  local id = verdict[2]
  local got = redis.call('HMGET', job_key(q, id), 's', 'a', 'h', 'f', 'm', 'w', 'd', 'x', 'l', 'pr', 'k', unpack(ENDING))
  if got[1] ~= 'a' or tonumber(got[2]) ~= verdict[3] or got[3] ~= verdict[4] then
    refused[#refused + 1] = id
    count('refused')
  else
    left[#left + 1] = id
    local row = row_of(got)
    vacate(q, id, row.k, row.l)
    ACT[verdict[1]](id, row, verdict)
  end
end
call_with('ZREM', q.active, left)
file_vacated(q)
if ended > 0 then
  file_archived(q)
  trim_archive(q, 2 * ended, MEMORY_IS_OUT)
end

local jobs, blocked, retry_in_ms = {}, false, false
if tonumber(want) > 0 then jobs, blocked, retry_in_ms = serve_within_memory(q, tonumber(want), tonumber(lease_ms), holder) end
remember(q, claimer, sequence, holder, refused, jobs, blocked, retry_in_ms)
close(q)
if popped == '1' then answer_bell(q) end
return {now, refused, jobs, blocked, retry_in_ms, is_limited(q)}
