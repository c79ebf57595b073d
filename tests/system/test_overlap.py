"""overlap= with real workers: what runs beside what, who is stopped, who waits (field report C11)."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from nodes import Node, until

SLOW = """
import asyncio, time
from echofn import every

@every("1s", overlap="skip")
def none(): time.sleep(2.4)

@every("1s", overlap="queue")
def behind(): time.sleep(2.4)

@every("1s", overlap="replace")
async def instead(): await asyncio.sleep(60)

@every("1s", overlap="allow")
def beside(): time.sleep(2.4)
"""


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(Path(tmp_path_factory.mktemp("overlap")), {"slow.py": SLOW}).start()
    yield node
    node.close()


def jobs(dev: Node, name: str) -> list[Any]:
    """All of a function's jobs, in mint order."""
    return sorted(dev.get(f"/jobs?function=slow.{name}&limit=200")["jobs"], key=lambda job: job["id"])


def runs(dev: Node, name: str, count: int) -> list[Any]:
    """At least so many jobs that have run to an end, in the order of their starts."""

    def enough() -> Any:
        found = [job for job in jobs(dev, name) if job["started"] and job["ended"]]
        return len(found) >= count and sorted(found, key=lambda job: job["started"])

    return until(enough, within_s=120)  # type: ignore[no-any-return]


def schedule(dev: Node, name: str) -> Any:
    return next(each for each in dev.get("/schedules")["schedules"] if each["function"] == f"slow.{name}")


def dues(found: list[Any]) -> list[str]:
    return [job["occurrence"]["due"] for job in found]


def test_skip_runs_one_at_a_time_and_counts_what_it_left_out(dev: Node) -> None:
    found = runs(dev, "none", 3)
    assert all(later["started"] >= earlier["ended"] for earlier, later in pairwise(found))
    assert {job["state"] for job in found} == {"done"}
    told = schedule(dev, "none")
    assert told["skipped"] >= 2 * 2
    assert told["missed"] == 0
    assert dev.get("/functions/slow.none")["metrics"]["skipped"] >= 4
    with urllib.request.urlopen(f"{dev.url}/metrics") as answer:
        found = re.search(r'echod_occurrences_skipped_total{[^}]*"slow.none"[^}]*} (\d+)', answer.read().decode())
    assert found is not None
    assert int(found[1]) >= 4


def test_queue_runs_one_at_a_time_with_one_waiting_at_most(dev: Node) -> None:
    seen: list[Any] = []

    def looked() -> bool:
        now = jobs(dev, "behind")
        seen.append(now)
        return sum(job["state"] == "done" for job in now) >= 4

    until(looked, within_s=120)
    for now in seen:
        waiting = [job for job in now if job["state"] in ("pending", "scheduled")]
        assert len(waiting) <= 1
        assert sum(job["state"] == "active" for job in now) <= 1
    waited = [job for now in seen for job in now if job["waits_for"]]
    assert waited
    assert {(job["state"], job["reason"]) for job in waited} == {("scheduled", None)}
    found = runs(dev, "behind", 4)
    assert all(later["started"] >= earlier["ended"] for earlier, later in pairwise(found))
    assert schedule(dev, "behind")["skipped"] > 0


def test_replace_stops_the_old_run_and_starts_the_new_one_after_it(dev: Node) -> None:
    found = runs(dev, "instead", 4)
    assert {job["state"] for job in found} == {"cancelled"}
    assert all(later["started"] >= earlier["ended"] for earlier, later in pairwise(found))
    assert dues(found) == sorted(dues(found))
    assert schedule(dev, "instead")["skipped"] == 0
    every = dues(jobs(dev, "instead"))
    assert len(set(every)) == len(every)


def test_allow_runs_them_beside_each_other(dev: Node) -> None:
    until(lambda: any(later["started"] < earlier["ended"] for earlier, later in pairwise(runs(dev, "beside", 2))))
    assert schedule(dev, "beside")["skipped"] == 0


def test_the_command_line_tells_overlap_and_skipped_apart_from_missed(dev: Node) -> None:
    lines = dev.cli("schedules").stdout.splitlines()
    head, row = lines[0], next(line for line in lines if line.startswith("slow.none/"))
    assert "MISSED" in head
    assert "SKIPPED" in head
    assert "overlap skip" in row
