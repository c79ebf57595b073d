"""`echod dev --clock`: next Monday's report runs now, nothing else is disturbed, and nobody else has such a clock."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from nodes import Node, free_port, run, until

FILES = {
    "report.py": """
import time
from echofn import cron, queue

@cron("0 6 * * mon", tz="Europe/Berlin", name="monday")
def weekly(payload, ctx):
    return ctx.due.isoformat()

@queue(timeout="10m", retries=0)
def slow(payload):
    time.sleep(payload)
    return "undisturbed"

@queue(retries=1, backoff=["1h"])
def flaky(payload, ctx):
    if ctx.attempt == 1:
        raise ValueError("once")
    return ctx.attempt
""",
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("driven"), FILES).start("dev", "--clock", "--lease", "6s")
    yield node
    node.close()


def jobs(node: Node, function: str) -> list[Any]:
    return list(node.get(f"/jobs?function={function}")["jobs"])


def moved(node: Node, *words: str) -> Any:
    said = node.cli("clock", *words, "--json")
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


def test_next_runs_the_report_of_next_monday_now(node: Node) -> None:
    before = moved(node)
    after = moved(node, "next")
    assert after["due"] == ["report.weekly"]
    assert after["now"][:23] >= before["next"][:23]
    assert jobs(node, "report.weekly")  # answered when it is there
    report = until(lambda: [job for job in jobs(node, "report.weekly") if job["state"] == "done"])[-1]
    assert report["occurrence"]["due"] == before["next"]
    again = moved(node, "next")
    assert until(lambda: len([job for job in jobs(node, "report.weekly") if job["state"] == "done"]) == 2)
    assert again["now"][:10] > after["now"][:10]
    assert node.get("/schedules")["schedules"][0]["missed"] == 0


def test_a_running_job_is_not_disturbed_by_days_that_pass(node: Node) -> None:
    id = node.mint("report.slow", 3)
    until(lambda: node.job(id)["state"] == "active" and node.job(id)["started"])
    for _ in range(3):
        moved(node, "+1d")
    ended = until(lambda: (job := node.job(id))["ended"] and job)
    assert (ended["result"], ended["attempts"]) == ("undisturbed", 1)


@pytest.mark.parametrize("is_marked", [False, True])
def test_a_run_began_when_it_began_whereto_the_clock_is_driven_meanwhile(node: Node, is_marked: bool) -> None:
    id = node.mint("report.slow", 4)
    until(lambda: node.job(id)["state"] == "active" and (not is_marked or node.job(id)["started"]))
    minted = node.job(id)["minted"]
    moved(node, "+3d")
    running = until(lambda: (job := node.job(id))["started"] and job)
    ended = until(lambda: (job := node.job(id))["ended"] and job)
    for record in (running, ended):
        since = datetime.fromisoformat(record["started"]) - datetime.fromisoformat(minted)
        assert timedelta(0) <= since < timedelta(minutes=1), record
    assert ended["history"][0]["started"] == ended["started"]
    assert ended["ended"] > ended["started"]


def test_a_retry_that_waits_an_hour_runs_when_the_hour_is_over(node: Node) -> None:
    id = node.mint("report.flaky")
    until(lambda: node.job(id)["state"] == "scheduled")
    moved(node, "+1h")
    assert until(lambda: (job := node.job(id))["ended"] and job)["result"] == 2


def test_the_clock_stands_still_until_it_is_resumed(node: Node) -> None:
    frozen = moved(node, "freeze")
    try:
        assert frozen["frozen"]
        assert node.call("report.slow", 0) == "undisturbed"  # work goes on
        assert moved(node)["now"] == frozen["now"]
        job = jobs(node, "report.slow")[0]
        assert job["minted"] == job["ended"] == frozen["now"]
        assert moved(node, "+5m")["frozen"]
        assert "stands still" in page(node)
    finally:
        resumed = moved(node, "resume")
    assert not resumed["frozen"]
    until(lambda: moved(node)["now"] > resumed["now"])
    assert "clock driven" in page(node)


def page(node: Node) -> str:
    request = urllib.request.Request(f"{node.url}/", headers={"Accept": "text/html"})
    with urllib.request.urlopen(request) as answer:
        return str(answer.read().decode())


def test_what_the_clock_cannot_do_is_refused_in_words(node: Node) -> None:
    for words, text in [
        (("-1d",), "time goes one way"),
        (("2020-01-01T00:00:00Z",), "time goes one way"),
        (("+1fortnight",), "duration"),
        (("sideways",), "expected now, +1d, next"),
        (("+9000d",), "20 years"),
    ]:
        said = node.cli("clock", *words)
        assert (said.returncode, text in said.stderr) == (2, True), (words, said.stderr)
    assert "clock" in node.said()


def test_a_plain_line_says_where_it_is_and_what_is_next(node: Node) -> None:
    words = node.cli("clock").stdout.split()
    assert words[0].endswith("Z")
    assert words[-2] == "next:"


def test_nobody_else_has_a_clock_to_drive(tmp_path: Path) -> None:
    node = Node(tmp_path, FILES).start()
    try:
        said = node.cli("clock", "+1d")
        assert (said.returncode, "echod dev --clock" in said.stderr) == (2, True)
        assert json.loads(node.cli("clock", "--json").stdout)["driven"] is False
        assert "data-clock" not in page(node)
    finally:
        node.close()
    refused = run("start", str(node.folder), "--state", str(tmp_path / "other"), ECHOD_CLOCK="1", ECHOD_TOKEN="t" * 32)
    assert (refused.returncode, "echod dev" in refused.stderr) == (2, True)
    refused = run("dev", str(node.folder), "--clock", "--bus", "unix:///nowhere.sock", "--port", str(free_port()))
    assert (refused.returncode, "--bus" in refused.stderr) == (2, True)


def test_a_state_that_was_driven_is_not_served_by_the_servers_own_time(tmp_path: Path) -> None:
    node = Node(tmp_path, FILES).start("dev", "--clock")
    moved(node, "+1d")
    ahead = moved(node)["now"]
    node.end()
    plain = run("dev", str(node.folder), "--state", str(node.state), "--port", str(node.port))
    assert (plain.returncode, "--clock" in plain.stderr) == (2, True)
    node.start("dev", ECHOD_CLOCK="1")  # the flag's variable
    try:
        assert moved(node)["now"] > ahead  # where it was, and on
    finally:
        node.close()
