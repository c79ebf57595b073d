"""Which code a job runs on: switches, pinned jobs, functions that come and go, with real workers."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

import rig as rigs
from acting import SOURCE, Make, result_of
from echod.bus.clock import BEAT_S
from echod.errors import Refused
from echod.model.ids import JobId
from echod.supervisor import crews, following
from echod.supervisor.leases import Lease
from echod.supervisor.line import Line
from rig import function
from server import Server


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
