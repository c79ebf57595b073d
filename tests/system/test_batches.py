"""Batches from mint to settle, with a real bus, base and workers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import rig as rigs
from audit import audit
from echod.bus import Bus
from echod.model.ids import JobId
from echod.model.job import Done, Hold, RunRecord
from echod.supervisor import leases
from echofn.manifest import Function
from rig import Rig, function
from server import Server

SOURCE = """
import asyncio, os, time
from echofn import Cancel, Fail, Retry, Snooze, queue

@queue(batch=10)
def many(payloads, ctx):
    if isinstance(payloads[0], str): return payloads
    do = payloads[0]["do"]
    if do == "count": return [len(payloads)] * len(payloads)
    if do == "attempts": return [[ctx.attempt, job.attempt, len(payloads)] for job in ctx.jobs]
    if do == "odd fails once":
        return [ValueError("odd") if p["n"] % 2 and job.attempt == 1 else len(payloads)
            for p, job in zip(payloads, ctx.jobs)]
    if do == "verdicts":
        return [{"fail": Fail("never"), "cancel": Cancel("moot"), "done": 1,
            "snooze": Snooze("10ms") if job.fence == 1 else 2}[p["end"]] for p, job in zip(payloads, ctx.jobs)]
    if do == "raise once" and ctx.attempt == 1: raise ValueError("all")
    if do == "wrong once" and ctx.attempt == 1: return [1, 2, 3]
    if do == "abort once" and ctx.attempt == 1: os.abort()
    if do == "hang once" and ctx.attempt == 1: time.sleep(1000)
    if do == "say":
        print("a word of all")
        ctx.progress(0.5, "half")
    if do == "mark":
        open(payloads[0]["file"], "a").write(f"{len(payloads)}\\n")
        while not os.path.exists(payloads[0]["until"]): time.sleep(0.002)
        return [Retry("again", after="10ms") if p.get("again") else None for p in payloads]
    if do == "spread":
        ctx.enqueue("jobs.leaf", "run")
        for p, job in zip(payloads, ctx.jobs): job.enqueue("jobs.leaf", p["n"])
        return [ValueError("no") if p["n"] == 0 and job.attempt == 1 else None for p, job in zip(payloads, ctx.jobs)]

seen = []

def leaf(payload, ctx):
    seen.append(payload)
    return seen

here = []

@queue(batch=4)
async def side(payloads, ctx):
    if payloads[0] == "stay once" and ctx.jobs[0].fence == 1: await asyncio.sleep(1000)
    here.append(ctx.job_id)
    while payloads[0] == "meet" and len(here) < 3: await asyncio.sleep(0.002)
    return [len(payloads)] * len(payloads)
"""

Make = Callable[..., AbstractAsyncContextManager[Rig]]
FUNCTIONS = (function("many", batch=10, batch_wait_ms=300, timeout_ms=120_000), function("leaf", workers_max=1))


@pytest.fixture
def make(server: Server, tmp_path: Path) -> Make:
    def make(*functions: Function, **options: Any) -> AbstractAsyncContextManager[Rig]:
        return rigs.rig(server.address, tmp_path, SOURCE, functions or FUNCTIONS, **options)

    return make


async def gathered(node: Rig, payloads: list[Any], attribute: str = "many", **options: Any) -> list[str]:
    """Mint them so that they make one batch, once the node serves the function."""
    await node.until(lambda: is_configured(node.outside, f"jobs.{attribute}"))
    return [str(job) for job in await node.mint_many(attribute, payloads, **options)]


def marking(tmp_path: Path, **more: Any) -> dict[str, Any]:
    """The payload of a run that notes how many it has in `mark`, and lasts until there is `go`."""
    return {"do": "mark", "file": str(tmp_path / "mark"), "until": str(tmp_path / "go"), **more}


async def held(server: Server, ids: list[str]) -> dict[str, float]:
    """When the leases of jobs end."""
    return {id: end for id, end in audit(server, "jobs.many").active.items() if id in ids}


async def extended(node: Rig, server: Server, ids: list[str]) -> None:
    """Until each of their leases was extended since."""
    before = await held(server, ids)

    async def later() -> bool:
        now = await held(server, ids)
        return all(now.get(id, 0) > end for id, end in before.items())

    await node.until(later)


async def is_configured(bus: Bus, queue: str) -> bool:
    return bool(await bus.link.command("HEXISTS", f"{bus.base(queue)}meta", "batch"))


def results(jobs: list[Any]) -> list[Any]:
    return [msgspec.msgpack.decode(job.result) for job in jobs]


async def test_jobs_gather_and_run_as_one(make: Make, server: Server) -> None:
    async with make() as node:
        jobs = await node.all_ended("many", await gathered(node, [{"do": "count"}] * 7))
        assert results(jobs) == [7] * 7
        waits = [job.history[0].wait_ms for job in jobs]
        assert min(waits) >= 250, "the lane did not gather"
        assert len({(job.history[0].worker, job.history[0].started_ms) for job in jobs}) == 1
    audit(server, "jobs.many")


async def test_a_full_batch_does_not_wait(make: Make) -> None:
    slow = function("many", batch=10, batch_wait_ms=60_000)
    async with make(slow) as node:
        jobs = await node.all_ended("many", await gathered(node, [{"do": "count"}] * 10))
        assert results(jobs) == [10] * 10


async def test_lanes_do_not_mix(make: Make) -> None:
    async with make() as node:
        mine = await gathered(node, [{"do": "count"}] * 3, lane="a")
        others = await gathered(node, [{"do": "count"}] * 2, lane="b")
        assert results(await node.all_ended("many", mine)) == [3] * 3
        assert results(await node.all_ended("many", others)) == [2] * 2


async def test_each_job_gets_its_own_end(make: Make) -> None:
    async with make() as node:
        ids = await gathered(node, [{"do": "odd fails once", "n": n} for n in range(6)])
        jobs = await node.all_ended("many", ids)
        assert [job.failures for job in jobs] == [0, 1, 0, 1, 0, 1]
        assert results(jobs) == [6, 3, 6, 3, 6, 3], "what failed did not come back together"
        assert [len(job.history) for job in jobs] == [1, 2, 1, 2, 1, 2]


async def test_verdicts_in_the_list_end_as_they_say(make: Make) -> None:
    async with make() as node:
        ids = await gathered(node, [{"do": "verdicts", "end": end} for end in ("done", "fail", "cancel", "snooze")])
        jobs = await node.all_ended("many", ids)
        assert [job.state for job in jobs] == ["done", "dead", "cancelled", "done"]
        assert [job.failures for job in jobs] == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("do", "cause"),
    [("raise once", "error"), ("wrong once", "protocol"), ("abort once", "signal:ABRT"), ("hang once", "timeout")],
)
async def test_what_happens_to_the_run_happens_to_all(make: Make, do: str, cause: str) -> None:
    many = function("many", batch=10, batch_wait_ms=300, timeout_ms=2_000 if cause == "timeout" else 120_000)
    async with make(many) as node:
        jobs = await node.all_ended("many", await gathered(node, [{"do": do}] * 4))
        assert [(job.state, job.failures) for job in jobs] == [("done", 1)] * 4
        assert [[run.cause for run in job.history] for job in jobs] == [[cause, ""]] * 4
        assert len({job.history[0].worker for job in jobs}) == 1


async def test_jobs_of_different_attempts_run_together(make: Make) -> None:
    async with make(function("many", batch=2, batch_wait_ms=60_000, backoff=None)) as node:
        first = await gathered(node, [{"do": "raise once"}, {"do": "attempts"}])
        jobs = await node.all_ended("many", first)
        assert [job.failures for job in jobs] == [1, 1]
        pair = await gathered(node, [{"do": "attempts"}] * 2)
        assert results(await node.all_ended("many", pair)) == [[1, 1, 2]] * 2


async def test_a_poisonous_batch_reaches_the_morgue_at_exactly_its_limit(make: Make) -> None:
    async with make(function("many", batch=3, batch_wait_ms=60_000, retries=0)) as node:
        jobs = await node.all_ended("many", await gathered(node, [{"do": "abort once"}] * 3))
        assert [(job.state, job.failures, job.attempts) for job in jobs] == [("dead", 1, 1)] * 3


async def test_leases_of_a_batch_are_held_together(make: Make, server: Server, tmp_path: Path) -> None:
    """None of its jobs is lost, and every one is marked begun."""
    async with make(lease_ms=3_000) as node:
        ids = await gathered(node, [marking(tmp_path)] * 3)
        await node.until((tmp_path / "mark").exists)
        await extended(node, server, ids)
        books = audit(server, "jobs.many")
        assert sorted(books.active) == sorted(ids)
        assert len(set(books.active.values())) == 1
        assert [b"b" in books.rows[id] for id in ids] == [True] * 3
        (tmp_path / "go").touch()
        jobs = await node.all_ended("many", ids)
        assert [(job.state, job.attempts) for job in jobs] == [("done", 1)] * 3
        assert (tmp_path / "mark").read_text() == "3\n"


async def test_a_batch_that_has_not_begun_goes_back_together(make: Make, server: Server, tmp_path: Path) -> None:
    one = function("many", batch=2, batch_wait_ms=60_000, workers_max=1)
    async with make(one) as node:
        running = await gathered(node, [marking(tmp_path)] * 2)
        await node.until((tmp_path / "mark").exists)
        behind = await gathered(node, [{"do": "count"}] * 4)
        drained = asyncio.create_task(node.supervisor.drain(120))
        await node.until(lambda: node.supervisor.status()["draining"])
        (tmp_path / "go").touch()
        assert await drained
        assert [(await node.job("many", id)).state for id in running] == ["done"] * 2
        jobs = [await node.job("many", id) for id in behind]
        assert [(job.state, job.failures) for job in jobs] == [("pending", 0)] * 4
    audit(server, "jobs.many")


async def test_a_node_that_is_released_charges_nobody(make: Make, server: Server, tmp_path: Path) -> None:
    async with make() as node:
        ids = await gathered(node, [marking(tmp_path)] * 3)
        await node.until((tmp_path / "mark").exists)
        await node.supervisor.release()
        jobs = [await node.job("many", id) for id in ids]
        assert [(job.state, job.failures) for job in jobs] == [("pending", 0)] * 3
    audit(server, "jobs.many")


async def test_one_cancelled_job_does_not_disturb_the_others(make: Make, tmp_path: Path) -> None:
    async with make() as node:
        ids = await gathered(node, [marking(tmp_path, again=n < 2) for n in range(4)])
        await node.until((tmp_path / "mark").exists)
        assert await node.outside.cancel("jobs.many", ids[0]) == "cancelling"
        assert await node.outside.cancel("jobs.many", ids[3]) == "cancelling"
        (tmp_path / "go").touch()
        first, second, third, fourth = await node.all_ended("many", ids)
        assert (first.state, first.attempts) == ("cancelled", 1), "it would have been tried again"
        assert (third.state, fourth.state) == ("done", "done"), "the first settle wins"
        assert second.attempts > 1


async def test_a_job_that_is_cancelled_before_its_batch_begins_never_runs(make: Make, tmp_path: Path) -> None:
    """Its batch waits in the worker's hands, behind a run that lasts: the others run without it."""
    one = function("many", batch=2, batch_wait_ms=200, workers_max=1, timeout_ms=120_000)
    async with make(one) as node:
        quick = await gathered(node, [{"do": "count"}] * 40)  # the pace is learned: batches are handed over ahead
        await node.all_ended("many", quick)
        files = [tmp_path / name for name in ("first", "second")]
        payloads = [marking(tmp_path, file=str(file)) for file in files for _ in range(2)]
        ids = await gathered(node, payloads)
        await node.until(files[0].exists)
        heard = asyncio.Event()
        node.bus.on("cancel", lambda *_: heard.set())  # behind the supervisor's own listener
        await node.outside.cancel("jobs.many", ids[3])
        await asyncio.wait_for(heard.wait(), 60)
        (tmp_path / "go").touch()
        jobs = await node.all_ended("many", ids)
        assert [job.state for job in jobs] == ["done", "done", "done", "cancelled"]
        assert files[1].read_text() == "1\n"
        assert [job.failures for job in jobs] == [0] * 4


async def test_a_batch_whose_jobs_are_all_cancelled_is_stopped(make: Make, tmp_path: Path) -> None:
    short = function("many", batch=2, batch_wait_ms=60_000, grace_ms=100, timeout_ms=120_000)
    async with make(short) as node:
        ids = await gathered(node, [marking(tmp_path)] * 2)
        await node.until((tmp_path / "mark").exists)
        for id in ids:
            await node.outside.cancel("jobs.many", id)
        jobs = await node.all_ended("many", ids)
        assert [(job.state, job.failures) for job in jobs] == [("cancelled", 0)] * 2


async def test_a_batch_runs_on_for_whom_it_is_not_lost(make: Make, tmp_path: Path, server: Server) -> None:
    """One job's lease is taken from us: its answer is refused, the others' are not."""
    async with make(lease_ms=3_000) as node:
        ids = await gathered(node, [marking(tmp_path)] * 3)
        await node.until((tmp_path / "mark").exists)
        base = node.outside.base("jobs.many")
        await node.outside.link.command("HSET", f"{base}job:{ids[1]}", "h", "another")
        await extended(node, server, [ids[0], ids[2]])
        (tmp_path / "go").touch()
        jobs = await node.all_ended("many", [ids[0], ids[2]])
        assert [(job.state, job.attempts) for job in jobs] == [("done", 1)] * 2
        assert (await node.job("many", ids[1])).state != "done"
        assert (tmp_path / "mark").read_text().splitlines()[0] == "3"


async def test_a_batch_that_is_lost_whole_is_ended(make: Make, tmp_path: Path) -> None:
    async with make(lease_ms=3_000) as node:
        ids = await gathered(node, [marking(tmp_path)] * 2)
        await node.until((tmp_path / "mark").exists)
        base = node.outside.base("jobs.many")
        for id in ids:
            await node.outside.link.command("HSET", f"{base}job:{id}", "h", "another")
        [pid] = node.workers("many")["pids"]
        await node.until(lambda: not Path(f"/proc/{pid}").exists())
        theirs = [Done(Hold(JobId(id), 1, "another"), RunRecord("w", "DEP", 0, 1), result=b"\x07") for id in ids]
        assert (await node.outside.settle("jobs.many", "another", theirs)).refused == ()
        (tmp_path / "go").touch()
        jobs = await node.all_ended("many", ids)
        assert [(job.state, job.attempts, job.failures, job.result) for job in jobs] == [("done", 1, 0, b"\x07")] * 2


async def test_the_output_of_a_batch_is_in_the_log_of_its_first(make: Make) -> None:
    async with make() as node:
        ids = await gathered(node, [{"do": "say"}] * 3)
        await node.all_ended("many", ids)

        async def log_of(id: str) -> list[str]:
            return [line.text for _, line in await node.outside.logs("jobs.many", id)]

        for id in ids:
            await node.until(lambda id=id: log_of(id))  # type: ignore[misc]
        assert await log_of(ids[0]) == ["a word of all"]
        for id in ids[1:]:
            assert await log_of(id) == [f"ran in a batch with {ids[0]}, whose log has the output"]


async def test_children_of_a_job_that_failed_wait_for_its_next_run(make: Make, server: Server) -> None:
    async with make() as node:
        ids = await gathered(node, [{"do": "spread", "n": n} for n in range(3)])
        jobs = await node.all_ended("many", ids)
        assert [job.failures for job in jobs] == [1, 0, 0]

        async def leaves() -> Any:
            found, _ = await node.outside.jobs("jobs.leaf", limit=50)
            return found if len(found) >= 5 and all(job.state == "done" for job in found) else None

        found = [await node.job("leaf", job.id) for job in await node.until(leaves)]
        payloads = sorted((msgspec.msgpack.decode(job.payload) for job in found), key=str)
        # The run's own child comes from each run that did any job, that of job 0 from the run it was done in.
        assert payloads == [0, 1, 2, "run", "run"]
        parents = {msgspec.msgpack.decode(job.payload): job.parent for job in found}
        assert [parents[n] for n in range(3)] == ids
    audit(server, "jobs.many")


async def test_async_batches_run_side_by_side(make: Make) -> None:
    side = msgspec.structs.replace(function("side", batch=4, batch_wait_ms=60_000, workers_max=1), is_async=True)
    async with make(side) as node:
        jobs = await node.all_ended("side", await gathered(node, ["meet"] * 12, "side"))  # each waits for both others
        assert results(jobs) == [4] * 12
        assert len({job.history[0].worker for job in jobs}) == 1


async def test_neighbours_of_a_batch_that_crashed_run_again_and_only_it_is_charged(make: Make) -> None:
    """Two batches in one worker: nobody can say which of them it was, until each has run alone."""
    side = msgspec.structs.replace(function("side", batch=2, batch_wait_ms=60_000, workers_max=1), is_async=True)
    async with make(side) as node:
        ids = await gathered(node, ["stay once"] * 4, "side")
        await node.until(lambda: node.workers("side").get("runs") == 2)
        os.kill(node.workers("side")["pids"][0], signal.SIGKILL)
        jobs = await node.all_ended("side", ids)
        assert [(job.state, job.failures) for job in jobs] == [("done", 0)] * 4


async def test_a_function_that_takes_one_by_one_gets_a_batch_of_the_bus_one_by_one(make: Make) -> None:
    """The queue's policy is a newer version's; this node has yet to hear of it."""
    async with make(function("leaf", workers_max=1)) as node:
        await node.until(lambda: node.outside.link.command("HEXISTS", f"{node.outside.base('jobs.leaf')}meta", "gen"))
        newer = function("leaf", batch=3).policy
        assert await node.outside.configure("jobs.leaf", newer, 9)
        jobs = await node.all_ended("leaf", [str(job) for job in await node.mint_many("leaf", [1, 2, 3, 4])])
        assert results(jobs) == [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4]]


async def test_many_leases_of_a_batch_are_extended_in_time(
    make: Make, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More leases than one call extends."""
    monkeypatch.setattr(leases, "MOST_PER_CALL", 3)
    async with make(lease_ms=3_000) as node:
        ids = await gathered(node, [marking(tmp_path)] * 10)
        await node.until((tmp_path / "mark").exists)
        await extended(node, server, ids)
        (tmp_path / "go").touch()
        jobs = await node.all_ended("many", ids)
        assert [(job.state, job.attempts, job.failures) for job in jobs] == [("done", 1, 0)] * 10
