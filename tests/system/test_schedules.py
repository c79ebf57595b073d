"""Schedules under pumps: overlap, jitter and damage, on a real server whose clock the tests drive."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from echod.model.job import Dead, Done, Error, Hold, Mint, RunRecord
from echod.policy.jitter import job_due
from echod.policy.recurring import stored
from echofn.manifest import CronTrigger, EveryTrigger, Overlap, Policy
from server import Server
from system.test_pump import MINUTE_MS, Node, function, joined, ms, pump_process, until
from system.test_pump import node as node  # the fixture


@pytest.mark.parametrize(
    ("overlap", "minted", "skipped", "cancelled"),
    [("allow", 5, 0, 0), ("skip", 1, 4, 0), ("queue", 1, 4, 0), ("replace", 5, 0, 4)],
)
async def test_a_backlog_is_caught_up_instant_by_instant_and_meets_the_overlap(
    node: Node, server: Server, overlap: Overlap, minted: int, skipped: int, cancelled: int
) -> None:
    server.clock.set(ms("2026-06-01T12:00:30Z"))
    await node.deploy(function(CronTrigger("", "* * * * *", missed="all", cap=5, overlap=overlap)))
    server.clock.set(ms("2026-06-01T12:07:30Z"))
    await node.settle()
    row, metrics = await node.row(), await node.bus.metrics("shop.tick", 3_600_000)
    assert (len(await node.dues()), row.skipped, row.missed) == (minted, skipped, 2)
    assert (metrics.minted, metrics.skipped, metrics.missed, metrics.cancelled) == (minted, skipped, 2, cancelled)
    newest = [job for job in await node.jobs() if job.state == "pending"]
    assert len(newest) == minted - cancelled
    assert row.next_ms == ms("2026-06-01T12:08:00Z")


@pytest.mark.parametrize("end", ["cancelled", "purged", "dead", "lost", "evicted"])
@pytest.mark.parametrize("overlap", ["allow", "skip", "queue"])
async def test_the_next_instant_has_its_job_whatever_became_of_the_last(
    node: Node, server: Server, end: str, overlap: Overlap
) -> None:
    """It is the schedule that makes the next one, not the job before."""
    server.clock.set(ms("2026-06-01T12:00:30Z"))
    await node.deploy(function(CronTrigger("", "* * * * *", overlap=overlap), policy=Policy(retries=0)))
    server.clock.set(ms("2026-06-01T12:01:01Z"))
    await node.settle()
    (first,) = await node.jobs()
    if end in ("dead", "lost"):
        [job] = (await node.bus.claim("shop.tick", "W", 1, 15_000)).jobs
        hold = Hold(job.id, job.attempts, job.holder)
        now_ms = node.bus.clock.now_ms()
        run = RunRecord("W", "DEP1", now_ms, now_ms)
        if end == "dead":
            await node.bus.settle("shop.tick", "W", [Dead(hold, run, Error("E", "no"))], lease_ms=15_000)
        else:
            await node.bus.extend("shop.tick", [hold], 15_000, begun=[hold])
    elif end == "evicted":
        server.command("DEL", f"emq:{{shop.tick}}:job:{first.id}")
    else:
        await node.bus.cancel("shop.tick", first.id)
        if end == "purged":
            assert await node.bus.purge("shop.tick", [first.id], ["cancelled"]) == (first.id,)
    for minute in (2, 3):
        server.clock.set(ms(f"2026-06-01T12:0{minute}:01Z"))
        await node.settle()  # a clock that steps by more than a lease holds what is lost back for one lease
        for _ in range(2):
            server.clock.advance(8_000)
            await node.settle()
        for waiting in (await node.bus.claim("shop.tick", "W", 5, 15_000)).jobs:
            now_ms = node.bus.clock.now_ms()
            held, ran = Hold(waiting.id, waiting.attempts, waiting.holder), RunRecord("W", "DEP1", now_ms, now_ms)
            await node.bus.settle("shop.tick", "W", [Done(held, ran)], lease_ms=15_000)
    made = {job.occurrence.due_ms for job in await node.jobs() if job.occurrence and job.id != first.id}
    row = await node.row()
    assert ms("2026-06-01T12:03:00Z") in made
    assert len(made) + row.skipped == 2
    assert row.next_ms == ms("2026-06-01T12:04:00Z")


async def test_racing_pumps_give_each_instant_one_outcome_under_an_overlap(
    node: Node, server: Server, tmp_path: Path
) -> None:
    async with joined(server, tmp_path / "b") as second:
        server.clock.set(ms("2026-06-01T12:00:00.500Z"))
        await node.deploy(function(CronTrigger("", "* * * * * *", overlap="skip")))
        await second.registry.refresh()
        for step in range(20):
            server.clock.advance(2_000)
            await asyncio.gather(node.settle(), second.settle())
            if step % 4 == 3:
                claim = await node.bus.claim("shop.tick", "W", 1, 15_000)
                assert len(claim.jobs) == 1
                now = node.bus.clock.now_ms()
                held = Hold(claim.jobs[0].id, claim.jobs[0].attempts, claim.jobs[0].holder)
                await node.bus.settle("shop.tick", "W", [Done(held, RunRecord("W", "DEP1", now, now))], lease_ms=15_000)
        row, dues = await node.row(), await node.dues()
        assert row.next_ms is not None
        assert len(set(dues)) == len(dues) in {5, 6}
        assert len(dues) + row.skipped == (row.next_ms - ms("2026-06-01T12:00:01Z")) // 1000


async def test_an_upsert_under_racing_pumps_loses_and_repeats_no_instant(
    node: Node, server: Server, tmp_path: Path
) -> None:
    """The rule changes from one overlap and jitter to another while two pumps mint: the revision guards each call."""
    async with joined(server, tmp_path / "b") as second:
        server.clock.set(ms("2026-06-01T12:00:00.500Z"))
        await node.deploy(function(CronTrigger("tick", "* * * * * *")))
        await second.registry.refresh()
        for step in range(16):
            server.clock.advance(2_000)
            overlap: Overlap = "allow" if step % 2 else "skip"
            trigger = CronTrigger("tick", "* * * * * *", overlap=overlap, jitter_ms=step % 3 * 100)
            await asyncio.gather(node.settle(), second.deploy(function(trigger)), second.settle())
        await asyncio.gather(node.settle(), second.settle())
        row, dues = await node.row(), await node.dues()
        assert row.next_ms is not None
        assert len(set(dues)) == len(dues)
        assert len(dues) + row.skipped + row.missed == (row.next_ms - ms("2026-06-01T12:00:01Z")) // 1000
        assert row.revision >= 16


async def test_jitter_moves_the_jobs_and_not_the_schedule_whichever_pump_mints(
    node: Node, server: Server, tmp_path: Path
) -> None:
    server.clock.set(ms("2026-06-01T12:00:30Z"))
    trigger = CronTrigger("spread", "* * * * *", jitter_ms=30_000)
    await node.deploy(function(trigger))
    async with joined(server, tmp_path / "b") as second:
        for minute in range(1, 7):
            server.clock.set(ms(f"2026-06-01T12:0{minute}:00Z"))
            await (node if minute % 2 else second).settle()
            assert (await node.row()).next_ms == ms(f"2026-06-01T12:0{minute + 1}:00Z")
    jobs = sorted(await node.jobs(), key=lambda job: job.id)
    assert [job.occurrence and job.occurrence.due_ms for job in jobs] == [
        ms(f"2026-06-01T12:0{minute}:00Z") for minute in range(1, 7)
    ]
    for job in jobs:
        assert job.occurrence is not None
        assert job.due_ms == job_due("shop.tick/spread", trigger, job.occurrence.due_ms)
    assert len({job.due_ms % MINUTE_MS for job in jobs}) == 6
    server.clock.set(ms("2026-06-01T12:06:31Z"))
    await node.settle()
    assert {job.state for job in await node.jobs()} == {"pending"}


async def test_a_damaged_row_is_parked_and_the_others_go_on(node: Node, server: Server) -> None:
    server.clock.set(ms("2026-06-01T12:00:30Z"))
    damaged = {**DAMAGED, **{name: ("trigger", stored(trigger)) for name, trigger in UNFIT.items()}}
    await node.deploy(function(CronTrigger("good", "* * * * *"), *(CronTrigger(n, "* * * * *") for n in damaged)))
    for name, (field, value) in damaged.items():
        server.command("HSET", f"emq:{{shop.tick}}:repeat:{name}", field, value)
    for minute in (1, 2, 3):
        server.clock.set(ms(f"2026-06-01T12:0{minute}:01Z"))
        await asyncio.wait_for(node.settle(), 60)
    rows = {row.name: row for row in await node.bus.recurrences("shop.tick")}
    assert [name for name in damaged if not rows[name].error] == []
    found = Counter(job.occurrence.recurrence for job in await node.jobs() if job.occurrence)
    assert found == {"shop.tick/good": 3}
    server.command("HSET", "emq:{shop.tick}:repeat:revision", "rev", 1)
    server.clock.set(ms("2026-06-01T12:04:05Z"))
    await asyncio.wait_for(node.settle(), 60)
    assert {row.name: row.error for row in await node.bus.recurrences("shop.tick")}["revision"] == ""


async def test_a_damaged_row_is_whole_again_once_it_is_deployed_again(node: Node, server: Server) -> None:
    """What it remembers that can be read stays: no instant twice."""
    server.clock.set(ms("2026-06-01T12:00:30Z"))
    rules = function(*(CronTrigger(name, "* * * * *") for name in DAMAGED))
    await node.deploy(rules)
    server.clock.set(ms("2026-06-01T12:01:01Z"))
    await node.settle()
    for name, (field, value) in DAMAGED.items():
        server.command("HSET", f"emq:{{shop.tick}}:repeat:{name}", field, value)
    server.clock.set(ms("2026-06-01T12:02:01Z"))
    await node.settle()
    rows = {row.name: row for row in await node.bus.recurrences("shop.tick")}
    parked = [name for name in DAMAGED if rows[name].error]
    assert parked == [name for name in DAMAGED if name != "trigger"]  # which the pump had read before
    await node.deploy(rules)
    await node.settle()
    rows = {row.name: row for row in await node.bus.recurrences("shop.tick")}
    assert {name: rows[name].error for name in DAMAGED} == dict.fromkeys(DAMAGED, "")
    server.clock.set(ms("2026-06-01T12:03:01Z"))
    await node.settle()
    instants = Counter(
        (job.occurrence.recurrence, job.occurrence.due_ms) for job in await node.jobs() if job.occurrence
    )
    assert set(instants.values()) == {1}
    assert Counter(due_ms for _, due_ms in instants) == {
        ms(f"2026-06-01T12:0{minute}:00Z"): len(DAMAGED) for minute in (1, 2, 3)
    }


DAMAGED = {
    "revision": ("rev", b"\xff"),
    "due": ("next", b"soon"),
    "trigger": ("trigger", b"\x81\xa4type\xa4cron"),
    "recent": ("recent", b"\xc1"),
    "jobs": ("jobs", b"\x05"),
    "counter": ("missed", b"many"),
}

UNFIT = {  # which can be read
    "period": EveryTrigger("period", 1 << 62),
    "jitter": CronTrigger("jitter", "* * * * *", jitter_ms=1 << 62),
    "deep": CronTrigger("deep", "* * * * *", payload=b"\x91" * 100_000 + b"\x01"),
}


async def test_schedules_due_at_one_instant_are_minted_once_each_though_one_of_two_pumps_is_killed(
    node: Node, server: Server
) -> None:
    names = [f"shop.f{n}" for n in range(10)]
    due = ms("2026-06-01T12:00:00Z")
    server.clock.set(due - 600_000)
    await node.deploy(*(function(*(EveryTrigger(f"s{n}", 3_600_000) for n in range(40)), name=each) for each in names))

    async def minted(more: int) -> bool:
        return sum(stats.pending for stats in (await node.bus.stats(names)).values()) >= more

    with pump_process(server) as first, pump_process(server) as second:

        async def both() -> bool:
            return sum(row.pump for row in await node.bus.nodes()) >= 3  # with ours, which never ticks again

        await until(both, within_s=120)
        server.clock.set(due)
        await node.bus.mint("shop.f0", [Mint(id=node.bus.new_job_id(), payload=b"\xc0", in_ms=1)])  # they hear of now
        await until(lambda: minted(50), within_s=120)
        first.kill()
        await until(lambda: minted(400), within_s=120)
        assert second.poll() is None
    for name in names:
        found = Counter(job.occurrence.recurrence for job in await node.jobs(name) if job.occurrence)
        assert len(found) == 40
        assert set(found.values()) == {1}
    assert sum(row.missed + row.skipped for row in await node.bus.recurrences()) == 0
