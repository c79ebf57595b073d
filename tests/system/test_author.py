"""What an author writes, seen from outside: models, defaults, fail_on, environments, the context's fields."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from nodes import TOKEN, Node, until

SOURCE = """
import datetime
from typing import Literal
import pydantic
from echofn import Context, every, queue

class Line(pydantic.BaseModel):
    sku: str
    count: int = pydantic.Field(gt=0)

class Invoice(pydantic.BaseModel):
    at: datetime.datetime
    lines: list[Line] = []
    kind: Literal["draft", "final"] = "draft"

class Declined(ValueError): ...

@queue(payload=Invoice(at=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), lines=[Line(sku="own", count=1)]))
def bill(payload: Invoice) -> Invoice:
    return payload.model_copy(update={"kind": "final"})

@queue
def parent(payload, ctx):
    return ctx.enqueue(bill)

@queue(fail_on=ValueError)
def charge(payload): raise Declined("no money")

@queue(env="prod")
def live(payload): return "live"
@queue(env=["dev", "test"], name="mail.send")
def pretend(payload): return "pretended"
@queue(env="prod", name="mail.send")
def really(payload): return "sent"

@every("1s", name="tick")
@queue(timeout="7s")
def fields(payload, ctx: Context):
    names = "job_id function attempt last_attempt fence lane due previous next deadline version env".split()
    return {name: value if isinstance(value := getattr(ctx, name), (str, int)) else value and value.isoformat()
            for name in names} | {"log": ctx.log.name, "cancelled": ctx.cancelled}
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("author"), {"m.py": SOURCE}).start()
    yield node
    node.close()


def ended(node: Node, job_id: str) -> Any:
    return until(lambda: job if (job := node.job(job_id))["state"] in ("done", "dead") else None)


def test_a_model_is_judged_at_the_door_and_comes_back_as_json(node: Node) -> None:
    status, problem = node.ask("POST", "/functions/m.bill", {"at": "2026-01-01", "lines": [{"sku": "a", "count": 0}]})
    assert status == 422
    assert problem["faults"][0]["path"] == "$.lines[0].count"
    assert node.call("m.bill", {"at": "2026-01-01T00:00:00Z", "lines": [{"sku": "a", "count": 2}]}) == {
        "at": "2026-01-01T00:00:00Z",
        "lines": [{"sku": "a", "count": 2}],
        "kind": "final",
    }


def test_what_only_the_model_can_judge_is_dead_at_once_with_cause_payload(node: Node) -> None:
    job = ended(node, node.mint("m.bill", {"at": "no instant, and the schema does not mind"}))
    assert (job["state"], job["error"]["cause"], len(job["history"])) == ("dead", "payload", 1)
    assert "at: Input should be a valid datetime" in job["error"]["message"]


def test_without_a_payload_the_annotations_own_is_minted_by_callers_and_runs_alike(node: Node) -> None:
    own = [{"sku": "own", "count": 1}]
    assert node.call("m.bill")["lines"] == own
    child = node.call("m.parent")
    assert ended(node, child)["result"]["lines"] == own


def test_an_exception_of_fail_on_is_charged_once_and_dead(node: Node) -> None:
    job = ended(node, node.mint("m.charge"))
    assert (job["state"], job["failures"], len(job["history"])) == ("dead", 1, 1)
    assert (job["error"]["type"], job["error"]["cause"]) == ("Declined", "error")


def test_annotations_count_in_their_environment(node: Node) -> None:
    assert node.call("mail.send") == "pretended"
    assert "m.live" not in node.names()
    status, problem = node.ask("POST", "/functions/m.live", None)
    assert (status, problem["type"]) == (404, "urn:echod:problem:unknown-function")
    assert problem["detail"] == "m.live is off here: @queue (m.py:29) has env=prod"
    off = {(each["function"], each["line"]) for each in node.get("/functions")["off"]}
    assert off == {("m.live", 29), ("mail.send", 33)}
    assert "@queue of m.live (m.py:29): env=prod" in node.said()


def test_a_run_knows_of_itself_what_the_design_says(node: Node) -> None:
    job = until(
        lambda: next(
            (each for each in node.get("/jobs?function=m.fields&state=done")["jobs"] if each["occurrence"]), None
        )
    )
    whole = node.job(job["id"])
    told = whole["result"]
    assert (told["job_id"], told["function"], told["version"]) == (job["id"], "m.fields", job["version"])
    assert (told["attempt"], told["last_attempt"], told["fence"], told["lane"]) == (1, False, 1, "-")
    assert (told["env"], told["log"], told["cancelled"]) == ("dev", "m.fields", False)
    due = datetime.fromisoformat(told["due"])
    assert due == datetime.fromisoformat(job["due"])
    assert datetime.fromisoformat(told["previous"]) == due - timedelta(seconds=1)
    assert datetime.fromisoformat(told["next"]) == due + timedelta(seconds=1)
    started = datetime.fromisoformat(whole["history"][0]["started"])
    assert abs(datetime.fromisoformat(told["deadline"]) - started - timedelta(seconds=7)) < timedelta(seconds=2)
    called = node.call("m.fields")
    assert (called["previous"], called["next"]) == (None, None)


def test_production_serves_what_is_for_production(tmp_path: Path) -> None:
    node = Node(tmp_path, {"m.py": SOURCE}).start("start", "--sandbox", "minimal", ECHOD_TOKEN=TOKEN)
    try:
        assert node.call("mail.send") == "sent"
        assert node.call("m.live") == "live"
        assert [each["function"] for each in node.get("/functions")["off"]] == ["mail.send"]
    finally:
        node.close()
