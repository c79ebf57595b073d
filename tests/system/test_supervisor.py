"""The supervisor with a real bus, base and workers: what becomes of jobs, whatever happens to those who run them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import rig as rigs
from acting import SOURCE, Make, alive, all_done, descriptors, heard_cancel, result_of
from echod.bus.clock import BEAT_S
from echod.supervisor import pool
from echod.supervisor import worker as workers
from echod.supervisor.bells import AGAIN_S
from echofn import frames
from echofn.manifest import Constant
from rig import Rig, function
from server import Server

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
    assert alive([str(pid)]) == []


async def test_an_idle_worker_that_does_not_stop_is_killed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "IDLE_WITHIN_S", 0.3)
    async with make() as node:
        pid, _ = result_of(await node.ended("act", await node.mint("act", {"do": "pid"})))
        os.kill(pid, signal.SIGSTOP)
        node.shelf.activate(node.shelf.put("DEP00000000002", SOURCE, [function("spread")]))
        await node.until(lambda: node.workers("act")["count"] == 0)
        assert alive([str(pid)]) == []


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
        assert alive([base, *below]) == []
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
        assert alive(pids) == []


async def test_timeouts_leave_nothing_behind(make: Make) -> None:
    async with make(function("act", timeout_ms=50, retries=0), cpus=2, idle_s=0.2) as node:
        await node.all_ended("act", await node.mint_many("act", [{"do": "hang"}] * 2))
        await node.until(lambda: node.workers("act")["count"] == 0)
        before = descriptors()
        await node.all_ended("act", await node.mint_many("act", [{"do": "hang"}] * 30))
        await node.until(lambda: node.workers("act")["count"] == 0)
        await node.until(lambda: descriptors() <= before)
        await node.until(
            lambda: not list((node.state / "tmp").glob("*/*"))
        )  # wiped in a thread, after the worker is gone
        await node.until(lambda: _zombies_below(int(str(node.supervisor.status()["base"]))) == 0)


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


async def test_a_node_that_stops_in_mid_run_loses_and_charges_nothing(server: Server, tmp_path: Path) -> None:
    functions = [function("act")]
    jobs = []
    for n in range(4):
        node = rigs.rig(server.address, tmp_path / str(n), SOURCE, functions, node=f"NOD0000000000{n}")
        async with node as running:
            jobs += await running.mint_many("act", [{"do": "sleep", "s": 0.002}] * 100)
            await running.until(lambda running=running, job=jobs[n * 60]: all_done(running, [job]))
    async with rigs.rig(server.address, tmp_path / "last", SOURCE, functions) as running:
        await running.until(lambda: all_done(running, jobs))
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
