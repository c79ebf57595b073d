"""The level of a real node: where it is told, what a handler of it can do, and what weakens it."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from echofn.walls import trial
from echofn.walls.privileges import FIRST_UID
from nodes import TOKEN, Node, Terminal, alive, run, until

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
# What a handler, or an import, does that leaves two daemons and kills everything above them that could end them.
ORPHANS = """
import os, signal, time

def orphan(told, parents):
    read, write = os.pipe()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.setsid()
        for _ in range(2):
            if os.fork() == 0:
                os.setsid()
                os.write(write, b"%d " % os.getpid())
                while True: time.sleep(100)
        os._exit(0)
    said = b""
    while said.count(b" ") < 2: said += os.read(read, 40)
    with open(told, "wb") as file: file.write(said)
    above = [os.getppid()]
    while len(above) < parents:
        above.append(int(open(f"/proc/{above[-1]}/stat").read().rpartition(")")[2].split()[1]))
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for each in reversed(above): os.kill(each, number)
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


def command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


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


@pytest.mark.parametrize(("verb", "level"), [("dev", "minimal"), ("start", "off")])
def test_a_daemon_that_kills_keeper_and_base_together_is_ended_by_the_node(
    node: Node, tmp_path: Path, verb: str, level: str
) -> None:
    """And nothing else of the node's is: its server, and the process that waits to import the next save."""
    told = tmp_path / "pids"
    run_it = "from echofn import queue\n@queue(retries=0)\ndef leave(payload): orphan(payload, 2)\n"
    node.save("orphans.py", ORPHANS + run_it)
    node.start(verb, "--sandbox", level, ECHOD_TOKEN=TOKEN)
    own = [node.server_pid(), *(pid for pid in node.descendants() if b"echofn.discovery" in command(pid))]
    node.mint("orphans.leave", str(told))
    until(lambda: are_gone(told))
    assert node.call("m.names") is True  # of a new base
    assert all(map(alive, own))
    if verb == "dev":
        told.unlink()
        node.save("orphans.py", ORPHANS + f"orphan({str(told)!r}, 1)\n")
        until(lambda: are_gone(told))
        assert node.call("m.names") is True


def test_a_base_that_lost_its_keeper_is_left_to_end_by_itself(node: Node) -> None:
    """Stopped, as strays are before they are killed, it would stay so for ever if the node died in that moment."""
    node.start("dev", ECHOD_TOKEN=TOKEN)
    node.call("m.who")
    keeper, base = [pid for pid in node.descendants() if b"echofn.base" in command(pid)][:2]  # from above
    os.kill(keeper, signal.SIGKILL)
    until(lambda: "base.died" in node.said())
    assert not alive(base)
    assert "strays.ended" not in node.said()
    node.call("m.who")


def are_gone(told: Path) -> bool:
    return told.exists() and len(pids := told.read_bytes().split()) == 2 and not any(alive(int(pid)) for pid in pids)


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
