"""`echod dev` and `echod start` as people run them: ready, reload, crash, restart, clear refusals."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from echod.deploy.importer import LIMIT_MS
from nodes import TOKEN, Node, Terminal, alive, run, until
from server import Server

HELLO = """
from echofn import queue, Context

@queue()
def greet(payload: dict, ctx: Context) -> dict:
    return {"hello": payload["name"]}
"""
BEAT = "from echofn import every\n@every('1h')\ndef hourly(): pass\n"
SLOW = """
import os, time
from echofn import queue
@queue(timeout="10m", retries=0)
def nap(payload):
    while isinstance(payload, str) and not os.path.exists(payload): time.sleep(0.01)
    if not isinstance(payload, str): time.sleep(payload)
    return "rested"
"""
WORK = """
import time
from echofn import queue
@queue(retries=3, workers=(1, 2))
def work(payload):
    time.sleep(0.05)
    return payload
"""

Start = Callable[..., Node]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Callable[[dict[str, str]], Node]]:
    """Makes nodes that are gone at the end."""
    made: list[Node] = []

    def make(files: dict[str, str], state: Path | None = None, place: str = "one") -> Node:
        made.append(Node(tmp_path / place, files, state))
        return made[-1]

    yield make
    for each in made:
        each.close()


def code(value: int) -> str:
    return f"from echofn import queue\n@queue()\ndef f(payload=None):\n    return {value}\n"


def test_it_says_where_it_is_what_it_serves_and_how_to_try_it(node: Start) -> None:
    dev = node({"hello.py": HELLO, "tick.py": BEAT, "bad.py": "def oops(:\n"}).start()
    said = dev.said()
    assert f"echod dev  {dev.url}" in said
    assert re.search(r"sandbox  (strict|standard)", said)
    assert re.search(r"hello\.greet +queue +echod invoke hello\.greet --data", said)
    assert re.search(r"tick\.hourly +every 1h, next 20\d\d-\d\d-\d\dT\d\d:00:00Z", said)
    assert re.search(r"error  bad\.py:1:\d+: SyntaxError", said)
    assert dev.call("hello.greet", {"name": "Ada"}) == {"hello": "Ada"}


def test_a_save_runs_new_code_and_a_running_job_ends_on_the_old(node: Start) -> None:
    dev = node({"m.py": code(1), "slow.py": SLOW}).start()
    assert dev.call("m.f") == 1
    served = dev.state / "versions" / dev.get("/readyz")["version"] / "functions"  # what a worker of it can read
    nap = dev.mint("slow.nap", str(served / "go"))
    until(lambda: dev.job(nap)["started"])
    dev.save("m.py", code(2))
    dev.save("slow.py", SLOW.replace("rested", "other"))
    until(lambda: dev.call("m.f") == 2)
    assert dev.job(nap)["state"] == "active"
    (served / "go").touch()
    record = until(lambda: (job := dev.job(nap))["state"] == "done" and job)
    assert (record["result"], record["attempts"]) == ("rested", 1)


def test_a_broken_save_is_named_in_terminal_and_json_and_cleared_when_fixed(node: Start) -> None:
    dev = node({"m.py": code(1), "tick.py": BEAT}).start()
    dev.save("m.py", "x = 1\ndef broken(:\n")
    [error] = until(dev.errors)
    assert (error["module"], error["file"], error["line"]) == ("m", "m.py", 2)
    assert error["column"] is not None
    until(lambda: re.search(r"m\.py:2:\d+: SyntaxError", dev.said()))
    assert dev.call("m.f") == 1
    dev.save("m.py", code(3))
    until(lambda: not dev.errors())
    until(lambda: dev.call("m.f") == 3)
    until(lambda: "m.py: mended, serving DEP" in dev.said())


def test_deleting_and_renaming_files_takes_functions_and_schedules_along(node: Start) -> None:
    dev = node({"m.py": code(1), "tick.py": BEAT}).start()
    until(lambda: [each["function"] for each in dev.get("/schedules")["schedules"]] == ["tick.hourly"])
    (dev.folder / "tick.py").rename(dev.folder / "tock.py")
    until(lambda: dev.names() == ["m.f", "tock.hourly"])
    until(lambda: [each["function"] for each in dev.get("/schedules")["schedules"]] == ["tock.hourly"])
    (dev.folder / "tock.py").unlink()
    until(lambda: not dev.get("/schedules")["schedules"])
    assert dev.names() == ["m.f"]


def test_kill_9_of_the_node_leaves_no_process_and_a_restart_finishes_every_job(node: Start) -> None:
    dev = node({"w.py": WORK}).start("dev", "--lease", "3s")
    jobs = [dev.mint("w.work", number) for number in range(60)]
    until(lambda: dev.job(jobs[5])["state"] == "done")
    pids = dev.descendants()
    assert len(pids) >= 3
    dev.kill()
    until(lambda: not any(map(alive, pids)))
    dev.start("dev", "--lease", "3s")
    until(lambda: all(dev.job(job)["state"] == "done" for job in jobs), 120)
    assert [dev.job(job)["result"] for job in jobs] == list(range(60))


def test_a_state_folder_may_lie_deep(node: Start, tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 80) / ("e" * 80) / "state"
    dev = node({"m.py": code(1)}, deep).start()
    assert dev.call("m.f") == 1
    assert run("bus", "--state", str(deep)).stdout.strip() == f"unix://{deep}/valkey.sock"
    assert deep.stat().st_mode & 0o777 == 0o700


def test_a_busy_port_is_named_with_what_to_do(node: Start) -> None:
    dev = node({"m.py": code(1)})
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        refused = run("dev", str(dev.folder), "--port", str(port), "--state", str(dev.state))
    assert refused.returncode == 2
    assert str(port) in refused.stderr
    assert "--port" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_second_dev_on_one_state_hears_where_the_first_is(node: Start) -> None:
    dev = node({"m.py": code(1)}).start()
    refused = run("dev", str(dev.folder), "--port", "0", "--state", str(dev.state))
    assert refused.returncode == 2
    assert dev.url in refused.stderr
    assert dev.call("m.f") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_lets_running_jobs_end_and_leaves_nothing(node: Start, number: int) -> None:
    dev = node({"slow.py": SLOW}).start("start", ECHOD_TOKEN=TOKEN)
    served = dev.state / "versions" / dev.get("/readyz")["version"] / "functions"
    nap = dev.mint("slow.nap", str(served / "go"))
    until(lambda: dev.job(nap)["started"])  # what was claimed and has not begun is given back
    pids = dev.descendants()
    assert dev.process is not None
    dev.process.send_signal(number)
    until(lambda: "waiting for 1 running job" in dev.said())
    (served / "go").touch()
    assert dev.process.wait(120) == 0
    until(lambda: not any(map(alive, pids)))
    assert "Traceback" not in dev.said()
    dev.start("start", ECHOD_TOKEN=TOKEN)
    record = dev.job(nap)
    assert (record["state"], record["attempts"], record["failures"]) == ("done", 1, 0)


def test_a_second_signal_gives_running_jobs_back_uncharged(node: Start) -> None:
    dev = node({"slow.py": SLOW}).start("start", folder=True, ECHOD_TOKEN=TOKEN)
    nap = dev.mint("slow.nap", 300)
    until(lambda: dev.job(nap)["started"])
    assert dev.process is not None
    dev.process.send_signal(signal.SIGTERM)
    until(lambda: "waiting for 1 running job" in dev.said())
    dev.process.send_signal(signal.SIGTERM)
    assert dev.process.wait(20) == 0  # the first alone would have waited for 25 s
    dev.start("start", folder=True, ECHOD_TOKEN=TOKEN)
    assert dev.job(nap)["failures"] == 0
    until(lambda: dev.job(nap)["state"] == "active")


def test_the_embedded_server_is_started_again_when_it_dies(node: Start) -> None:
    dev = node({"m.py": code(1)}).start()
    job = dev.mint("m.f")
    until(lambda: dev.job(job)["state"] == "done")
    os.kill(dev.server_pid(), signal.SIGKILL)
    until(lambda: dev.ask("POST", "/functions/m.f", None, Prefer="wait=5")[0] == 200)
    assert dev.job(job)["state"] == "done"


def test_a_hanging_module_delays_the_others_once(node: Start) -> None:
    dev = node({"hang.py": "import time\ntime.sleep(1000)\n", "m.py": code(1)}).start("dev", "--json")
    assert [error["module"] for error in dev.errors()] == ["hang"]
    dev.save("m.py", code(2))
    until(lambda: dev.call("m.f") == 2)
    [told] = until(lambda: [json.loads(line) for line in dev.said().splitlines() if '"folder.saved"' in line])
    assert told["took_ms"] < LIMIT_MS
    assert [error["module"] for error in dev.errors()] == ["hang"]


def test_dev_loads_dotenv_and_a_module_gets_what_it_names(node: Start) -> None:
    source = "import os\nfrom echofn import queue\n@queue(secrets=['KEY'])\ndef key():\n"
    source += "    return [os.environ.get('KEY'), os.environ.get('OTHER')]\n"
    dev = node({"m.py": source, ".env": "KEY=from-dotenv\nOTHER=hidden\n"}).start()
    assert dev.call("m.key") == ["from-dotenv", None]


def test_no_reload_serves_what_was_there(node: Start) -> None:
    dev = node({"m.py": code(1)}).start("dev", "--no-reload")
    dev.save("m.py", code(2))
    dev.save("n.py", code(3))
    assert dev.call("m.f") == 1
    assert dev.names() == ["m.f"]


def test_an_empty_folder_is_served_and_the_first_function_appears(node: Start) -> None:
    dev = node({}).start()
    assert dev.names() == []
    dev.save("m.py", code(1))
    until(lambda: dev.names() == ["m.f"])
    assert dev.call("m.f") == 1


def test_a_folder_that_goes_away_and_comes_back_is_followed(node: Start) -> None:
    dev = node({"m.py": code(1)}).start()
    away = dev.folder.with_name("elsewhere")
    dev.folder.rename(away)
    [error] = until(dev.errors)
    assert "is gone" in error["message"]
    assert dev.call("m.f") == 1
    dev.save("m.py", code(2))  # in a new folder, which is empty for a moment: its functions go, and come
    until(lambda: dev.names() == ["m.f"] and not dev.errors())
    until(lambda: dev.ask("POST", "/functions/m.f", None, Prefer="wait=20") == (200, 2))
    dev.save("m.py", code(3))
    until(lambda: dev.call("m.f") == 3)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    refused = run("dev", str(tmp_path / "nope"), "--port", "0", "--state", str(tmp_path / "state"))
    assert refused.returncode == 2
    assert "echod init" in refused.stderr


# ---- start, deploy, roles --------------------------------------------------------------------------------------------


def test_start_of_a_folder_serves_it_and_refuses_deploys(node: Start) -> None:
    start = node({"m.py": code(1)}).start("start", ECHOD_TOKEN=TOKEN)
    assert start.call("m.f") == 1
    refused = start.cli("deploy", str(start.folder))
    assert refused.returncode == 2
    assert "serves the folder" in refused.stderr


def test_start_without_a_folder_serves_what_is_deployed(node: Start) -> None:
    start = node({"m.py": code(1)}).start("start", folder=False, ready=False, ECHOD_TOKEN=TOKEN)
    until(lambda: "no version deployed" in start.said())
    status, body = start.ask("GET", "/readyz")
    assert status == 503
    assert "echod deploy" in str(body)
    assert start.cli("deploy", str(start.folder)).returncode == 0
    assert start.call("m.f") == 1
    start.save("bad.py", "def x(:\n")
    refused = start.cli("deploy", str(start.folder))
    assert refused.returncode == 2
    assert "bad.py:1" in refused.stderr
    (start.folder / "bad.py").unlink()
    start.save("m.py", code(2))
    assert start.cli("deploy", str(start.folder)).returncode == 0
    until(lambda: start.call("m.f") == 2)
    start.end()
    start.start("start", folder=False, ECHOD_TOKEN=TOKEN)
    assert start.call("m.f") == 2


def test_a_schedule_registered_at_run_time_survives_deploys_and_keeps_its_name(node: Start) -> None:
    start = node({"m.py": code(1)}).start("start", folder=False, ready=False, ECHOD_TOKEN=TOKEN)
    until(lambda: start.is_up(ready=False))
    assert start.cli("deploy", str(start.folder)).returncode == 0
    added = start.cli("schedules", "add", "m.f", "--every", "1s", "--name", "often", "--missed", "skip")
    assert (added.returncode, added.stdout.split()[0]) == (0, "m.f/often"), added.stderr
    refused = start.cli("schedules", "add", "m.f", "--cron", "0 0 30 2 *", "--name", "never")
    assert refused.returncode == 2
    assert "$.cron" in refused.stderr

    def runs() -> int:
        return len([job for job in start.get("/jobs?function=m.f&limit=200")["jobs"] if job["occurrence"]])

    until(lambda: runs() > 1)
    start.save("m.py", code(2))
    assert start.cli("deploy", str(start.folder)).returncode == 0
    before = runs()
    until(lambda: runs() > before)
    start.save("m.py", "from echofn import every, queue\n\n@every('1h', name='often')\n@queue\ndef f(payload): ...\n")
    refused = start.cli("deploy", str(start.folder))
    assert refused.returncode == 2
    assert "m.py:3: m.f/often is registered at run time" in refused.stderr
    start.save("m.py", "from echofn import queue\n\n@queue\ndef g(payload): ...\n")
    assert start.cli("deploy", str(start.folder)).returncode == 0
    until(lambda: "not in the version" in str(start.get("/schedules")["schedules"][0]["error"]))
    assert "run time" in start.cli("schedules").stdout
    assert start.cli("schedules", "run", "m.f/often").returncode == 2
    assert start.cli("schedules", "remove", "m.f/often").stdout == "m.f/often removed\n"
    assert start.get("/schedules")["schedules"] == []
    assert start.cli("schedules", "remove", "m.f/often").returncode == 2


def test_roles_alone_meet_on_the_bus(node: Start, tmp_path: Path) -> None:
    owner = node({"m.py": code(1)}).start("start", ECHOD_TOKEN=TOKEN)
    bus = run("bus", "--state", str(owner.state)).stdout.strip()
    gateway = node({}, place="gateway").start("gateway", "--bus", bus, folder=False, ECHOD_TOKEN=TOKEN)
    worker = node({}, place="worker").launch("worker", "--bus", bus, "--state", str(tmp_path / "worker" / "state"))
    until(lambda: "sandbox  standard" in worker.said())
    assert gateway.call("m.f") == 1
    until(lambda: len(gateway.get("/nodes")["nodes"]) == 3)
    refused = gateway.cli("deploy", str(gateway.folder))
    assert refused.returncode == 2
    assert f"serves the folder {owner.folder}" in refused.stderr
    version = gateway.get("/versions")
    assert not version["takes_deploys"]
    assert gateway.ask("POST", f"/versions/{version['versions'][0]['id']}/activate")[0] == 409
    assert worker.end() == 0


def test_a_role_waits_for_a_bus_that_is_not_there_yet(node: Start, tmp_path: Path) -> None:
    owner = node({"m.py": code(1)})
    address = f"unix://{owner.state}/valkey.sock"
    pump = node({}, place="pump").launch("pump", "--bus", address, "--state", str(tmp_path / "pump" / "state"))
    until(lambda: "waiting for the bus" in pump.said())
    owner.start()
    until(lambda: len(owner.get("/nodes")["nodes"]) == 2)
    assert pump.end() == 0


def test_a_restart_with_a_broken_module_serves_what_was_good(node: Start) -> None:
    dev = node({"m.py": code(1)}).start()
    dev.kill()
    dev.save("m.py", "def broken(:\n")
    dev.start()
    assert len(dev.errors()) == 1
    assert dev.call("m.f") == 1


def test_a_gateway_needs_a_token_of_its_own_or_of_the_bus(tmp_path: Path, server: Server) -> None:
    for verb in ("dev", "start", "gateway"):
        flags = ["--host", "0.0.0.0", "--port", "0", "--state", str(tmp_path / "state"), "--bus", server.address]
        refused = run(verb, *flags)
        assert refused.returncode == 2
        assert f"echod {verb} --host 0.0.0.0" in refused.stderr
        assert "ECHOD_TOKEN=" in refused.stderr


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--bus", "http://x"], "expected valkey://"),
        (["--sandbox", "steel"], "auto"),
        (["--lease", "1ms"], "lease: expected 1s to 1h"),
        (["--port", "70000"], "--port"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, flags: list[str], text: str) -> None:
    refused = run("worker", *(["--bus", "unix:///x"] if "--bus" not in flags else []), "--state", str(tmp_path), *flags)
    assert refused.returncode == 2
    assert text in refused.stderr
    assert "Traceback" not in refused.stderr


# ---- on a terminal ---------------------------------------------------------------------------------------------------


@pytest.fixture
def terminal(node: Start) -> Iterator[tuple[Node, Terminal]]:
    dev = node({"m.py": code(1), "tick.py": BEAT})
    screen = Terminal("dev", str(dev.folder), "--port", str(dev.port), "--state", str(dev.state))
    screen.read_until("q quit")
    dev.process = None
    yield dev, screen
    screen.close()


def test_keys_reload_invoke_still_cron_and_quit(terminal: tuple[Node, Terminal]) -> None:
    dev, screen = terminal
    screen.type("r")
    screen.read_until("reload: serving DEP")
    screen.type("i")
    screen.read_until("invoke NAME [JSON]: ")
    screen.type("m.f null\n")
    screen.read_until("\n1\r\n")
    screen.type("c")
    screen.read_until("cron off: 1 schedules paused")
    assert dev.get("/schedules")["schedules"][0]["paused"]
    screen.type("c")
    screen.read_until("cron on")
    assert not dev.get("/schedules")["schedules"][0]["paused"]
    screen.type("q")
    assert screen.wait() == 0


def test_ctrl_c_ends_it_cleanly(terminal: tuple[Node, Terminal]) -> None:
    _, screen = terminal
    screen.type("\x03")
    assert screen.wait() == 0
    assert "Traceback" not in screen.said
    assert "exited" not in screen.said
