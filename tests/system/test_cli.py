"""The verbs against a real node: results alone on stdout, one-line errors, exit codes, never a traceback."""

from __future__ import annotations

import base64
import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodes import ECHOD, Node, Terminal, environment, free_port, run, until

SOURCE = '''
import time
from echofn import queue, every, Context, Fail

@queue()
def greet(payload: dict, ctx: Context) -> dict:
    """Say hello."""
    print("printed")
    ctx.log.warning("logged")
    return {"hello": payload["name"]}

@queue(retries=0)
def boom(payload):
    raise ValueError("no such thing")

@queue(retries=0, timeout="20m")
def nap(payload):
    time.sleep(payload)

@every("1h", name="hourly")
def tick(): pass
'''


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("cli"), {"hello.py": SOURCE}).start()
    until(lambda: node.get("/schedules")["schedules"])
    yield node
    node.close()


def test_invoke_prints_the_result_alone(node: Node) -> None:
    done = node.cli("invoke", "hello.greet", "--data", '{"name": "Ada"}', "--wait")
    assert (done.returncode, json.loads(done.stdout), done.stderr) == (0, {"hello": "Ada"}, "")


def test_a_failed_run_exits_1_and_says_why(node: Node) -> None:
    failed = node.cli("invoke", "hello.boom", "--wait")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "ValueError: no such thing" in failed.stderr
    assert 'hello.py", line' in failed.stderr  # the handler's own traceback


def test_a_wait_that_runs_out_exits_4_and_the_job_goes_on(node: Node) -> None:
    late = node.cli("invoke", "hello.nap", "--data", "1000", "--wait", "--timeout", "1s")
    assert late.returncode == 4
    match = re.search(r"JOB\w{11}", late.stderr)
    assert match
    assert node.job(match[0])["state"] in {"pending", "active"}
    assert node.cli("cancel", match[0]).returncode == 0
    until(lambda: node.job(match[0])["state"] == "cancelled")


@pytest.mark.parametrize(
    "verb", [["invoke", "hello.gret"], ["pause", "hello.gret"], ["jobs", "--function", "hello.gret"]]
)
def test_a_mistyped_function_is_suggested(node: Node, verb: list[str]) -> None:
    refused = node.cli(*verb)
    assert refused.returncode == 2
    assert "hello.greet" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_payload_that_does_not_fit_is_refused(node: Node) -> None:
    refused = node.cli("invoke", "hello.greet", "--data", '"Ada"')
    assert refused.returncode == 2
    assert "Traceback" not in refused.stderr


def test_a_job_can_be_listed_shown_and_its_log_read(node: Node) -> None:
    job = node.cli("invoke", "hello.greet", "--data", '{"name": "Bo"}').stdout.strip()
    until(lambda: node.job(job)["state"] == "done")
    listed = json.loads(node.cli("jobs", "--function", "hello.greet", "--json").stdout)
    assert job in [each["id"] for each in listed["jobs"]]
    assert job in node.cli("jobs").stdout
    shown = node.cli("job", job).stdout
    assert '{"hello":"Bo"}' in shown
    until(lambda: "logged" in node.cli("logs", job).stdout)
    followed = node.cli("logs", job, "-f").stdout
    assert "printed" in followed
    assert "WARNING logged" in followed


def test_the_output_of_a_function_is_read_and_followed(node: Node) -> None:
    failed = node.cli("invoke", "hello.boom").stdout.strip()
    until(lambda: node.job(failed)["state"] == "dead")
    node.cli("invoke", "hello.greet", "--data", '{"name": "Cy"}', "--wait")
    until(lambda: "WARNING logged" in node.cli("logs", "hello.greet", "--since", "1h").stdout)
    assert "logged" not in node.cli("logs", "hello.greet", "--grep", "printed").stdout
    assert node.cli("logs", "hello.greet", "--failed").stdout == ""
    for said in ("no such thing", "raise ValueError"):  # of the message, of the traceback
        until(lambda said=said: failed in node.cli("logs", "hello.boom", "--failed", "--grep", said).stdout)
    assert " ERROR Traceback" in node.cli("logs", failed, "--grep", "ValueError: no such thing").stdout
    assert node.cli("logs", "hello.boom", "--grep", "something else").stdout == ""
    screen = Terminal("logs", "hello.greet", "-f", "--grep", "logged", ECHOD_URL=node.url)
    screen.read_until("WARNING logged")
    before = screen.said.count("logged")
    job = node.cli("invoke", "hello.greet", "--data", '{"name": "Di"}').stdout.strip()
    screen.read_until(job)
    assert screen.said.count("logged") > before
    screen.type("\x03")
    assert screen.wait() == 130
    screen.close()


def test_dead_jobs_are_redriven(node: Node) -> None:
    job = node.cli("invoke", "hello.boom").stdout.strip()
    until(lambda: node.job(job)["state"] == "dead")
    assert node.cli("redrive", job).returncode == 0
    until(lambda: (record := node.job(job))["state"] == "dead" and record["attempts"] == 2)
    again = node.cli("cancel", job)
    assert again.returncode == 2
    assert "dead" in again.stderr


def test_many_jobs_are_moved_drained_redriven_and_purged(node: Node) -> None:
    assert node.cli("pause", "hello.greet").returncode == 0
    for who in ("Al", "Bo", "Cy"):
        node.cli("invoke", "hello.greet", "--data", f'{{"name": "{who}"}}')
    assert node.cli("move", "hello.greet", "--lane", "-", "--to", "later").stdout == "3 jobs moved\n"
    unasked = node.cli("drain", "hello.greet")
    assert (unasked.returncode, "Cancel 3 jobs that wait in hello.greet?" in unasked.stderr) == (2, True)
    screen = Terminal("drain", "hello.greet", "--lane", "later", ECHOD_URL=node.url)
    screen.read_until("Cancel 3 jobs that wait in hello.greet, lane later? [y/N]")
    screen.type("y\n")
    screen.read_until("3 jobs cancelled")
    assert screen.wait() == 0
    screen.close()
    assert node.cli("purge", "hello.greet", "--state", "cancelled", "--yes").stdout == "3 jobs purged\n"
    job = node.cli("invoke", "hello.boom").stdout.strip()
    until(lambda: node.job(job)["state"] == "dead")
    assert job in node.cli("morgue", "--function", "hello.boom").stdout
    dead = len(node.get("/jobs?function=hello.boom&state=dead&limit=200")["jobs"])  # other tests' too
    counted = "1 job" if dead == 1 else f"{dead} jobs"
    tried = node.cli("redrive", "--function", "hello.boom", "--cause", "error", "--dry-run").stdout
    assert tried == f"{counted} would be redriven\n"
    assert node.cli("redrive", "--function", "hello.boom", "--rate", "10/s").stdout == f"{counted} redriven\n"
    until(lambda: (record := node.job(job))["state"] == "dead" and record["attempts"] == 2)
    assert node.cli("purge", "--state", "dead", "--match", "no such text", "--yes").stdout == "0 jobs purged\n"
    assert node.cli("drain", "hello.gone", "--yes").returncode == 2


def test_schedules_are_listed_paused_and_resumed(node: Node) -> None:
    assert "hello.tick/hourly" in node.cli("schedules").stdout
    assert node.cli("pause", "hello.tick/hourly").returncode == 0
    [schedule] = node.get("/schedules")["schedules"]
    assert schedule["paused"]
    assert node.cli("resume", "hello.tick/hourly").returncode == 0
    [schedule] = node.get("/schedules")["schedules"]
    assert not schedule["paused"]


def test_a_paused_function_starts_nothing_until_it_is_resumed(node: Node) -> None:
    assert node.cli("pause", "hello.greet").returncode == 0
    job = node.cli("invoke", "hello.greet", "--data", '{"name": "C"}').stdout.strip()
    assert node.cli("invoke", "hello.boom", "--wait").returncode == 1  # the node works on
    assert node.job(job)["state"] == "pending"
    assert node.cli("resume", "hello.greet").returncode == 0
    until(lambda: node.job(job)["state"] == "done")


def test_functions_are_listed_from_the_node_and_from_a_folder_alike(node: Node) -> None:
    served = json.loads(node.cli("functions", "--json").stdout)
    found = json.loads(run("functions", str(node.folder), "--json").stdout)
    described = ("name", "module", "triggers", "policy", "payload_schema", "doc", "line")
    for one, other in zip(served["functions"], found["functions"], strict=True):
        assert [one[name] for name in described] == [other[name] for name in described]
    assert "hello.greet" in run("functions", str(node.folder)).stdout


def test_a_folder_with_a_broken_module_exits_1_and_names_it(tmp_path: Path) -> None:
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions" / "bad.py").write_text("x = 1\ny = 1 / 0\n")
    broken = run("functions", str(tmp_path))
    assert broken.returncode == 1
    assert "bad.py:2: ZeroDivisionError" in broken.stderr


def test_the_bus_is_named_and_described(node: Node) -> None:
    address = run("bus", "--state", str(node.state)).stdout.strip()
    described = json.loads(run("bus", "--bus", address, "--json").stdout)
    assert described["address"] == address
    away = run("bus", "--bus", f"unix://{node.state}/none.sock", "--json")
    assert away.returncode == 3
    assert "Traceback" not in away.stderr


def test_nothing_listening_exits_3(node: Node) -> None:
    away = run("jobs", "--url", f"http://127.0.0.1:{free_port()}")
    assert away.returncode == 3
    assert "echod dev" in away.stderr


def test_a_fresh_project_works_from_its_own_folder(tmp_path: Path) -> None:
    made = run("init", str(tmp_path / "shop"))
    assert made.returncode == 0
    project = tmp_path / "shop"
    assert json.loads(run("run", "hello.greet", "--data", '{"name": "Ada"}', cwd=project).stdout)["hello"] == "Ada"
    dev = Node(tmp_path / "log").launch("dev", ".", cwd=project)
    try:
        until(lambda: dev.is_up(ready=True), 60)
        assert dev.names() == ["hello.greet", "pulse.beat"]
        assert dev.call("hello.greet", {"name": "Bo"})["hello"] == "Bo"
        assert (project / ".echod" / "valkey.sock").exists()
    finally:
        dev.close()
    tested = subprocess.run(
        [ECHOD[0], "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 passed" in tested.stdout


# ---- serving, for programs -------------------------------------------------------------------------------------------


def told(node: Node, event: str) -> dict[str, Any]:
    """The newest line of an event, once there is one. Every line is a JSON object."""

    def found() -> dict[str, Any] | None:
        lines = [json.loads(line) for line in node.said().splitlines() if line.endswith("}")]
        assert all({"at", "level", "event", "part"} <= line.keys() for line in lines)
        return next((line for line in reversed(lines) if line["event"] == event), None)

    return until(found) or {}


def test_dev_for_programs_prints_one_line_when_it_is_ready_and_then_what_happens(tmp_path: Path) -> None:
    node = Node(tmp_path, {"hello.py": SOURCE})
    try:
        node.start("dev", "--json")
        ready = told(node, "node.ready")
        assert (ready["verb"], ready["url"], ready["errors"]) == ("dev", node.url, [])
        assert (ready["sandbox"], ready["version"]) == (node.get("/readyz")["sandbox"], node.get("/readyz")["version"])
        listed = {each["name"]: each["triggers"] for each in node.get("/functions")["functions"]}
        assert {each["name"]: each["triggers"] for each in ready["functions"]} == listed
        node.save("hello.py", "def broken(:\n")
        saved = told(node, "folder.saved")
        assert (saved["files"], saved["errors"][0]["line"]) == (["hello.py"], 1)
        node.save("hello.py", SOURCE + "\n")
        until(lambda: not told(node, "folder.saved")["errors"])
        assert node.end() == 0
        assert told(node, "node.draining")["busy"] == 0
        [json.loads(line) for line in node.said().splitlines()]  # and nothing else, to the end
    finally:
        node.close()


@pytest.mark.parametrize("role", ["gateway", "pump", "worker"])
def test_a_role_for_programs_says_when_it_is_ready(node: Node, tmp_path: Path, role: str) -> None:
    one = Node(tmp_path)
    try:
        address = f"unix://{node.state / 'valkey.sock'}"
        flags = ["--bus", address, "--state", str(tmp_path / "own"), "--sandbox", "minimal", "--json"]
        one.launch(role, *flags, ECHOD_TOKEN="role-token-0123456789")
        ready = told(one, "node.ready")
        assert (ready["verb"], ready["bus"]) == (role, address)
        assert ready["url"] == (one.url if role == "gateway" else None)
        assert ready["version"] == node.get("/readyz")["version"]
        assert "hello.greet" in [each["name"] for each in ready["functions"]]
        assert one.end() == 0
        [json.loads(line) for line in one.said().splitlines()]
    finally:
        one.close()


def test_start_for_programs_without_a_version_says_so(tmp_path: Path) -> None:
    one = Node(tmp_path)
    try:
        one.launch("start", "--state", str(tmp_path / "own"), "--sandbox", "minimal", "--json", ECHOD_TOKEN="t" * 20)
        ready = told(one, "node.ready")
        assert (ready["version"], ready["functions"], ready["url"]) == (None, [], one.url)
    finally:
        one.close()


def test_a_verb_whose_reader_has_gone_ends_as_by_the_signal(node: Node) -> None:
    """As `| head -1` leaves it: also one that follows a log to which nothing more is written."""
    lines = (["functions"], ["functions", "--json"], ["logs", "hello.greet", "-f"], ["cron", "* * * * *"])
    started = [
        subprocess.Popen([*ECHOD, *words], stdout=subprocess.PIPE, env=environment(ECHOD_URL=node.url))
        for words in lines
    ]
    for process in started:
        assert process.stdout
        process.stdout.close()
    assert [process.wait(180) for process in started] == [141] * len(lines)


def test_logs_without_a_line_say_so(node: Node) -> None:
    said = run("logs", "hello.greet", "--grep", "no such text", ECHOD_URL=node.url)
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "no such lines of hello.greet\n")


# ---- run: in the foreground ------------------------------------------------------------------------------------------


def test_run_prints_the_result_and_sends_logs_to_stderr(node: Node) -> None:
    done = run("run", "hello.greet", "--data", '{"name": "Ada"}', "--folder", str(node.folder))
    assert (done.returncode, done.stdout) == (0, 'printed\n{"hello":"Ada"}\n')
    assert "logged" in done.stderr


def test_run_shows_the_handlers_own_traceback(node: Node) -> None:
    failed = run("run", "hello.boom", "--folder", str(node.folder))
    assert failed.returncode == 1
    assert re.match(rf'Traceback .*\n  File "{node.folder}/hello\.py", line \d+, in boom\n', failed.stderr)


def test_run_suggests_and_refuses(node: Node) -> None:
    assert "hello.greet" in run("run", "hello.gret", "--folder", str(node.folder)).stderr
    assert run("run", "hello.gret", "--folder", str(node.folder)).returncode == 2
    assert run("run", "hello.greet", "--folder", "/nowhere").returncode == 2


def test_run_enters_the_modules_lifespan_and_leaves_it(tmp_path: Path) -> None:
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions" / "m.py").write_text(
        "from echofn import lifespan, queue\n"
        "@lifespan\nasync def clients():\n    yield {'http': 'client'}\n    print('left')\n"
        "@queue\nasync def f(payload, ctx):\n    ctx.extend('5m')\n    return [ctx.state.http, ctx.cancelled]\n"
    )
    done = run("run", "m.f", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, 'left\n["client",false]\n'), done.stderr


def test_run_says_how_long_a_snooze_is_to_last(tmp_path: Path) -> None:
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions" / "m.py").write_text("from echofn import *\n@queue\ndef f(): raise Snooze('10m')\n")
    asleep = run("run", "m.f", cwd=tmp_path)
    assert (asleep.returncode, asleep.stderr) == (1, "echod: Snooze after 10m\n")


def test_run_calls_a_batch_function_with_a_batch_of_one(tmp_path: Path) -> None:
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions" / "m.py").write_text(
        "from echofn import queue\n@queue(batch=5)\n"
        "def f(numbers: list[int], ctx):\n"
        "    return [ValueError('odd') if n % 2 else [n, len(numbers), len(ctx.jobs)] for n in numbers]\n"
        "@queue(batch=5)\ndef g(anything): return 'no list'\n"
    )
    assert json.loads(run("run", "m.f", "--data", "2", cwd=tmp_path).stdout) == [2, 1, 1]
    failed = run("run", "m.f", "--data", "3", cwd=tmp_path)
    assert (failed.returncode, "ValueError: odd" in failed.stderr) == (1, True)
    assert "does not fit" in run("run", "m.f", "--data", "[2]", cwd=tmp_path).stderr
    assert "expected None or a list of 1 results" in run("run", "m.g", cwd=tmp_path).stderr


HOOKED = """
import msgspec
from echofn import Request, hmac, queue, webhook

@webhook("/hooks/github", verify="github", secret="S")
def on_push(request):
    return [request.method, request.path, request.query, request.headers, request.body, request.json()]

@webhook("/hooks/{shop}/orders", verify=hmac("X-Shop-Hmac"), secret="S")
@webhook("/hooks/plain", verify=None)
async def on_order(request: Request, ctx) -> list:
    return [request.path, request.params, request.query.all("id"), dict(request.headers), request.form(), ctx.attempt]

class Event(msgspec.Struct):
    id: str

@queue
@webhook("/hooks/both", verify=None)
def both(event: Event) -> str:
    return event.id

@webhook("/hooks/raw", verify=None)
def raw(body: bytes) -> int:
    return len(body)

@queue
def plain(payload): return payload
"""


@pytest.fixture
def hooked(tmp_path: Path) -> Path:
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions" / "m.py").write_text(HOOKED)
    return tmp_path


def test_run_calls_a_webhook_with_a_request_as_if_it_had_been_verified(hooked: Path) -> None:
    body = '{"ref": "main", "é": "😀"}'
    flags = ["--header", "X-GitHub-Event: push", "-H", "X-Hub-Signature-256: sha256=00", "-H", "Cookie: a=b"]
    done = run("run", "m.on_push", "--data", body, *flags, "--query", "a=1&a=2&b=%C3%A9", cwd=hooked)
    assert done.returncode == 0, done.stderr
    method, path, query, headers, raw, value = json.loads(done.stdout)
    assert (method, path, query) == ("POST", "/hooks/github", {"a": "2", "b": "é"})
    assert headers == {"x-github-event": "push"}  # what is never stored is not there, either
    assert (base64.b64decode(raw), value) == (body.encode(), json.loads(body))


def test_run_fills_in_the_names_of_a_webhooks_path(hooked: Path) -> None:
    flags = ["--path", "/hooks/a%2Fb/orders", "--query", "id=1&id=2", "--method", "put", "-H", "X-A: 1", "-H", "x-a: 2"]
    done = run("run", "m.on_order", "--data", "x=1&y=%20", *flags, "-H", "X-Shop-Hmac: 00", cwd=hooked)
    path, params, ids, headers, form, attempt = json.loads(done.stdout)
    assert (path, params, ids) == ("/hooks/a/b/orders", {"shop": "a/b"}, ["1", "2"])
    assert (headers, form, attempt) == ({"x-a": "1, 2"}, {"x": "1", "y": " "}, 1)
    plain = json.loads(run("run", "m.on_order", "--path", "/hooks/plain", cwd=hooked).stdout)
    assert plain[:3] == ["/hooks/plain", {}, []]


def test_run_gives_a_webhook_its_body_byte_by_byte_and_of_any_size(hooked: Path) -> None:
    (hooked / "body").write_bytes(b"\x00\xff" * 300_000)
    assert run("run", "m.raw", "--data", "@body", cwd=hooked).stdout == "600000\n"
    assert run("run", "m.raw", cwd=hooked).stdout == "0\n"
    (hooked / "large.json").write_text(json.dumps("x" * 300_000))
    assert len(run("run", "m.plain", "--data", "@large.json", cwd=hooked).stdout) == 300_003


def test_run_calls_a_function_with_both_either_way(hooked: Path) -> None:
    assert run("run", "m.both", "--data", '{"id": "queued"}', cwd=hooked).stdout == '"queued"\n'
    posted = run(
        "run", "m.both", "--data", "id=hooked", "-H", "Content-Type: application/x-www-form-urlencoded", cwd=hooked
    )
    assert posted.stdout == '"hooked"\n'
    unfit = run("run", "m.both", "--data", "[1]", "--method", "POST", cwd=hooked)
    assert (unfit.returncode, "payload does not fit m.both" in unfit.stderr) == (2, True)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["m.plain", "--header", "X: 1"], "expected a @webhook on m.plain"),
        (["m.on_order"], "--path: expected one like /hooks/{shop}/orders"),
        (["m.on_push", "--path", "/hooks/gitlab"], "--path: expected /hooks/github, got '/hooks/gitlab'"),
        (["m.on_push", "--path", "xhooks/github"], "--path: expected /hooks/github"),
        (["m.on_push", "--method", "GET"], "--method: expected POST, PUT, PATCH, got 'GET'"),
        (["m.on_push", "--header", "no colon"], "--header: expected 'Name: value', got 'no colon'"),
        (["m.on_push", "--query", "a&" * 1001], "--query: expected at most 1000"),
        (["m.on_push", "--data", "@/nowhere"], "--data: /nowhere: No such file"),
        (["m.plain", "--data", "{"], "--data: expected JSON, got '{'"),
    ],
)
def test_run_refuses_a_request_that_could_not_come(hooked: Path, flags: list[str], said: str) -> None:
    refused = run("run", *flags, cwd=hooked)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr


ALIKE = """
import os
from typing import Annotated
import msgspec
from echofn import queue, webhook

class Order(msgspec.Struct):
    tenant: str | dict | None = None
    n: Annotated[int, msgspec.Meta(ge=1)] = 1

@webhook("/hooks/{shop}", verify=None, lane="params.shop")
def hook(request, ctx):
    return [ctx.lane, request.params, dict(request.query)]

@queue(lane="tenant", payload={"tenant": "own"}, timeout="7m", secrets=["ALIKE"])
def order(payload: Order, ctx):
    return [ctx.lane, ctx.last_attempt, (ctx.deadline - ctx.due).total_seconds(), ctx.env, os.environ["ALIKE"]]

@queue(env="prod", name="elsewhere.live")
def live(payload, ctx): return ctx.env

@queue(retry=1)
def slip(payload): ...
"""


def test_run_gives_a_handler_what_it_would_get_over_http(tmp_path: Path) -> None:
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions/m.py").write_text(ALIKE)
    (tmp_path / "functions/elsewhere.py").write_text("from echofn import queue\n@queue\ndef other(): ...\n")
    (tmp_path / "functions/echod.toml").write_text("[defaults]\nretries = 0\n")
    (tmp_path / ".env").write_text("ALIKE=of-dotenv\n")

    def said(*words: str, code: int = 0) -> Any:
        done = run("run", *words, cwd=tmp_path)
        assert done.returncode == code, done.stderr
        return done.stderr if code else json.loads(done.stdout)

    assert said("m.hook", "--path", "/hooks/acme?a=1&b=") == ["acme", {"shop": "acme"}, {"a": "1", "b": ""}]
    assert said("m.order", "--data", '{"tenant": "acme"}') == ["acme", True, 420, "dev", "of-dotenv"]
    assert said("m.order")[0] == "own"
    assert "lane tenant: expected text, a number or a boolean" in said("m.order", "--data", '{"tenant": {}}', code=2)
    assert "$.n: 0 is less than the minimum of 1" in said("m.order", "--data", '{"n": 0}', code=2)
    assert said("elsewhere.live", "--env", "prod") == "prod"  # in another module than its name says
    assert "elsewhere.live is off in dev: @queue (m.py:19) has env=" in said("elsewhere.live", code=2)
    assert "m.py:22: unknown option 'retry' of @queue" in said("m.slip", code=2)


def test_run_gives_a_debugger_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "functions").mkdir()
    source = (
        "from echofn import queue\n@queue()\ndef f(payload):\n    secret = 6 * 7\n    breakpoint()\n    return secret\n"
    )
    (tmp_path / "functions" / "m.py").write_text(source)
    screen = Terminal("run", "m.f", "--folder", str(tmp_path / "functions"))
    screen.read_until("(Pdb)")
    screen.type("p secret\n")
    screen.read_until("42")
    screen.type("c\n")
    assert screen.wait() == 0
    screen.close()


def test_run_is_interrupted_and_left_without_a_word_of_our_own_code(tmp_path: Path) -> None:
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions" / "m.py").write_text(
        "import asyncio, time\nfrom echofn import queue\n"
        "@queue\ndef f(payload):\n    print('going')\n    time.sleep(60)\n"
        "@queue\nasync def g(payload):\n    print('going')\n    await asyncio.sleep(60)\n"
        "@queue\ndef h(payload):\n    breakpoint()\n    print('going on')\n"
    )
    typed = {"f": ("going", "\x03", "in f"), "g": ("going", "\x03", "interrupted"), "h": ("(Pdb)", "q\n", "")}
    screens = {name: Terminal("run", f"m.{name}", cwd=tmp_path) for name in typed}
    for name, screen in screens.items():
        seen, keys, told = typed[name]
        screen.read_until(seen)
        screen.type(keys)
        assert screen.wait() == (1 if name == "h" else -signal.SIGINT)
        assert told in screen.said
        assert "foreground" not in screen.said
        screen.close()


def test_a_table_on_a_terminal_is_for_people(node: Node) -> None:
    screen = Terminal("functions", ECHOD_URL=node.url)
    assert screen.wait() == 0
    assert "hello.greet" in screen.said
    assert "FUNCTION" in screen.said
    screen.close()
