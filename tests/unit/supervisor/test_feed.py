"""The feed of one queue: what it settles in one call, and what it keeps for the next."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from echod.model.ids import JobId, VersionId
from echod.model.job import Claimed, Done, RunRecord
from echod.supervisor.feed import Feed
from echod.supervisor.leases import Lease, instant
from echod.supervisor.outcomes import MOST_VERDICTS
from echofn.manifest import Function, Policy, QueueTrigger

FUNCTION = Function("f", "f", "f", "f.py", 1, Policy(), (QueueTrigger(),))


async def test_what_one_call_does_not_take_goes_with_the_next_and_what_is_lost_with_none() -> None:
    means: Any = SimpleNamespace(bus=None, claimer="WRK1", lease_ms=15_000, environ={}, spawn=None)
    feed = Feed("f", means, lambda: None)
    for number in range(MOST_VERDICTS + 2):
        job = Claimed(JobId(f"JOB{number}"), 1, "h", 0, b"\xc0", "-", 1_000, 1_000, 1_000)
        lease = Lease(job, FUNCTION, VersionId("DEP1"), instant(), 15.0)
        lease.lost = number == 0
        feed._runs.verdicts.append((lease, Done(lease.hold, RunRecord("WRK1", "DEP1", 1, 2, 0, 0, False), b"\xc0")))
    calls = [[verdict.hold.id for _, verdict in feed._next_verdicts(instant())] for _ in range(3)]
    assert [len(ids) for ids in calls] == [MOST_VERDICTS, 1, 0]
    assert [id for ids in calls for id in ids] == [f"JOB{number}" for number in range(1, MOST_VERDICTS + 2)]
    await feed.shut()
