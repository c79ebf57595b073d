"""The level of a real node: where it is told, what a handler of it can do, and what weakens it."""

from __future__ import annotations

import json
import os
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from echofn.walls import trial
from echofn.walls.privileges import FIRST_UID
from nodes import TOKEN, Node, Terminal, run

CODE = """
from echofn import queue
import os, socket

@queue
def who(): return os.getuid()

@queue
def names(): return os.path.exists("/etc/passwd")

@queue(retries=0)
def unix(): socket.socket(socket.AF_UNIX); return "open"
"""
LEVELS = ["minimal", "standard", "strict"]


@pytest.fixture
def node(tmp_path: Path) -> Any:
    """A node started with a umask that closes what it writes to others."""
    made = Node(tmp_path / "node", {"m.py": CODE})
    umask = os.umask(0o077)
    yield made
    os.umask(umask)
    made.end()


def page(node: Node) -> str:
    headers = {"Accept": "text/html", "Authorization": f"Bearer {node.token}"}
    with urllib.request.urlopen(urllib.request.Request(f"{node.url}/nodes", headers=headers)) as answer:
        return str(answer.read().decode())


@pytest.mark.parametrize("level", LEVELS)
def test_the_level_that_was_asked_for_is_told_and_holds(node: Node, level: str) -> None:
    node.start("start", "--sandbox", level, ECHOD_TOKEN=TOKEN)
    ready = node.get("/readyz")
    assert ready["sandbox"] == level
    is_weaker = os.geteuid() == 0 and level == "standard"  # its state is closed to any other uid, always
    told = [f"sandbox {level}: without {trial.WEAKER}"] if is_weaker else []
    assert [each for each in ready["degraded"] if "sandbox" in each] == told
    assert f"sandbox</span> {level}</summary>" in page(node)
    uid = node.call("m.who")
    assert uid >= FIRST_UID if os.geteuid() == 0 and level == "strict" else uid == os.geteuid()
    assert node.call("m.names") is (level != "strict")
    status, told = node.ask("POST", "/functions/m.unix", None, Prefer="wait=20")
    assert status == (200 if level == "minimal" else 500), told


@pytest.mark.parametrize("arguments", [[], ["--sandbox", "standard"]])
def test_on_a_terminal_each_wall_is_a_line_that_says_how_it_stands(arguments: list[str]) -> None:
    screen = Terminal("sandbox", *arguments)
    try:
        said = screen.read_until("private-network")
    finally:
        screen.close()
    told = json.loads(run("sandbox", *arguments, "--json").stdout)
    for wall in told["walls"]:
        assert any(line.split()[:2] == [wall["name"], wall["state"]] for line in said.splitlines()), wall


def test_an_option_that_cannot_be_enforced_is_refused_whole_and_dev_takes_it(node: Node) -> None:
    node.start("start", "--sandbox", "minimal", folder=False, ready=False, ECHOD_TOKEN=TOKEN)
    node.save("m.py", "from echofn import queue\n\n@queue(processes=4)\ndef f(): return 1\n")
    done = node.cli("deploy", str(node.folder))
    assert done.returncode == 2
    assert "m.py:3: m.f is not served: nothing enforces its processes= at --sandbox minimal" in done.stderr
    assert node.get("/versions")["versions"] == []
    node.end()
    node.start("dev", "--sandbox", "minimal")
    assert node.call("m.f") == 1
