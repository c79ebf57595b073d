"""Limits over real nodes: two under one limit, and one that is killed with its lanes' places."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from audit import audit
from nodes import TOKEN, Node, alive, until
from server import Server

SOURCE = """
import os, time
from echofn import Context, queue

def noted(payload, ctx):
    with open({file!r}, "a") as out:  # one write a line: appended whole
        out.write(f"start {{ctx.job_id}} {{ctx.lane}} {{time.monotonic()}} {{os.getpid()}}\\n")
    time.sleep(payload["s"])
    while "until" in payload and not os.path.exists(payload["until"]): time.sleep(0.005)
    with open({file!r}, "a") as out:
        out.write(f"end {{ctx.job_id}} {{ctx.lane}} {{time.monotonic()}} {{os.getpid()}}\\n")

@queue(lane="tenant", workers=(0, 2), concurrency=3)
def fleet(payload: dict, ctx: Context) -> None: noted(payload, ctx)

@queue(lane="tenant", workers=(0, 2), retries=5, timeout="30s", lane_concurrency=2)
def by_tenant(payload: dict, ctx: Context) -> None: noted(payload, ctx)
"""


class Fleet:
    """A gateway, a pump and two worker nodes on one server."""

    def __init__(self, place: Path, server: Server) -> None:
        self.runs = place / "runs"
        self.runs.touch()
        self.server = server
        self.gateway = Node(place / "gateway", {"m.py": SOURCE.format(file=str(self.runs))})
        self.workers = [Node(place / name) for name in ("one", "two")]
        self.pump = Node(place / "pump")
        for role, node in (
            ("gateway", self.gateway),
            ("pump", self.pump),
            *(("worker", each) for each in self.workers),
        ):
            flags = ["--lease", "4s", "--sandbox", "minimal"] if role == "worker" else []
            node.launch(role, "--bus", server.address, "--state", str(node.state), *flags, ECHOD_TOKEN=TOKEN)
        until(lambda: self.gateway.is_up(ready=False), 60)
        deployed = self.gateway.cli("deploy", str(self.gateway.folder))
        assert deployed.returncode == 0, deployed.stderr

    def close(self) -> None:
        for node in (self.gateway, self.pump, *self.workers):
            node.close()

    def mint(self, name: str, lane: str, count: int, s: float, **more: str) -> None:
        for _ in range(count):
            self.gateway.mint(name, {"tenant": lane, "s": s, **more})

    def noted(self) -> list[list[str]]:
        return [line.split() for line in self.runs.read_text().splitlines()]

    def ended(self) -> int:
        return sum(line[0] == "end" for line in self.noted())

    def running(self) -> list[int]:
        """Processes that are in a run."""
        open_runs: dict[str, int] = {}
        for kind, job, _, _, pid in self.noted():
            if kind == "start":
                open_runs[job] = int(pid)
            else:
                open_runs.pop(job, None)
        return list(open_runs.values())

    def most_at_once(self, lane: str | None = None, killed: dict[int, float] | None = None) -> int:
        """Over all runs so far; one that was killed ran until then."""
        moments: list[tuple[float, int]] = []
        begun: dict[tuple[str, int], float] = {}
        for kind, job, of_lane, at, pid in self.noted():
            if lane in (None, of_lane):
                moments.append((float(at), 1 if kind == "start" else -1))
                if kind == "start":
                    begun[job, int(pid)] = float(at)
                else:
                    del begun[job, int(pid)]
        moments += [((killed or {})[pid], -1) for _, pid in begun]
        most = now = 0
        for _, step in sorted(moments):
            now += step
            most = max(most, now)
        return most


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    server = Server(driven=False)
    server.start()
    fleet = Fleet(tmp_path, server)
    try:
        yield fleet
    finally:
        fleet.close()
        server.remove()


def test_two_nodes_keep_one_limit_together_and_hear_of_an_operators(fleet: Fleet, tmp_path: Path) -> None:
    fleet.mint("m.fleet", "a", 24, 0.05, until=str(tmp_path / "go"))
    until(lambda: len(fleet.running()) == 3, 120)  # two nodes of two hands each, three places
    (tmp_path / "go").touch()
    until(lambda: fleet.ended() == 24, 120)
    assert fleet.most_at_once() == 3
    fleet.runs.write_text("")
    said = fleet.gateway.cli("set", "m.fleet", "--concurrency", "1")
    assert said.stdout == "m.fleet: concurrency 1\n", said.stderr
    fleet.mint("m.fleet", "a", 8, 0.05)
    until(lambda: fleet.ended() == 8, 120)
    assert fleet.most_at_once() == 1
    assert fleet.gateway.get("/functions/m.fleet")["limits"]["by_hand"] == ["concurrency"]


def test_places_of_killed_workers_and_nodes_come_back_and_are_never_given_twice(fleet: Fleet) -> None:
    """SIGKILL of a run's process, then of a whole node, while their jobs take up all of a lane's places."""
    fleet.mint("m.by_tenant", "a", 14, 0.3)
    fleet.mint("m.by_tenant", "b", 4, 0.1)
    killed: dict[int, float] = {}
    pid = until(lambda: fleet.running() if fleet.ended() >= 2 else None, 120)[0]
    os.kill(pid, signal.SIGKILL)
    killed[pid] = time.monotonic()
    until(lambda: fleet.ended() >= 5, 120)

    def at_work() -> tuple[Node, set[int]] | None:
        """A node that runs something just now; which of them it is the lanes decide."""
        runs = [(node, set(node.descendants()) & set(fleet.running())) for node in fleet.workers]
        return next(((node, pids) for node, pids in runs if pids), None)

    victim, below = until(at_work, 120)
    gone = victim.descendants()
    victim.kill()
    until(lambda: not any(map(alive, gone)))
    killed = dict.fromkeys(below | set(fleet.running()), time.monotonic()) | killed
    done = until(
        lambda: jobs if len(jobs := fleet.gateway.get("/jobs?state=done&limit=50")["jobs"]) == 18 else None, 180
    )
    assert all(job["state"] == "done" for job in done)
    assert fleet.most_at_once("a", killed) == 2
    assert fleet.most_at_once("b", killed) <= 2
    books = audit(fleet.server, "m.by_tenant")
    assert (books.settings, books.active, books.held) == ({}, {}, set())
