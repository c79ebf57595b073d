"""Webhooks on a whole node: the senders' own libraries sign, handlers get what was signed, one delivery is one job
whatever is killed meanwhile."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import stripe
from slack_sdk.signature import SignatureVerifier
from standardwebhooks import Webhook

from nodes import Node, until

ROOT = Path(__file__).resolve().parents[2]
SECRETS = {
    "GITHUB_WEBHOOK_SECRET": "push-secret",
    "STRIPE": "whsec_test_secret",
    "SLACK": "8f742231b10e8888abcd99yyyzzz85a5",
    "STANDARD": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
}
HOOKS = """
import os
import msgspec
from echofn import Request, webhook

class Event(msgspec.Struct):
    id: str
    type: str

@webhook("/hooks/stripe", verify="stripe", secret="STRIPE")
def paid(event: Event) -> list:
    return [event.id, event.type, "STRIPE" in os.environ]

@webhook("/hooks/slack/{team}", verify="slack", secret="SLACK", lane="params.team")
async def said(request: Request, ctx) -> list:
    return [request.form(), request.params, ctx.lane]

@webhook("/hooks/standard", verify="standard-webhooks", secrets=["STANDARD"])
def told(request) -> str:
    return request.text()

@webhook("/hooks/open", verify=None)
def heard(body: bytes) -> int:
    return len(body)

@webhook("/hooks/unset", verify="github", secret="NOT_SET_ANYWHERE")
def unset(request): ...
"""
CLASHES = {
    "ours.py": 'from echofn import webhook\n@webhook("/jobs/hook", verify=None)\ndef f(request): ...\n',
    "twin.py": 'from echofn import webhook\n@webhook("/hooks/slack/{other}", verify=None)\ndef f(request): ...\n',
}


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    place = tmp_path_factory.mktemp("webhooks")
    example = (ROOT / "functions/github.py").read_text()
    node = Node(place, {"hooks.py": HOOKS, "github.py": example, **CLASHES})
    secrets = "\n".join(f"{name}={value}" for name, value in SECRETS.items())
    (node.folder / ".env").write_text(f"# of a developer's machine\n{secrets}\n")
    try:
        yield node.start()
    finally:
        node.close()


def post(node: Node, path: str, body: bytes, headers: dict[str, str], token: str | None = None) -> tuple[int, Any]:
    """Status and decoded answer; status 0 when the connection broke."""
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=30)
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    except OSError:
        return 0, None
    finally:
        connection.close()


def result(node: Node, path: str, body: bytes, headers: dict[str, str]) -> Any:
    """What the handler made of a request."""
    status, said = post(node, path, body, headers)
    assert status == 202, (status, said)
    job = until(lambda: (job := node.job(said["id"]))["state"] in {"done", "dead"} and job)
    assert job["state"] == "done", job["error"]
    return job["result"]


def github(body: bytes, delivery: str, event: str = "push") -> dict[str, str]:
    digest = hmac.new(SECRETS["GITHUB_WEBHOOK_SECRET"].encode(), body, hashlib.sha256).hexdigest()
    return {
        "X-Hub-Signature-256": f"sha256={digest}",
        "X-GitHub-Delivery": delivery,
        "X-GitHub-Event": event,
        "Content-Type": "application/json",
    }


def test_what_stripes_library_signs_is_taken(dev: Node) -> None:
    body = json.dumps({"id": "evt_1", "type": "charge.succeeded", "note": "café 😀"}, ensure_ascii=False, indent=2)
    header = stripe.WebhookSignature.generate_signature_header(body, SECRETS["STRIPE"])
    headers = {"Stripe-Signature": header, "Content-Type": "application/json; charset=utf-8"}
    assert result(dev, "/hooks/stripe", body.encode(), headers) == ["evt_1", "charge.succeeded", True]
    assert post(dev, "/hooks/stripe", body.encode() + b" ", headers)[0] == 401
    old = stripe.WebhookSignature.generate_signature_header(body, SECRETS["STRIPE"], int(time.time()) - 400)
    assert post(dev, "/hooks/stripe", body.encode(), {"Stripe-Signature": old})[0] == 401


def test_what_slacks_library_signs_is_taken(dev: Node) -> None:
    body = b"command=%2Fweather&text=caf%C3%A9+%F0%9F%98%80&team_id=T1"
    at = str(int(time.time()))
    signature = SignatureVerifier(SECRETS["SLACK"]).generate_signature(timestamp=at, body=body)
    assert signature is not None
    headers = {"X-Slack-Request-Timestamp": at, "X-Slack-Signature": signature}
    form = {"command": "/weather", "text": "café 😀", "team_id": "T1"}
    assert result(dev, "/hooks/slack/blue", body, headers) == [form, {"team": "blue"}, "blue"]
    assert post(dev, "/hooks/slack/blue", body.replace(b"T1", b"T2"), headers)[0] == 401


def test_what_the_standard_library_signs_is_taken(dev: Node) -> None:
    body, now = '{"test": 2432232314, "é": "😀"}', datetime.now(UTC)
    signature = Webhook(SECRETS["STANDARD"]).sign("msg_1", now, body)
    headers = {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": f"v1,AAAA v1a,BBBB {signature}",
    }
    assert result(dev, "/hooks/standard", body.encode(), headers) == body
    assert post(dev, "/hooks/standard", body.encode(), {**headers, "webhook-id": "msg_2"})[0] == 401


def test_a_push_becomes_one_job_a_commit_in_its_authors_lane(dev: Node) -> None:
    body = (ROOT / "tests/data/github-push.json").read_bytes()
    assert result(dev, "/hooks/github", body, github(body, "72d3162e")) == 3
    assert result(dev, "/hooks/github", body, github(body, "72d3162e")) == 3  # sent again: the same job
    assert result(dev, "/hooks/github", b"{}", github(b"{}", "ping", "ping")) == 0
    pushes = dev.get("/jobs?function=github.on_push")["jobs"]
    assert sorted(job["lane"] for job in pushes) == ["-", "example-org/tide-tables"]
    reviews = until(lambda: len(jobs := dev.get("/jobs?function=github.review&state=done")["jobs"]) == 3 and jobs)
    assert sorted(job["lane"] for job in reviews) == ["bo-ferro", "mara-quill", "mara-quill"]
    results = {dev.job(job["id"])["result"] for job in reviews}
    assert "example-org/tide-tables@9c4b8a6 by bo-ferro: Add a café menu 😀 (3 files)" in results


def test_a_mebibyte_arrives_whole(dev: Node) -> None:
    body = os.urandom(1024 * 1024)
    assert result(dev, "/hooks/open", body, {}) == 1024 * 1024


def test_clashing_paths_are_refused_at_load_and_hurt_nobody(dev: Node) -> None:
    errors = {error["file"]: (error["line"], error["message"]) for error in dev.errors()}
    assert errors["ours.py"][0] == errors["twin.py"][0] == 2
    assert "apart from echod's own" in errors["ours.py"][1]
    assert "got that of hooks.said (hooks.py:14)" in errors["twin.py"][1]
    assert {"hooks.said", "hooks.paid"} <= set(dev.names())
    assert not {"ours.f", "twin.f"} & set(dev.names())


def test_a_secret_that_is_not_set_disables_one_path(dev: Node) -> None:
    status, problem = post(dev, "/hooks/unset", b"{}", {})
    assert (status, "NOT_SET_ANYWHERE" in problem["detail"]) == (503, True)


def test_the_terminal_and_the_verb_say_where_webhooks_are(dev: Node) -> None:
    lines = [" ".join(line.split()) for line in dev.said().splitlines()]
    assert f"hooks.heard webhook /hooks/open (anybody) POST {dev.url}/hooks/open" in lines
    assert "note /hooks/unset answers 503 until NOT_SET_ANYWHERE is set, in .env for one" in lines
    assert "webhook /hooks/slack/{team}" in dev.cli("functions").stdout


def test_no_secret_of_a_webhook_is_on_disk_or_in_the_log(dev: Node) -> None:
    body = b"{}"
    result(dev, "/hooks/github", body, github(body, "disk", "ping"))
    kept = [path for path in dev.state.rglob("*") if path.is_file() and not path.is_socket()]
    assert any(path.suffix == ".aof" for path in kept)
    for secret in SECRETS.values():
        for path in [*kept, dev.log]:
            assert secret.encode() not in path.read_bytes(), path


SLOW = """
import os, time
from echofn import webhook

@webhook("/hooks/slow", verify="github", secret="GITHUB_WEBHOOK_SECRET")
def slow(request) -> str:
    while "{made}" == "old" and not os.path.exists(os.path.join(os.path.dirname(__file__), "go")): time.sleep(0.01)
    return "{made}"
"""


def test_a_new_version_in_the_middle_of_a_run_runs_no_delivery_twice(dev: Node) -> None:
    """K8: the old worker cancelled, the delivery handed out again, run by two versions."""
    before = dev.get("/readyz")["version"]
    dev.save("slow.py", SLOW.format(made="old"))
    old = until(lambda: (now := dev.get("/readyz")["version"]) != before and now)
    body, headers = b'{"n": 1}', github(b'{"n": 1}', "rolling")
    status, first = post(dev, "/hooks/slow", body, headers)
    assert status == 202
    until(lambda: dev.job(first["id"])["state"] == "active")
    dev.save("slow.py", SLOW.format(made="new"))
    until(lambda: dev.get("/readyz")["version"] != old)
    assert dev.job(first["id"])["state"] == "active"
    assert result(dev, "/hooks/slow", b"{}", github(b"{}", "next")) == "new"
    status, again = post(dev, "/hooks/slow", body, headers)
    assert (status, again["id"]) == (202, first["id"])
    (dev.state / "versions" / old / "functions" / "go").touch()  # a worker reads its version's folder
    job = until(lambda: (job := dev.job(first["id"]))["state"] == "done" and job)
    assert (job["result"], job["attempts"], job["failures"]) == ("old", 1, 0)
    assert [(run["outcome"], run["version"]) for run in job["history"]] == [("done", old)]
    jobs = dev.get("/jobs?function=slow.slow")["jobs"]
    assert len(jobs) == 2
    counted = dev.get("/functions/slow.slow")["metrics"]
    assert (counted["minted"], counted["done"], counted["retried"]) == (2, 2, 0)


class Storm:
    """Senders of one delivery: each sends it again until it was told twice that it was heard."""

    def __init__(self, node: Node, number: int) -> None:
        self.said: list[tuple[int, Any]] = []
        self._node = node
        self._body = json.dumps({"storm": number}).encode()
        self._headers = github(self._body, f"storm-{number}", "ping")
        self._threads = [threading.Thread(target=self._send, daemon=True) for _ in range(50)]

    def _send(self) -> None:
        heard = 0
        while heard < 2:
            answer = post(self._node, "/hooks/github", self._body, self._headers)
            self.said.append(answer)
            heard += answer[0] == 202

    def begin(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        until(lambda: not any(thread.is_alive() for thread in self._threads), 120)


def test_fifty_posts_of_one_delivery_while_the_bus_dies_are_one_job(dev: Node) -> None:
    ids: list[str] = []
    for number in range(5):
        storm = Storm(dev, number)
        storm.begin()
        time.sleep(random.uniform(0, 0.05))  # the server dies anywhere in the middle of them
        os.kill(dev.server_pid(), signal.SIGKILL)
        storm.end()
        assert {status for status, _ in storm.said} <= {202, 503}, storm.said
        heard = {answer["id"] for status, answer in storm.said if status == 202}
        assert len(heard) == 1, heard
        ids += heard
    jobs = [dev.job(job["id"]) for job in dev.get("/jobs?function=github.on_push&limit=200")["jobs"]]
    storms = [job["id"] for job in jobs if job["payload"]["headers"].get("x-github-delivery", "").startswith("storm-")]
    assert sorted(storms) == sorted(ids)
    for id in ids:
        until(lambda id=id: dev.job(id)["state"] == "done")  # type: ignore[misc]
