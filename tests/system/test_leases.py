"""Cancels, pauses and leases: what is kept, given up and lost, also while the bus is away or a node frozen."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import rig as rigs
from acting import SOURCE, Make, alive, all_done, heard_cancel, result_of
from echod.bus import working
from echod.model.job import Verdict
from rig import Rig, function
from server import Server

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
            await node.until(lambda: all_done(node, jobs))
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
        await node.until(lambda: all_done(node, [job_id]))
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
            await node.until(lambda: not alive(pids.read_text().split()))  # they would live for a quarter of an hour
            for _ in range(3):  # at one step of more than a lease, what is lost would be held back for another
                server.clock.advance(6_000)
                await node.bus.tick("jobs.act")
            lost = await node.until(lambda: _charged(node, job_id))
            assert [(run.outcome, run.cause) for run in lost.history] == [("lost", "lost")]
    finally:
        with contextlib.suppress(ProcessLookupError):
            victim.kill()


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
