-- Which jobs an operator means: by their error (a cause, `wall` means `wall:network` too; text of it in any case), by their age.
-- KEYS
-- INCLUDE time
-- Errors may be long: a call reads at most MOST_READ bytes of them, and answers where to go on.
local MOST_READ = 256 * 1024
local bytes_read = 0
local function weigh(packed) bytes_read = bytes_read + (packed and #packed or 0) end

local function has_error(packed, cause, match)
  if cause == '' and match == '' then return true end
  if not packed then return false end
  local told = cmsgpack.unpack(packed)
  local why = told.cause or 'error'
  if cause ~= '' and why ~= cause and string.sub(why, 1, #cause + 1) ~= cause .. ':' then return false end
  if match == '' then return true end
  local whole = (told.type or '') .. ': ' .. (told.message or '') .. '\n' .. (told.traceback or '')
  return string.find(string.lower(whole), string.lower(match), 1, true) ~= nil
end

-- Whether the time since the instant `since` is at least `older_ms` and at most `newer_ms`; '' means any.
local function is_of_age(since, older_ms, newer_ms)
  local age, youngest, oldest = now - since, tonumber(older_ms), tonumber(newer_ms)
  return not (youngest and age < youngest or oldest and age > oldest)
end
