"""What a worker that is gone costs, and whom."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from echod.model.ids import JobId, VersionId
from echod.model.job import Claimed
from echod.supervisor import losses
from echod.supervisor.events import Departure
from echod.supervisor.leases import Lease
from echod.supervisor.line import Line
from echod.supervisor.losses import EXCUSED, Losses
from echofn import frames
from echofn.manifest import Function, Policy, QueueTrigger
from server import PATIENCE_S

FUNCTION = Function("shop.pack", "shop", "pack", "shop.py", 1, Policy(), (QueueTrigger(),))
DIED = Departure((), (), (), True, None, None, "signal:SEGV", "", 0, 0)
WORKER: Any = SimpleNamespace(id="WRK1")


def lease(number: int) -> Lease:
    job = Claimed(JobId(f"JOB0000000000{number}"), 1, "h", 0, b"\xc0", "-", 1_000, 1_000, 1_000)
    return Lease(job, FUNCTION, VersionId("DEP1"), 0.0, 15.0)


class Told:
    """What the queue's runs hear."""

    def __init__(self) -> None:
        self.charged: list[Lease] = []
        self.back: list[Lease] = []
        self.unstarted: list[tuple[Lease, str]] = []
        self.moves = asyncio.Event()

    def crashed(self, worker: object, lease: Lease, departure: Departure) -> None:
        self.charged.append(lease)

    def released(self, leases: list[Lease]) -> None:
        self.back += leases

    def not_started(self, lease: Lease, failed: frames.Failed, cause: str) -> None:
        self.unstarted.append((lease, failed.exception))

    def moved(self) -> None:
        self.moves.set()


def pool(*waiting: Lease) -> tuple[Losses, Any, Line]:
    told: Any = Told()
    line = Line()
    for each in waiting:
        line.append(each)
    return Losses("shop.pack", told, line), told, line


def died(**how: Any) -> Departure:
    return msgspec.structs.replace(DIED, **how)


async def test_the_one_job_that_a_worker_died_of_is_charged() -> None:
    of, told, _ = pool()
    job = lease(0)
    of.mourn(WORKER, died(begun=(job,)))
    assert (told.charged, told.back) == ([job], [])


async def test_whom_it_was_killed_for_is_charged_and_its_neighbours_go_back() -> None:
    of, told, _ = pool()
    jobs = [lease(number) for number in range(3)]
    of.mourn(WORKER, died(begun=tuple(jobs), culprits=(jobs[1],), why="timeout"))
    assert (told.charged, told.back) == ([jobs[1]], [jobs[0], jobs[2]])


async def test_where_nobody_knows_whom_it_died_of_all_go_back_and_each_comes_alone() -> None:
    of, told, line = pool()
    jobs = [lease(0), lease(1)]
    of.mourn(WORKER, died(begun=tuple(jobs)))
    assert (told.charged, told.back) == ([], jobs)
    for each in (*jobs, lease(2)):
        line.append(each)
    assert line.alone == jobs
    of.mourn(WORKER, died(begun=(jobs[0],)))  # it was this one
    assert told.charged == [jobs[0]]
    assert line.alone == [jobs[1]]


async def test_a_worker_that_is_let_go_costs_nobody_a_charge() -> None:
    of, told, _ = pool()
    jobs = [lease(0), lease(1)]
    of.mourn(WORKER, died(begun=tuple(jobs), why="released"))
    assert (told.charged, told.back) == ([], jobs)


async def test_each_worker_that_does_not_start_makes_the_next_wait_longer_until_one_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(losses, "instant", lambda: now)
    of, _, _ = pool()
    waits = []
    for _ in range(12):
        assert of.may_start
        of.barren(WORKER, died(was_ready=False), [], is_last=False)
        waits.append(of._not_before - now)
        assert not of.may_start
        now = of._not_before
    assert waits[:4] == pytest.approx([0.2, 0.4, 0.8, 1.6])
    assert waits[-1] == losses.BACK_OFF_CAP_S
    of.answered()
    of.not_hired(OSError("no descriptors"), is_last=False)
    assert of._not_before - now == pytest.approx(0.2)
    of.close()


async def test_the_pool_plans_again_when_the_wait_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "BACK_OFF_S", 0.001)
    of, told, _ = pool()
    of.not_hired(OSError("no descriptors"), is_last=False)
    await asyncio.wait_for(told.moves.wait(), PATIENCE_S)
    assert of.may_start


async def test_a_module_that_does_not_import_costs_the_job_that_it_was_started_for() -> None:
    first, second = lease(0), lease(1)
    of, told, line = pool(first, second)
    failed = frames.Failed("ImportError", "no", "")
    of.barren(WORKER, died(was_ready=False, failed=failed), [], is_last=True)
    assert told.unstarted == [(first, "ImportError")]
    assert (told.back, len(line)) == ([second], 0)
    of.close()


async def test_where_another_worker_is_there_what_waits_waits_for_it() -> None:
    of, told, line = pool(lease(0))
    of.barren(WORKER, died(was_ready=False, why="startup", detail="slow"), [], is_last=False)
    assert (told.unstarted, told.back, len(line)) == ([], [], 1)
    of.close()


async def test_one_that_ends_before_its_first_job_is_excused_a_few_times_and_then_a_job_pays() -> None:
    of, told, _ = pool()
    hand = [lease(0), lease(1)]
    for _ in range(EXCUSED - 1):
        of.barren(WORKER, DIED, hand, is_last=False)
        assert (told.unstarted, len(hand)) == ([], 2)
    of.barren(WORKER, DIED, hand, is_last=False)
    assert [(each.job.id, what) for each, what in told.unstarted] == [("JOB00000000000", "StartFailed")]
    assert [each.job.id for each in hand] == ["JOB00000000001"]
    of.close()


async def test_what_waits_goes_back_where_no_worker_can_be_had_at_all() -> None:
    job = lease(0)
    of, told, line = pool(job)
    of.not_hired(OSError("no descriptors"), is_last=True)
    assert (told.back, told.unstarted, len(line)) == ([job], [], 0)
    of.close()
