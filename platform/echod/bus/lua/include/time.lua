-- The only clock: the server's TIME, read once per call (a test or `dev --clock` drives it here, production never).
local function server_clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
local function read_clock()
  local ms = server_clock()
  --<driven>
  return ms
end
local now = read_clock()
