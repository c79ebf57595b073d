"""isolation="job": each run in a process of its own, that leaves nothing to the next; the next one stands by, ready."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import rig as rigs
from echod.model.job import Job
from echod.supervisor.leases import instant
from echod.supervisor.pool import Pool
from echofn.manifest import Function
from echofn.processes import children_of_one_thread
from nodes import Node, alive, until
from rig import Rig, function
from server import Server

SOURCE = """
import asyncio, contextlib, os, pathlib, threading, time
from echofn import lifespan, queue

seen = []
version = "{version}"

def note(word):
    with contextlib.suppress(OSError), open("{file}", "a") as out: out.write(word + " ")  # not behind every wall

@lifespan
def clients():
    note(f"enter:{{os.getpid()}}")
    yield {{"pid": os.getpid()}}
    note(f"leave:{{os.getpid()}}")

def act(payload, ctx):
    began = time.monotonic()
    do = payload.get("do")
    if do == "abort": os.abort()
    if do == "hang": time.sleep(1000)
    if do == "sleep": time.sleep(payload["s"])
    if do == "until":
        while not os.path.exists(payload["file"]): time.sleep(0.002)
    if do == "ask":
        while not ctx.cancelled: time.sleep(0.005)
        return
    mine = pathlib.Path("left")
    seen.append((ctx.job_id, mine.exists(), threading.active_count(), os.environ.get("LEFT")))
    mine.write_text("x")
    os.environ["LEFT"] = "x"
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    return os.getpid(), seen, ctx.state.pid, version, (began, time.monotonic())

async def soon(payload, ctx):
    began = time.monotonic()
    seen.append((ctx.job_id, False, len(asyncio.all_tasks()), None))
    asyncio.ensure_future(asyncio.sleep(60))
    await asyncio.sleep(payload.get("s", 0))
    while payload.get("do") == "until" and not os.path.exists(payload["file"]): await asyncio.sleep(0.002)
    return os.getpid(), seen, ctx.state.pid, version, (began, time.monotonic())

@queue(batch=5)
def many(payloads, ctx):
    seen.append(tuple(payload["n"] for payload in payloads))
    return [(os.getpid(), seen)] * len(payloads)
"""

Make = Callable[..., AbstractAsyncContextManager[Rig]]


@pytest.fixture
def lived(tmp_path: Path) -> Path:
    return tmp_path / "lived"


@pytest.fixture
def make(server: Server, tmp_path: Path, lived: Path) -> Make:
    def make(*functions: Function, source: str = "", **options: Any) -> AbstractAsyncContextManager[Rig]:
        return rigs.rig(
            server.address, tmp_path, source or SOURCE.format(file=lived, version="old"), functions, **options
        )

    return make


def alone(attribute: str = "act", **policy: Any) -> Function:
    """A function with isolation="job" and a lifespan."""
    given = {"isolation": "job", "startup_ms": 120_000, "timeout_ms": 120_000, **policy}
    return function(attribute, is_async=attribute == "soon", **given)


def result_of(job: Job) -> Any:
    return msgspec.msgpack.decode(job.result)


async def standing_by(node: Rig, count: int, attribute: str = "act") -> None:
    """So many are ready, and none is on its way or out."""

    def all_ready() -> bool:
        seen = node.workers(attribute)
        return bool(seen["count"] == seen.get("ready") == count and not seen["busy"])

    await node.until(all_ready)


def processes(job: Job) -> list[str]:
    """The workers that ran it, one a run."""
    return [run.worker for run in job.history]


# ---- nothing shared -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["minimal", "standard", "strict"])
async def test_nothing_of_a_run_is_there_for_the_next(make: Make, level: str) -> None:
    async with make(alone(), level=level) as node:
        jobs = [await node.ended("act", await node.mint("act", {})) for _ in range(5)]
        for job in jobs:
            pid, seen, entered, *_ = result_of(job)
            assert seen == [[job.id, False, 1, None]]  # its module, its /tmp, its threads, its environment
            assert entered == pid
            assert [run.cold for run in job.history] == [True]  # the first of its worker, ready as that may have been
        assert len({worker for job in jobs for worker in processes(job)}) == 5
        if level != "strict":  # there each is the first of a namespace
            assert len({result_of(job)[0] for job in jobs}) == 5


async def test_async_jobs_get_a_process_each_and_no_neighbour(make: Make) -> None:
    async with make(alone("soon", per_worker=10, workers_max=2)) as node:
        jobs = await node.all_ended("soon", await node.mint_many("soon", [{"s": 0.03}] * 12))
        assert [result_of(job)[1] for job in jobs] == [[[job.id, False, 1, None]] for job in jobs]
        assert len({result_of(job)[0] for job in jobs}) == 12
        assert at_once(jobs) <= 2


async def test_a_batch_is_one_run(make: Make) -> None:
    async with make(alone("many", batch=5, batch_wait_ms=50, workers_max=2)) as node:
        jobs = await node.all_ended("many", await node.mint_many("many", [{"n": n} for n in range(20)]))
        ran: dict[int, list[list[int]]] = {result_of(job)[0]: result_of(job)[1] for job in jobs}
        assert all(len(seen) == 1 for seen in ran.values())  # no process saw two batches
        assert sorted(n for [batch] in ran.values() for n in batch) == list(range(20))
        assert max(len(batch) for [batch] in ran.values()) == 5


async def test_fifty_jobs_at_once_by_two_workers(make: Make) -> None:
    async with make(alone(workers_min=0, workers_max=2), idle_s=0.3) as node:
        ids = await node.mint_many("act", [{"do": "sleep", "s": 0.03}] * 50)
        most = 0
        for id in ids:
            while (await node.job("act", id)).state != "done":
                most = max(most, node.workers("act")["count"])
        jobs = await node.all_ended("act", ids)
        assert [result_of(job)[1] for job in jobs] == [[[job.id, False, 1, None]] for job in jobs]
        assert len({result_of(job)[0] for job in jobs}) == 50
        assert at_once(jobs) <= 2
        assert most <= 4  # two that run; two that stand by or are on their way out
        assert {(job.failures, len(job.history)) for job in jobs} == {(0, 1)}
        await node.until(lambda: node.workers("act")["count"] == 0)  # what stood by has gone as well
        base = int(str(node.supervisor.status()["base"]))
        assert children_of_one_thread(base) == set()
        await node.until(lambda: not list((node.state / "tmp").glob("*/*")))


def at_once(jobs: list[Job]) -> int:
    """How many ran at the same time, at most, by the watch that all processes of a machine share."""
    spans = [result_of(job)[4] for job in jobs]
    marks = [mark for began, ended in spans for mark in ((began, 1), (ended, -1))]
    running = most = 0
    for _, step in sorted(marks):
        running += step
        most = max(most, running)
    return most


# ---- ready ahead of need ------------------------------------------------------------------------------------------


async def test_the_next_job_starts_in_a_worker_that_stood_by(make: Make) -> None:
    async with make(alone(workers_max=1)) as node:
        assert (await node.ended("act", await node.mint("act", {}))).state == "done"
        for _ in range(3):
            await standing_by(node, 1)
            [pid] = node.workers("act")["pids"]
            assert result_of(await node.ended("act", await node.mint("act", {})))[0] == pid


async def test_it_stands_by_for_as_long_as_a_job_runs_and_then_goes(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, reap = [0.0], Pool.reap
    monkeypatch.setattr(Pool, "reap", lambda pool, now: (reap(pool, now), looks.append(now))[0])
    async with make(alone(workers_max=1), idle_s=0.1) as node:
        id = await node.mint("act", {"do": "until", "file": str(tmp_path / "go")})
        await node.until(lambda: node.workers("act").get("ready") == 2)
        pids = node.workers("act")["pids"]
        ready = instant()
        await node.until(lambda: looks[-1] > ready + 0.5)  # it is idle, but not for nothing: housekeeping has looked
        assert node.workers("act")["pids"] == pids
        assert node.workers("act")["cold_starts"] == 2
        (tmp_path / "go").touch()
        await node.ended("act", id)
        await node.until(lambda: node.workers("act")["count"] == 0)


async def test_workers_min_stand_by_from_the_start(make: Make) -> None:
    async with make(alone(workers_min=2, workers_max=2), idle_s=0.1) as node:
        await standing_by(node, 2)
        pids = set(node.workers("act")["pids"])
        jobs = await node.all_ended("act", await node.mint_many("act", [{"do": "sleep", "s": 0.05}] * 2))
        assert {result_of(job)[0] for job in jobs} == pids
        await standing_by(node, 2)


@pytest.mark.parametrize("attribute", ["act", "soon"])
async def test_nothing_is_claimed_for_one_that_stands_by_behind_a_job(
    make: Make, tmp_path: Path, attribute: str
) -> None:
    async with make(alone(attribute, workers_max=1)) as node:
        await node.ended(attribute, await node.mint(attribute, {}))  # so that it is known how quick these jobs are
        await standing_by(node, 1, attribute)
        first, *others = await node.mint_many(attribute, [{"do": "until", "file": str(tmp_path / "go")}] * 3)
        await node.until(lambda: node.workers(attribute)["busy"] == 1)
        await node.until(lambda: node.workers(attribute)["ready"] == 2)
        await node.until(lambda: not node.supervisor.has_room())  # it knows that there are more, and cannot take them
        assert [(await node.job(attribute, id)).state for id in others] == ["pending", "pending"]  # anybody's
        (tmp_path / "go").touch()
        jobs = await node.all_ended(attribute, [first, *others])
        assert {(job.state, len(job.history)) for job in jobs} == {("done", 1)}


# ---- ends ---------------------------------------------------------------------------------------------------------


async def test_poison_reaches_the_morgue_at_its_limit_and_nobody_else_pays(make: Make) -> None:
    async with make(alone(retries=2, workers_max=2)) as node:
        payloads = [{"do": "abort"} if n % 5 == 2 else {} for n in range(15)]
        jobs = await node.all_ended("act", await node.mint_many("act", payloads))
        for n, job in enumerate(jobs):
            assert (job.state, job.failures) == (("dead", 3) if n % 5 == 2 else ("done", 0))
            assert len(job.history) == len({*processes(job)}) == (3 if n % 5 == 2 else 1)
        assert {job.error.cause for job in jobs if job.error} == {"signal:ABRT"}


async def test_a_timeout_and_a_cancel_end_their_job_and_the_next_runs(make: Make) -> None:
    async with make(alone(retries=0, timeout_ms=1_000, workers_max=1)) as node:
        late = await node.ended("act", await node.mint("act", {"do": "hang"}))
        assert (late.state, late.error and late.error.cause) == ("dead", "timeout")
    async with make(alone(workers_max=1)) as node:
        asked = await node.mint("act", {"do": "ask"})
        await node.until(lambda: node.workers("act")["busy"] == 1)
        await node.outside.cancel("jobs.act", asked)
        assert (await node.ended("act", asked)).state == "cancelled"
        job = await node.ended("act", await node.mint("act", {}))
        assert result_of(job)[1] == [[job.id, False, 1, None]]


async def test_a_worker_whose_job_was_taken_back_before_it_began_goes(make: Make) -> None:
    async with make(alone(workers_max=1)) as node:
        await node.ended("act", await node.mint("act", {}))
        await standing_by(node, 1)
        [pid] = node.workers("act")["pids"]
        os.kill(pid, signal.SIGSTOP)
        taken = await node.mint("act", {})
        pools = node.supervisor._feeds["jobs.act"].crews.pools  # active on the bus it is before the node has heard so
        await node.until(lambda: any(worker.life.held for pool in pools for worker in pool.workers))
        heard = asyncio.Event()
        node.bus.on("cancel", lambda *_: heard.set())  # behind the supervisor's own listener
        await node.outside.cancel("jobs.act", taken)
        await asyncio.wait_for(heard.wait(), 60)
        os.kill(pid, signal.SIGCONT)
        job = await node.ended("act", taken)
        assert (job.state, job.history) == ("cancelled", ())
        await node.until(lambda: pid not in node.workers("act")["pids"])
        assert result_of(await node.ended("act", await node.mint("act", {})))[0] != pid


async def _is(node: Rig, id: str, state: str) -> bool:
    return (await node.job("act", id)).state == state


async def test_a_new_version_lets_the_job_end_and_takes_the_next(make: Make, tmp_path: Path, lived: Path) -> None:
    async with make(alone(workers_max=1)) as node:
        running = await node.mint("act", {"do": "until", "file": str(tmp_path / "go")})
        await node.until(lambda: node.workers("act").get("ready") == 2)
        stood_by = set(node.workers("act")["pids"])
        fresh = SOURCE.format(file=lived, version="new")
        node.shelf.activate(node.shelf.put("DEP00000000002", fresh, [alone(workers_max=1)]))
        assert result_of(await node.ended("act", await node.mint("act", {})))[3] == "new"  # beside the old one
        assert await _is(node, running, "active")
        (tmp_path / "go").touch()
        assert result_of(await node.ended("act", running))[3] == "old"
        await node.until(lambda: not stood_by & set(node.workers("act")["pids"]))


async def test_a_drain_waits_for_the_run_and_leaves_every_lifespan(make: Make, tmp_path: Path, lived: Path) -> None:
    async with make(alone(workers_max=2)) as node:
        await node.all_ended("act", await node.mint_many("act", [{}] * 6))
        id = await node.mint("act", {"do": "until", "file": str(tmp_path / "go")})
        await node.until(lambda: node.workers("act")["busy"] == 1)
        drained = asyncio.create_task(node.supervisor.drain(120))
        (tmp_path / "go").touch()
        assert await drained
        assert (await node.job("act", id)).state == "done"
        assert len(told(lived, "leave")) >= 7
        assert told(lived, "leave") <= told(lived, "enter")
        assert node.workers("act")["count"] == 0


def told(lived: Path, word: str) -> set[str]:
    """The pids that said it."""
    return {pid for said, _, pid in (each.partition(":") for each in lived.read_text().split()) if said == word}


async def test_a_module_that_does_not_import_is_no_fork_storm(make: Make) -> None:
    broken = "raise RuntimeError('no database')"
    async with make(alone(retries=1, startup_ms=None), source=broken) as node:
        job = await node.ended("act", await node.mint("act", {}))
        assert (job.state, job.failures) == ("dead", 2)
        assert node.workers("act")["cold_starts"] <= 4


# ---- a whole node -------------------------------------------------------------------------------------------------

MODULE = """
import os, time
from echofn import queue
seen = []
@queue(isolation="job", workers=(0, 2))
def once(payload):
    while payload and not os.path.exists(payload): time.sleep(0.002)
    seen.append(os.getpid())
    return {"seen": seen, "version": "old"}
"""


def test_a_node_runs_each_job_in_a_process_and_a_save_disturbs_none(tmp_path: Path) -> None:
    with contextlib.closing(Node(tmp_path, {"m.py": MODULE})) as node:
        node.start("dev", "--sandbox", "standard")
        assert node.get("/functions/m.once")["policy"]["isolation"] == "job"
        slow = node.mint("m.once", str(tmp_path / "go"))
        until(lambda: node.job(slow)["state"] == "active")
        node.save("m.py", MODULE.replace('"old"', '"new"'))
        until(lambda: node.call("m.once")["version"] == "new")
        assert node.job(slow)["state"] == "active"
        ids = [node.mint("m.once") for _ in range(50)]
        (tmp_path / "go").touch()
        ended = [until(lambda id=id: _ended(node, id), 60) for id in (slow, *ids)]
        results = [job["result"] for job in ended]
        assert [result["version"] for result in results] == ["old", *["new"] * 50]
        assert {len(result["seen"]) for result in results} == {1}
        assert len({result["seen"][0] for result in results}) == 51
        assert {(len(job["history"]), job["failures"]) for job in ended} == {(1, 0)}
        ours = set(node.descendants())
        node.end()
        until(lambda: not [pid for pid in ours if alive(pid)])


def _ended(node: Node, id: str) -> Any:
    job = node.job(id)
    return job if job["state"] == "done" else None
