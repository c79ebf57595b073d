-- Rows: how a job moves between lane, schedule, active, morgue and archive.
-- KEYS job: unique: log: schedule dead done meta
--
-- Fields, defaults not stored: p payload, m minted, t mint token, l lane, ln lane as written, pr priority, s state
-- (absent: lane, s scheduled, a active, d done, x dead, c cancelled), r reason, d due, w pending since, a attempts, h holder,
-- b attempt that was begun, st started, e ended, f failures, n losses before the start, x cancel asked, o result, er error,
-- y history, z the last run (packed by the caller) of a job that ended with it, ca the cause by which that run failed for good
-- (absent: error), u unique key with its mode, ub the body it was minted with, pa parent, v pinned version, rv version of the last run,
-- oc occurrence, bh jobs of its recurrence that it waits for, nx the job that waits for it, wt channels of who waits (a line each),
-- pg progress, sz bytes of memory it counts for in the archive, lb bytes of its log's lines, k counted among its lane's active jobs
-- (`counted` has that lane, too).
local HISTORY_LIMIT = 50
-- Beyond every instant: the score in `schedule` of a job that waits for another job to end.
local NEVER_MS = 9007199254740991
local archived, archived_bytes = {}, 0

-- Put the jobs that ended in this call into the archive, in one step. Every caller of make_ended must call it.
local function file_archived(q)
  if #archived == 0 then return end
  call_with('ZADD', q.done, archived)
  redis.call('HINCRBY', q.meta, 'ab', archived_bytes)
  archived, archived_bytes = {}, 0
end

-- "d:" until done, "s:" until started, "t:" for a fixed time (kept whatever becomes of the job).
local function free_unique(q, id, unique, mode)
  if unique and string.sub(unique, 1, 1) == mode then
    local key = unique_key(q, string.sub(unique, 3))
    if redis.call('HGET', key, 'o') == id then redis.call('DEL', key) end
  end
end

-- A history, which is a msgpack array, and one entry more; past the limit its oldest goes. The others stay packed: to unpack fifty
-- for the sake of one would be most of what a settle costs.
local function chronicle(packed, entry)
  local size, first, head = 0, 1, packed and string.byte(packed) or 0
  if head >= 0x90 and head <= 0x9f then
    size, first = head - 0x90, 2
  elseif head == 0xdc and #packed > 3 then
    size, first = struct.unpack('>H', packed, 2)
  else
    packed = ''  -- none yet, or nothing that anybody could read
  end
  if size >= HISTORY_LIMIT then
    local is_whole, past_oldest = pcall(cmsgpack.unpack_one, packed, first - 1)
    if is_whole and past_oldest > 0 then
      size, first = size - 1, past_oldest + 1
    else
      packed, size = '', 0
    end
  end
  return struct.pack('>BH', 0xdc, size + 1) .. string.sub(packed, first) .. cmsgpack.pack(entry)
end

-- To its lane, as from now.
local function make_pending(q, id, lane, priority)
  local key = job_key(q, id)
  redis.call('HDEL', key, 's', 'r')
  redis.call('HSET', key, 'w', now)
  enqueue(q, id, lane or '-', priority)
end

-- To the schedule, or to its lane when that instant has come.
local function make_scheduled(q, id, due, reason, lane, priority)
  local key = job_key(q, id)
  redis.call('HSET', key, 'd', due)
  if due <= now then return make_pending(q, id, lane, priority) end
  redis.call('HSET', key, 's', 's', 'r', reason)
  redis.call('ZADD', q.schedule, due, id)
  tell_if_first(q, q.schedule, id, due)
end

-- Let a job go on that waited for others of its recurrence: at its own due, or now.
local function go_on(q, id)
  local row = redis.call('HMGET', job_key(q, id), 'd', 'l', 'pr')
  redis.call('HDEL', job_key(q, id), 'bh')
  redis.call('ZREM', q.schedule, id)
  make_scheduled(q, id, number_in(row[1]) or now, 'at', row[2], row[3])
end

-- `id` has ended: the job that waits for it waits for one job fewer.
local function wake(q, waiter, id)
  local behind = redis.call('HGET', job_key(q, waiter), 'bh')
  if not behind then return end
  local left = {}
  for other in string.gmatch(behind, '%S+') do
    if other ~= id then left[#left + 1] = other end
  end
  if #left == 0 then return go_on(q, waiter) end
  redis.call('HSET', job_key(q, waiter), 'bh', table.concat(left, ' '))
end

-- An eviction took the row: the job ends in the morgue rather than running without a payload. Every caller must call
-- free_waiters once it is through.
local missing = {}
local function bury_missing(q, id)
  missing[#missing + 1], missing[id] = id, true
  local cause = cmsgpack.pack({type = 'Missing', message = 'the row was gone: evicted or deleted', cause = 'missing'})
  redis.call('HSET', job_key(q, id), 'm', now, 's', 'x', 'e', now, 'er', cause)
  redis.call('ZADD', q.dead, now, id)
  count('dead')
end

-- Jobs that waited for one that was buried go on. Which they are, its row knew: of more than so many that wait in the queue, some
-- go on only at the next instant of their recurrence.
local WAITERS_ASKED = 1000
local function free_waiters(q)
  if #missing == 0 then return end
  for _, waiter in ipairs(redis.call('ZRANGEBYSCORE', q.schedule, text(NEVER_MS), '+inf', 'LIMIT', 0, WAITERS_ASKED)) do
    for other in string.gmatch(redis.call('HGET', job_key(q, waiter), 'bh') or '', '%S+') do
      if missing[other] then wake(q, waiter, other) end
    end
  end
  missing = {}
end

-- The fields that make_ended needs. Every script that ends a job reads them last; otherwise the job's unique key would stay,
-- and the jobs that wait for it would wait for ever. No payload is among them: 250 of 1 MiB, read to be measured, are 150 ms.
local ENDING = {'u', 'wt', 'lb', 'nx', 'bh'}
local function ending(got, first)
  return {u = got[first], wt = got[first + 1], lb = got[first + 2], nx = got[first + 3], bh = got[first + 4]}
end

-- What a job that ended costs the server: its row, its log, and a place each in `jobs` and in archive or morgue.
local PLACES_BYTES, FIELD_BYTES = 200, 5
local function weight_in_bytes(q, id, has_log)
  local key = job_key(q, id)
  return PLACES_BYTES + (memory_of(key) or redis.call('HSTRLEN', key, 'p')) + (has_log and memory_of(log_key(q, id)) or 0)
end

-- Move a job to the archive (d done, c cancelled) or the morgue (x). `row` is the answer of `ending`; `more` has further fields
-- to write. If a run ended the job (`z`) without an error, that of an earlier run goes: it would be taken for the last one's.
-- Whether there was one its attempts tell: a redrive has set the failures back to none.
local function make_ended(q, id, state, row, more)
  local key, last, written = job_key(q, id), {}, 0
  for i = 1, #more, 2 do
    last[more[i]] = true
    written = written + FIELD_BYTES + #tostring(more[i + 1])
  end
  if last.z and not last.er and row.a ~= '1' then redis.call('HDEL', key, 'er') end
  if row.nx or row.bh then redis.call('HDEL', key, 'nx', 'bh') end
  local bytes = weight_in_bytes(q, id, row.lb) + written
  redis.call('HSET', key, 's', state, 'e', now, 'sz', bytes, unpack(more))
  if state == 'x' then
    redis.call('ZADD', q.dead, now, id)
  else
    archived[#archived + 1] = now
    archived[#archived + 1] = id
    archived_bytes = archived_bytes + bytes
  end
  free_unique(q, id, row.u, 'd')
  free_unique(q, id, row.u, 's')
  for channel in string.gmatch(row.wt or '', '[^\n]+') do redis.call('PUBLISH', channel, id) end
  if row.nx then wake(q, row.nx, id) end
end
