"""Tokens from the command line to the bus, against a real node; what schemathesis makes of /openapi.json; no leaks."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodes import TOKEN, Node, environment, free_port, run, until

FUNCTIONS = """
from dataclasses import dataclass, field
from echofn import queue, every, Context

@dataclass
class Item:
    sku: str
    count: int

@dataclass
class Order:
    name: str
    items: list[Item] = field(default_factory=list)

@queue()
def greet(payload: Order, ctx: Context) -> dict:
    return {"hello": payload.name}

@queue
def anything(payload) -> object:
    return payload

@queue
def add(payload: dict[str, int]) -> int:
    return sum(payload.values())

@every("1h")
def tick() -> None:
    pass
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path, {"shop.py": FUNCTIONS})
    yield node
    node.close()


def made(node: Node, name: str, *scopes: str, **env: str) -> str:
    flags = [part for scope in scopes for part in ("--scope", scope)]
    done = node.cli("token", "new", name, *flags, **env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_token_lives_from_the_command_line_to_its_end(node: Node) -> None:
    node.start("start", ECHOD_TOKEN=TOKEN)
    token = made(node, "ci", "invoke", "read")
    listed = json.loads(node.cli("token", "list", "--json").stdout)["tokens"]
    assert [(row["name"], row["scopes"]) for row in listed] == [("ci", ["invoke", "read"])]
    assert "ci" in node.cli("token", "list").stdout
    called = node.cli("invoke", "shop.add", "--data", '{"a": 2}', "--wait", ECHOD_TOKEN=token)
    assert (called.returncode, called.stdout.strip()) == (0, "2")
    denied = node.cli("pause", "shop.add", ECHOD_TOKEN=token)
    assert denied.returncode == 2
    assert "scope 'operate'" in denied.stderr
    unknown = node.cli("jobs", ECHOD_TOKEN="wrong")
    assert unknown.returncode == 2
    assert "set ECHOD_TOKEN" in unknown.stderr
    assert node.cli("token", "new", "ci", "--scope", "read").returncode == 2
    assert "expected --scope" in node.cli("token", "new", "other").stderr
    assert node.cli("token", "revoke", "ci").returncode == 0
    assert node.cli("jobs", ECHOD_TOKEN=token).returncode == 2
    assert node.cli("token", "revoke", "ci").returncode == 2
    done = node.cli("token", "new", "short", "--scope", "read", "--expires", "1h", "--json")
    assert json.loads(done.stdout)["expires"]


def test_a_link_signs_one_browser_in(node: Node) -> None:
    node.start("dev", ECHOD_TOKEN=TOKEN)
    link = node.cli("token", "new", "--open").stdout.strip()
    assert link.startswith(f"{node.url}/login?code=echol_")
    first, second = (opened(node, link.removeprefix(node.url)) for _ in range(2))
    assert first[0] == 303
    assert second[0] == 401
    cookie = first[1]
    assert re.search(r"; HttpOnly; .*Path=/; SameSite=strict", cookie)
    assert opened(node, "/jobs", Cookie=cookie.partition(";")[0])[0] == 200


def opened(node: Node, path: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=30)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.getheader("Set-Cookie") or ""
    finally:
        connection.close()


@pytest.mark.parametrize(("verb", "host"), [("dev", "0.0.0.0"), ("start", "0.0.0.0"), ("start", "127.0.0.1")])
def test_only_dev_on_loopback_starts_without_a_token(node: Node, verb: str, host: str) -> None:
    refused = run(verb, str(node.folder), "--host", host, "--port", str(free_port()), "--state", str(node.state))
    assert refused.returncode == 2
    assert "ECHOD_TOKEN=" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_beyond_loopback_a_token_of_the_bus_will_do(node: Node) -> None:
    node.start("start", ECHOD_TOKEN=TOKEN)
    token = made(node, "admin", "operate", "read")
    node.end()
    node.start("start", "--host", "0.0.0.0")
    assert node.ask("GET", "/jobs")[0] == 401
    assert node.ask("GET", "/jobs", Authorization=f"Bearer {token}")[0] == 200
    assert node.ask("POST", "/functions/shop.add", {}, Authorization=f"Bearer {token}")[0] == 403


def test_no_token_is_in_the_bus_the_logs_or_a_page(node: Node) -> None:
    node.start("start", ECHOD_TOKEN=TOKEN, ECHOD_LOG="json")
    token = made(node, "ci", "read", "invoke", "operate")
    link = node.cli("token", "new", "--open").stdout.strip().removeprefix(node.url)
    cookie = opened(node, link)[1].partition(";")[0]
    session = cookie.partition("=")[2]
    node.token = f"{token}x"
    assert node.ask("GET", "/jobs")[0] == 401
    node.token = token
    assert node.ask("POST", "/functions/shop.nothing", {})[0] == 404
    job = node.mint("shop.greet", {"name": "x"})
    until(lambda: node.job(job)["state"] == "done")
    planted = [text.encode() for text in (TOKEN, token, session, link.partition("=")[2])]
    seen: list[bytes] = []
    for path in ("/", "/jobs", f"/jobs/{job}", "/functions/shop.greet", "/bus", "/nodes", "/tokens", "/openapi.json"):
        for accept in ("application/json", "text/html"):
            for headers in ({"Authorization": f"Bearer {token}"}, {"Cookie": cookie}):
                connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=30)
                connection.request("GET", path, headers={"Accept": accept, **headers})
                answer = connection.getresponse()
                seen.append(repr(answer.getheaders()).encode() + answer.read())
                assert answer.status == 200, path
                connection.close()
    assert node.end() == 0
    appended = [file for file in node.state.rglob("*") if file.is_file()]
    assert any(".aof" in file.name for file in appended)
    seen += [file.read_bytes() for file in appended] + [node.log.read_bytes()]
    for text in planted:
        assert not any(text in each for each in seen)


RULES = """
# Whether a rule can fire, and whether a payload fits the function that is named, no JSON Schema can say: 422.
[[operations]]
include-name = "POST /schedules"
checks.positive_data_acceptance.expected-statuses = ["2xx", 401, 403, 404, 409, 422, 429, "5xx"]
# What a queue can be set to and a lane cannot, or how long a rate's period may be.
[[operations]]
include-name = "POST /functions/{name}/set"
checks.positive_data_acceptance.expected-statuses = ["2xx", 401, 403, 404, 409, 422, 429, "5xx"]
# That no job is both older and newer than that.
[[operations]]
include-name = ["GET /morgue", "POST /morgue/purge", "POST /morgue/redrive", "POST /functions/{name}/purge"]
checks.positive_data_acceptance.expected-statuses = ["2xx", 401, 403, 404, 409, 422, 429, "5xx"]
"""


def test_schemathesis_finds_nothing(node: Node) -> None:
    """Every route of /openapi.json with bounded, reproducible examples: valid ones taken, invalid ones refused."""
    node.start("dev", ECHOD_TOKEN=TOKEN)
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{node.url}/openapi.json"]
    command += ["--header", f"Authorization: Bearer {TOKEN}", "--max-examples", "5", "--seed", "1", "--no-color"]
    command += ["--phases", "coverage,fuzzing,stateful", "--suppress-health-check", "filter_too_much"]
    (node.state / "schemathesis.toml").write_text(RULES)
    ran = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=node.state, timeout=300)
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
    assert "Tested: 49" in ran.stdout, ran.stdout[-1500:]
