-- Begin a browser's session, for a login link if one is given: a link opens once.
-- KEYS    global.tokens
-- ARGV    session link parent scopes expires_in_ms
-- RETURNS begun | gone
-- INCLUDE time news
-- A resend finds its own session. Of too many sessions the oldest ends.
local MOST = 1000
if redis.call('HGET', g.tokens, session) then return 'begun' end
if link ~= '' then
  local row = redis.call('HGET', g.tokens, link)
  row = row and cmsgpack.unpack(row)
  if not row or row[1] ~= 'link' or row[6] <= now then return 'gone' end
  redis.call('HDEL', g.tokens, link)
end
local all, count, oldest, oldest_made = redis.call('HGETALL', g.tokens), 0, nil, nil
for i = 1, #all, 2 do
  local entry = all[i] ~= 'closed' and cmsgpack.unpack(all[i + 1])
  if entry and entry[1] ~= 'token' and entry[6] <= now then
    redis.call('HDEL', g.tokens, all[i])
  elseif entry and entry[1] == 'session' then
    count = count + 1
    if not oldest or entry[5] < oldest_made then oldest, oldest_made = all[i], entry[5] end
  end
end
if count >= MOST then redis.call('HDEL', g.tokens, oldest) end
redis.call('HSET', g.tokens, session,
  cmsgpack.pack({'session', '', parent, scopes, now, now + tonumber(expires_in_ms), 0}))
publish('tokens')
return 'begun'
