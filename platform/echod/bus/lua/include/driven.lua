-- A driven clock: the server's time moved by an offset (`+ms`, `-ms`), or standing still (`=ms`). Production never loads this.
-- KEYS global.clock
local function driven_clock(ms)
  local set = redis.call('GET', g.clock)
  if not set then return ms end
  if string.sub(set, 1, 1) == '=' then return tonumber(string.sub(set, 2)) end
  return ms + tonumber(set)
end
