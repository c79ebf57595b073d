"""The pump on a real server whose clock the tests drive: exactly one outcome for each due instant, whatever happens."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from doing import claim_one, done, mint, settle
from echod.bus import Bus
from echod.bus.answers import Occurred, RecurrenceRow
from echod.bus.occurring import CALL_OCCURRENCES
from echod.bus.timing import TICK_LIMIT
from echod.errors import BusAway
from echod.model.ids import NodeId, VersionId, branded
from echod.model.job import Child, Done, Hold, Job, Mint, Minted, RunRecord, Unique
from echod.policy import catchup
from echod.policy.recurring import stored
from echod.pump import convergence, occurrences
from echod.pump import pump as pumps
from echod.pump.outbox import QUEUES_AT_ONCE
from echod.pump.pump import Pump
from echod.registry.duty import Report
from echod.registry.registry import Registry
from echofn.manifest import CronTrigger, EveryTrigger, Function, Manifest, Policy, Recurring
from server import Server

MINUTE_MS = 60_000
_numbers = count(1)


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def function(*triggers: Recurring, name: str = "shop.tick", policy: Policy | None = None) -> Function:
    return Function(name, "shop", "tick", "shop.py", 1, policy or Policy(), triggers)


class Node:
    """A bus, a registry and a pump, as one process has them; turned by hand."""

    def __init__(self, bus: Bus, folder: Path) -> None:
        self.bus = bus
        self.registry = Registry(bus, folder)
        self.pump = Pump(bus, self.registry)

    async def publish(self, *functions: Function) -> None:
        """Switch the bus, and nothing more: no pump has heard of it."""
        version = VersionId(branded("DEP", next(_numbers)))
        await self.bus.put_version(version, [b""], msgspec.msgpack.encode(Manifest("functions", functions)))
        await self.bus.activate(version)

    async def deploy(self, *functions: Function) -> None:
        await self.publish(*functions)
        await self.settle()

    async def settle(self) -> None:
        """A beat, and turns until nothing is left to do now."""
        await self.registry.refresh()
        self.pump.heard(await self.bus.beat(pump=True))
        while (await self.pump.turn()).more:
            pass

    async def jobs(self, queue: str = "shop.tick") -> list[Job]:
        found: list[Job] = []
        cursor = ""
        while True:
            page, cursor = await self.bus.jobs(queue, limit=500, cursor=cursor)
            found += page
            if not cursor:
                return found

    async def dues(self, queue: str = "shop.tick") -> list[int]:
        """Due instants of all jobs, in order; one that was minted twice is there twice."""
        return sorted(job.occurrence.due_ms for job in await self.jobs(queue) if job.occurrence)

    async def row(self, queue: str = "shop.tick") -> RecurrenceRow:
        (row,) = await self.bus.recurrences(queue)
        return row


@asynccontextmanager
async def joined(server: Server, folder: Path, *, driven: bool = False) -> AsyncIterator[Node]:
    bus = await Bus.open(server.address, driven=driven)
    try:
        await bus.join(NodeId(branded("NOD", next(_numbers))))
        yield Node(bus, folder)
    finally:
        await bus.close()


@pytest.fixture
async def node(server: Server, tmp_path: Path) -> AsyncIterator[Node]:
    async with joined(server, tmp_path) as node:
        yield node


async def until(fact: Callable[[], Awaitable[bool]], *, within_s: float = 60.0) -> None:
    end = time.monotonic() + within_s
    while not await fact():
        assert time.monotonic() < end, "it did not come true in time"
        await asyncio.sleep(0.01)


# ---- once per occurrence ------------------------------------------------------------------------------------------


async def test_racing_pumps_mint_each_due_instant_once(node: Node, server: Server, tmp_path: Path) -> None:
    async with joined(server, tmp_path / "b") as second, joined(server, tmp_path / "c") as third:
        server.clock.set(ms("2026-06-01T12:00:00.500Z"))
        await node.deploy(function(CronTrigger("", "* * * * * *")))
        for _ in range(20):
            server.clock.advance(3_000)
            await asyncio.gather(node.settle(), second.settle(), third.settle())
        first = ms("2026-06-01T12:00:01Z")
        dues = await node.dues()
        assert dues == [first + n * 1000 for n in range(len(dues))]
        assert 60 <= len(dues) <= 62
        assert (await node.row()).missed == 0


@contextmanager
def pump_process(server: Server) -> Iterator[subprocess.Popen[bytes]]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("ECHOD_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "echod", "pump", "--bus", server.address, "--state", str(server.folder / "state")],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def test_a_pump_killed_and_one_frozen_leave_no_second_out_or_twice(node: Node, server: Server) -> None:
    await node.deploy(function(CronTrigger("", "* * * * * *")))

    async def minted(more: int) -> bool:
        return len(await node.dues()) >= more

    with pump_process(server) as first, pump_process(server) as second:
        await until(lambda: minted(3), within_s=120)
        first.kill()
        await until(lambda: minted(6), within_s=120)
        with pump_process(server) as third:
            second.send_signal(signal.SIGSTOP)
            await until(lambda: minted(10), within_s=120)
            second.send_signal(signal.SIGCONT)
            third.kill()
            third.wait()
            await until(lambda: minted(13), within_s=120)
    dues = await node.dues()
    assert dues == list(range(dues[0], dues[-1] + 1000, 1000))
    assert all(job.minted_ms >= job.due_ms for job in await node.jobs())


async def test_a_pump_cut_off_between_any_two_calls_leaves_each_instant_one_outcome(
    node: Node, server: Server, tmp_path: Path
) -> None:
    server.clock.set(ms("2026-06-01T12:00:00.500Z"))
    await node.deploy(function(CronTrigger("", "* * * * * *", missed="all", cap=5), EveryTrigger("", 1_000)))
    cut = 0
    for step in range(60):
        server.clock.advance(700 if step % 10 else 30_000)
        async with joined(server, tmp_path / str(step)) as other:
            await other.registry.refresh()
            other.pump.heard(await other.bus.beat(pump=True))
            turning = asyncio.create_task(other.pump.turn())
            for _ in range(step % 7):  # so many turns of the event loop, then it dies with what it has sent
                await asyncio.sleep(0)
            cut += not turning.done()
            turning.cancel()
            await asyncio.gather(turning, return_exceptions=True)
    await node.settle()
    assert cut > 30
    for row in await node.bus.recurrences("shop.tick"):
        assert row.next_ms is not None
        dues = sorted(
            job.occurrence.due_ms
            for job in await node.jobs()
            if job.occurrence and job.occurrence.recurrence.endswith(row.name)
        )
        assert len(set(dues)) == len(dues)
        assert len(dues) + row.missed == (row.next_ms - ms("2026-06-01T12:00:01Z")) // 1000


async def test_many_schedules_due_at_one_instant_are_all_minted_once(node: Node, server: Server) -> None:
    server.clock.set(ms("2026-06-01T11:59:30Z"))
    names = [f"shop.f{n}" for n in range(20)]
    triggers = tuple(EveryTrigger(f"rule {n}", MINUTE_MS * 60) for n in range(50))
    await node.deploy(*(function(*triggers, name=name) for name in names))
    server.clock.set(ms("2026-06-01T12:00:01Z"))
    await node.settle()
    for name in names:
        found = Counter(job.occurrence.recurrence for job in await node.jobs(name) if job.occurrence)
        assert len(found) == 50
        assert set(found.values()) == {1}


# ---- late and missed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("missed", "minted"), [("skip", 0), ("last", 1), ("all", 7)])
async def test_a_long_outage_is_caught_up_by_the_policy(node: Node, server: Server, missed: str, minted: int) -> None:
    server.clock.set(ms("2026-06-01T00:00:30Z"))
    await node.deploy(function(CronTrigger("", "* * * * *", missed=missed, cap=7)))  # type: ignore[arg-type]
    server.clock.advance(1000 * MINUTE_MS)
    await node.settle()
    newest = ms("2026-06-01T16:40:00Z")
    assert await node.dues() == [newest - n * MINUTE_MS for n in reversed(range(minted))]
    row = await node.row()
    assert row.missed == 1000 - minted
    assert row.next_ms == newest + MINUTE_MS
    assert (await node.bus.metrics("shop.tick", 3_600_000)).missed == 1000 - minted


async def test_a_backlog_longer_than_one_turn_is_counted_to_the_last_and_told_in_one_line(
    node: Node, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.clock.set(ms("2026-06-01T00:00:00.500Z"))
    await node.deploy(function(CronTrigger("", "* * * * * *", missed="all", cap=700)))
    server.clock.advance(3_600_000)
    await node.settle()
    dues, row = await node.dues(), await node.row()
    assert dues == list(range(dues[0], dues[-1] + 1000, 1000))
    assert 700 <= len(dues) <= 715  # the newest 700, and those within the grace
    assert row.missed + len(dues) == (dues[-1] - ms("2026-06-01T00:00:00Z")) // 1000
    (told,) = (line for line in capsys.readouterr().err.splitlines() if "occurrence.missed" in line)
    last = datetime.fromtimestamp(dues[0] // 1000 - 1, UTC)
    assert told.endswith(f"count={row.missed} first=2026-06-01T00:00:01Z last={last:%Y-%m-%dT%H:%M:%SZ}")


async def test_what_a_pump_missed_of_a_backlog_that_another_goes_on_with_is_told_with_the_next_beat(
    node: Node, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.clock.set(ms("2026-06-01T00:00:00.500Z"))
    await node.deploy(function(CronTrigger("", "* * * * * *", missed="skip")))
    server.clock.advance(3_600_000)
    node.pump.heard(await node.bus.beat(pump=True))
    await node.pump.turn()
    assert "occurrence.missed" not in capsys.readouterr().err
    node.pump.heard(await node.bus.beat(pump=True))
    await node.pump.turn()
    assert "count=500 first=2026-06-01T00:00:01Z last=2026-06-01T00:08:20Z" in capsys.readouterr().err


@pytest.mark.parametrize("missed", ["skip", "last", "all"])
async def test_an_instant_within_the_grace_is_on_time(node: Node, server: Server, missed: str) -> None:
    server.clock.set(ms("2026-06-01T00:00:30Z"))
    await node.deploy(function(CronTrigger("", "* * * * *", missed=missed)))  # type: ignore[arg-type]
    server.clock.set(ms("2026-06-01T00:01:09Z"))
    await node.settle()
    assert await node.dues() == [ms("2026-06-01T00:01:00Z")]
    assert (await node.row()).missed == 0


async def test_where_one_within_the_grace_is_minted_last_mints_no_older_one(node: Node, server: Server) -> None:
    server.clock.set(ms("2026-06-01T00:00:30Z"))
    await node.deploy(function(CronTrigger("", "* * * * *")))
    server.clock.set(ms("2026-06-01T00:10:05Z"))
    await node.settle()
    assert await node.dues() == [ms("2026-06-01T00:10:00Z")]
    assert (await node.row()).missed == 9


# ---- clocks and daylight saving -----------------------------------------------------------------------------------


async def test_a_restart_within_the_repeated_hour_repeats_nothing(node: Node, server: Server, tmp_path: Path) -> None:
    server.clock.set(ms("2026-10-25T00:29:58Z"))  # half past three, and again an hour later
    await node.deploy(function(CronTrigger("", "30 * * * *", "Europe/Helsinki")))
    server.clock.set(ms("2026-10-25T00:30:01Z"))
    await node.settle()
    for instant in ("2026-10-25T00:45:00Z", "2026-10-25T01:30:01Z", "2026-10-25T01:45:00Z", "2026-10-25T02:30:01Z"):
        server.clock.set(ms(instant))
        async with joined(server, tmp_path / instant) as restarted:
            await restarted.settle()
    assert await node.dues() == [ms(f"2026-10-25T0{hour}:30:00Z") for hour in range(3)]


async def test_a_clock_that_steps_back_mints_nothing_twice(node: Node, server: Server) -> None:
    server.clock.set(ms("2026-06-01T12:00:30Z"))
    await node.deploy(function(CronTrigger("", "* * * * *")))
    server.clock.set(ms("2026-06-01T12:02:01Z"))
    await node.settle()
    assert await node.dues() == [ms("2026-06-01T12:02:00Z")]
    server.clock.advance(-90_000)
    await node.settle()
    server.clock.set(ms("2026-06-01T12:02:30Z"))
    await node.settle()
    assert await node.dues() == [ms("2026-06-01T12:02:00Z")]
    server.clock.set(ms("2026-06-01T12:03:01Z"))
    await node.settle()
    assert await node.dues() == [ms("2026-06-01T12:02:00Z"), ms("2026-06-01T12:03:00Z")]


async def test_every_is_anchored_and_never_drifts(node: Node, server: Server, tmp_path: Path) -> None:
    server.clock.set(ms("2026-06-01T12:00:47Z"))
    tick = function(EveryTrigger("", 20_000, anchor_ms=5_000))
    for step in range(12):
        async with joined(server, tmp_path / str(step)) as restarted:
            await restarted.deploy(tick)
            server.clock.advance(8_137)
            await restarted.settle()
    dues = await node.dues()
    assert dues[0] == ms("2026-06-01T12:01:05Z")
    assert dues == list(range(dues[0], dues[-1] + 20_000, 20_000))


async def test_each_instant_has_its_job_although_its_function_is_unique(node: Node, server: Server) -> None:
    """A key would leave an instant without an outcome: what may lie beside what is `overlap`'s to say."""
    server.clock.set(ms("2026-06-01T12:00:00.500Z"))
    await node.deploy(function(EveryTrigger("", 1_000), policy=Policy(unique=True)))
    key = Unique("a caller's", until="done")
    (called,) = await mint(node.bus, "shop.tick", unique=key)
    server.clock.advance(3_000)
    await node.settle()
    first = ms("2026-06-01T12:00:01Z")
    assert await node.dues() == [first, first + 1000, first + 2000]
    again = Mint(id=node.bus.new_job_id(), payload=b"\x01", unique=key)
    assert await node.bus.mint("shop.tick", [again]) == [Minted(called, duplicate=True)]


# ---- the life of a recurrence ---------------------------------------------------------------------------------------


async def test_a_changed_rule_goes_on_from_its_last_due_and_the_old_one_is_gone(node: Node, server: Server) -> None:
    server.clock.set(ms("2026-06-01T12:00:30Z"))
    await node.deploy(function(CronTrigger("report", "25 * * * *")))
    server.clock.set(ms("2026-06-01T12:25:01Z"))
    await node.settle()
    server.clock.set(ms("2026-06-01T12:29:50Z"))
    await node.deploy(function(CronTrigger("report", "*/15 * * * *")))
    assert (await node.row()).next_ms == ms("2026-06-01T12:30:00Z")
    for instant in ("2026-06-01T12:30:01Z", "2026-06-01T12:45:01Z", "2026-06-01T13:00:01Z", "2026-06-01T13:25:01Z"):
        server.clock.set(ms(instant))
        await node.settle()
    assert [each - ms("2026-06-01T12:00:00Z") for each in await node.dues()] == [
        minute * MINUTE_MS for minute in (25, 30, 45, 60, 75)
    ]


async def test_a_pump_that_read_a_rule_before_others_went_on_changes_it_from_where_they_are(
    node: Node, server: Server
) -> None:
    server.clock.set(ms("2026-06-01T12:00:30Z"))
    await node.deploy(function(CronTrigger("report", "0 * * * *", missed="skip")))
    server.clock.set(ms("2026-06-01T13:00:01Z"))
    await node.settle()
    server.clock.set(ms("2026-06-01T14:00:01Z"))
    changed = function(CronTrigger("report", "*/15 * * * *", missed="skip"))
    await node.publish(changed)
    (active, _), rows = await node.bus.active(), await node.bus.recurrences(gone=True)
    assert active is not None
    assert active.since_ms is not None
    way = convergence.steps([changed], active.generation, rows, active.since_ms, active.since_ms)
    node.pump.heard(await node.bus.beat(pump=True))  # and what is due by the rule as it was has its outcome
    await node.pump.turn()
    for step in way:
        await convergence._take(node.bus, step, active.generation, active.since_ms)
    assert (await node.row()).next_ms == ms("2026-06-01T14:15:00Z")
    server.clock.set(ms("2026-06-01T14:40:00Z"))
    await node.settle()
    assert await node.dues() == [ms("2026-06-01T13:00:00Z"), ms("2026-06-01T14:00:00Z")]
    assert (await node.row()).missed == 2


async def test_two_changes_in_a_row_give_no_instant_a_second_outcome(node: Node, server: Server) -> None:
    """Of what an outage missed or a pause skipped the newest is the last due, too."""
    server.clock.set(ms("2026-06-01T12:00:30Z"))
    await node.deploy(function(CronTrigger("report", "0 * * * *", missed="skip")))
    server.clock.set(ms("2026-06-01T20:30:00Z"))
    await node.settle()
    row = await node.row()
    assert (row.missed, row.last_ms) == (8, ms("2026-06-01T20:00:00Z"))
    await node.deploy(function(CronTrigger("report", "45 * * * *", missed="skip")))
    await node.deploy(function(CronTrigger("report", "*/10 * * * *", missed="skip")))
    assert (await node.row()).missed == 10  # the two of 20:10 and 20:20
    assert await node.dues() == [ms("2026-06-01T20:30:00Z")]


async def test_the_first_due_of_all_has_its_outcome_although_the_rule_is_changed_before_a_pump_looked(
    node: Node, server: Server
) -> None:
    server.clock.set(ms("2026-06-01T12:30:00Z"))
    await node.deploy(function(CronTrigger("report", "0 * * * *")))
    server.clock.set(ms("2026-06-01T13:00:03Z"))
    await node.deploy(function(CronTrigger("report", "*/15 * * * *")))
    assert await node.dues() == [ms("2026-06-01T13:00:00Z")]


async def test_nothing_fires_for_a_function_that_is_gone(node: Node, server: Server) -> None:
    server.clock.set(ms("2026-06-01T12:00:30Z"))
    await node.deploy(function(CronTrigger("", "* * * * *")), function(name="shop.other"))
    await node.deploy(function(name="shop.other"))
    server.clock.advance(10 * MINUTE_MS)
    await node.settle()
    assert await node.bus.recurrences() == []
    assert await node.dues() == []


HOURLY = CronTrigger("report", "0 * * * *")


async def test_a_schedule_that_comes_back_mints_no_instant_twice(node: Node, server: Server) -> None:
    """Not even where the clock was set back meanwhile: what went is remembered with its last due."""
    server.clock.set(ms("2026-06-01T12:30:00Z"))
    await node.deploy(function(HOURLY))
    first = node.registry.active
    assert first is not None
    server.clock.set(ms("2026-06-01T13:00:01Z"))
    await node.settle()
    await node.deploy(function(name="shop.other"))
    assert await node.bus.recurrences() == []
    server.clock.set(ms("2026-06-01T12:58:00Z"))
    await node.bus.activate(first.version)
    await node.settle()
    assert (await node.row()).next_ms == ms("2026-06-01T14:00:00Z")
    server.clock.set(ms("2026-06-01T14:00:01Z"))
    await node.settle()
    assert await node.dues() == [ms("2026-06-01T13:00:00Z"), ms("2026-06-01T14:00:00Z")]


async def test_an_instant_that_was_due_before_a_schedule_went_is_there_when_it_comes_back(
    node: Node, server: Server
) -> None:
    server.clock.set(ms("2026-06-01T12:30:00Z"))
    await node.deploy(function(HOURLY))
    first = node.registry.active
    assert first is not None
    server.clock.set(ms("2026-06-01T13:00:03Z"))
    await node.publish(function(name="shop.other"))  # before any pump ticked
    await node.registry.refresh()
    await node.pump._converge()
    assert await node.bus.recurrences() == []
    server.clock.set(ms("2026-06-01T13:00:07Z"))
    await node.bus.activate(first.version)
    await node.settle()
    assert await node.dues() == [ms("2026-06-01T13:00:00Z")]


async def test_what_would_have_been_due_while_a_schedule_was_gone_is_not_minted_when_it_comes_back(
    node: Node, server: Server
) -> None:
    server.clock.set(ms("2026-06-01T12:30:00Z"))
    await node.deploy(function(HOURLY))
    first = node.registry.active
    assert first is not None
    await node.deploy(function(name="shop.other"))
    server.clock.set(ms("2026-06-03T09:30:00Z"))
    await node.bus.activate(first.version)
    server.clock.set(ms("2026-06-03T10:00:02Z"))  # the pump hears late; the version has been active since half past
    await node.settle()
    assert await node.dues() == [ms("2026-06-03T10:00:00Z")]


async def test_a_pause_survives_that_a_schedule_goes_and_comes_back(node: Node, server: Server) -> None:
    server.clock.set(ms("2026-06-01T12:30:00Z"))
    await node.deploy(function(HOURLY))
    await node.bus.pause_recurrence("shop.tick", "report")
    await node.deploy(function(name="shop.other"))
    assert await node.bus.resume_recurrence("shop.tick", "report", ms("2026-06-01T13:00:00Z")) == "unknown"
    assert await node.bus.run_now("shop.tick", "report", node.bus.new_job_id()) is None
    await node.deploy(function(HOURLY))
    assert (await node.row()).paused
    server.clock.set(ms("2026-06-01T13:00:01Z"))
    await node.settle()
    assert await node.dues() == []


async def test_what_is_gone_for_eight_days_is_forgotten(node: Node, server: Server) -> None:
    server.clock.set(ms("2026-06-01T12:30:00Z"))
    await node.deploy(function(HOURLY))
    for _ in range(2):
        await node.deploy(function(name="shop.other"))
        assert [row.name for row in await node.bus.recurrences(gone=True)] == ["report"]
    server.clock.set(ms("2026-06-09T12:30:01Z"))
    await node.deploy(function(name="shop.other"))
    assert await node.bus.recurrences(gone=True) == []


async def test_a_pump_of_an_older_version_changes_nothing(node: Node, server: Server, tmp_path: Path) -> None:
    async with joined(server, tmp_path / "old") as old:
        await old.deploy(function(CronTrigger("report", "25 * * * *")))
        await node.deploy(function(CronTrigger("report", "40 * * * *")))
        old.pump._reconnected()  # it converges once more, with what it knows
        while (await old.pump.turn()).more:
            pass
    assert (await node.row()).rule == "40 * * * *"


@pytest.mark.parametrize("triggers", [(), (CronTrigger("tick", "0 * * * *"),)], ids=["gone", "changed"])
async def test_a_pump_that_slept_through_a_switch_mints_nothing_that_was_due_after_it(
    node: Node, server: Server, triggers: tuple[Recurring, ...]
) -> None:
    server.clock.set(ms("2026-06-01T12:00:30Z"))
    await node.deploy(function(CronTrigger("tick", "* * * * *", missed="all", cap=100)))
    server.clock.set(ms("2026-06-01T12:02:30Z"))
    await node.publish(function(*triggers))
    server.clock.set(ms("2026-06-01T12:05:30Z"))
    node.pump.heard(await node.bus.beat(pump=True))  # and the news of the switch is lost
    for _ in range(3):
        await node.pump.turn()
    assert await node.dues() == [ms("2026-06-01T12:01:00Z"), ms("2026-06-01T12:02:00Z")]
    assert [row.next_ms for row in await node.bus.recurrences()] == [ms("2026-06-01T13:00:00Z")] * len(triggers)


async def test_a_function_that_a_pump_has_not_heard_of_is_asked_for_before_it_is_said_to_be_gone(
    node: Node, server: Server
) -> None:
    server.clock.set(ms("2026-06-01T12:00:30Z"))
    await node.deploy(function(name="shop.other"))
    await node.publish(function(name="shop.tick"))
    due_ms = ms("2026-06-01T12:01:00Z")
    rule = {"rule": "every 1m", "tz": "UTC", "payload": b"\xc0", "trigger": stored(EveryTrigger("r", MINUTE_MS))}
    await node.bus.recur("shop.tick", "r", next_ms=due_ms, generation=None, **rule)  # type: ignore[arg-type]
    server.clock.set(due_ms + 1)
    node.pump.heard(await node.bus.beat(pump=True))
    await node.pump.turn()
    assert await node.dues() == [due_ms]


async def test_a_rule_that_is_the_same_after_a_switch_goes_on_once_it_is_written_for_it(
    node: Node, server: Server
) -> None:
    """At once, though nothing changed of it that would be told."""
    server.clock.set(ms("2026-06-01T12:00:30Z"))
    rule = function(EveryTrigger("", MINUTE_MS))
    await node.deploy(rule)
    await node.publish(rule, function(name="shop.other"))
    server.clock.advance(MINUTE_MS)
    node.pump.heard(await node.bus.beat(pump=True))  # and the news of the switch is lost
    for _ in range(4):
        await node.pump.turn()
    assert len(await node.jobs()) == 1


async def test_deploying_the_same_rule_again_and_running_it_by_hand_move_nothing(node: Node, server: Server) -> None:
    server.clock.set(ms("2026-06-01T12:00:47Z"))
    tick = function(EveryTrigger("", 20_000))
    await node.deploy(tick)
    for _ in range(10):
        await node.deploy(tick)
    row = await node.row()
    assert row.next_ms == ms("2026-06-01T12:01:00Z")
    minted = await node.bus.run_now("shop.tick", row.name, node.bus.new_job_id())
    assert minted is not None
    assert (await node.row()).next_ms == ms("2026-06-01T12:01:00Z")
    server.clock.set(ms("2026-06-01T12:01:01Z"))
    await node.settle()
    assert [(job.occurrence.manual, job.due_ms > 0) for job in await node.jobs() if job.occurrence] == [
        (False, True),
        (True, True),
    ]


async def test_a_paused_recurrence_mints_nothing_until_it_is_resumed(node: Node, server: Server) -> None:
    server.clock.set(ms("2026-06-01T12:00:30Z"))
    await node.deploy(function(CronTrigger("", "* * * * *")))
    name = (await node.row()).name
    await node.bus.pause_recurrence("shop.tick", name)
    server.clock.advance(10 * MINUTE_MS)
    await node.settle()
    assert await node.dues() == []
    await node.bus.resume_recurrence("shop.tick", name, ms("2026-06-01T12:11:00Z"), skipped=10)
    server.clock.set(ms("2026-06-01T12:11:01Z"))
    await node.settle()
    assert await node.dues() == [ms("2026-06-01T12:11:00Z")]
    assert (await node.row()).skipped == 10


async def test_a_rule_that_cannot_be_read_is_parked_with_its_error_and_the_others_go_on(
    node: Node, server: Server
) -> None:
    server.clock.set(ms("2026-06-01T12:00:30Z"))
    await node.deploy(function(CronTrigger("", "* * * * *")))
    for name, trigger in (
        ("garbage", b"\x93garbage"),
        ("impossible", msgspec.msgpack.encode(CronTrigger("impossible", "0 0 30 2 *"))),
        ("nowhere", msgspec.msgpack.encode(CronTrigger("nowhere", "* * * * *", "Mars/Olympus"))),
    ):
        await node.bus.recur(
            "shop.tick",
            name,
            rule="* * * * *",
            tz="UTC",
            trigger=trigger,
            payload=b"\xc0",
            next_ms=ms("2026-06-01T12:01:00Z"),
            generation=1,
        )
    server.clock.set(ms("2026-06-01T12:01:01Z"))
    await asyncio.wait_for(node.settle(), 60)
    assert await node.dues() == [ms("2026-06-01T12:01:00Z")]
    errors = {row.name: row.error for row in await node.bus.recurrences("shop.tick")}
    assert errors["garbage"]
    assert "a date that exists" in errors["impossible"]
    assert "Mars/Olympus" in errors["nowhere"]
    assert errors["* * * * *"] == ""


async def test_an_occurrence_goes_to_the_lane_that_its_payload_names(node: Node, server: Server) -> None:
    server.clock.set(ms("2026-06-01T12:00:30Z"))
    payload = msgspec.msgpack.encode({"tenant": "acme"})
    await node.deploy(function(CronTrigger("", "* * * * *", payload=payload), policy=Policy(lane="tenant")))
    server.clock.set(ms("2026-06-01T12:01:01Z"))
    await node.settle()
    (job,) = await node.jobs()
    assert job.lane == "acme"
    full = await node.bus.job(job.id)
    assert full is not None
    assert full.payload == payload


# ---- jobs ---------------------------------------------------------------------------------------------------------


async def test_children_that_a_dead_node_left_are_minted_once(node: Node, server: Server) -> None:
    parent = Mint(id=node.bus.new_job_id(), payload=b"\xc0")
    await node.bus.mint("shop.tick", [parent])
    claim = await node.bus.claim("shop.tick", "WRK1", 1, 15_000)
    children = tuple(Child("shop.child", Mint(id=node.bus.new_job_id(), payload=b"\xc0")) for _ in range(3))
    hold = Hold(parent.id, claim.jobs[0].attempts, claim.jobs[0].holder)
    now = node.bus.clock.now_ms()
    done = Done(hold, RunRecord("WRK1", "DEP1", now, now), children=children)
    await node.bus.settle("shop.tick", "WRK1", [done], lease_ms=15_000)
    await node.bus.mint("shop.child", [children[0].mint])  # the node died after its first
    server.clock.advance(2_000)
    await node.settle()
    await node.settle()
    assert sorted(job.id for job in await node.jobs("shop.child")) == sorted(child.mint.id for child in children)
    assert await node.bus.sweep_out("shop.tick", older_ms=0) == ([], "")


async def test_children_left_in_more_queues_than_one_turn_sweeps_are_minted_before_the_next_beat(
    node: Node, server: Server
) -> None:
    bus = node.bus
    for queue in (f"q{number}" for number in range(QUEUES_AT_ONCE + 2)):
        await mint(bus, queue)
        child = Child("shop.child", Mint(id=bus.new_job_id(), payload=b"\xc0"))
        await settle(bus, [done(await claim_one(bus, queue), children=(child,))], queue)
    server.clock.advance(2_000)
    await node.settle()
    assert len(await node.jobs("shop.child")) == QUEUES_AT_ONCE + 2


async def test_a_sleeping_pump_hears_of_an_earlier_instant(node: Node) -> None:
    await node.settle()
    task = asyncio.create_task(node.pump.run())
    try:
        soon = Mint(id=node.bus.new_job_id(), payload=b"\xc0", in_ms=300)
        late = Mint(id=node.bus.new_job_id(), payload=b"\xc0", in_ms=900_000)
        await node.bus.mint("shop.tick", [late])
        await node.bus.mint("shop.tick", [soon])

        async def promoted() -> bool:
            job = await node.bus.job(soon.id, queue="shop.tick")
            return job is not None and job.state == "pending"

        await until(promoted, within_s=10)  # at the next beat it would be after 20 s
        job = await node.bus.job(late.id, queue="shop.tick")
        assert job is not None
        assert job.state == "scheduled"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_full_server_delays_occurrences_and_nothing_else(node: Node, server: Server) -> None:
    await node.deploy(function(CronTrigger("", "* * * * * *")))
    delayed = Mint(id=node.bus.new_job_id(), payload=b"\xc0", in_ms=300)
    await node.bus.mint("shop.other", [delayed])
    server.command("CONFIG", "SET", "maxmemory", "1")
    before = await node.dues()  # a second may have come before it was full
    task = asyncio.create_task(node.pump.run())
    try:

        async def promoted() -> bool:
            job = await node.bus.job(delayed.id, queue="shop.other")
            return job is not None and job.state == "pending"

        async def overdue() -> bool:
            next_ms = (await node.row()).next_ms
            return next_ms is not None and next_ms < node.bus.clock.now_ms() - 500

        await node.settle()
        await until(promoted)
        await until(overdue)
        node.pump._reconnected()  # it wants to write once more what belongs there
        await node.settle()
        assert await node.dues() == before
        assert node.pump._converged is None
        server.command("CONFIG", "SET", "maxmemory", "0")
        await until(lambda: _has(node, len(before) + 3))
        dues = await node.dues()
        assert dues == list(range(dues[0], dues[-1] + 1000, 1000))

        async def converged() -> bool:
            return node.pump._converged is not None

        await until(converged)
    finally:
        server.command("CONFIG", "SET", "maxmemory", "0")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_pump_goes_on_after_an_outage(tmp_path: Path) -> None:
    server = Server(append_only=True)
    try:
        server.start()
        async with joined(server, tmp_path) as node:
            await node.deploy(function(CronTrigger("", "* * * * * *")))
            task = asyncio.create_task(node.pump.run())
            await until(lambda: _has(node, 2))
            server.kill()
            await until(lambda: _away(node))
            server.start()
            before = len(await _retried(node))
            await until(lambda: _has(node, before + 2))
            dues = await node.dues()
            assert len(set(dues)) == len(dues)
            assert dues == list(range(dues[0], dues[-1] + 1000, 1000))  # all within the grace
            assert not task.done()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    finally:
        server.remove()


async def _has(node: Node, number: int) -> bool:
    return len(await node.dues()) >= number


async def _away(node: Node) -> bool:
    return not node.bus.connected


async def _retried(node: Node) -> list[int]:
    await until(lambda: _connected(node))
    return await node.dues()


async def _connected(node: Node) -> bool:
    return node.bus.connected


@pytest.mark.parametrize("fails", ["tick", "occur"])
async def test_what_a_turn_broke_off_is_asked_for_by_the_next(
    node: Node, server: Server, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """And not by the next beat."""
    server.clock.set(ms("2026-06-01T12:00:30Z"))
    await node.deploy(function(EveryTrigger("", 3_600_000)))
    server.clock.advance(3_600_000)
    node.pump._due("shop.tick", 0)

    async def is_away(*_: object, **__: object) -> None:
        raise BusAway("the bus is away")

    with monkeypatch.context() as patch:
        patch.setattr(node.bus, fails, is_away)
        with pytest.raises(BusAway):
            await node.pump.turn()
    await node.pump.turn()
    assert len(await node.jobs()) == 1


async def test_a_convergence_that_was_refused_is_tried_again_in_seconds(node: Node, server: Server) -> None:
    await node.publish(function(EveryTrigger("", 3_600_000)))
    await node.registry.refresh()
    server.command("CONFIG", "SET", "maxmemory", "1")
    try:
        assert 0 < (await node.pump.turn()).sleep_s <= pumps.CONVERGENCE_PAUSE_S
    finally:
        server.command("CONFIG", "SET", "maxmemory", "0")


async def test_a_rule_of_before_is_not_taken_for_one_of_a_server_that_came_back_with_less(
    node: Node, server: Server
) -> None:
    """There revisions begin again, and name other rules."""
    server.clock.set(ms("2026-06-01T12:00:30Z"))
    await node.deploy(function(EveryTrigger("r", MINUTE_MS)))
    server.clock.advance(MINUTE_MS)
    await node.settle()
    assert len(await node.jobs()) == 1
    server.command("FLUSHALL", "SYNC")
    await node.deploy(function(EveryTrigger("r", 60 * MINUTE_MS)))
    server.clock.advance(60 * MINUTE_MS)
    await node.settle()
    row = await node.row()
    assert (row.revision, (row.next_ms or 0) - (row.last_ms or 0)) == (1, 60 * MINUTE_MS)


async def test_the_second_pump_ticks_a_little_after_the_first(
    node: Node, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pump, "_now_s", staticmethod(lambda: 1000.0))
    async with joined(server, tmp_path / "b") as second:
        with server.clock.stopped():
            await node.bus.mint("f", [Mint(id=node.bus.new_job_id(), payload=b"", in_ms=5_000)])
            for each, sleep_s in ((node, 5.0), (second, 5.05)):
                each.pump.heard(await each.bus.beat(pump=True))
                assert (await each.pump.turn()).sleep_s == pytest.approx(sleep_s, abs=0.01)


async def test_what_a_beat_left_to_trim_is_trimmed_by_the_turns_after_it(node: Node, server: Server) -> None:
    bus = node.bus
    await bus.mint("f", [Mint(id=bus.new_job_id(), payload=b"") for _ in range(250)])
    await bus.drain("f", [job.id for job in await node.jobs("f")])
    server.command("HSET", "emq:{f}:meta", "keep_count", 0)
    server.clock.advance(11_000)
    await node.settle()
    assert server.command("ZCARD", "emq:{f}:done") == 0


async def test_an_idle_pump_makes_no_calls_between_its_beats(node: Node, server: Server) -> None:
    await node.deploy(function(CronTrigger("", "0 0 1 1 *")))
    await node.bus.mint("shop.tick", [Mint(id=node.bus.new_job_id(), payload=b"\xc0", in_ms=60_000)])
    await node.settle()
    report: Report = await node.pump.turn()
    assert not report.more
    assert report.sleep_s > 15


async def test_a_pump_of_a_clock_that_stands_still_waits_for_somebody_to_move_it(
    server: Server, tmp_path: Path
) -> None:
    async with joined(server, tmp_path, driven=True) as node:
        await node.bus.drive("freeze")
        await node.bus.mint("f", [Mint(id=node.bus.new_job_id(), payload=b"\xc0", in_ms=40)])
        node.pump.heard(await node.bus.beat(pump=True))
        assert (await node.pump.turn()).sleep_s == 20.0  # the beat: an hour at 40 ms a turn would be 90,000 calls
        await node.bus.drive("thaw")
        node.pump.heard(await node.bus.beat(pump=True))
        assert (await node.pump.turn()).sleep_s < 0.05


async def test_a_turn_over_many_queues_does_no_more_at_once_than_one_over_one(node: Node, server: Server) -> None:
    """Its ticks reach the server in one read: nobody else is served before the last of them."""
    queues = [f"shop.q{number}" for number in range(20)]
    for queue in queues:
        await node.bus.mint(queue, [Mint(id=node.bus.new_job_id(), payload=b"\xc0", in_ms=60_000) for _ in range(50)])
    server.clock.advance(60_001)
    node.pump.heard(await node.bus.beat(pump=True))
    promoted: list[int] = []
    more = True
    while more:
        report: Report = await node.pump.turn()
        promoted.append(report.did["promoted"])
        more = report.more
    assert sum(promoted) == 1000
    assert max(promoted[1:]) <= TICK_LIMIT  # what the beat told is its own


async def test_children_that_cannot_be_minted_hide_no_others(node: Node, server: Server) -> None:
    """More of them than one part of `out` holds, for a queue that takes none; the others lie anywhere among them."""
    parent = Mint(id=node.bus.new_job_id(), payload=b"\xc0")
    await node.bus.mint("shop.tick", [parent])
    claim = await node.bus.claim("shop.tick", "WRK1", 1, 15_000)
    ids = [node.bus.new_job_id() for _ in range(1200)]
    good = ids[::100]
    children = tuple(Child("good" if id in good else "ill", Mint(id=id, payload=b"\xc0")) for id in ids)
    hold = Hold(parent.id, claim.jobs[0].attempts, claim.jobs[0].holder)
    now = node.bus.clock.now_ms()
    done = Done(hold, RunRecord("WRK1", "DEP1", now, now), children=children)
    await node.bus.settle("shop.tick", "WRK1", [done], lease_ms=15_000)
    server.command("SET", "emq:{ill}:jobs", "no list of jobs")
    server.clock.advance(2_000)
    node.pump.heard(await node.bus.beat(pump=True))
    for _ in range(10):  # more than `out` has parts
        await node.pump.turn()  # and none fails: ticks are not put off by the loop's pauses
    assert sorted(job.id for job in await node.jobs("good")) == sorted(good)
    assert server.command("HLEN", "emq:{shop.tick}:out") == 1200 - 12, "those that failed wait for the next beat"
    assert not (await node.pump.turn()).more


async def test_what_is_remembered_of_schedules_that_come_and_go_is_bounded(
    node: Node, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(occurrences, "MOST_KNOWN", 3)
    server.clock.set(ms("2026-06-01T12:00:30Z"))
    await node.deploy(function())
    for minute in range(1, 9):
        due_ms = ms(f"2026-06-01T12:0{minute}:00Z")
        name, rule = f"of minute {minute}", "* * * * *"
        trigger = msgspec.msgpack.encode(CronTrigger(name, rule))
        await node.bus.recur(
            "shop.tick", name, rule=rule, tz="UTC", trigger=trigger, payload=b"\xc0", next_ms=due_ms, generation=None
        )
        server.clock.set(due_ms + 1)
        await asyncio.wait_for(node.settle(), 60)
        await node.bus.unrecur("shop.tick", name, None)
    assert len(await node.dues()) == 8
    assert len(node.pump._occurrences._triggers) <= 4


async def test_a_fault_that_stays_is_told_once_a_beat(
    node: Node, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.command("SET", "emq:{shop.ill}:schedule", "not what it should be")
    for _ in range(2):
        for _ in range(3):
            node.pump._due("shop.ill", 0)
            await node.pump.turn()
        told = [line for line in capsys.readouterr().err.splitlines() if "queue.put_off" in line]
        assert len(told) == 1
        node.pump.heard(await node.bus.beat(pump=True))
        await node.pump.turn()


@pytest.mark.parametrize("key", ["schedule", "jobs"], ids=["tick", "settle"])
async def test_a_queue_with_a_fault_of_its_own_keeps_no_other_waiting(node: Node, server: Server, key: str) -> None:
    server.clock.set(ms("2026-06-01T12:00:30Z"))
    names = ["shop.a", "shop.ill", "shop.z"]
    await node.deploy(*(function(CronTrigger("", "* * * * *"), name=name) for name in names))
    parent = Mint(id=node.bus.new_job_id(), payload=b"\xc0")
    await node.bus.mint("shop.a", [parent])
    claim = await node.bus.claim("shop.a", "WRK1", 1, 15_000)
    child = Child("shop.child", Mint(id=node.bus.new_job_id(), payload=b"\xc0"))
    now = node.bus.clock.now_ms()
    hold = Hold(parent.id, claim.jobs[0].attempts, claim.jobs[0].holder)
    await node.bus.settle(
        "shop.a", "WRK1", [Done(hold, RunRecord("WRK1", "DEP1", now, now), children=(child,))], lease_ms=15_000
    )
    server.command("SET", f"emq:{{shop.ill}}:{key}", "not what it should be")
    server.clock.set(ms("2026-06-01T12:01:01Z"))
    for name in names:
        node.pump._due(name, 0)
    node.pump._outbox.heard(["shop.a"])
    report: Report = await node.pump.turn()
    assert (report.did["minted"], report.did["swept"]) == (2, 1)
    assert report.sleep_s <= 1  # then it is tried again
    server.command("DEL", f"emq:{{shop.ill}}:{key}")
    server.clock.set(ms("2026-06-01T12:02:01Z"))
    node.pump._due("shop.ill", 0)
    await node.pump.turn()
    assert ms("2026-06-01T12:02:00Z") in await node.dues("shop.ill")


async def test_backlogs_are_planned_beside_the_loop_and_caught_up_one_after_the_other(
    node: Node, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, occur = catchup.plan, node.bus.occur
    threads, at_once, most = list[int](), 0, 0

    def planned(*args: Any, **more: Any) -> catchup.Plan:
        threads.append(threading.get_ident())
        return plan(*args, **more)

    async def occurred(*args: Any, **more: Any) -> Occurred:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        answer = await occur(*args, **more)
        at_once -= 1
        return answer

    server.clock.set(ms("2026-06-01T12:00:30Z"))
    names = [f"shop.f{number}" for number in range(4)]
    await node.deploy(*(function(EveryTrigger("", MINUTE_MS, missed="all", cap=100), name=name) for name in names))
    monkeypatch.setattr(catchup, "plan", planned)
    monkeypatch.setattr(node.bus, "occur", occurred)
    server.clock.advance(120 * MINUTE_MS)
    await node.settle()
    assert threads
    assert threading.get_ident() not in threads
    assert most <= CALL_OCCURRENCES
    for name in names:
        dues = await node.dues(name)
        assert dues == list(range(ms("2026-06-01T12:21:00Z"), ms("2026-06-01T14:01:00Z"), MINUTE_MS))
        assert (await node.row(name)).missed == 20


async def test_others_are_ticked_between_the_backlogs_of_many(
    node: Node, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.clock.set(ms("2026-06-01T12:00:30Z"))
    names = [f"shop.f{number}" for number in range(4)]
    await node.deploy(*(function(EveryTrigger("", MINUTE_MS, missed="all", cap=100), name=name) for name in names))
    server.clock.advance(60 * MINUTE_MS)
    await node.bus.mint("shop.other", [Mint(id=node.bus.new_job_id(), payload=b"\xc0", in_ms=600_000)])
    node.pump.heard(await node.bus.beat(pump=True))
    server.clock.advance(10 * MINUTE_MS)
    node.pump._due("shop.other", 0)
    monkeypatch.setattr(pumps, "CATCHING_UP_S", 0)
    first: Report = await node.pump.turn()
    assert (first.did["minted"], first.more) == (60, True)  # one of four
    second: Report = await node.pump.turn()
    assert second.did["promoted"] == 1
    while (await node.pump.turn()).more:
        pass
    assert sorted([len(await node.dues(name)) for name in names]) == [60, 70, 70, 70]
