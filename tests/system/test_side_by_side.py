"""Runs side by side in one worker, runs that are asked to end or ask for more time: who pays, who is left alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import rig as rigs
from echod.bus.answers import LogLine
from echofn import frames
from echofn.manifest import Function
from rig import Rig, function
from server import Server

SOURCE = """
import asyncio, os, time
from echofn import Fail, Snooze

here = set()

async def act(payload, ctx):
    do = payload["do"]
    if "opens" in payload: open(payload["opens"], "w").close()  # whoever waits beside it sees that when it is over
    if do == "meet":
        here.add(payload["n"])
        while len(here) < payload["of"]: await asyncio.sleep(0.002)
        return os.getpid()
    if do == "sleep":
        await asyncio.sleep(payload["s"])
        return os.getpid()
    if do == "until":
        if "by" in payload: ctx.extend(payload["by"])
        while not os.path.exists(payload["file"]): await asyncio.sleep(0.002)
        return os.getpid()
    if do == "cling":
        while not os.path.exists(payload.get("file", "")):
            try: await asyncio.sleep(0.01)
            except asyncio.CancelledError: "told" in payload and open(payload["told"], "w").close()
        return "went on"
    if do == "tidy":
        try: await asyncio.sleep(1000)
        except asyncio.CancelledError:
            print("tidying up")
            raise
    if do == "snooze when told":
        if ctx.fence > 1: return "again"
        try: await asyncio.sleep(1000)
        except asyncio.CancelledError: raise Snooze(0.01)
    if do == "block": time.sleep(payload["s"])
    if do == "abort": os.abort()
    if do == "lie": os.write(3, payload["bytes"])
    if do == "extend":
        for _ in range(payload["times"]): ctx.extend(payload["by"])
        await asyncio.sleep(payload["s"])
        return "in time"
    if do == "print":
        for n in range(5):
            print(payload["n"], n)
            await asyncio.sleep(0.002)

def sync(payload, ctx):
    do = payload["do"]
    if do == "ask":
        while not ctx.cancelled: time.sleep(0.005)
        if payload.get("raise"): raise ValueError("stopped half way")
        return "half done"
    if do == "ask once":
        ctx.cancelled
        time.sleep(payload["s"])
        return "whole"
    if do == "until":
        while not os.path.exists(payload["file"]): time.sleep(0.002)
        return os.getpid()
    if do == "extend":
        ctx.extend(payload["by"])
        time.sleep(payload["s"])
        return "in time"
    if do == "sleep":
        time.sleep(payload["s"])
        return os.getpid()
"""

Make = Callable[..., AbstractAsyncContextManager[Rig]]


@pytest.fixture
def make(server: Server, tmp_path: Path) -> Make:
    def make(*functions: Function, source: str = SOURCE, **options: Any) -> AbstractAsyncContextManager[Rig]:
        return rigs.rig(server.address, tmp_path, source, functions, **options)

    return make


def act(**policy: Any) -> Function:
    """One worker for all."""
    return function("act", is_async=True, **{"workers_max": 1, "timeout_ms": 120_000, "grace_ms": 300, **policy})


def sync(**policy: Any) -> Function:
    return function("sync", **{"workers_max": 1, "timeout_ms": 120_000, "grace_ms": 60_000, **policy})


def result_of(job: Any) -> Any:
    return msgspec.msgpack.decode(job.result)


async def all_run(node: Rig, count: int) -> None:
    await node.until(lambda: node.workers("act").get("runs") == count)


# ---- side by side ---------------------------------------------------------------------------------------------------


async def test_one_worker_runs_as_many_as_it_may_and_no_more(make: Make, tmp_path: Path) -> None:
    async with make(act(per_worker=10)) as node:
        jobs = await node.mint_many("act", [{"do": "meet", "n": n, "of": 10} for n in range(10)])
        done = await node.all_ended("act", jobs)  # each waits for all the others
        assert len({result_of(job) for job in done}) == 1
        waiting = await node.mint_many("act", [{"do": "until", "file": str(tmp_path / "go")}] * 25)
        await all_run(node, 10)
        await node.until(lambda: not node.supervisor.has_room())  # it knows of more
        assert node.workers("act")["runs"] == 10
        (tmp_path / "go").touch()
        most = 0
        while not all([(await node.job("act", job)).state == "done" for job in waiting]):
            most = max(most, node.workers("act")["runs"])
        assert most <= 10


async def test_what_is_printed_side_by_side_lands_in_its_own_job(make: Make) -> None:
    async with make(act()) as node:
        jobs = await node.mint_many("act", [{"do": "print", "n": n} for n in range(10)])
        await node.all_ended("act", jobs)
        for n, job in enumerate(jobs):
            page = await node.until(lambda job=job: _lines(node, job, 5))
            assert [line.text for line in page] == [f"{n} {k}" for k in range(5)]


async def _lines(node: Rig, job: str, count: int) -> Any:
    lines = [line for _, line in await node.outside.logs("jobs.act", job)]
    return lines if len(lines) >= count else None


async def test_a_crash_is_charged_to_the_run_that_crashed_and_to_none_beside_it(make: Make, tmp_path: Path) -> None:
    async with make(act(retries=1)) as node:
        others = await node.mint_many("act", [{"do": "until", "file": str(tmp_path / "go")}] * 6)
        await all_run(node, 6)
        poison = await node.mint("act", {"do": "abort", "opens": str(tmp_path / "go")})
        dead = await node.ended("act", poison)
        assert (dead.state, dead.failures, len(dead.history)) == ("dead", 2, 2)  # exactly its limit
        assert dead.error is not None
        assert dead.error.cause == "signal:ABRT"
        done = await node.all_ended("act", others)
        assert {(job.state, job.failures) for job in done} == {("done", 0)}


async def test_many_poisons_among_many_reach_the_morgue_and_nobody_else_pays(make: Make) -> None:
    async with make(act(retries=0, workers_max=2)) as node:
        payloads = [{"do": "abort"} if n % 8 == 3 else {"do": "sleep", "s": 0.05} for n in range(32)]
        jobs = await node.all_ended("act", await node.mint_many("act", payloads))
        assert [(job.state, job.failures) for job in jobs] == [
            ("dead", 1) if n % 8 == 3 else ("done", 0) for n in range(32)
        ]


async def test_a_worker_killed_from_outside_charges_none_of_several(make: Make, tmp_path: Path) -> None:
    async with make(act()) as node:
        jobs = await node.mint_many("act", [{"do": "until", "file": str(tmp_path / "go")}] * 4)
        await all_run(node, 4)
        os.kill(node.workers("act")["pids"][0], signal.SIGKILL)
        (tmp_path / "go").touch()
        done = await node.all_ended("act", jobs)
        assert {(job.state, job.failures, job.attempts) for job in done} == {("done", 0, 2)}


async def test_a_lie_among_several_charges_only_the_liar(make: Make, tmp_path: Path) -> None:
    async with make(act(retries=0)) as node:
        others = await node.mint_many("act", [{"do": "until", "file": str(tmp_path / "go")}] * 3)
        await all_run(node, 3)
        lie = {"do": "lie", "bytes": frames.framed(frames.Begun(7_000)), "opens": str(tmp_path / "go")}
        liar = await node.ended("act", await node.mint("act", lie))
        assert (liar.state, liar.error and liar.error.cause) == ("dead", "protocol")
        assert {(job.state, job.failures) for job in await node.all_ended("act", others)} == {("done", 0)}


async def test_what_waits_behind_slow_runs_goes_back_and_the_worker_goes_on(make: Make, tmp_path: Path) -> None:
    async with make(act(per_worker=2)) as node:
        await node.all_ended("act", await node.mint_many("act", [{"do": "sleep", "s": 0}] * 40))
        files = [str(tmp_path / name) for name in ("slow", "slower")]
        slow, slower = await node.mint_many("act", [{"do": "until", "file": file} for file in files])
        quick = await node.mint_many("act", [{"do": "sleep", "s": 0}] * 60)
        await all_run(node, 2)
        (tmp_path / "slow").touch()
        jobs = await node.all_ended("act", [slow, *quick])  # in the room that the first has made
        assert {(job.state, job.failures) for job in jobs} == {("done", 0)}
        assert (await node.job("act", slower)).state == "active"
        assert node.workers("act")["cold_starts"] == 1  # it was not retired for being slow
        (tmp_path / "slower").touch()
        assert (await node.ended("act", slower)).state == "done"


async def test_a_job_that_is_cancelled_in_a_workers_hands_never_begins(make: Make, tmp_path: Path) -> None:
    async with make(act(per_worker=1, grace_ms=120_000)) as node:
        await node.all_ended("act", await node.mint_many("act", [{"do": "sleep", "s": 0}] * 40))
        payloads = [{"do": "until", "file": str(tmp_path / "go")}, {"do": "abort"}]
        first, second = await node.mint_many("act", payloads)
        await all_run(node, 1)
        await node.outside.cancel("jobs.act", second)
        job = await node.ended("act", second)
        assert (job.state, job.failures, job.history) == ("cancelled", 0, ())
        (tmp_path / "go").touch()
        assert (await node.ended("act", first)).state == "done"


# ---- timeouts -------------------------------------------------------------------------------------------------------


def _with_time(tmp_path: Path) -> dict[str, str]:
    """The payload of a run that lasts until there is `go`, and asks at once for more time than those beside it have."""
    return {"do": "until", "file": str(tmp_path / "go"), "by": "2m"}


async def test_a_run_past_its_deadline_is_told_and_the_worker_and_its_neighbours_live_on(
    make: Make, tmp_path: Path
) -> None:
    async with make(act(timeout_ms=1_500, grace_ms=60_000, retries=0)) as node:
        late, *beside = await node.mint_many("act", [{"do": "tidy"}, *[_with_time(tmp_path)] * 2])
        await all_run(node, 3)
        pid = node.workers("act")["pids"][0]
        job = await node.ended("act", late)
        (tmp_path / "go").touch()
        assert (job.state, job.failures, job.error and job.error.cause) == ("dead", 1, "timeout")
        assert job.error is not None
        assert job.error.type == "Timeout"
        assert "asyncio.sleep" in job.error.traceback  # where it was
        assert job.history[0].ended_ms - job.history[0].started_ms >= 1_490
        assert [result_of(job) for job in await node.all_ended("act", beside)] == [pid] * 2
        assert await node.until(lambda: _lines(node, late, 1))


async def test_a_run_that_ignores_its_end_is_killed_after_its_grace_and_its_neighbours_go_back(
    make: Make, tmp_path: Path
) -> None:
    async with make(act(timeout_ms=1_500, retries=0)) as node:
        clings, *beside = await node.mint_many("act", [{"do": "cling"}, *[_with_time(tmp_path)] * 3])
        await all_run(node, 4)
        job = await node.ended("act", clings)
        (tmp_path / "go").touch()
        assert (job.state, job.error and job.error.cause) == ("dead", "timeout")
        assert job.history[0].ended_ms - job.history[0].started_ms >= 1_790
        done = await node.all_ended("act", beside)
        assert {(job.state, job.failures, job.attempts) for job in done} == {("done", 0, 2)}


async def test_a_run_that_blocks_the_loop_pays_and_not_whom_it_made_late(make: Make, tmp_path: Path) -> None:
    async with make(act(timeout_ms=2_000, retries=0)) as node:
        beside = await node.mint_many("act", [{"do": "until", "file": str(tmp_path / "go")}] * 3)
        await all_run(node, 3)
        blocks = await node.mint("act", {"do": "block", "s": 1000, "opens": str(tmp_path / "go")})
        job = await node.ended("act", blocks)
        assert (job.state, job.error and job.error.cause, job.failures) == ("dead", "timeout", 1)
        done = await node.all_ended("act", beside)
        assert {(job.state, job.failures) for job in done} == {("done", 0)}


async def test_a_verdict_of_its_own_stands_at_the_deadline(make: Make) -> None:
    async with make(act(timeout_ms=300)) as node:
        job = await node.ended("act", await node.mint("act", {"do": "snooze when told"}))
        assert (job.state, result_of(job), job.failures) == ("done", "again", 0)


async def test_a_sync_run_that_asks_is_told_at_its_deadline_and_its_worker_lives(make: Make) -> None:
    async with make(sync(timeout_ms=300, retries=0)) as node:
        before = result_of(await node.ended("sync", await node.mint("sync", {"do": "sleep", "s": 0})))
        job = await node.ended("sync", await node.mint("sync", {"do": "ask"}))
        assert (job.state, job.error and job.error.cause) == ("dead", "timeout")
        raises = await node.ended("sync", await node.mint("sync", {"do": "ask", "raise": True}))
        assert raises.error is not None
        assert (raises.error.type, raises.error.cause) == ("ValueError", "timeout")
        after = result_of(await node.ended("sync", await node.mint("sync", {"do": "sleep", "s": 0})))
        assert before == after


async def test_a_sync_run_that_never_asked_is_over_at_its_deadline(make: Make) -> None:
    async with make(sync(timeout_ms=300, retries=0)) as node:
        job = await node.ended("sync", await node.mint("sync", {"do": "sleep", "s": 1000}), within_s=30)
        assert (job.state, job.error and job.error.cause) == ("dead", "timeout")  # and not after the grace of 60 s


async def test_a_result_within_the_grace_of_a_run_that_did_not_know_stands(make: Make) -> None:
    async with make(sync(timeout_ms=300, retries=0)) as node:
        job = await node.ended("sync", await node.mint("sync", {"do": "ask once", "s": 0.8}))
        assert (job.state, result_of(job)) == ("done", "whole")


# ---- cancel ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("attribute", "payload"), [("act", {"do": "tidy"}), ("sync", {"do": "ask"})])
async def test_a_cancelled_run_ends_at_once_and_its_worker_lives(
    make: Make, attribute: str, payload: dict[str, Any]
) -> None:
    async with make(act(grace_ms=120_000), sync(grace_ms=120_000)) as node:
        before = result_of(await node.ended(attribute, await node.mint(attribute, {"do": "sleep", "s": 0})))
        job_id = await node.mint(attribute, payload)
        await node.until(lambda: node.workers(attribute)["runs"] == 1)
        assert await node.outside.cancel(f"jobs.{attribute}", job_id) == "cancelling"
        job = await node.ended(attribute, job_id)
        assert (job.state, job.failures, job.result) == ("cancelled", 0, None)
        after = result_of(await node.ended(attribute, await node.mint(attribute, {"do": "sleep", "s": 0})))
        assert before == after


async def test_a_cancelled_run_that_does_not_listen_is_killed_after_its_grace_alone(make: Make, tmp_path: Path) -> None:
    async with make(act(grace_ms=300)) as node:
        payloads = [{"do": "cling"}, *[{"do": "until", "file": str(tmp_path / "go")}] * 3]
        clings, *beside = await node.mint_many("act", payloads)
        await all_run(node, 4)
        await node.outside.cancel("jobs.act", clings)
        job = await node.ended("act", clings)
        (tmp_path / "go").touch()
        assert (job.state, job.failures) == ("cancelled", 0)
        done = await node.all_ended("act", beside)
        assert {(job.state, job.failures, job.attempts) for job in done} == {("done", 0, 2)}


async def test_a_result_of_a_run_that_went_on_knowingly_is_dropped(make: Make, tmp_path: Path) -> None:
    async with make(act(grace_ms=120_000)) as node:
        told, go = tmp_path / "told", tmp_path / "go"
        job_id = await node.mint("act", {"do": "cling", "file": str(go), "told": str(told)})
        await all_run(node, 1)
        await node.outside.cancel("jobs.act", job_id)
        await node.until(told.exists)
        go.touch()
        job = await node.ended("act", job_id)
        assert (job.state, job.result) == ("cancelled", None)


# ---- more time ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attribute", ["act", "sync"])
async def test_a_run_that_asks_for_more_time_gets_it(make: Make, attribute: str) -> None:
    async with make(act(timeout_ms=1_000, retries=0), sync(timeout_ms=1_000, retries=0)) as node:
        job = await node.ended(
            attribute, await node.mint(attribute, {"do": "extend", "by": "60s", "times": 1, "s": 1.5})
        )
        assert (job.state, result_of(job)) == ("done", "in time")


async def test_more_time_is_time_and_not_all_of_it(make: Make) -> None:
    async with make(act(timeout_ms=300, retries=0)) as node:
        job = await node.ended("act", await node.mint("act", {"do": "extend", "by": "300ms", "times": 2, "s": 1000}))
        assert (job.state, job.error and job.error.cause) == ("dead", "timeout")
        assert job.history[0].ended_ms - job.history[0].started_ms >= 890


# ---- lifespans ------------------------------------------------------------------------------------------------------

LIVED = """
import asyncio, os
from echofn import lifespan
def note(text): os.write(os.open({file!r}, os.O_CREAT | os.O_APPEND | os.O_WRONLY), text.encode() + b" ")
@lifespan
async def clients():
    note("enter")
    yield {{"http": "client"}}
    await asyncio.sleep(0.05)
    note("leave")
async def act(payload, ctx):
    return ctx.state.http
"""


async def test_a_lifespan_is_left_when_the_node_drains_and_when_a_worker_has_run_its_share(
    make: Make, tmp_path: Path
) -> None:
    file = tmp_path / "lived"
    serves = act(startup_ms=30_000, recycle_jobs=2)
    async with make(serves, source=LIVED.format(file=str(file))) as node:
        for _ in range(4):
            assert result_of(await node.ended("act", await node.mint("act", {}))) == "client"
        await node.until(lambda: "leave" in file.read_text())
        assert await node.supervisor.drain(120)
        words = file.read_text().split()
        assert words.count("enter") == words.count("leave") >= 2


@pytest.mark.parametrize(
    ("end", "told"), [("yield {}", "RuntimeError: "), ("raise ValueError('late')", "ValueError: late")]
)
async def test_a_lifespan_that_does_not_end_well_is_told_in_the_log_of_the_last_job(
    make: Make, capfd: pytest.CaptureFixture[str], end: str, told: str
) -> None:
    head = "from echofn import lifespan\nasync def act(p, ctx): ...\n"
    source = f"{head}@lifespan\nasync def clients():\n    yield\n    {end}\n"
    async with make(act(startup_ms=30_000, recycle_jobs=1), source=source) as node:
        job = await node.ended("act", await node.mint("act", {}))
        assert job.state == "done"
        await node.until(lambda: _logged(node, job.id))  # the worker is replaced after its one job
        [line] = await _logged(node, job.id)
        assert (line.level, line.logger) == ("error", "echod")
        assert "@lifespan (jobs.py:3) did not end well" in line.text
        assert told in line.text
    assert "lifespan.not_left" in capfd.readouterr().err


async def test_what_a_lifespan_prints_is_in_the_log_of_the_job_beside_it(make: Make) -> None:
    source = (
        "from echofn import lifespan\nprint('import')\nasync def act(p, ctx): print('run', p['n'])\n"
        "@lifespan\nasync def clients():\n    print('enter')\n    try: yield\n    finally: print('leave')\n"
    )
    async with make(act(startup_ms=30_000, recycle_jobs=2), source=source) as node:
        first = await node.ended("act", await node.mint("act", {"n": 1}))
        last = await node.ended("act", await node.mint("act", {"n": 2}))
        said = await node.until(lambda: _said(node, last.id, 2))
        assert said == ["run 2", "leave"]
        assert await _said(node, first.id) == ["import", "enter", "run 1"]


async def _said(node: Rig, id: str, least: int = 1) -> list[str]:
    """What a job's log has, once it has so many lines."""
    said = [line.text for line in await _logged(node, id)]
    return said if len(said) >= least else []


async def _logged(node: Rig, id: str) -> list[LogLine]:
    return [line for _, line in await node.outside.logs("jobs.act", id)]


@pytest.mark.parametrize(
    ("body", "kind", "cause", "runs"),
    [
        ("raise ConnectionError('no database')\n    yield", "ConnectionError", "error", 2),
        ("await asyncio.sleep(60)\n    yield", "StartTimeout", "timeout", 2),
        ("import time; time.sleep(60)\n    yield", "StartTimeout", "timeout", 2),
    ],
)
async def test_a_lifespan_that_does_not_start_costs_retries_and_no_fork_storm(
    make: Make, body: str, kind: str, cause: str, runs: int
) -> None:
    head = "import asyncio\nfrom echofn import lifespan\nasync def act(p, ctx): ...\n"
    source = f"{head}@lifespan\nasync def clients():\n    {body}\n"
    async with make(act(startup_ms=300, retries=1), source=source) as node:
        job = await node.ended("act", await node.mint("act", {}))
        assert (job.state, job.failures) == ("dead", runs)
        assert job.error is not None
        assert (job.error.type, job.error.cause) == (kind, cause)
        if kind == "StartTimeout":
            assert job.error.message == (
                "the worker was not ready within 0.3 s: the @lifespan of jobs.py has not come to its yield"
            )
        assert node.workers("act")["cold_starts"] <= 3


async def test_what_a_worker_that_cannot_start_prints_is_in_the_nodes_log(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, str]] = []
    heard = SimpleNamespace(warning=lambda event, **fields: said.append((event, fields["text"])))
    monkeypatch.setattr("echod.supervisor.outside._log", heard)
    source = (
        "from echofn import lifespan\nprint('import')\nasync def act(p, ctx): ...\n"
        "@lifespan\ndef clients():\n    print('connecting', end='')\n    raise ConnectionError\n    yield\n"
    )
    async with make(act(startup_ms=30_000, retries=0), source=source) as node:
        assert (await node.ended("act", await node.mint("act", {}))).state == "dead"
    assert said[:2] == [("worker.wrote", "import"), ("worker.wrote", "connecting")]


async def test_a_lifespan_at_a_wall_is_dead_at_once(make: Make) -> None:
    source = (
        "import socket\nfrom echofn import lifespan\n@lifespan\nasync def clients():\n"
        "    yield socket.create_connection(('127.0.0.1', 443))\nasync def act(p, ctx): ...\n"
    )
    async with make(act(startup_ms=30_000, retries=5), source=source, level="standard") as node:
        job = await node.ended("act", await node.mint("act", {}))
        assert (job.state, job.failures, job.error and job.error.cause) == ("dead", 1, "wall:network")
