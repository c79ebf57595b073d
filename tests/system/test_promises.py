"""What the README promises of the whole: examples, once per second, idle is free, the Procfile, its own code."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from nodes import ECHOD, TOKEN, Node, environment, until
from server import Server

ROOT = Path(__file__).resolve().parents[2]
SOAK = os.environ.get("ECHOD_SOAK") == "1"
Make = Callable[..., Node]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Make]:
    """Makes nodes that are gone at the end."""
    made: list[Node] = []

    def make(files: dict[str, str], place: str = "one") -> Node:
        made.append(Node(tmp_path / place, files))
        return made[-1]

    yield make
    for each in made:
        each.close()


def ended(dev: Node, job_id: str) -> Any:
    return until(lambda: (job := dev.job(job_id))["state"] in ("done", "dead", "cancelled") and job)


def test_the_shipped_examples_do_what_they_say(node: Make) -> None:
    files = {path.name: path.read_text() for path in (ROOT / "functions").glob("*.py")}
    dev = node(files).start()
    assert dev.errors() == []
    assert dev.call("hello.greet", {"name": "Ada", "language": "ja"}) == {"greeting": "こんにちは, Ada!", "attempt": 1}

    imported = dev.call("orders.import_csv", "customer,sku,quantity\nacme,bolt,3\nacme,nut,1\nbee,nut,5\n")
    assert imported == 3
    packed = until(lambda: len(jobs := dev.get("/jobs?function=orders.pack&state=done&limit=10")["jobs"]) == 3 and jobs)
    assert sorted(job["lane"] for job in packed) == ["acme", "acme", "bee"]
    assert {job["parent"] for job in packed} != {None}

    failing = ended(dev, dev.mint("payments.charge", 1213))
    assert (failing["state"], failing["failures"], len(failing["history"])) == ("dead", 3, 3)
    assert failing["error"]["type"] == "ServiceUnavailable"
    assert ended(dev, dev.mint("payments.charge", 1277))["attempts"] == 2

    assert dev.call("render.mandelbrot", {"width": 40, "height": 30, "depth": 20}).startswith("iVBORw0KGgo")

    for schedule in ("clock.heartbeat", "clock.weekly_report"):
        (row,) = [row for row in dev.get("/schedules")["schedules"] if row["function"] == schedule]
        status, body = dev.ask("POST", f"/schedules/{quote(row['id'], safe='')}/run")
        assert status // 100 == 2, body
        until(lambda name=schedule: any(job["occurrence"]["manual"] for job in done_of(dev, name)))


def done_of(dev: Node, name: str) -> list[Any]:
    return list(dev.get(f"/jobs?function={name}&state=done")["jobs"])


def test_every_second_becomes_one_job_with_two_pumps_of_which_one_is_killed(node: Make) -> None:
    """`* * * * * *`: kinds A13, C5, C15 of what bit other schedulers. Soak: a whole minute."""
    seconds = 60 if SOAK else 10
    dev = node({"t.py": "from echofn import cron\n@cron('* * * * * *', missed='all')\ndef tick(): pass\n"}).start()
    pump = subprocess.Popen(
        [*ECHOD, "pump", "--bus", f"unix://{dev.state / 'valkey.sock'}"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(),
    )  # fmt: skip
    try:
        until(lambda: len(dev.get("/nodes")["nodes"]) == 2)
        until(lambda: len(ticks(dev)) >= seconds // 2, 60 + seconds * 2)
    finally:
        pump.kill()
        pump.wait()
    dues = until(lambda: len(found := ticks(dev)) >= seconds and found, 60 + seconds * 2)
    assert len(set(dues)) == len(dues)
    assert {later - earlier for earlier, later in pairwise(dues)} == {1.0}


def ticks(dev: Node) -> list[float]:
    jobs = dev.get("/jobs?function=t.tick&limit=200")["jobs"]
    return sorted(datetime.fromisoformat(job["occurrence"]["due"]).timestamp() for job in jobs)


def test_an_idle_node_leaves_the_bus_alone_and_a_delayed_job_still_starts_on_time(node: Make) -> None:
    """At most 0.1 calls/s; the bound here is ten times that, over a beat and more. Soak: a minute."""
    watched_s = 60 if SOAK else 22
    dev = node(
        {
            "f.py": "from echofn import queue\n@queue()\ndef f(payload=None): pass\n",
            "y.py": "from echofn import cron\n@cron('0 0 1 1 *')\ndef y(): pass\n",
        }
    )
    dev.start()
    dev.call("f.f")
    status, body = dev.ask("POST", "/functions/f.f", None, Echo_Delay="5s")
    assert status == 202
    calls = commands(dev.state / "valkey.sock", watched_s)
    job = ended(dev, body["id"])
    assert len(calls) <= watched_s + 8, calls  # 8: what the delayed job itself costs
    due, started = (datetime.fromisoformat(job[name]).timestamp() for name in ("due", "started"))
    assert 0 <= started - due < 7  # a pump that was woken by the mint and slept on for a beat would be 15 s late


def commands(path: Path, seconds: float) -> list[str]:
    """What clients send the server in that time; what scripts call is left out."""
    with socket.socket(socket.AF_UNIX) as monitor:
        monitor.connect(str(path))
        monitor.sendall(b"MONITOR\r\n")
        end, said = time.monotonic() + seconds, b""
        while (left := end - time.monotonic()) > 0:
            monitor.settimeout(left)
            try:
                said += monitor.recv(1 << 16)
            except TimeoutError:
                break
    ok, *lines = said.decode(errors="replace").splitlines()
    assert ok == "+OK"
    return [line.split('"')[1] for line in lines if " lua] " not in line]


def test_the_procfile_runs_a_role_a_process(tmp_path: Path, server: Server) -> None:
    """Once through honcho, on a bus of its own; then a deploy, a call, and a clean end."""
    node = Node(
        tmp_path,
        {"hello.py": "from echofn import queue\n@queue()\ndef hi(payload: str) -> str:\n    return 'hi ' + payload\n"},
    )
    scripts = Path(sys.executable).parent
    env = environment(
        ECHOD_BUS=server.address, ECHOD_TOKEN=TOKEN, ECHOD_STATE=str(node.state), PATH=f"{scripts}:{os.environ['PATH']}"
    )
    with node.log.open("wb") as log:
        node.process = subprocess.Popen(
            [str(scripts / "honcho"), "start", "-f", str(ROOT / "Procfile"), "-p", str(node.port)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True, cwd=tmp_path,
        )  # fmt: skip
    try:
        node.token = TOKEN
        until(lambda: answers(node), 120)
        deployed = node.cli("deploy", str(node.folder))
        assert deployed.returncode == 0, deployed.stderr
        until(lambda: node.ask("GET", "/readyz")[0] == 200)
        assert node.call("hello.hi", "Bo") == "hi Bo"
        assert node.end(signal.SIGTERM) in (0, -signal.SIGTERM, 128 + signal.SIGTERM, 143), node.said()
    finally:
        node.close()


def answers(node: Node) -> bool:
    try:
        return node.ask("GET", "/healthz")[0] == 200
    except OSError:
        assert node.process
        assert node.process.poll() is None, node.said()
        return False


def test_init_and_dev_in_a_fresh_folder_need_nothing_else(tmp_path: Path, node: Make) -> None:
    """The user's path of the README."""
    place = tmp_path / "hello-echod"
    made = subprocess.run([*ECHOD, "init", str(place)], capture_output=True, text=True, env=environment())
    assert made.returncode == 0, made.stderr
    dev = node({})
    shutil.rmtree(dev.folder)
    dev.folder = place
    dev.start()
    assert dev.errors() == []
    name = next(name for name in dev.names() if name.startswith("hello."))
    sample = re.search(rf"echod invoke {re.escape(name)} --data '([^']*)'", dev.said())
    assert sample, dev.said()
    invoked = dev.cli("invoke", name, "--data", sample[1], "--wait")
    assert invoked.returncode == 0, invoked.stderr
