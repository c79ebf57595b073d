"""How a supervisor goes down: what runs may end, the rest goes back."""

from __future__ import annotations

import asyncio
from pathlib import Path

from acting import Make, all_done
from rig import function


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
        await node.until(lambda: all_done(node, jobs))
    starts = [line.split()[0] for line in log.read_text().splitlines()]
    assert sorted(starts) == sorted(jobs)
