-- One bounded turn of a queue's clock: promote what is due, recover lost leases, trim, answer dues and the next event.
-- KEYS    global.wake
-- ARGV    limit roll expected_ms
-- RETURNS [now_ms, [[queue, recurrence, revision, due_ms]], next_in_ms|nil, more, promoted, recovered, stepped_ms]
-- FLAGS   allow-oom
-- INCLUDE time counters news ring bell close rows recover trim
-- `expected_ms`: TIME at the pump's last tick plus its monotonic time since; 0 at its first. After a reconnect:
-- TIME at its last tick, negative.
local stepped = note_step(tonumber(expected_ms))
local heal_in_ms = heal(q, redis.call('LPOS', g.wake, name_of(q)))
local due = {}
local promoted, recovered, more, next_in_ms = turn(q, tonumber(limit), tonumber(roll), due)
-- A drain leaves more jobs than settles and beats would trim in days.
local redated, trimmed, buried = redate(q, 100), trim_archive(q, 100), trim_morgue(q, 100)
more = more or redated >= 100 or trimmed == 100 or buried == 100
close(q)
return {now, due, sooner(next_in_ms, heal_in_ms), more and 1 or 0, promoted, recovered, stepped}
