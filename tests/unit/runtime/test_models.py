"""pydantic models as payloads and results: their schemas, values there and back, causes of misfits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pydantic
import pytest

from echofn import models
from echofn.manifest import Function, Policy, WebhookTrigger
from unit.runtime.driving import Answer, Base, discover, write

MODELS = """
import datetime, decimal, enum, uuid
from typing import Annotated, Literal
import msgspec, pydantic
from pydantic import BaseModel, ConfigDict, Field, RootModel
from echofn import *

class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"

class Line(BaseModel):
    sku: str = Field(min_length=1)
    count: int = Field(gt=0, description="How many")

class Invoice(BaseModel):
    at: datetime.datetime
    lines: list[Line]
    colour: Colour = Colour.RED
    note: str | None = None
    total: decimal.Decimal = decimal.Decimal(0)

class Node(BaseModel):
    name: str
    below: list["Node"] = []

class Named(BaseModel):
    model_config = ConfigDict(extra="forbid")
    full_name: str = Field(alias="fullName")
    @pydantic.computed_field
    @property
    def short(self) -> str: return self.full_name[:1]

class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    at: datetime.datetime
    raw: bytes = b""

class Picky(BaseModel):
    n: int
    @pydantic.field_validator("n")
    @classmethod
    def check(cls, n):
        if n == 1: raise ValueError("not one")
        if n == 2: raise KeyError("not two")
        if n == 3: open("/etc/shadow-of-nothing/x")
        return n

class Cat(BaseModel):
    kind: Literal["cat"]
class Dog(BaseModel):
    kind: Literal["dog"]
class Pet(RootModel[Annotated[Cat | Dog, Field(discriminator="kind")]]): ...

class Box(msgspec.Struct):
    line: Line
    spare: Line | None = None
    by_name: dict[str, Node] = {}
"""
HANDLERS = """
@queue
def invoice(payload: Invoice) -> Invoice: return payload
@queue
def node(payload: Node) -> list[Node]: return [payload, *payload.below]
@queue
def optional(payload: Invoice | None): return payload and payload.note
@queue
def many(payload: list[Line]): return [type(each).__name__ for each in payload]
@queue
def box(payload: Box):
    return [payload.line.count, type(payload.spare).__name__, type(payload.by_name.get("a")).__name__]
@queue
def named(payload: Named) -> Named: return payload
@queue
def strict(payload: Strict): return [type(payload.at).__name__, payload.raw]
@queue
def picky(payload: Picky): return payload.n
@queue
def pet(payload: Pet): return type(payload.root).__name__
"""
WHEN = "2026-03-29T01:00:00Z"
LINE = {"sku": "a", "count": 2}


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Function]:
    folder = tmp_path_factory.mktemp("models") / "functions"
    write(folder, m=MODELS + HANDLERS)
    answer = discover(folder)["m"]
    assert answer.errors == ()
    return {function.attribute: function for function in answer.functions}


def served(shared: Base, attribute: str, payload: Any) -> Answer:
    write(shared.folder, m=MODELS + HANDLERS)
    return shared.ready(attribute).one(payload)


def test_echofn_does_not_import_pydantic() -> None:
    program = "import sys, echofn.base, echofn.describe; print('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True).stdout == "False\n"


# ---- schemas ----


@pytest.mark.parametrize(
    ("name", "fits", "misfits"),
    [
        (
            "invoice",
            [{"at": WHEN, "lines": [LINE]}, {"at": WHEN, "lines": [], "colour": "blue", "note": None, "total": "1.5"}],
            [
                None,
                {"at": WHEN},
                {"at": WHEN, "lines": [{"sku": "a", "count": 0}]},
                {"at": WHEN, "lines": [], "colour": 1},
            ],
        ),
        ("node", [{"name": "a", "below": [{"name": "b", "below": []}]}], [{"name": "a", "below": [{"name": 1}]}]),
        ("optional", [None, {"at": WHEN, "lines": []}], [[], {"lines": []}]),
        ("many", [[], [LINE]], [LINE, [{"sku": ""}]]),
        (
            "box",
            [{"line": LINE}, {"line": LINE, "spare": None, "by_name": {"a": {"name": "b"}}}],
            [{"line": {}}, {"line": LINE, "by_name": {"a": {}}}],
        ),
        ("named", [{"fullName": "Ada"}], [{"full_name": "Ada"}, {"fullName": "Ada", "short": "A"}]),
        ("pet", [{"kind": "cat"}, {"kind": "dog"}], [{"kind": "cow"}, {}]),
    ],
)
def test_a_schema_stands_on_its_own_and_judges_as_the_model_does(
    functions: dict[str, Function], name: str, fits: list[Any], misfits: list[Any]
) -> None:
    schema = functions[name].payload_schema
    assert schema is not None
    judge = jsonschema_rs.Draft202012Validator(schema)  # refuses references that lead nowhere
    assert [payload for payload in fits if not judge.is_valid(payload)] == []
    assert [payload for payload in misfits if judge.is_valid(payload)] == []


def test_a_results_schema_is_that_of_what_goes_out(functions: dict[str, Function]) -> None:
    payload, result = functions["named"].payload_schema, functions["named"].result_schema
    assert payload is not None
    assert result is not None
    assert list(payload["properties"]) == ["fullName"]
    assert list(result["properties"]) == ["fullName", "short"]


LINES = """
import pydantic
class Part(pydantic.BaseModel):
    a: {kind}
class Line(pydantic.BaseModel):
    part: Part
"""


def test_models_of_one_name_keep_apart(tmp_path: Path) -> None:
    source = """
import msgspec
from echofn import queue
from . import _ours, _theirs
class Both(msgspec.Struct):
    ours: _ours.Line
    theirs: _theirs.Line
@queue
def f(payload: Both): pass
"""
    write(tmp_path / "functions", m=source, _ours=LINES.format(kind="int"), _theirs=LINES.format(kind="str"))
    (function,) = discover(tmp_path / "functions")["m"].functions
    assert function.payload_schema is not None
    judge = jsonschema_rs.Draft202012Validator(function.payload_schema)
    assert judge.is_valid({"ours": {"part": {"a": 1}}, "theirs": {"part": {"a": "x"}}})
    assert not judge.is_valid({"ours": {"part": {"a": 1}}, "theirs": {"part": {"a": 1}}})
    assert not judge.is_valid({"ours": {"part": {"a": "x"}}, "theirs": {"part": {"a": "x"}}})


@pytest.mark.parametrize(
    ("annotation", "told"),
    [
        ("Cat | Dog", "in a union a model can stand beside None alone; make the union a RootModel"),
        ("int | Cat", "in a union a model can stand beside None alone"),
        ("Odd", "for the payload"),
        ("Uncallable", "for the payload"),
    ],
)
def test_a_type_without_a_schema_is_refused_at_its_line(tmp_path: Path, annotation: str, told: str) -> None:
    odd = """
class Odd(BaseModel):
    model_config = ConfigDict(json_schema_extra={"x": object()})
class Uncallable(BaseModel):
    f: type(print) = print
    model_config = ConfigDict(arbitrary_types_allowed=True)
"""
    write(tmp_path / "functions", m=MODELS + odd + f"@queue\ndef f(payload: {annotation}): pass\n@queue\ndef g(): pass")
    answer = discover(tmp_path / "functions")["m"]
    assert [function.name for function in answer.functions] == ["m.g"]
    (error,) = answer.errors
    assert error.kind == "refused"
    assert told in error.message


def test_a_recurrence_may_carry_a_model(tmp_path: Path) -> None:
    source = "\n@cron('* * * * *', payload=Line(sku='a', count=2))\ndef f(payload: Line): pass\n"
    wrong = "\n@every('1s', payload={'sku': ''})\ndef f(payload: Line): pass\n"
    write(tmp_path / "functions", m=MODELS + source, wrong=MODELS + wrong)
    answers = discover(tmp_path / "functions")
    (trigger,) = answers["m"].functions[0].triggers
    assert msgspec.msgpack.decode(trigger.payload) == LINE  # type: ignore[union-attr]
    (error,) = answers["wrong"].errors
    assert "payload=: sku: String should have at least 1 character; count: Field required" in error.message


# ---- runs ----


@pytest.mark.parametrize(
    ("name", "payload", "result"),
    [
        (
            "invoice",
            {"at": WHEN, "lines": [LINE], "colour": "blue"},
            {"at": WHEN, "lines": [LINE], "colour": "blue", "note": None, "total": "0"},
        ),
        (
            "node",
            {"name": "a", "below": [{"name": "b"}]},
            [{"name": "a", "below": [{"name": "b", "below": []}]}, {"name": "b", "below": []}],
        ),
        ("optional", None, None),
        ("optional", {"at": WHEN, "lines": [], "note": "x"}, "x"),
        ("many", [LINE, LINE], ["Line", "Line"]),
        ("box", {"line": LINE, "spare": LINE, "by_name": {"a": {"name": "b"}}}, [2, "Line", "Node"]),
        ("named", {"fullName": "Ada"}, {"fullName": "Ada", "short": "A"}),
        ("strict", {"at": WHEN}, ["datetime", b""]),
        ("pet", {"kind": "dog"}, "Dog"),
        ("picky", {"n": 5.0}, 5),
    ],
)
def test_a_model_goes_in_and_comes_out_as_json_has_it(shared: Base, name: str, payload: Any, result: Any) -> None:
    assert served(shared, name, payload).result == result


def test_bytes_reach_a_model_as_they_are(shared: Base) -> None:
    write(
        shared.folder,
        m=MODELS + "class Raw(BaseModel):\n    raw: bytes\n@queue\ndef f(payload: Raw): return payload.raw",
    )
    assert shared.ready("f").one({"raw": b"\xff\x00"}).result == b"\xff\x00"


@pytest.mark.parametrize(
    ("name", "payload", "told"),
    [
        ("invoice", {"at": "soon", "lines": []}, "at: Input should be a valid datetime"),
        ("invoice", None, "Input should be"),
        ("many", [LINE, {"sku": "b", "count": 0}], "count: Input should be greater than 0 - at `$[1]`"),
        ("box", {"line": LINE, "spare": {"sku": "b"}}, "count: Field required - at `$.spare`"),
        ("node", {"name": "a", "below": [{"name": 1}]}, "below.0.name: Input should be a valid string"),
        ("strict", {"at": WHEN, "raw": 5}, "raw: Input should be a valid bytes"),
        ("picky", {"n": 1}, "n: Value error, not one"),
        ("picky", {"n": 2}, "a check of its type raised KeyError: 'not two'"),
        ("picky", {"n": 3}, "a check of its type raised FileNotFoundError"),
    ],
)
def test_a_payload_that_does_not_fit_a_model_is_dead_with_cause_payload(
    shared: Base, name: str, payload: Any, told: str
) -> None:
    answer = served(shared, name, payload)
    assert (answer.outcome, answer.fault.exception, answer.fault.cause) == ("dead", "PayloadError", "payload")
    assert answer.fault.message.startswith(f"payload does not fit m.{name}: ")
    assert told in answer.fault.message
    assert "pydantic.dev" not in answer.fault.message
    assert ("in check" in answer.fault.traceback) == ("raised" in told)  # only a check that broke is worth its lines


def test_a_model_that_cannot_be_written_is_a_result_that_cannot_be_stored(shared: Base) -> None:
    source = """
class Raw(BaseModel):
    raw: bytes
@queue
def f(payload): return Raw(raw=bytes([255]))
"""
    write(shared.folder, m=MODELS + source)
    answer = shared.ready("f").one()
    assert (answer.outcome, answer.fault.cause) == ("dead", "result")
    assert "utf-8" in answer.fault.message


def test_a_child_carries_what_its_model_can_be_made_of_again(shared: Base) -> None:
    source = """
@queue
def named(payload: Named): pass
@queue
def f(payload, ctx):
    ctx.enqueue(named, Named(fullName="Ada"))
    ctx.enqueue(invoice, Invoice(at=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), lines=[]))
    ctx.enqueue(named, {"full_name": "Ada"})
@queue
def invoice(payload: Invoice): pass
"""
    write(shared.folder, m=MODELS + source)
    answer = shared.ready("f").one()
    assert (
        "payload for m.named: fullName: Field required; full_name: Extra inputs are not permitted"
        in answer.fault.message
    )
    write(shared.folder, n=MODELS + source.replace('    ctx.enqueue(named, {"full_name": "Ada"})\n', ""))
    ended = shared.ready("f", "n").one().ended
    assert ended is not None
    first, second = ended.children
    assert msgspec.msgpack.decode(first.payload) == {"fullName": "Ada"}
    assert msgspec.msgpack.decode(second.payload)["at"] == "2026-01-01T00:00:00Z"


def test_a_webhooks_body_comes_as_the_model_asked_for(shared: Base) -> None:
    write(shared.folder, m=MODELS + "@webhook('/h', verify=None)\ndef f(payload: Line): return payload.count")
    spec = Function("m.f", "m", "f", "m.py", 1, Policy(), (WebhookTrigger("/h", None),))
    worker = shared.ready("f", function=spec)
    request = {"method": "POST", "path": "/h", "params": {}, "query": {}, "headers": {}}
    assert worker.one({**request, "body": b'{"sku": "a", "count": 3}'}).result == 3
    assert worker.one({**request, "body": b'{"sku": "a"}'}).fault.cause == "payload"


class _Inside(pydantic.BaseModel):
    id: int


class _Open(pydantic.BaseModel, extra="allow"):
    inside: _Inside


@pytest.mark.parametrize(
    ("kind", "path", "fields"),
    [
        (_Open, "whatever", None),
        (_Open, "inside.id", None),
        (_Open, "inside.idd", ["id"]),
        (dict[str, _Inside], "acme.id", None),
        (dict[str, _Inside], "acme.x", None),
        (_Inside | None, "id", None),
        (list[_Inside], "0.id", None),
        (list[_Inside], "0.x", ["id"]),
        (Any, "x.y", None),
        (str, "x", []),
    ],
)
def test_a_path_is_astray_where_no_value_of_the_type_has_anything_there(
    kind: Any, path: str, fields: list[str] | None
) -> None:
    found = models.astray(models.json_schema(kind, "validation"), path.split("."))
    assert (None if found is None else found[1]) == fields
