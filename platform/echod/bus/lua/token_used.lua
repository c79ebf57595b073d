-- Note that a token was used, to the minute: a revoked one stays revoked.
-- KEYS    global.tokens
-- ARGV    digest
-- RETURNS ok
-- INCLUDE time
local row = redis.call('HGET', g.tokens, digest)
if row then
  local entry = cmsgpack.unpack(row)
  if now - entry[7] >= 60000 then
    entry[7] = now
    redis.call('HSET', g.tokens, digest, cmsgpack.pack(entry))
  end
end
return 'ok'
