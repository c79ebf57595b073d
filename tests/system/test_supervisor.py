"""The supervisor with a real bus, base and workers: what becomes of jobs, whatever happens to those who run them."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import rig as rigs
from echod.bus import working
from echod.bus.clock import BEAT_S
from echod.errors import BusAway, Refused
from echod.model.ids import JobId
from echod.model.job import NO_LANE, Verdict
from echod.supervisor import crews, following, journal, pool
from echod.supervisor import worker as workers
from echod.supervisor.bells import AGAIN_S
from echod.supervisor.leases import Lease
from echod.supervisor.line import Line
from echofn import frames
from echofn.manifest import Constant, Function
from echofn.processes import descendants
from rig import Rig, function
from server import Server

SOURCE = """
import ctypes, logging, os, signal, subprocess, sys, threading, time
from echofn import Cancel, Fail, Retry, Snooze

served = 0

def act(payload, ctx):
    global served
    served += 1
    do = payload["do"]
    if do == "return": return payload["value"]
    if do == "pid": return [os.getpid(), served]
    if do == "attempt": return [ctx.attempt, ctx.last_attempt, ctx.fence, ctx.lane]
    if do == "raise": raise ValueError("not today")
    if do == "raise once":
        if ctx.attempt == 1: raise ValueError("not yet")
        return ctx.attempt
    if do == "fail": raise Fail("never")
    if do == "retry": raise Retry(after="10ms")
    if do == "snooze once":
        if ctx.fence == 1: raise Snooze("10ms")
        return [ctx.attempt, ctx.fence]
    if do == "cancel": raise Cancel("no need")
    if do == "sleep":
        time.sleep(payload["s"])
        return ctx.attempt
    if do == "stay once":
        if ctx.attempt == 1: time.sleep(1000)
        return ctx.attempt
    if do == "until":
        while not os.path.exists(payload["file"]): time.sleep(0.002)
        return ctx.attempt
    if do == "mark":
        open(payload["file"], "a").write(f"{ctx.job_id} {ctx.fence} {os.getpid()}\\n")
        time.sleep(payload.get("s", 0))
        while "until" in payload and not os.path.exists(payload["until"]): time.sleep(0.002)
        return ctx.attempt
    if do == "allocate":
        if ctx.attempt == 1: bytearray(1 << 30)
        return os.getpid()
    if do == "litter":
        os.makedirs("a/b"); open("a/b/file", "w").close(); os.symlink("/etc", "a/link"); os.chmod("a", 0)
        for _ in range(1200):
            os.mkdir("d"); os.chdir("d")
        return os.environ["HOME"]
    if do == "freeze the base":
        pid = subprocess.Popen(["/bin/sleep", "100"]).pid
        if ctx.attempt > 1: return
        open(payload["file"], "w").write(f"{os.getppid()} {os.getpid()} {pid}")
        os.kill(os.getppid(), signal.SIGSTOP)
        time.sleep(1000)
    if do == "hang":
        while True: pass
    if do == "hang deaf":
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM): signal.signal(number, signal.SIG_IGN)
        daemon = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        open(payload["file"], "w").write(f"{os.getpid()} {daemon.pid}")
        while True:
            try: time.sleep(1)
            except BaseException: pass
    if do == "channel":
        if ctx.attempt == 1:
            os.write(3, payload["bytes"])
            time.sleep(payload.get("s", 0))
        return ctx.attempt
    if do == "print":
        print("to stdout")
        print("to stderr", file=sys.stderr)
        logging.getLogger("shop").warning("logged %s", 1)
        ctx.log.info("by ctx")
        return None
    if do == "write":
        os.write(1, b"past python\\nand no end")
        return None
    if do == "write of each":
        os.write(1, b"out %d" % payload["n"])
        os.write(2, b"err %d\\nand no end" % payload["n"])
        return None
    if do == "flood":
        for n in range(payload["lines"]): print("x" * 1000)
        return None
    if do == "progress":
        ctx.progress(0.5, "half")
        while not os.path.exists(payload["file"]): time.sleep(0.002)
        return None
    if ctx.attempt > payload.get("times", 1): return ctx.attempt
    if do == "abort": os.abort()
    if do == "segv": ctypes.string_at(0)
    if do == "exit": os._exit(payload["code"])
    if do == "kill": os.kill(os.getpid(), signal.SIGKILL)
    if do == "close":
        os.closerange(3, 100)
        time.sleep(1000)
    raise AssertionError(do)

def spread(payload, ctx):
    ids = [ctx.enqueue("jobs.act", {"do": "return", "value": n}) for n in range(payload["count"])]
    if payload.get("fail"): raise ValueError("after enqueue")
    if payload.get("unknown"): ctx.enqueue("jobs.nowhere", 1)
    return ids
"""

Make = Callable[..., AbstractAsyncContextManager[Rig]]


@pytest.fixture
def make(server: Server, tmp_path: Path) -> Make:
    def make(*functions: Function, source: str = SOURCE, **options: Any) -> AbstractAsyncContextManager[Rig]:
        return rigs.rig(server.address, tmp_path, source, functions or (function("act"),), **options)

    return make


@pytest.fixture
async def node(make: Make) -> AsyncIterator[Rig]:
    """A node that serves `act` and `spread`."""
    async with make(function("act", timeout_ms=120_000), function("spread")) as made:
        yield made


def result_of(job: Any) -> Any:
    return msgspec.msgpack.decode(job.result)


# ---- verdicts -----------------------------------------------------------------------------------------------------


async def test_a_result_comes_back_with_its_bill(node: Rig) -> None:
    job = await node.ended("act", await node.mint("act", {"do": "return", "value": {"n": [1, "ü"]}}))
    assert (job.state, result_of(job), job.failures, job.attempts) == ("done", {"n": [1, "ü"]}, 0, 1)
    [run] = job.history
    assert run.outcome == "done"
    assert run.worker.startswith("WRK")
    assert run.version == rigs.VERSION
    assert run.cold
    assert run.peak_bytes > 1_000_000
    assert job.minted_ms <= run.started_ms <= run.ended_ms


async def test_a_worker_is_kept_warm(node: Rig) -> None:
    runs = [result_of(await node.ended("act", await node.mint("act", {"do": "pid"}))) for _ in range(5)]
    assert [count for _, count in runs] == [1, 2, 3, 4, 5]
    assert len({pid for pid, _ in runs}) == 1


async def test_an_error_is_retried_and_told(node: Rig) -> None:
    job = await node.ended("act", await node.mint("act", {"do": "raise once"}))
    assert (job.state, result_of(job), job.failures) == ("done", 2, 1)
    assert [run.outcome for run in job.history] == ["retry", "done"]


async def test_retries_run_out_at_exactly_their_number(make: Make) -> None:
    async with make(function("act", retries=2)) as node:
        job = await node.ended("act", await node.mint("act", {"do": "raise"}))
        assert (job.state, job.failures, len(job.history)) == ("dead", 3, 3)
        assert job.error is not None
        assert (job.error.type, job.error.message, job.error.cause) == ("ValueError", "not today", "error")
        assert "jobs.py" in job.error.traceback


@pytest.mark.parametrize(
    ("do", "state", "failures", "runs"),
    [("fail", "dead", 1, 1), ("cancel", "cancelled", 0, 1), ("snooze once", "done", 0, 2), ("retry", "dead", 4, 4)],
)
async def test_verdicts_end_as_they_say(node: Rig, do: str, state: str, failures: int, runs: int) -> None:
    job = await node.ended("act", await node.mint("act", {"do": do}))
    assert (job.state, job.failures, len(job.history)) == (state, failures, runs)


async def test_the_context_counts_charged_runs_and_claims(node: Rig) -> None:
    job = await node.ended("act", await node.mint("act", {"do": "attempt"}, lane="north"))
    assert result_of(job) == [1, False, 1, "north"]


async def test_a_job_for_a_version_that_is_gone_is_dead(node: Rig) -> None:
    job = await node.ended("act", await node.mint("act", {"do": "pid"}, version="DEP0000000gone"))
    assert job.state == "dead"
    assert job.error is not None
    assert "DEP0000000gone" in job.error.message


# ---- crashes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "cause"),
    [
        ({"do": "abort"}, "signal:ABRT"),
        ({"do": "segv"}, "signal:SEGV"),
        ({"do": "exit", "code": 0}, "exit:0"),
        ({"do": "exit", "code": 3}, "exit:3"),
        ({"do": "kill"}, "signal:KILL"),
        ({"do": "close"}, "protocol"),
    ],
)
async def test_a_crash_is_charged_with_its_cause_and_run_again(node: Rig, payload: dict[str, Any], cause: str) -> None:
    job = await node.ended("act", await node.mint("act", payload))
    assert (job.state, job.failures, result_of(job)) == ("done", 1, 2)
    assert [run.cause for run in job.history] == [cause, ""]  # a timeout or a lost lease would have another


FORGED = frames.framed(frames.Ended(20, "done", 1, 1, 1, result=b"\xa6forged"))  # of the worker's 21st job


@pytest.mark.parametrize(
    ("written", "cause"),
    [
        (b"\xff\xff\xff\xff", "protocol"),
        (b"\x00\x00\x00\x01\xc1", "protocol"),
        (frames.framed(frames.Begun(7)), "protocol"),
        (frames.framed(frames.Ended(7, "done", 1, 1, 1)), "protocol"),
        (frames.framed(frames.Ended(20, "done", 1, 1, 1, result=b"\x91" * 50_000)), "protocol"),
        (frames.framed(frames.Ready()), "protocol"),
        (b"\x00\x00\x10\x00half a frame", "timeout"),
    ],
    ids=[
        "a huge header",
        "garbage",
        "begun twice",
        "a neighbour's answer",
        "a deep result",
        "ready again",
        "half a frame",
    ],
)
async def test_a_worker_that_lies_is_replaced_and_only_its_own_job_pays(make: Make, written: bytes, cause: str) -> None:
    timeout_ms = 2_000 if cause == "timeout" else 120_000
    async with make(function("act", timeout_ms=timeout_ms), cpus=1) as node:
        await node.all_ended("act", await node.mint_many("act", [{"do": "return", "value": 0}] * 20))
        liar, *others = await node.mint_many(
            "act", [{"do": "channel", "bytes": written, "s": 1000}] + [{"do": "return", "value": n} for n in range(5)]
        )
        job = await node.ended("act", liar)
        assert (job.state, job.failures, job.history[0].cause) == ("done", 1, cause)
        assert [result_of(job) for job in await node.all_ended("act", others)] == list(range(5))
        assert {(await node.job("act", other)).failures for other in others} == {0}


async def test_a_forged_answer_is_at_most_the_forgers_own(make: Make) -> None:
    async with make(function("act"), cpus=1) as node:
        await node.all_ended("act", await node.mint_many("act", [{"do": "return", "value": 0}] * 20))
        forger, *others = await node.mint_many(
            "act", [{"do": "channel", "bytes": FORGED}] + [{"do": "return", "value": n} for n in range(5)]
        )
        job = await node.ended("act", forger)
        assert (job.state, result_of(job)) == ("done", "forged")
        assert [result_of(job) for job in await node.all_ended("act", others)] == list(range(5))


async def test_poison_reaches_the_morgue_at_exactly_its_limit(make: Make, tmp_path: Path) -> None:
    async with make(function("act", retries=2)) as node:
        job = await node.ended("act", await node.mint("act", {"do": "exit", "code": 0, "times": 100}))
        assert (job.state, job.failures, job.attempts) == ("dead", 3, 3)
        assert job.error is not None
        assert job.error.cause == "exit:0"


async def test_neighbours_of_a_crash_are_not_charged(make: Make) -> None:
    async with make(function("act", workers_max=1)) as node:
        # First the pace is learned, so that many are handed over at once.
        await node.all_ended("act", await node.mint_many("act", [{"do": "return", "value": 0}] * 20))
        payloads = [{"do": "abort"} if n == 5 else {"do": "return", "value": n} for n in range(40)]
        jobs = await node.all_ended("act", await node.mint_many("act", payloads))
        assert [job.failures for job in jobs] == [int(n == 5) for n in range(40)]
        assert {job.state for job in jobs} == {"done"}


async def test_a_crash_waits_for_its_backoff(make: Make) -> None:
    async with make(function("act", backoff=Constant(700))) as node:
        job = await node.ended("act", await node.mint("act", {"do": "abort"}))
        assert job.history[1].started_ms - job.history[0].ended_ms >= 700


async def test_a_worker_killed_by_hand_in_mid_run_costs_one_charge_and_no_lease(node: Rig) -> None:
    job_id = await node.mint("act", {"do": "stay once"})
    pid = await node.running_job("act", job_id)
    os.kill(pid, signal.SIGKILL)
    job = await node.ended("act", job_id)
    assert (job.state, job.failures) == ("done", 1)
    assert [run.cause for run in job.history] == ["signal:KILL", ""]  # not "lost", when its lease was over


async def test_an_idle_worker_that_dies_is_replaced_and_nobody_pays(node: Rig) -> None:
    await node.ended("act", await node.mint("act", {"do": "pid"}))
    [pid] = node.workers("act")["pids"]
    os.kill(pid, signal.SIGKILL)
    await node.until(lambda: pid not in node.workers("act")["pids"])
    job = await node.ended("act", await node.mint("act", {"do": "pid"}))
    assert (job.state, job.failures) == ("done", 0)


async def test_a_worker_that_does_not_begin_is_replaced_and_nobody_pays(
    node: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "BEGIN_WITHIN_S", 0.5)
    pid, _ = result_of(await node.ended("act", await node.mint("act", {"do": "pid"})))
    os.kill(pid, signal.SIGSTOP)
    job = await node.ended("act", await node.mint("act", {"do": "pid"}))
    assert (job.state, job.failures) == ("done", 0)
    assert result_of(job)[0] != pid
    assert _alive([str(pid)]) == []


async def test_an_idle_worker_that_does_not_stop_is_killed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "IDLE_WITHIN_S", 0.3)
    async with make() as node:
        pid, _ = result_of(await node.ended("act", await node.mint("act", {"do": "pid"})))
        os.kill(pid, signal.SIGSTOP)
        node.shelf.activate(node.shelf.put("DEP00000000002", SOURCE, [function("spread")]))
        await node.until(lambda: node.workers("act")["count"] == 0)
        assert _alive([str(pid)]) == []


async def test_the_base_dies_and_everything_goes_on(node: Rig) -> None:
    job_id = await node.mint("act", {"do": "stay once"})
    await node.running_job("act", job_id)
    os.kill(int(str(node.supervisor.status()["base"])), signal.SIGKILL)
    job = await node.ended("act", job_id)
    assert (job.state, job.failures, job.history[0].cause) == ("done", 1, "lost")
    assert node.supervisor.status()["base_starts"] == 2


async def test_memory_past_its_limit_is_named_and_the_worker_replaced(make: Make) -> None:
    async with make(function("act", memory_bytes=256 * 1024 * 1024)) as node:
        pid = result_of(await node.ended("act", await node.mint("act", {"do": "pid"})))[0]
        job = await node.ended("act", await node.mint("act", {"do": "allocate"}))
        assert (job.state, job.failures, job.history[0].cause) == ("done", 1, "memory")
        assert result_of(job) != pid


async def test_what_a_worker_wrote_is_wiped_with_it(make: Make) -> None:
    async with make(function("act", recycle_jobs=1)) as node:
        job = await node.ended("act", await node.mint("act", {"do": "litter"}))
        home = Path(result_of(job))
        assert home.is_relative_to(node.state / "tmp")
        await node.until(lambda: not home.exists())


async def test_a_base_that_does_not_answer_is_replaced(make: Make, tmp_path: Path) -> None:
    """It stops while a run works that is to be ended by it."""
    async with make(function("act", timeout_ms=1_000)) as node:
        told = tmp_path / "told"
        job = await node.ended("act", await node.mint("act", {"do": "freeze the base", "file": str(told)}))
        assert (job.state, job.history[0].cause) == ("done", "timeout")
        base, *below = told.read_text().split()
        assert node.supervisor.status()["base"] != int(base)
        assert _alive([base, *below]) == []
        assert (await node.ended("act", await node.mint("act", {"do": "pid"}))).state == "done"


# ---- timeouts -----------------------------------------------------------------------------------------------------


async def test_a_hang_ends_at_its_timeout(make: Make) -> None:
    async with make(function("act", timeout_ms=300, retries=0)) as node:
        job = await node.ended("act", await node.mint("act", {"do": "hang"}))
        assert (job.state, job.error and job.error.cause) == ("dead", "timeout")
        assert job.history[0].ended_ms - job.history[0].started_ms >= 300
        assert job.history[0].cpu_us > 10_000  # it paid for what it burnt


async def test_after_a_timeout_no_process_of_the_run_is_left(make: Make, tmp_path: Path) -> None:
    async with make(function("act", timeout_ms=2_000, retries=0)) as node:
        job = await node.ended("act", await node.mint("act", {"do": "hang deaf", "file": str(tmp_path / "pids")}))
        assert (job.error and job.error.cause) == "timeout"
        pids = (tmp_path / "pids").read_text().split()
        assert len(pids) == 2
        assert _alive(pids) == []


async def test_timeouts_leave_nothing_behind(make: Make) -> None:
    async with make(function("act", timeout_ms=50, retries=0), cpus=2, idle_s=0.2) as node:
        await node.all_ended("act", await node.mint_many("act", [{"do": "hang"}] * 2))
        await node.until(lambda: node.workers("act")["count"] == 0)
        before = _descriptors()
        await node.all_ended("act", await node.mint_many("act", [{"do": "hang"}] * 30))
        await node.until(lambda: node.workers("act")["count"] == 0)
        await node.until(lambda: _descriptors() <= before)
        await node.until(
            lambda: not list((node.state / "tmp").glob("*/*"))
        )  # wiped in a thread, after the worker is gone
        await node.until(lambda: _zombies_below(int(str(node.supervisor.status()["base"]))) == 0)


def _alive(pids: Sequence[str]) -> list[str]:
    """Which of them still run; the dead whom nobody has buried yet do not."""
    alive = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                alive.append(pid)
    return alive


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _zombies_below(base: int) -> int:
    zombies = 0
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            zombies += int(entry.name) > 0 and state == "Z" and int(parent) == base
    return zombies


# ---- several nodes --------------------------------------------------------------------------------------------


async def test_a_job_that_one_node_has_no_hands_for_is_run_by_another(server: Server, tmp_path: Path) -> None:
    functions = [function("act", timeout_ms=120_000), function("spread")]
    one = rigs.rig(server.address, tmp_path / "1", SOURCE, functions, cpus=1)
    two = rigs.rig(server.address, tmp_path / "2", SOURCE, functions, cpus=1, node="NOD00000000002")
    async with one as first, two:
        marks, go = tmp_path / "marks", tmp_path / "go"
        payload = {"do": "mark", "file": str(marks), "until": str(go)}
        slow = [await first.mint("act", payload) for _ in range(2)]
        await first.until(lambda: marks.exists() and marks.read_text().count("\n") == 2)  # side by side
        go.touch()
        jobs = await first.all_ended("act", slow)
        assert len({job.history[0].worker for job in jobs}) == 2


async def test_a_bell_that_a_full_node_heard_is_heard_at_once_by_one_with_hands(server: Server, tmp_path: Path) -> None:
    functions = [function("act", timeout_ms=120_000), function("spread")]
    one = rigs.rig(server.address, tmp_path / "1", SOURCE, functions, cpus=1)
    two = rigs.rig(server.address, tmp_path / "2", SOURCE, functions, cpus=1, node="NOD00000000002")
    async with one as first:
        go = tmp_path / "go"
        slow = await first.mint("act", {"do": "until", "file": str(go)})
        await first.running_job("act", slow)
        async with two as second:
            await second.until(lambda: second.supervisor.has_room())
            await first.ended("act", await first.mint("act", {"do": "return", "value": 0}))  # its worker is warm now
            for _ in range(6):  # each node hears some of them first; a bell that is kept or rests does so for a beat
                await first.ended("act", await first.mint("act", {"do": "return", "value": 0}), within_s=BEAT_S / 2)
                await asyncio.sleep(2 * AGAIN_S)  # or it would count as one that came back
            assert (await first.job("act", slow)).state == "active"
            go.touch()
            await first.ended("act", slow)


async def test_a_cancel_while_a_pinned_version_is_fetched_is_obeyed(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    act = function("act", timeout_ms=120_000, grace_ms=300)
    async with make(act) as node:
        other = node.shelf.put("DEP00000000002", SOURCE, [act])
        asked, fetched = asyncio.Event(), asyncio.Event()
        manifest = node.shelf.manifest

        async def slowly(version: Any) -> Any:
            asked.set()
            await fetched.wait()
            return await manifest(version)

        monkeypatch.setattr(node.shelf, "manifest", slowly)
        job = await node.mint("act", {"do": "sleep", "s": 1000}, version=other.version)
        await asyncio.wait_for(asked.wait(), 60)
        heard = heard_cancel(node)
        assert await node.outside.cancel("jobs.act", job) == "cancelling"
        await asyncio.wait_for(heard.wait(), 60)
        fetched.set()
        assert (await node.ended("act", job)).state == "cancelled"


def heard_cancel(node: Rig) -> asyncio.Event:
    """Set once the node has heard of a cancel; behind the supervisor's own listener."""
    heard = asyncio.Event()
    node.bus.on("cancel", lambda *_: heard.set())
    return heard


async def test_a_node_that_stops_in_mid_run_loses_and_charges_nothing(server: Server, tmp_path: Path) -> None:
    functions = [function("act")]
    jobs = []
    for n in range(4):
        node = rigs.rig(server.address, tmp_path / str(n), SOURCE, functions, node=f"NOD0000000000{n}")
        async with node as running:
            jobs += await running.mint_many("act", [{"do": "sleep", "s": 0.002}] * 100)
            await running.until(lambda running=running, job=jobs[n * 60]: _all_done(running, [job]))
    async with rigs.rig(server.address, tmp_path / "last", SOURCE, functions) as running:
        await running.until(lambda: _all_done(running, jobs))
        assert {(await running.job("act", job)).failures for job in jobs} == {0}


# ---- fetch-ahead, recycling, failed starts ------------------------------------------------------------------------


async def test_what_waits_behind_a_slow_job_is_run_by_others(make: Make, tmp_path: Path) -> None:
    async with make(function("act", timeout_ms=120_000), cpus=2) as node:
        await node.all_ended("act", await node.mint_many("act", [{"do": "return", "value": 0}] * 30))
        slow = await node.mint("act", {"do": "until", "file": str(tmp_path / "go")})
        quick = await node.mint_many("act", [{"do": "return", "value": n} for n in range(10)])
        jobs = await node.all_ended("act", quick)
        assert {(job.state, job.failures) for job in jobs} == {("done", 0)}
        assert (await node.job("act", slow)).state == "active"
        (tmp_path / "go").touch()
        assert (await node.ended("act", slow)).failures == 0


async def test_a_worker_is_replaced_after_its_share(make: Make) -> None:
    async with make(function("act", recycle_jobs=10, workers_max=1)) as node:
        jobs = await node.all_ended("act", await node.mint_many("act", [{"do": "pid"}] * 60))
        shares: dict[int, int] = {}
        for job in jobs:
            pid, count = result_of(job)
            shares[pid] = max(shares.get(pid, 0), count)
        assert all(count <= 12 for count in shares.values())
        assert len(shares) >= 5
        assert sum(job.failures for job in jobs) == 0


BROKEN = {
    "raises": "raise RuntimeError('no database')",
    "exits": "import os; os._exit(7)",
    "sys.exit": "import sys; sys.exit(0)",
    "segfaults": "import ctypes; ctypes.string_at(0)",
}


@pytest.mark.parametrize("how", BROKEN)
async def test_a_module_that_does_not_import_costs_retries_and_no_fork_storm(make: Make, how: str) -> None:
    async with make(function("act", retries=1), source=BROKEN[how]) as node:
        job = await node.ended("act", await node.mint("act", {"do": "pid"}))
        assert (job.state, job.failures) == ("dead", 2)
        assert job.error is not None
        if how == "raises":
            assert (job.error.type, job.error.message) == ("RuntimeError", "no database")
        causes = {"raises": "error", "exits": "exit:7", "sys.exit": "error", "segfaults": "signal:SEGV"}
        assert job.error.cause == causes[how]
        assert node.workers("act")["cold_starts"] <= 3


async def test_a_worker_that_dies_right_after_its_start_does_not_loop_for_ever(make: Make) -> None:
    source = (
        "import os, threading\nthreading.Timer(0.0, lambda: os._exit(9)).start()\nimport time; time.sleep(0.0)\n"
        + SOURCE
    )
    async with make(function("act", retries=0), source=source) as node:
        job = await node.ended("act", await node.mint("act", {"do": "sleep", "s": 1000}))
        assert job.state == "dead"


async def test_idle_workers_go(make: Make) -> None:
    async with make(idle_s=0.2) as node:
        await node.ended("act", await node.mint("act", {"do": "pid"}))
        await node.until(lambda: node.workers("act")["count"] == 0)
        job = await node.ended("act", await node.mint("act", {"do": "pid"}))
        assert job.state == "done"


async def test_the_minimum_of_workers_is_ready_before_any_job(make: Make) -> None:
    async with make(function("act", workers_min=2, workers_max=3)) as node:
        await node.until(lambda: node.workers("act").get("ready") == 2)
        job = await node.ended("act", await node.mint("act", {"do": "pid"}))
        assert job.state == "done"


# ---- versions -----------------------------------------------------------------------------------------------------


def _version(text: str) -> str:
    return f'''
import os, time
def act(payload, ctx):
    time.sleep(payload.get("s", 0))
    while "until" in payload and not os.path.exists(payload["until"]): time.sleep(0.002)
    return "{text}"
'''


async def test_a_running_job_ends_on_its_code_and_the_next_runs_on_the_new(make: Make, tmp_path: Path) -> None:
    async with make(function("act", timeout_ms=120_000), source=_version("old"), cpus=1) as node:
        running = await node.mint("act", {"until": str(tmp_path / "go")})
        await node.running_job("act", running)
        node.shelf.activate(node.shelf.put("DEP00000000002", _version("new"), [function("act")]))
        fresh = await node.ended("act", await node.mint("act", {"s": 0}))
        assert result_of(fresh) == "new"
        assert (await node.job("act", running)).state == "active"  # the new one did not wait for it
        (tmp_path / "go").touch()
        old = await node.ended("act", running)
        assert (result_of(old), old.failures, old.version) == ("old", 0, rigs.VERSION)
        await node.until(lambda: node.workers("act")["count"] == 1)


async def test_a_switch_under_load_loses_and_charges_nothing(make: Make) -> None:
    async with make(function("act"), source=_version("0")) as node:
        jobs: list[JobId] = []
        for n in range(5):
            if n:
                new = node.shelf.put(f"DEP0000000001{n}", _version(str(n)), [function("act")])
                node.shelf.activate(new)
                await node.until(lambda new=new: new.version in node.supervisor.running())
            fresh = await node.mint_many("act", [{"s": 0.002}] * 120)
            await node.ended("act", fresh[0])
            jobs += fresh
        done = await node.all_ended("act", jobs)
        assert {job.state for job in done} == {"done"}
        assert sum(job.failures for job in done) == 0
        seen = [result_of(job) for job in done]
        assert seen[::120] == ["0", "1", "2", "3", "4"]
        assert set(seen[480:]) == {"4"}


async def test_a_version_that_cannot_be_had_claims_nothing_and_says_so_once(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(following, "RETRY_S", 0.01)
    async with make(function("act"), source=_version("old"), cpus=1) as node:
        folder, tries, is_whole = node.shelf.folder, 0, False

        async def broken(version: Any) -> Path:
            nonlocal tries
            if version == rigs.VERSION or is_whole:
                return await folder(version)
            tries += 1
            raise Refused("no room")

        monkeypatch.setattr(node.shelf, "folder", broken)
        running = await node.mint("act", {"until": str(tmp_path / "go")})
        await node.running_job("act", running)
        node.shelf.activate(node.shelf.put("DEP00000000002", _version("new"), [function("act")]))
        await node.until(lambda: node.supervisor.ails)
        assert node.supervisor.ails == ("version DEP00000000002 is not run here: no room",)
        waiting = await node.mint("act", {"s": 0})
        (tmp_path / "go").touch()
        assert result_of(await node.ended("act", running)) == "old"
        await node.until(lambda: tries > 4)
        is_whole = True
        assert result_of(await node.ended("act", waiting)) == "new"
        assert node.supervisor.ails == ()
    assert capfd.readouterr().err.count("version.not_served") == 1


async def test_a_bell_for_what_one_node_cannot_run_is_heard_by_one_that_can(server: Server, tmp_path: Path) -> None:
    one = rigs.rig(server.address, tmp_path / "1", SOURCE, [function("spread")], cpus=1)
    both = [function("act"), function("spread")]
    async with one as first:
        await first.until(lambda: first.supervisor.has_room())
        job = await first.mint("act", {"do": "return", "value": 0})
        await first.until(lambda: "jobs.act" in first.supervisor._bells.resting)  # it came back: nobody else listens
        two = rigs.rig(server.address, tmp_path / "2", SOURCE, both, cpus=1, node="NOD00000000002")
        async with two:
            await first.ended("act", job)
            for _ in range(4):  # each node hears some of them first
                await first.ended("act", await first.mint("act", {"do": "return", "value": 0}), within_s=BEAT_S / 2)


async def test_workers_are_ready_before_the_switch_that_they_were_asked_for(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    act = function("act", workers_min=1)
    async with make(act, source=_version("old"), cpus=1) as node:
        await node.ended("act", await node.mint("act", {"s": 0}))
        new = node.shelf.put("DEP00000000002", "import time\ntime.sleep(0.2)\n" + _version("new"), [act])
        call = await node.outside.warm(new.version)
        await node.until(lambda: call in node.supervisor.warmth()[1])
        assert (node.workers("act")["count"], node.workers("act")["cold_starts"]) == (2, 2)
        assert result_of(await node.ended("act", await node.mint("act", {"s": 0}))) == "old"
        node.shelf.activate(new)
        await node.until(lambda: node.workers("act")["count"] == 1)
        job = await node.ended("act", await node.mint("act", {"s": 0}))
        assert (result_of(job), node.workers("act")["cold_starts"]) == ("new", 2)


async def test_workers_that_no_switch_comes_for_are_let_go(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crews, "WARM_S", 0.0)
    act = function("act", workers_min=1)
    async with make(act, source=_version("old"), cpus=1, idle_s=0.2) as node:
        await node.ended("act", await node.mint("act", {"s": 0}))
        call = await node.outside.warm(node.shelf.put("DEP00000000002", _version("new"), [act]).version)
        await node.until(lambda: call in node.supervisor.warmth()[1] and node.workers("act")["cold_starts"] >= 2)
        await node.until(lambda: node.supervisor.running() == (rigs.VERSION,))
        assert node.workers("act")["count"] == 1


async def test_a_pinned_job_runs_on_its_version(make: Make) -> None:
    async with make(function("act"), source=_version("old")) as node:
        node.shelf.activate(node.shelf.put("DEP00000000002", _version("new"), [function("act")]))
        await node.ended("act", await node.mint("act", {"s": 0}))
        pinned = await node.ended("act", await node.mint("act", {"s": 0}, version=rigs.VERSION))
        assert (result_of(pinned), pinned.version) == ("old", rigs.VERSION)
        assert result_of(await node.ended("act", await node.mint("act", {"s": 0}))) == "new"


async def test_jobs_of_a_function_that_is_gone_wait_until_it_is_back(make: Make) -> None:
    async with make(function("act"), function("spread")) as node:
        await node.ended("act", await node.mint("act", {"do": "pid"}))
        node.shelf.activate(node.shelf.put("DEP00000000002", SOURCE, [function("spread")]))
        await node.until(lambda: node.workers("act")["count"] == 0)
        orphan = await node.mint("act", {"do": "pid"})
        await node.ended("spread", await node.mint("spread", {"count": 0}))
        assert (await node.job("act", orphan)).state == "pending"
        node.shelf.activate(node.shelf.put("DEP00000000003", SOURCE, [function("act"), function("spread")]))
        assert (await node.ended("act", orphan)).state == "done"


async def test_a_new_function_is_served_however_long_the_bus_takes_over_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    act, fresh = function("act", workers_min=0), function("fresh", context=False)
    async with make(act, idle_s=0.02) as node:
        asked, go = asyncio.Event(), asyncio.Event()
        configure, housekeep, rounds = node.bus.configure, crews.Crews.housekeep, 0

        async def slowly(queue: str, *rest: Any) -> Any:
            if queue == "jobs.fresh":
                asked.set()
                await go.wait()
            return await configure(queue, *rest)

        def counted(each: crews.Crews, now: float) -> None:
            nonlocal rounds
            rounds += asked.is_set()
            housekeep(each, now)

        monkeypatch.setattr(node.bus, "configure", slowly)
        monkeypatch.setattr(crews.Crews, "housekeep", counted)
        source = SOURCE + "\ndef fresh(payload): return 7\n"
        node.shelf.activate(node.shelf.put("DEP00000000002", source, [act, fresh]))
        await asyncio.wait_for(asked.wait(), 60)
        await node.until(lambda: rounds >= 4)
        go.set()
        assert result_of(await node.ended("fresh", await node.mint("fresh", None))) == 7


async def test_a_pinned_job_that_was_lost_while_its_version_was_fetched_is_not_run(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make(function("act")) as node:
        other = node.shelf.put("DEP00000000002", SOURCE, [function("act")])
        asked, fetched = asyncio.Event(), asyncio.Event()
        manifest, append, lost = node.shelf.manifest, Line.append, list[bool]()

        async def slowly(version: Any) -> Any:
            asked.set()
            await fetched.wait()
            return await manifest(version)

        def noted(line: Line, lease: Lease) -> None:
            lost.append(lease.lost)
            append(line, lease)

        monkeypatch.setattr(node.shelf, "manifest", slowly)
        monkeypatch.setattr(Line, "append", noted)
        await node.mint("act", {"do": "pid"}, version=other.version)
        await asyncio.wait_for(asked.wait(), 60)
        feed = node.supervisor._feeds["jobs.act"]
        feed._book.expire(math.inf)
        fetched.set()
        await node.until(lambda: feed.is_settled)
        assert lost == []


# ---- cancel, pause, leases ----------------------------------------------------------------------------------------


async def test_a_cancelled_run_is_stopped_after_its_grace(make: Make) -> None:
    async with make(function("act", timeout_ms=120_000, grace_ms=200)) as node:
        job_id = await node.mint("act", {"do": "hang"})
        await node.running_job("act", job_id)
        assert await node.outside.cancel("jobs.act", job_id) == "cancelling"
        job = await node.ended("act", job_id)
        assert (job.state, job.failures) == ("cancelled", 0)


async def test_a_result_that_comes_before_the_stop_stands(make: Make, tmp_path: Path) -> None:
    async with make(function("act", grace_ms=120_000)) as node:
        job_id = await node.mint("act", {"do": "until", "file": str(tmp_path / "go")})
        await node.running_job("act", job_id)
        heard = heard_cancel(node)
        await node.outside.cancel("jobs.act", job_id)
        await asyncio.wait_for(heard.wait(), 60)
        (tmp_path / "go").touch()
        job = await node.ended("act", job_id)
        assert (job.state, result_of(job)) == ("done", 1)


async def test_a_long_job_outlives_its_lease(make: Make, server: Server, tmp_path: Path) -> None:
    lease_ms = 3_000
    async with make(function("act", timeout_ms=120_000), lease_ms=lease_ms) as node:
        log, go = tmp_path / "starts", tmp_path / "go"
        job_id = await node.mint("act", {"do": "mark", "file": str(log), "until": str(go)})
        first_ms = int(await node.until(lambda: server.command("ZSCORE", "emq:{jobs.act}:active", job_id)))

        def held_ms() -> int:
            return int(server.command("ZSCORE", "emq:{jobs.act}:active", job_id) or 0)  # type: ignore[call-overload]

        await node.until(lambda: held_ms() > first_ms + 1.5 * lease_ms)
        go.touch()
        job = await node.ended("act", job_id)
        assert (job.state, job.failures, job.attempts) == ("done", 0, 1)
        assert len(log.read_text().splitlines()) == 1


async def test_begun_runs_are_marked_long_before_their_lease_is_extended(
    make: Make, server: Server, tmp_path: Path
) -> None:
    async with make(function("act", timeout_ms=120_000), lease_ms=120_000) as node:
        job_id = await node.mint("act", {"do": "until", "file": str(tmp_path / "go")})
        row = f"emq:{{jobs.act}}:job:{job_id}"
        await node.until(lambda: server.command("HGET", row, "b"), within_s=20)  # a third of the lease is 40 s
        (tmp_path / "go").touch()
        await node.ended("act", job_id)


async def test_ten_thousand_quick_jobs_raise_no_alarm(make: Make, capfd: pytest.CaptureFixture[str]) -> None:
    async with make(function("act", recycle_jobs=100_000), lease_ms=3_000) as node:
        jobs = await node.mint_many("act", [{"do": "return", "value": None}] * 10_000)
        await node.all_ended("act", jobs, within_s=300)
        assert node.supervisor.status()["refused"] == 0
    out, err = capfd.readouterr()
    assert "lease." not in out + err
    assert "settle." not in out + err


async def test_paused_means_none_starts(node: Rig) -> None:
    await node.ended("act", await node.mint("act", {"do": "pid"}))
    await node.outside.pause("jobs.act")
    job = await node.mint("act", {"do": "pid"})
    await node.ended("spread", await node.mint("spread", {"count": 0}))  # others run on
    assert (await node.job("act", job)).state == "pending"
    await node.outside.resume("jobs.act")
    assert (await node.ended("act", job)).state == "done"


async def test_without_a_node_number_jobs_wait_and_the_bus_is_left_alone(
    node: Rig, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("echod.supervisor.children.BLOCK_AGE_S", -1.0)  # no run has the ids of the one before it
    await node.ended("act", await node.mint("act", {"do": "pid"}))
    node.bus.ids.drop()  # as after a pause longer than the node's lease
    job_id = await node.mint("act", {"do": "pid"})
    await node.until(lambda: _in_state(node, job_id, "active"))
    before = _settles(server)
    await asyncio.sleep(0.3)  # what must not happen can only be waited for
    assert _settles(server) - before < 10
    await node.bus.join("NOD00000000001")  # type: ignore[arg-type]
    job = await node.ended("act", job_id)
    assert (job.state, job.failures) == ("done", 0)


async def _in_state(node: Rig, job_id: str, state: str) -> bool:
    return (await node.job("act", job_id)).state == state


def _settles(server: Server) -> int:
    """How often jobs were taken out of the active set."""
    text = bytes(server.command("INFO", "commandstats")).decode()  # type: ignore[arg-type]
    found = [line for line in text.splitlines() if line.startswith("cmdstat_zrem:")]
    return int(found[0].split("calls=")[1].split(",")[0]) if found else 0


# ---- drain --------------------------------------------------------------------------------------------------------


async def test_a_drain_lets_runs_end_and_gives_back_the_rest(make: Make, tmp_path: Path) -> None:
    async with make(function("act", timeout_ms=120_000), cpus=1) as node:
        await node.all_ended("act", await node.mint_many("act", [{"do": "return", "value": 0}] * 30))
        first = await node.mint("act", {"do": "until", "file": str(tmp_path / "go")})
        rest = await node.mint_many("act", [{"do": "return", "value": n} for n in range(5)])
        await node.running_job("act", first)
        drained = asyncio.create_task(node.supervisor.drain(120.0))
        await node.until(lambda: node.supervisor.status()["draining"])
        (tmp_path / "go").touch()
        assert await drained
        assert (await node.job("act", first)).state == "done"
        for job_id in rest:
            job = await node.job("act", job_id)
            assert (job.state, job.failures) == ("pending", 0)
        assert not node.supervisor.has_room()
        assert node.workers("act")["count"] == 0


async def test_a_drain_ends_at_its_deadline_and_a_release_gives_everything_back(make: Make) -> None:
    async with make(function("act", timeout_ms=600_000)) as node:
        job_id = await node.mint("act", {"do": "hang"})
        await node.running_job("act", job_id)
        assert not await node.supervisor.drain(0.2)
        await asyncio.wait_for(node.supervisor.release(), 120)
        job = await node.job("act", job_id)
        assert (job.state, job.failures) == ("pending", 0)  # we stopped it: it is not charged


async def test_jobs_that_end_during_a_drain_run_once(make: Make, tmp_path: Path) -> None:
    log = tmp_path / "starts"
    async with make(function("act"), cpus=2) as node:
        jobs = await node.mint_many("act", [{"do": "mark", "file": str(log), "s": 0.002}] * 200)
        await node.ended("act", jobs[50])
        assert await node.supervisor.drain(120.0)
    async with make(function("act"), cpus=2) as node:
        await node.until(lambda: _all_done(node, jobs))
    starts = [line.split()[0] for line in log.read_text().splitlines()]
    assert sorted(starts) == sorted(jobs)


async def _all_done(node: Rig, jobs: list[Any]) -> bool:
    return all([(await node.job("act", job)).state == "done" for job in jobs])


# ---- the bus goes, the node freezes -------------------------------------------------------------------------------


async def test_a_restarted_bus_gets_every_verdict(tmp_path: Path) -> None:
    server = Server(append_only=True)
    server.start()
    log = tmp_path / "starts"
    try:
        async with rigs.rig(server.address, tmp_path, SOURCE, [function("act")]) as node:
            jobs = await node.mint_many("act", [{"do": "mark", "file": str(log), "s": 0.01}] * 100)
            await node.ended("act", jobs[10])
            assert server.command("WAITAOF", 1, 0, 30_000) == [1, 0]
            server.kill()
            await node.until(lambda: not node.bus.connected)
            await asyncio.to_thread(server.start)
            await node.until(lambda: _all_done(node, jobs))
            starts = [line.split()[0] for line in log.read_text().splitlines()]
            assert set(starts) == set(jobs)
    finally:
        server.remove()


async def test_a_run_goes_on_while_the_bus_is_away_and_is_settled_after(
    make: Make, server: Server, tmp_path: Path
) -> None:
    log, go = tmp_path / "starts", tmp_path / "go"
    async with make(function("act", timeout_ms=120_000)) as node:
        job_id = await node.mint("act", {"do": "mark", "file": str(log), "until": str(go)})
        await node.running_job("act", job_id)
        node.bus.link.patience_s = 0.8  # as it is shipped
        with server.paused():
            go.touch()
            await node.until(lambda: node.workers("act")["busy"] == 0)
            await node.until(lambda: not node.bus.connected)
        await node.until(lambda: _all_done(node, [job_id]))
        assert len(log.read_text().splitlines()) == 1


async def test_a_frozen_node_gives_up_its_lease_and_never_settles_past_it(server: Server, tmp_path: Path) -> None:
    log, go = tmp_path / "starts", tmp_path / "go"
    functions = [function("act", timeout_ms=120_000)]
    (tmp_path / "functions.msgpack").write_bytes(msgspec.msgpack.encode(functions))
    (tmp_path / "source.py").write_text(SOURCE)
    frozen = await asyncio.create_subprocess_exec(
        sys.executable, rigs.__file__, server.address, str(tmp_path), "NOD00000000002", "3000",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert frozen.stdout is not None
    assert frozen.stderr is not None
    try:
        assert (await asyncio.wait_for(frozen.stdout.readline(), 60)).startswith(b"serving")
        other = tmp_path / "other"
        async with rigs.rig(server.address, other, SOURCE, functions, node="NOD00000000003") as node:
            node.supervisor.room.clear()
            assert await node.supervisor.drain(60.0)  # it ticks, and leaves the job to the one that will freeze
            job_id = await node.mint("act", {"do": "mark", "file": str(log), "until": str(go)})
            await node.until(lambda: log.exists() and log.read_text())
            await node.until(lambda: server.command("HGET", f"emq:{{jobs.act}}:job:{job_id}", "b"))
            os.kill(frozen.pid, signal.SIGSTOP)
            go.touch()  # what the run gave lies there when the node goes on
            lost = await node.until(lambda: _charged(node, job_id))
            assert lost.history[-1].outcome == "lost"
            assert lost.failures == 1
            os.kill(frozen.pid, signal.SIGCONT)
            job = await node.ended("act", job_id)
            assert (job.state, job.failures, job.attempts) == ("done", 1, 2)
        frozen.terminate()
        _, errors = await asyncio.wait_for(frozen.communicate(), 60)
        assert b"lease.expired" in errors + _
        assert b"settle.refused" not in errors + _
    finally:
        with contextlib.suppress(ProcessLookupError):
            frozen.kill()
            os.kill(frozen.pid, signal.SIGCONT)
        await frozen.wait()


async def _charged(node: Rig, job_id: str) -> Any:
    job = await node.job("act", job_id)
    return job if job.failures else None


async def test_a_killed_supervisor_leaves_no_process(server: Server, tmp_path: Path) -> None:
    (tmp_path / "functions.msgpack").write_bytes(msgspec.msgpack.encode([function("act", timeout_ms=120_000)]))
    (tmp_path / "source.py").write_text(SOURCE)
    victim = await asyncio.create_subprocess_exec(
        sys.executable, rigs.__file__, server.address, str(tmp_path), "NOD00000000002", "15000",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert victim.stdout is not None
        assert (await asyncio.wait_for(victim.stdout.readline(), 60)).startswith(b"serving")
        other = tmp_path / "other"
        async with rigs.rig(server.address, other, SOURCE, [function("act")]) as node:
            assert await node.supervisor.drain(60.0)
            pids = tmp_path / "pids"
            job_id = await node.mint("act", {"do": "hang deaf", "file": str(pids)})
            await node.until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
            await node.until(lambda: server.command("HGET", f"emq:{{jobs.act}}:job:{job_id}", "b"))
            victim.kill()
            await victim.wait()
            await node.until(lambda: not _alive(pids.read_text().split()))  # they would live for a quarter of an hour
            for _ in range(3):  # at one step of more than a lease, what is lost would be held back for another
                server.clock.advance(6_000)
                await node.bus.tick("jobs.act")
            lost = await node.until(lambda: _charged(node, job_id))
            assert [(run.outcome, run.cause) for run in lost.history] == [("lost", "lost")]
    finally:
        with contextlib.suppress(ProcessLookupError):
            victim.kill()


# ---- children and output ------------------------------------------------------------------------------------------


async def test_children_are_minted_under_the_ids_that_the_run_was_told(node: Rig) -> None:
    parent = await node.ended("spread", await node.mint("spread", {"count": 1_000}))
    ids = result_of(parent)
    assert len(set(ids)) == 1_000
    children = []
    for child in ids:
        await node.until(lambda child=child: _is_done(node, child))
        children.append(await node.job("act", child))
    assert [result_of(child) for child in children] == list(range(1_000))
    assert {(child.parent, child.lane) for child in children} == {(parent.id, NO_LANE)}
    await node.until(lambda: _is_swept(node))


async def _is_swept(node: Rig) -> bool:
    return await node.outside.sweep_out("jobs.spread", older_ms=0) == ([], "")


async def _is_done(node: Rig, job: str) -> bool:
    found = await node.outside.job(job, queue="jobs.act")
    return found is not None and found.state == "done"


async def test_a_failed_run_leaves_no_children(make: Make) -> None:
    async with make(function("act"), function("spread", retries=0)) as node:
        job = await node.ended("spread", await node.mint("spread", {"count": 5, "fail": True}))
        assert job.state == "dead"
        assert (await node.outside.stats(["jobs.act"]))["jobs.act"].done == 0


async def test_enqueue_to_a_function_that_does_not_exist_fails_the_run(make: Make) -> None:
    async with make(function("act"), function("spread", retries=0)) as node:
        job = await node.ended("spread", await node.mint("spread", {"count": 1, "unknown": True}))
        assert job.state == "dead"
        assert job.error is not None
        assert "jobs.nowhere" in job.error.message
        assert (await node.outside.stats(["jobs.act"]))["jobs.act"].done == 0


async def test_every_line_lands_in_its_own_job(node: Rig) -> None:
    jobs = await node.mint_many("act", [{"do": "print"}] * 30)
    for job in await node.all_ended("act", jobs):
        lines = await node.until(lambda job=job: _lines(node, job.id, 4))
        assert sorted((line.stream, line.text) for line in lines) == [
            ("log", "by ctx"),
            ("log", "logged 1"),
            ("stderr", "to stderr"),
            ("stdout", "to stdout"),
        ]
        assert {line.attempt for line in lines} == {1}
        assert all(job.minted_ms <= line.at_ms <= node.bus.clock.now_ms() for line in lines)


async def test_what_is_written_past_python_is_kept_too(node: Rig) -> None:
    job = await node.ended("act", await node.mint("act", {"do": "write"}))
    lines = await node.until(lambda: _lines(node, job.id, 2))
    assert [(line.stream, line.text) for line in lines] == [("stdout", "past python"), ("stdout", "and no end")]


async def test_what_is_written_past_python_lands_in_its_own_job_and_stream(node: Rig) -> None:
    """Of runs right behind each other, which have ended before any of it is read; of one in three."""
    payloads = [{"do": "write of each", "n": n} if n % 3 == 0 else {"do": "return", "value": n} for n in range(90)]
    jobs = await node.mint_many("act", payloads)
    for n, job in enumerate(await node.all_ended("act", jobs)):
        if n % 3 == 0:
            lines = await node.until(lambda job=job: _lines(node, job.id, 3))
            said = [("stdout", f"out {n}"), ("stderr", f"err {n}"), ("stderr", "and no end")]
            assert sorted((line.stream, line.text) for line in lines) == sorted(said)
        else:
            assert await node.outside.logs("jobs.act", job.id) == []


async def test_a_crash_leaves_its_python_lines_in_the_log(node: Rig) -> None:
    job = await node.ended("act", await node.mint("act", {"do": "segv"}))
    lines = await node.until(lambda: _lines(node, job.id, 2))
    assert any("jobs.py" in line.text for line in lines)


async def test_what_each_run_ended_with_is_a_line_of_its_log(make: Make) -> None:
    async with make(function("act", retries=2)) as node:
        raised = await node.ended("act", await node.mint("act", {"do": "raise"}))
        crashed = await node.ended("act", await node.mint("act", {"do": "exit", "code": 3, "times": 100}))
        for job, count in ((raised, 3), (crashed, 3)):
            assert job.error is not None
            lines = await node.until(lambda id=job.id, count=count: _lines(node, id, count))
            assert [(line.attempt, line.level) for line in lines] == [(1, "error"), (2, "error"), (3, "error")]
            assert all(job.error.message in line.text and job.error.traceback.strip() in line.text for line in lines)


async def _lines(node: Rig, job: str, count: int) -> list[Any] | None:
    lines = [line for _, line in await node.outside.logs("jobs.act", job)]
    return lines if len(lines) >= count else None


async def test_a_flood_of_output_is_cut_and_says_so(node: Rig) -> None:
    job = await node.ended("act", await node.mint("act", {"do": "flood", "lines": 20_000}))
    assert job.state in {"done", "dead"}
    lines = await node.until(lambda: _lines(node, job.id, 100))
    assert sum(len(line.text) for line in lines) <= 1024 * 1024


async def test_progress_is_shown_while_the_job_runs(make: Make, tmp_path: Path) -> None:
    async with make(function("act")) as node:
        job_id = await node.mint("act", {"do": "progress", "file": str(tmp_path / "go")})
        job = await node.until(lambda: _progressed(node, job_id))
        assert (job.state, job.progress) == ("active", (0.5, "half"))
        (tmp_path / "go").touch()
        assert (await node.ended("act", job_id)).state == "done"


async def _progressed(node: Rig, job_id: str) -> Any:
    job = await node.job("act", job_id)
    return job if job.progress else None


async def test_processes_and_descriptors_return_to_a_baseline(make: Make) -> None:
    async with make(function("act", recycle_jobs=20), idle_s=0.3) as node:
        await node.all_ended("act", await node.mint_many("act", [{"do": "pid"}] * 50))
        await node.until(lambda: node.workers("act")["count"] == 0)
        before, processes = _descriptors(), len(descendants(os.getpid()))
        await node.all_ended("act", await node.mint_many("act", [{"do": "pid"}] * 300))
        await node.until(lambda: node.workers("act")["count"] == 0)
        await node.until(lambda: _descriptors() <= before)
        await node.until(lambda: len(descendants(os.getpid())) <= processes)
        await node.until(lambda: not list((node.state / "tmp").glob("*/*")))  # wiped in a thread


# ---- what pages show ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["standard", "strict"])
async def test_memory_and_cpu_are_those_of_the_process_that_runs_the_handler(make: Make, level: str) -> None:
    """At strict the base knows a small process that only waits for it."""
    source = "held = bytearray(100 << 20)\ndef act(payload, ctx): return sum(range(10_000_000)) > 0\n"
    async with make(function("act"), source=source, level=level) as node:
        assert result_of(await node.ended("act", await node.mint("act", None))) is True
        seen = node.workers("act")
        assert seen["rss_bytes"] > 100 << 20
        assert seen["cpu_s"] > 0.1


async def test_verdicts_that_the_bus_refuses_are_told_again_and_the_queue_goes_on(
    node: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_it_is, spoilt = working.verdict_row, list[str]()

    def spoil_once(verdict: Verdict) -> list[Any]:
        row = as_it_is(verdict)
        if not spoilt:
            spoilt.append(verdict.hold.id)
            row[5] = None
        return row

    monkeypatch.setattr(working, "verdict_row", spoil_once)
    jobs = await node.mint_many("act", [{"do": "return", "value": number} for number in range(5)])
    assert [job.state for job in await node.all_ended("act", jobs)] == ["done"] * 5
    assert len(spoilt) == 1


async def test_output_whose_reply_was_lost_is_in_the_log_once(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written, and the journal hears nothing of it for a while in which more is printed."""
    monkeypatch.setattr(journal, "RETRY_S", 0.01)
    go, heard = tmp_path / "go", asyncio.Event()
    source = "import os, time\ndef act(payload, ctx):\n print(1)\n while not os.path.exists(payload): pass\n print(2)\n"
    async with make(function("act"), source=source) as node:
        log = node.bus.log

        async def unheard(*given: Any, **named: Any) -> int:
            kept = await log(*given, **named)
            go.touch()
            if not heard.is_set():
                raise BusAway("the reply is lost")
            return kept

        monkeypatch.setattr(node.bus, "log", unheard)
        job = await node.ended("act", await node.mint("act", str(go)))
        heard.set()
        lines = await node.until(lambda: _lines(node, job.id, 2))
        assert [line.text for line in lines] == ["1", "2"]
