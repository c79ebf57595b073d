"""When runs are to end: one timer for all runs of a worker, on the loop that nodes run on."""

from __future__ import annotations

import asyncio

import uvloop

from echod.model.ids import JobId, VersionId
from echod.model.job import Claimed
from echod.supervisor.deadlines import Deadlines
from echod.supervisor.leases import Lease
from echofn.manifest import Function, Policy, QueueTrigger
from server import PATIENCE_S


def run(index: int, *, timeout_ms: int) -> Lease:
    """A run without a grace: who is told to end is over at once."""
    policy = Policy(timeout_ms=timeout_ms, grace_ms=0)
    function = Function("f", "m", "f", "m.py", 1, policy, (QueueTrigger(),))
    job = Claimed(JobId(f"JOB0000000000{index}"), 1, "h", 0, b"\xc0", "-", 1_000, 1_000, 1_000)
    lease = Lease(job, function, VersionId("DEP1"), 0.0, 15.0)
    lease.index = index
    return lease


def test_runs_that_are_to_end_at_once_end_all_of_them() -> None:
    """uvloop has a timer that is due at once say nothing of when that is; the next run is compared with it."""

    async def ended() -> tuple[list[Lease], list[Lease], list[Lease]]:
        told, over, all_over = list[Lease](), list[Lease](), asyncio.Event()
        patient, *others = runs = [run(0, timeout_ms=3_600_000), run(1, timeout_ms=3_600_000), run(2, timeout_ms=0)]

        def end(due: list[Lease]) -> None:
            over.extend(due)
            for lease in due:
                del running[lease.index]
            if len(over) == len(others):
                all_over.set()

        running = {lease.index: lease for lease in runs}
        deadlines = Deadlines(running, look=lambda: None, tell=told.append, over=end)
        deadlines.begin(patient)
        deadlines.interrupt(runs[1], "cancelled")
        deadlines.begin(runs[2])
        async with asyncio.timeout(PATIENCE_S):
            await all_over.wait()
        deadlines.close()
        return told, over, [patient] if running == {0: patient} else []

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        told, over, left = runner.run(ended())
    assert [lease.index for lease in told] == [1]
    assert sorted(lease.index for lease in over) == [1, 2]
    assert [lease.index for lease in left] == [0]
