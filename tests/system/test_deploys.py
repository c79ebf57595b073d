"""Deploys, plans and rollbacks as people do them, on a running `echod start` that serves no folder of its own."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest

from echod.bus import Bus
from nodes import ECHOD, TOKEN, Node, environment, until

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


def test_a_functions_page_tells_which_version_ran_when(node: Node) -> None:
    deploy(node)
    node.save("n.py", code(3))
    deploy(node)  # m.f is the same in it
    node.save("m.py", code(2))
    deploy(node)
    assert node.cli("rollback").returncode == 0
    ran = node.get("/functions/m.f")["versions"]
    ids = [each["version"] for each in ran]
    assert ids[0] == ids[2] == node.get("/readyz")["version"]
    assert len(set(ids)) == 3
    assert [each["changed"] for each in ran] == [True, True, False, None]
    assert ran[0]["until"] is None
    assert [each["until"] for each in ran[1:]] == [each["from"] for each in ran[:-1]]
    assert node.get("/functions/n.f")["versions"] == [each | {"changed": False} for each in ran[:2]] + [
        ran[2] | {"changed": None}
    ]


def test_ctrl_c_ends_the_import_and_says_what_is_known(node: Node) -> None:
    deploy(node)
    before = node.get("/readyz")["version"]
    for number in range(6):  # each would take its ten seconds
        node.save(f"n{number}.py", "while True: pass\n")
    node.save("id_rsa", "-----BEGIN")
    asked = environment(ECHOD_URL=node.url, ECHOD_TOKEN=TOKEN)
    deploying = subprocess.Popen([*ECHOD, "deploy", str(node.folder)], env=asked, stderr=subprocess.PIPE, text=True)
    until(lambda: [*node.state.glob("tmp/imports-*/*")])  # one is going on
    deploying.send_signal(signal.SIGINT)
    said = deploying.communicate(timeout=60)[1]
    assert deploying.returncode == 130
    assert "left out, as secrets: id_rsa;" in said
    assert f"echod: given up, unless it was being switched to already; see `echod versions --url {node.url}`" in said
    until(lambda: not [*node.state.glob("tmp/imports-*/*")], 25)
    assert node.get("/readyz")["version"] == before


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


def test_a_folder_without_a_function_does_not_end_everything(node: Node) -> None:
    deploy(node)
    [before] = node.get("/versions")["versions"]
    node.save("m.py", "x = 1\n")
    for flags in ([], ["--plan"]):
        done = node.cli("deploy", str(node.folder), *flags)
        assert done.returncode == 2
        assert "expected at least one function, got a folder without; what is served now (2) would end" in done.stderr
    assert node.get("/versions")["versions"] == [before]


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


SLOW = """
import time
from datetime import datetime
from pathlib import Path
from echofn import queue, Context

@queue(timeout="60s", workers=(1, 1))
def f(payload, ctx: Context):
    ctx.progress(0.5, "begun")
    print("begun")
    while payload and not Path(payload).exists():
        time.sleep(0.01)
    return [{version}, ctx.version]
"""


def test_what_runs_ends_on_its_version_what_waits_runs_on_the_new_one_and_a_pin_holds(node: Node) -> None:
    node.save("m.py", SLOW.format(version=1))
    deploy(node)
    until(lambda: node.ask("POST", "/functions/m.f", None, Prefer="wait=20")[0] == 200)
    first = node.get("/versions")["versions"][0]["id"]
    let_go = node.state / "versions" / first / "functions" / "go"  # a worker reads its version's folder, and that alone
    running = node.mint("m.f", str(let_go))
    until(lambda: node.job(running)["progress"])
    waiting = node.mint("m.f")
    pinned = node.ask("POST", "/functions/m.f", None, Echo_Version=first)[1]["id"]
    node.save("m.py", SLOW.format(version=2))
    deploy(node)
    second = node.get("/versions")["versions"][0]["id"]
    assert ended(node, waiting) == [2, second]
    assert node.job(running)["state"] == "active"
    let_go.touch()
    assert (ended(node, running), ended(node, pinned)) == ([1, first], [1, first])
    for job, version in ((running, first), (waiting, second), (pinned, first)):
        until(lambda job=job: node.get(f"/jobs/{job}/logs"))  # type: ignore[misc]
        assert [line["version"] for line in node.get(f"/jobs/{job}/logs")] == [version]
    ran = {each: [run["version"] for run in node.job(each)["history"]] for each in (running, waiting, pinned)}
    assert ran == {running: [first], waiting: [second], pinned: [first]}


def test_its_workers_are_ready_before_a_version_is_switched_to_and_back(node: Node) -> None:
    """An import that takes its time holds up no job: not at a deploy, nor at a rollback."""
    versions: list[str] = []
    for value in (1, 2):
        node.save("m.py", "import time\ntime.sleep(0.3)\n" + code(value))
        deploy(node)
        assert node.call("m.f") == value
        versions.append(node.get("/readyz")["version"])
    assert node.cli("rollback").returncode == 0
    assert node.call("m.f") == 1
    said = node.said().splitlines()
    first = versions[0]
    events = [(line.split()[2], first in line) for line in said if "worker.ready" in line or "version.switched" in line]
    assert events[-4:] == [
        ("worker.ready", False), ("version.switched", False), ("worker.ready", True), ("version.switched", True),
    ]  # fmt: skip


def test_deployed_again_a_version_is_mended_where_the_bus_holds_it_damaged(node: Node) -> None:
    deploy(node)
    version = node.get("/readyz")["version"]

    async def stored(damage: bytes | None = None) -> bytes:
        bus = await Bus.open(f"unix://{node.state}/valkey.sock")
        try:
            key = bus.keys.piece(version, 0)
            if damage is not None:
                await bus.link.command("SET", key, damage)
            return bytes(await bus.link.command("GET", key))
        finally:
            await bus.close()

    whole = asyncio.run(stored())
    asyncio.run(stored(b"garbage"))
    deploy(node)
    assert asyncio.run(stored()) == whole
    assert node.get("/readyz")["version"] == version


def ended(node: Node, job: str) -> object:
    until(lambda: node.job(job)["state"] == "done")
    return node.job(job)["result"]


def test_two_deployers_at_once_one_wins_and_all_agree(node: Node, tmp_path: Path) -> None:
    second = Node(tmp_path / "second")
    bus = f"unix://{node.state}/valkey.sock"
    try:
        second.start("gateway", "--bus", bus, folder=False, ready=False, ECHOD_TOKEN=TOKEN)
        node.save("m.py", code(1))
        second.save("m.py", code(2))
        with ThreadPoolExecutor(2) as both:
            done = list(both.map(lambda each: each.cli("deploy", str(each.folder), "--json"), (node, second)))
        assert [each.returncode for each in done] == [0, 0], [each.stderr for each in done]
        told = {answer["version"]: answer["generation"] for answer in (json.loads(each.stdout) for each in done)}
        assert sorted(told.values()) == [1, 2]
        winner = max(told, key=lambda version: told[version])
        for each in (node, second):
            until(lambda each=each: each.get("/readyz")["version"] == winner)  # type: ignore[misc]
        serves(node, 1 if winner == json.loads(done[0].stdout)["version"] else 2)
        assert [each["id"] for each in node.get("/versions")["versions"]] == sorted(told, key=lambda v: -told[v])
    finally:
        second.close()


def test_alternating_deploys_and_rollbacks_end_where_they_began(node: Node) -> None:
    """Disk, bus and descriptors at their baseline; each switch serves. 200 of them under ECHOD_SOAK=1."""
    rounds = 100 if os.environ.get("ECHOD_SOAK") else 4
    texts = [code(1, HOURLY), code(2)]
    for text in texts:
        node.save("m.py", text)
        deploy(node)
    serves(node, 2)
    before = traces(node)
    for number in range(rounds):
        node.save("m.py", texts[number % 2])
        deploy(node)
        serves(node, number % 2 + 1)
        assert node.cli("rollback").returncode == 0
        serves(node, (number + 1) % 2 + 1)
    until(lambda: traces(node)[:2] == before[:2] and traces(node)[2] <= before[2] + 4, 90)


def traces(node: Node) -> tuple[list[str], list[str], int]:
    """What is left on disk, on the bus, and open in the node's own process."""
    on_disk = sorted(entry.name for entry in (node.state / "versions").iterdir())
    with socket.socket(socket.AF_UNIX) as bus:
        bus.settimeout(10)
        bus.connect(str(node.state / "valkey.sock"))
        bus.sendall(b"KEYS emq:{~}:version*\r\n")
        with bus.makefile("rb") as answer:
            count = int(answer.readline()[1:])
            lines = [answer.readline() for _ in range(2 * count)]
    return on_disk, sorted(line.decode() for line in lines[1::2]), len(list(Path(f"/proc/{node.pid}/fd").iterdir()))


def test_jobs_of_a_function_that_is_gone_wait_orphaned_until_a_version_has_it_again(node: Node) -> None:
    deploy(node)
    serves(node, 1)
    assert node.ask("POST", "/functions/m.f/pause")[0] == 200
    left = node.mint("m.f")
    assert not node.job(left)["orphaned"]
    node.save("n.py", code(3))
    (node.folder / "m.py").unlink()
    assert "  - function m.f: 1 waiting job stays until a version has it again\n" in deploy(node)
    assert node.job(left)["orphaned"]
    assert [each["orphaned"] for each in node.get("/jobs?function=m.f&state=pending")["jobs"]] == [True]
    assert "pending (orphaned)" in node.cli("jobs", "--function", "m.f", "--state", "pending").stdout
    assert node.cli("rollback").returncode == 0
    assert not node.job(left)["orphaned"]
    assert node.ask("POST", "/functions/m.f/resume")[0] == 200
    assert ended(node, left) == 1


@pytest.mark.parametrize("whom", ["node", "deployer", "bus"])
@pytest.mark.parametrize("step", ["written", "stored", "switched"])
def test_killed_in_the_middle_of_a_deploy_either_version_is_whole(node: Node, whom: str, step: str) -> None:
    """Once its files are on disk, once they are on the bus, once the switch is logged."""
    deploy(node)
    serves(node, 1)
    first, old = node.get("/readyz")["version"], traces(node)
    node.save("m.py", code(2, "# " + "x" * 100_000))
    deployer = subprocess.Popen(
        [*ECHOD, "deploy", str(node.folder)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env=environment(ECHOD_URL=node.url, ECHOD_TOKEN=TOKEN),
    )  # fmt: skip
    reached = {
        "written": lambda: len(traces(node)[0]) > len(old[0]),
        "stored": lambda: len(traces(node)[1]) > len(old[1]),
        "switched": lambda: node.said().count("version.switched") == 2,
    }
    until(reached[step])
    if whom == "deployer":
        deployer.kill()
    elif whom == "bus":
        os.kill(node.server_pid(), signal.SIGKILL)
        until(lambda: deployer.poll() is not None, 120)
        until(lambda: node.ask("GET", "/readyz")[0] == 200, 120)
    else:
        node.kill()
        node.start("start", folder=False, ECHOD_TOKEN=TOKEN)
    deployer.wait(120)
    before = node.get("/readyz")["version"]
    job = node.mint("m.f", {})
    value = ended(node, job)
    ran = node.job(job)["history"][-1]["version"]
    assert ran in (before, node.get("/readyz")["version"])  # nobody waits for a deployer's switch that was killed
    assert value == (1 if ran == first else 2)
    deploy(node)
    serves(node, 2)


LIVE = """
import time
from echofn import every, queue, webhook

@every("1s")
def tick():
    return {version}

@webhook("/hooks/push", verify="github", secret="HOOK")
def push(request):
    return [request.json()["n"], {version}]

@queue(timeout="2m")
def long(payload, ctx):
    time.sleep(payload)
    return [{version}, ctx.version]
"""


class Sender:
    """Posts one delivery after another, each until it is told that it was taken: what a sender of webhooks does."""

    def __init__(self, node: Node) -> None:
        self.taken: dict[int, str] = {}
        self.refused: set[int] = set()
        self._node = node
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self) -> None:
        number = 0
        while not self._over.is_set():
            body = json.dumps({"n": number}).encode()
            signature = "sha256=" + hmac.new(b"hook", body, hashlib.sha256).hexdigest()
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                status, answer = self._node.ask(
                    "POST", "/hooks/push", {"n": number}, X_GitHub_Delivery=f"d-{number}", X_Hub_Signature_256=signature
                )
                if status == 202:
                    self.taken[number] = answer["id"]
                    number += 1
                elif status != 503:
                    self.refused.add(status)
            time.sleep(0.02)  # each is looked at in the end

    def end(self) -> None:
        """After the one it is at."""
        self._over.set()
        self._thread.join(120)
        assert not self._thread.is_alive()


@pytest.mark.parametrize("killed", ["nobody", "node", "bus"])
def test_switches_under_webhooks_schedules_and_long_jobs_lose_and_double_nothing(tmp_path: Path, killed: str) -> None:
    node = Node(tmp_path, {"m.py": LIVE.format(version=1)})
    try:
        node.start("start", folder=False, ready=False, ECHOD_TOKEN=TOKEN, HOOK="hook")
        deploy(node)
        sender = Sender(node)
        until(lambda: len(sender.taken) > 5)
        long = node.mint("m.long", 8)
        until(lambda: node.job(long)["state"] == "active")
        began = node.get("/readyz")["version"]
        for round in range(4):
            node.save("m.py", LIVE.format(version=round + 2))
            if round == 2 and killed != "nobody":
                deployer = subprocess.Popen(
                    [*ECHOD, "deploy", str(node.folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    env=environment(ECHOD_URL=node.url, ECHOD_TOKEN=TOKEN),
                )  # fmt: skip
                time.sleep(random.uniform(0, 1))  # anywhere in it
                if killed == "bus":
                    os.kill(node.server_pid(), signal.SIGKILL)
                else:
                    node.kill()
                    node.start("start", folder=False, ECHOD_TOKEN=TOKEN, HOOK="hook")
                deployer.wait(120)
                until(lambda: node.ask("GET", "/readyz")[0] == 200, 120)
            deploy(node)
            if round % 2:
                assert node.cli("rollback").returncode == 0
                deploy(node)
            seen = len(sender.taken)
            until(lambda seen=seen: len(sender.taken) > seen + 3, 60)  # type: ignore[misc]
        sender.end()
        assert sender.refused == set()
        pushed = listed(node, "m.push")
        assert sorted(pushed) == sorted(sender.taken.values())
        until(lambda: all(node.job(id)["state"] == "done" for id in pushed), 60)
        assert [node.job(id)["result"][0] for id in sender.taken.values()] == list(sender.taken)
        assert node.job(sender.taken[max(sender.taken)])["result"] == [max(sender.taken), 5]
        job = until(lambda: (job := node.job(long))["state"] == "done" and job, 60)
        if killed == "nobody":
            assert (job["result"], job["attempts"]) == ([1, began], 1)
        dues = sorted(node.job(id)["occurrence"]["due"] for id in listed(node, "m.tick"))
        instants = [datetime.fromisoformat(due).timestamp() for due in dues]
        assert len(set(instants)) == len(instants)
        lost = instants[-1] - instants[0] + 1 - len(instants)
        assert lost == node.get("/functions/m.tick")["metrics"]["missed"]
    finally:
        node.close()


def listed(node: Node, name: str) -> list[str]:
    """The ids of all jobs of a function."""
    found: list[str] = []
    cursor = ""
    while True:
        page = node.get(f"/jobs?function={name}&limit=200&cursor={cursor}")
        found += [job["id"] for job in page["jobs"]]
        cursor = page["cursor"]
        if not cursor:
            return found
