-- Calls of people and deploys: the first answer to each call that wrote, for as long as the call may be sent again.
-- KEYS last:
-- A repeated call cannot be recognised from the state alone: it would get another answer, or undo what somebody wrote in
-- between. So the first answer is kept. `call` is the caller's own word for the call.
local CALL_TTL_MS = 10000

local function answered(q, call) return redis.call('GET', last_key(q, call)) end

local function answer(q, call, reply)
  redis.call('SET', last_key(q, call), reply, 'PX', CALL_TTL_MS)
  return reply
end
