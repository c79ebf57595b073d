"""Deploys, plans and rollbacks as people do them, on a running `echod start` that serves no folder of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodes import TOKEN, Node, until

HOURLY = "@every('1h', name='hourly')\ndef tick():\n    pass\n"


def code(value: int, extra: str = "", options: str = "") -> str:
    return f"from echofn import queue, every\n@queue({options})\ndef f(payload):\n    return {value}\n{extra}"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node that takes deploys; `folder` is what the test deploys to it."""
    started = Node(tmp_path, {"m.py": code(1, HOURLY)})
    started.start("start", folder=False, ready=False, ECHOD_TOKEN=TOKEN)
    yield started
    started.close()


def deploy(node: Node, *flags: str) -> str:
    """A deploy that ends well; what it says."""
    done = node.cli("deploy", str(node.folder), *flags)
    assert done.returncode == 0, done.stderr
    return done.stdout


def serves(node: Node, value: int) -> None:
    until(lambda: node.ask("POST", "/functions/m.f", {}, Prefer="wait=20") == (200, value))


def test_a_plan_changes_nothing_a_deploy_says_the_same_and_a_rollback_undoes_it(node: Node) -> None:
    assert "+ function m.f\n" in deploy(node)
    serves(node, 1)
    first = node.get("/versions")["versions"][0]["id"]
    until(lambda: node.get("/schedules")["schedules"])
    [hourly] = node.get("/schedules")["schedules"]
    node.save("m.py", code(2, options="timeout='30s'"))
    wanted = [
        "  ~ function m.f: code, limits",
        "  - function m.tick",
        f"  - schedule m.tick/hourly: every 1h, would have been due {hourly['next']}",
        "  ~ limit of m.f: timeout 1m → 30s",
    ]
    said = deploy(node, "--plan").splitlines()
    assert said[:-1] == wanted
    assert "nothing was switched" in said[-1]
    assert [each["id"] for each in node.get("/versions")["versions"]] == [first]
    assert deploy(node).splitlines()[:-1] == wanted
    serves(node, 2)
    until(lambda: not node.get("/schedules")["schedules"])
    [row, _] = json.loads(node.cli("versions", "--json").stdout)["versions"]
    assert row["active"]
    assert row["changes"]["functions"]["gone"] == [{"name": "m.tick", "waiting": 0}]

    back = node.cli("rollback")
    assert back.returncode == 0, back.stderr
    assert f"  + schedule m.tick/hourly: every 1h, first due {hourly['next']}\n" in back.stdout
    serves(node, 1)
    assert [each["active"] for each in node.get("/versions")["versions"]] == [True, False]
    assert node.get("/versions")["versions"][0]["id"] == first
    until(lambda: [each["next"] for each in node.get("/schedules")["schedules"]] == [hourly["next"]])
    again = node.cli("rollback", row["id"])  # by name, forwards too
    assert again.returncode == 0, again.stderr
    serves(node, 2)


def test_what_cannot_be_rolled_back_to_is_refused(node: Node) -> None:
    refused = node.cli("rollback")
    assert (refused.returncode, "a version before" in refused.stderr) == (2, True)
    deploy(node)
    refused = node.cli("rollback", "DEP00000000009")
    assert (refused.returncode, "no version 'DEP00000000009' is stored" in refused.stderr) == (2, True)
    node.save("bad.py", "def x(:\n")
    refused = node.cli("deploy", str(node.folder), "--plan")
    assert (refused.returncode, "bad.py:1:7" in refused.stderr) == (2, True)
    serves(node, 1)
