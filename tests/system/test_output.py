"""What runs hand over beside their result: children, lines, progress, and what pages show of their workers."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from acting import Make, descriptors, result_of
from echod.errors import BusAway
from echod.model.job import NO_LANE
from echod.supervisor import journal
from echofn.processes import descendants
from rig import Rig, function

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
        before, processes = descriptors(), len(descendants(os.getpid()))
        await node.all_ended("act", await node.mint_many("act", [{"do": "pid"}] * 300))
        await node.until(lambda: node.workers("act")["count"] == 0)
        await node.until(lambda: descriptors() <= before)
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
