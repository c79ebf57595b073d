-- Key names: every key is a declared base plus a name; families (`job:`) take the id behind the colon.
local function spelled(space, name)
  local key = space.base .. name
  rawset(space, name, key)
  return key
end

local SPACE = {__index = spelled}

local function space(base) return setmetatable({base = base}, SPACE) end

local function job_key(q, id) return q.base .. 'job:' .. id end
local function lane_key(q, lane) return q.base .. 'lane:' .. lane end
local function log_key(q, id) return q.base .. 'log:' .. id end
local function unique_key(q, key) return q.base .. 'unique:' .. key end
local function last_key(q, claimer) return q.base .. 'last:' .. claimer end
local function repeat_key(q, name) return q.base .. 'repeat:' .. name end

-- The queue's own (escaped) name, from between the braces; an app's prefix ends at the slash.
local function name_of(q) return string.match(q.base, '{([^}]*)}'):gsub('^.*/', '') .. '' end

-- One command with many values, some at a time: Lua's stack holds 8,000, and a command that breaks off has written its half.
local VALUES_AT_ONCE = 1000
local function call_with(command, key, values)
  for first = 1, #values, VALUES_AT_ONCE do
    redis.call(command, key, unpack(values, first, math.min(first + VALUES_AT_ONCE - 1, #values)))
  end
end

-- Milliseconds have 13 digits; `..` keeps 14, so a number becomes text here and nowhere else.
local function text(number) return string.format('%.0f', number) end

-- The number that was written, nil if there is none to reckon with: nan, which no comparison finds, and what is infinite are none.
local MOST_WRITTEN = 9007199254740991
local function number_in(written)
  local number = tonumber(written)
  return number and math.abs(number) <= MOST_WRITTEN and number or nil
end

-- What a key takes of the server's memory; of a long stream, or a hash of more fields than any row has, it is an estimate.
-- nil: it is not there, or the caller's ACL has no MEMORY; an error could leave a step half done.
local FIELDS_SAMPLED = 64
local function memory_of(key)
  local bytes = redis.pcall('MEMORY', 'USAGE', key, 'SAMPLES', FIELDS_SAMPLED)
  return type(bytes) == 'number' and bytes or nil
end
