-- Note how far a run is; a stale holder changes nothing.
-- KEYS    job:
-- ARGV    id attempts holder progress
-- RETURNS ok | stale
local row = redis.call('HMGET', job_key(q, id), 's', 'a', 'h')
if row[1] ~= 'a' or row[2] ~= attempts or row[3] ~= holder then return 'stale' end
redis.call('HSET', job_key(q, id), 'pg', progress)
return 'ok'
