-- Mint jobs: a row and a place for each, in one step; sent again with the same token it changes nothing.
-- KEYS    job: meta
-- ARGV    queue outside resend first_ms mints
-- RETURNS [per mint: 1 | [2, owner] duplicate | [3, owner] conflict | [4, pending] full | 5 taken | 6 stale]
-- ERRORS  MALFORMED a mint is not as below; none of them is minted
-- INCLUDE time counters news ring bell close rows birth unique
-- `mints` is msgpack: [id, payload, lane, lane as written or false, when (0 now, 1 in, 2 at), ms, priority,
-- unique or false: [key, mode, ms, body], parent, version, wait channel, token, once]; parent to wait channel may be false. `once`
-- is a second key of a fixed time, the request's own: it keeps the first answer, a duplicate's too. Children carry token '0', so
-- the supervisor and the pump can both mint them.
local MOST_PRIORITY, MOST_MS = 1000000, 9007199254740991 -- as callers are told; as exact as a double
local RESEND_MS = 10000 -- longer than anything is sent again

local function is_whole(value, most)
  return type(value) == 'number' and value % 1 == 0 and math.abs(value) <= most
end

local function is_text(value, or_false) return type(value) == 'string' or (or_false and value == false) end

local function is_key(key)
  if type(key) ~= 'table' then return not key end
  local is_timed = key[2] == 't' and is_whole(key[3], MOST_MS) and key[3] > 0
  return is_text(key[1]) and (is_timed or key[2] == 'd' or key[2] == 's') and is_text(key[4])
end

-- What is wrong with a mint, nil if nothing is. A fault that a command refused only later would leave half a row.
local function fault_of(mint)
  if type(mint) ~= 'table' then return 'mint' end
  if not (is_text(mint[1]) and is_text(mint[2]) and is_text(mint[3]) and is_text(mint[4], true)) then return 'id, payload or lane' end
  if not (is_whole(mint[5], 2) and is_whole(mint[6], MOST_MS) and mint[5] >= 0 and mint[6] >= 0) then return 'due' end
  if not is_whole(mint[7], MOST_PRIORITY) then return 'priority' end
  if not (is_key(mint[8]) and is_key(mint[13])) then return 'unique key' end
  for i = 9, 11 do
    if not is_text(mint[i], true) then return 'parent, version or wait' end
  end
  if not is_text(mint[12]) then return 'token' end
end

local wanted = cmsgpack.unpack(mints)
for i, mint in ipairs(wanted) do
  local fault = fault_of(mint)
  if fault then return redis.error_reply('MALFORMED mint ' .. i .. ': expected another ' .. fault .. '; nothing was minted') end
end

local meta = redis.call('HMGET', q.meta, 'n', 'max', 'cut', 'reg')
local pending, max_pending = tonumber(meta[1]) or 0, tonumber(meta[2])
if not meta[4] then
  register(q, queue)
  redis.call('HSET', q.meta, 'reg', 1)
end

local function mint_one(mint)
  local id, unique, token, once = mint[1], mint[8], mint[12], mint[13]
  local there = redis.call('HMGET', job_key(q, id), 'm', 't', 'pa')
  if there[1] then
    if (there[2] or '0') == token and there[3] == mint[9] then return 1 end
    return 5
  end
  -- A resend whose row is missing is a first arrival, unless the row may have come, ended and been trimmed since. A key of a
  -- fixed time outlives the row, and tells which it is.
  for _, key in ipairs(resend == '1' and {once or unique or nil, once and unique or nil} or {}) do
    if key[2] == 't' and owner_of(q, key[1]) == id then return 1 end
  end
  -- Whether it was trimmed young is asked of our clock alone: the caller's `first_ms` is its estimate, and may lie ahead.
  -- One that lies far ahead is of a clock that went back since.
  local cut = tonumber(meta[3])
  local first = tonumber(first_ms)
  local is_near = cut and (math.abs(now - cut) <= RESEND_MS or math.abs(first - cut) <= RESEND_MS)
  if resend == '1' and (now - first > RESEND_MS or is_near) then return 6 end
  for _, key in ipairs({once or unique or nil, once and unique or nil}) do
    local owner, body = owner_of(q, key[1])
    if owner then
      if key[4] ~= '' and body ~= key[4] then return {3, owner} end
      if once and key == unique then own(q, once, owner) end
      return {2, owner}
    end
  end
  if outside == '1' and max_pending and pending + pending_delta >= max_pending then return {4, pending + pending_delta} end

  local due = nil
  if mint[5] == 1 then due = now + mint[6] elseif mint[5] == 2 then due = mint[6] end
  local fields = {'p', mint[2]}
  local function set(name, value)
    if value then
      fields[#fields + 1] = name
      fields[#fields + 1] = value
    end
  end
  if token ~= '0' then set('t', token) end
  set('ln', mint[4])
  set('pa', mint[9])
  set('v', mint[10])
  set('wt', mint[11])
  if unique then
    set('u', unique[2] .. ':' .. unique[1])
    if unique[4] ~= '' then set('ub', unique[4]) end
    own(q, unique, id)
  end
  if once then own(q, once, id) end
  birth(q, id, fields, mint[3], mint[7], due, mint[5] == 1 and 'delay' or 'at')
  return 1
end

local answers = {}
for i, mint in ipairs(wanted) do answers[i] = mint_one(mint) end
close(q)
return answers
