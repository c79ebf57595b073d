-- Calls of people and deploys: what one was answered that wrote, for as long as it may be sent again.
-- KEYS last:
-- By what stands alone, a call sent again would be answered in another word; and where somebody else wrote in between, it would
-- undo that. `call` is the caller's own word for the call.
local CALL_TTL_MS = 10000

local function answered(q, call) return redis.call('GET', last_key(q, call)) end

local function answer(q, call, reply)
  redis.call('SET', last_key(q, call), reply, 'PX', CALL_TTL_MS)
  return reply
end
