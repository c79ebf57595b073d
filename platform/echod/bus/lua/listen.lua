-- Ask to be told of a job's end on a channel, whoever minted it.
-- KEYS    job:
-- ARGV    id channel
-- RETURNS listening | ended | unknown
-- At most eight listen to a job, the last that asked. One that is dropped looks for itself, but later.
local row = redis.call('HMGET', job_key(q, id), 'm', 's', 'wt')
if not row[1] then return 'unknown' end
if row[2] == 'd' or row[2] == 'x' or row[2] == 'c' then return 'ended' end
local channels = {channel}
for each in string.gmatch(row[3] or '', '[^\n]+') do
  if each ~= channel and #channels < 8 then channels[#channels + 1] = each end
end
redis.call('HSET', job_key(q, id), 'wt', table.concat(channels, '\n'))
return 'listening'
