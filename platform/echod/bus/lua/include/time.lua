-- The only clock: the server's TIME, read once per call (a test or `dev --clock` adds an offset here, production never).
local function read_clock()
  local time = redis.call('TIME')
  local ms = time[1] * 1000 + math.floor(time[2] / 1000)
  --<offset>
  return ms
end
local now = read_clock()
