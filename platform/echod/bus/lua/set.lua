-- Set a queue or a lane: paused or not, a lane's weight, a lane's rest until an instant.
-- KEYS    lanes meta
-- ARGV    what lane value
-- RETURNS ok
-- FLAGS   allow-oom
-- INCLUDE time counters news ring bell close
-- what: paused (value 1 or ''), weight (1–100), rest (ms from now, lane only). lane '': the queue.
if lane == '' then
  if value == '' then redis.call('HDEL', q.meta, 'paused') else redis.call('HSET', q.meta, 'paused', 1) end
  woken = true
else
  local field = lane .. ({paused = ':p', weight = ':w', rest = ':u'})[what]
  if what == 'rest' and value ~= '' then value = now + tonumber(value) end
  if value == '' or (what == 'weight' and value == '1') then
    redis.call('HDEL', q.lanes, field)
  else
    redis.call('HSET', q.lanes, field, value)
  end
  reseat(q, lane)
  reset_if_idle(q)
end
close(q)
return 'ok'
