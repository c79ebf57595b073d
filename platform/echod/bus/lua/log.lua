-- Append a run's output to its job's log: at most 1 MiB a run and 8 MiB a job, the first of it kept.
-- KEYS    job: log: meta logged
-- ARGV    id token lines
-- RETURNS kept (lines)
-- `lines` is msgpack: [attempt, packed line]. A job that is gone gets no log back. `lb` is the job's bytes, `la` attempt:bytes,
-- `lt` the token of the last append: sent again, it appends nothing. Most output arrives just after the settle. The archive's
-- bytes then grow by the memory it takes (one line takes 4 KiB); otherwise retention would bound everything but logs. `logged`
-- has the jobs that wrote last, by the time of their streams: it finds a function's output without a look at each of its jobs.
local RUN_BYTES, JOB_BYTES, JOBS_LISTED = 1024 * 1024, 8 * 1024 * 1024, 1000
local row = redis.call('HMGET', job_key(q, id), 'm', 'la', 'lb', 'lt', 's', 'sz')
if not row[1] or row[4] == token then return 0 end
local attempt, of_run = string.match(row[2] or '', '^(%d+):(%d+)$')
local before, kept, entry = tonumber(row[3]) or 0, 0, nil
local of_job, weighed = before, row[6] and (memory_of(log_key(q, id)) or 0)
of_run = tonumber(of_run) or 0
for _, line in ipairs(cmsgpack.unpack(lines)) do
  if tostring(line[1]) ~= attempt then attempt, of_run = tostring(line[1]), 0 end
  local size = #line[2] + 16
  if of_run + size <= RUN_BYTES and of_job + size <= JOB_BYTES then
    entry = redis.call('XADD', log_key(q, id), '*', 'l', line[2])
    of_run, of_job, kept = of_run + size, of_job + size, kept + 1
  else
    of_run = RUN_BYTES
  end
end
if entry then
  redis.call('ZADD', q.logged, string.match(entry, '^%d+'), id)
  redis.call('ZREMRANGEBYRANK', q.logged, 0, -JOBS_LISTED - 1)
end
redis.call('HSET', job_key(q, id), 'la', attempt .. ':' .. of_run, 'lb', of_job, 'lt', token)
if weighed and entry then
  local more = (memory_of(log_key(q, id)) or of_job - before) - weighed
  redis.call('HINCRBY', job_key(q, id), 'sz', more)
  if row[5] == 'd' or row[5] == 'c' then redis.call('HINCRBY', q.meta, 'ab', more) end
end
return kept
