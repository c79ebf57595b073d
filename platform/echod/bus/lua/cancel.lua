-- Cancel a job: one that waits ends at once, one that runs is asked to stop (its next extend says so).
-- ARGV    id
-- RETURNS cancelled | cancelling | ended | unknown
-- FLAGS   allow-oom
-- INCLUDE time counters news ring bell close rows cancel trim
local became = cancel_job(q, id)
file_archived(q)
trim_archive(q, 2)
close(q)
return became
