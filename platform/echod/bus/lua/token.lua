-- Make a token or a login link: its digest, never itself, with what it may do and until when.
-- KEYS    global.tokens
-- ARGV    digest kind name parent scopes expires_in_ms
-- RETURNS made | taken | full
-- INCLUDE time news
-- A resend finds its own digest and answers the same. The field `closed` stays once a token was made, so that revoking the
-- last one does not open the door again.
local MOST = 2000
local row = redis.call('HGET', g.tokens, digest)
if row then return 'made' end
local all, count = redis.call('HGETALL', g.tokens), 0
for i = 1, #all, 2 do
  if all[i] ~= 'closed' then
    local entry = cmsgpack.unpack(all[i + 1])
    local over = entry[6] > 0 and entry[6] <= now
    if kind == 'token' and entry[1] == 'token' and entry[2] == name then return 'taken' end
    if over and entry[1] ~= 'token' then redis.call('HDEL', g.tokens, all[i]) else count = count + 1 end
  end
end
if count >= MOST then return 'full' end
local expires = tonumber(expires_in_ms) > 0 and now + tonumber(expires_in_ms) or 0
redis.call('HSET', g.tokens, digest, cmsgpack.pack({kind, name, parent, scopes, now, expires, 0}))
if kind == 'token' then redis.call('HSET', g.tokens, 'closed', 1) end
publish('tokens')
return 'made'
