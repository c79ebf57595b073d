-- Revoke a token by its name, with the sessions and links that came of it; or one row by its digest.
-- KEYS    global.tokens
-- ARGV    name digest
-- RETURNS [removed]
-- FLAGS   allow-oom
-- INCLUDE news
local removed = 0
if digest ~= '' then
  removed = redis.call('HDEL', g.tokens, digest)
else
  local all = redis.call('HGETALL', g.tokens)
  for i = 1, #all, 2 do
    local entry = all[i] ~= 'closed' and cmsgpack.unpack(all[i + 1])
    if entry and (entry[1] == 'token' and entry[2] == name or entry[1] ~= 'token' and entry[3] == name) then
      removed = removed + redis.call('HDEL', g.tokens, all[i])
    end
  end
end
if removed > 0 then publish('tokens') end
return {removed}
