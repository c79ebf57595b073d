"""Payloads against their schema."""

from __future__ import annotations

import datetime as dt
import enum
import time
import uuid
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest

from echod.errors import InvalidPayload
from echod.registry.schemas import MOST_FAULTS, SMALL_BYTES, Schemas, json_path
from echofn import codec
from echofn.manifest import Function, Policy, QueueTrigger
from echofn.models import json_schema

ORDER: dict[str, Any] = {
    "$ref": "#/$defs/Order",
    "$defs": {
        "Order": {
            "type": "object",
            "required": ["items"],
            "properties": {
                "items": {"type": "array", "items": {"$ref": "#/$defs/Item"}},
                "at": {"type": "string", "format": "date-time"},
            },
        },
        "Item": {
            "type": "object",
            "required": ["sku"],
            "properties": {"sku": {"type": "string"}, "n": {"type": "integer"}},
        },
    },
}


def function(schema: dict[str, Any] | None, name: str = "shop.pack") -> Function:
    return Function(name, "shop", "pack", "shop.py", 1, Policy(), (QueueTrigger(),), payload_schema=schema)


def faults(payload: object, schema: dict[str, Any] = ORDER, *, size: int = 100) -> Any:
    with pytest.raises(InvalidPayload) as caught:
        Schemas().check("DEP0", function(schema), payload, size)
    return list(caught.value.faults)


def test_a_payload_that_fits_passes() -> None:
    Schemas().check("DEP0", function(ORDER), {"items": [{"sku": "a", "n": 2}], "other": 1}, 100)


def test_each_fault_is_named_with_its_path() -> None:
    found = faults({"items": [{"sku": "a"}, {"sku": 7, "n": "x"}, {}]})
    assert {fault["path"] for fault in found} == {"$.items[1].n", "$.items[1].sku", "$.items[2]"}
    assert any("sku" in fault["message"] for fault in found)


class Line(msgspec.Struct):
    sku: str


class Basket(msgspec.Struct):
    lines: list[Line]
    after: Basket | None = None


class Card(msgspec.Struct, tag="card"):
    number: str
    lines: dict[str, Line] = {}


class Cash(msgspec.Struct, tag="cash"):
    amount: int


Paid = Card | Cash


WITHIN: list[tuple[Any, Any, str, str]] = [
    (Basket | None, {"lines": [{"sku": "a"}, {"sku": 1}]}, "$.lines[1].sku", '1 is not of type "string"'),
    (Basket, {"lines": [], "after": {"lines": [{"sku": 1}]}}, "$.after.lines[0].sku", "not of type"),
    (Basket, {"lines": [], "after": {"lines": [], "after": {"lines": [{}]}}}, "$.after.after.lines[0]", '"sku"'),
    (list[Paid], [{"type": "cash", "amount": 1}, {"type": "cash", "amount": "x"}], "$[1].amount", "not of type"),
    (
        Paid | None,
        {"type": "card", "number": "1", "lines": {"a b": {"sku": 1}}},
        "$.lines['a b'].sku",
        "not of type",
    ),
    (dict[str, Basket | int], {"k": {"lines": 5}}, "$.k.lines", "not of type"),
    (list[Line] | None, [{"sku": "a"}, 5], "$[1]", "not of type"),
    (int | str, [], "$", "anyOf"),  # nothing that was meant
    (Line | None, 5, "$", "anyOf"),
]


@pytest.mark.parametrize(("kind", "payload", "path", "told"), WITHIN)
@pytest.mark.parametrize("size", [100, SMALL_BYTES + 1])
def test_a_fault_within_a_union_is_named_with_its_whole_path(
    kind: Any, payload: Any, path: str, told: str, size: int
) -> None:
    first = faults(payload, msgspec.json.schema(kind), size=size)[0]
    assert first["path"] == path
    assert told in first["message"]


def test_a_tag_that_none_has_is_the_fault() -> None:
    (fault,) = faults({"type": "coin"}, msgspec.json.schema(Paid))[:1]
    assert fault["path"] in {"$", "$.type"}


def aware(kind: type, tz: bool) -> Any:
    return Annotated[kind, msgspec.Meta(tz=tz)]


# A kind, what it is read from, and text that it cannot be read from.
READ: list[tuple[Any, list[str], list[str]]] = [
    (dt.datetime, ["2026-01-31T12:00:00", "2026-01-31T12:00:00Z", "2026-01-31 12:00:00+02:00"], ["soon", "2026-01-31"]),
    (aware(dt.datetime, True), ["2026-01-31T12:00:00.5Z"], ["2026-01-31T12:00:00", "2026-13-01T12:00:00Z"]),
    (aware(dt.datetime, False), ["2026-01-31T12:00:00"], ["2026-01-31T12:00:00Z"]),
    (dt.date, ["2024-02-29"], ["2026-02-29", "31.1.2026"]),
    (dt.time, ["12:00:00", "12:00:00Z"], ["noon", "25:00:00"]),
    (aware(dt.time, True), ["12:00:00+01:00"], ["12:00:00"]),
    (dt.timedelta, ["PT5M", "P1DT2H", "-PT1S"], ["5m", "P"]),
    (uuid.UUID, ["00000000-0000-4000-8000-000000000000", "00000000000040008000000000000000"], ["123"]),
    (Decimal, ["12.50", "1e5", "-0"], ["12,50", "ten"]),
    (bytes, ["", "aGVsbG8="], ["a", "no base64"]),
    (bytearray, ["", "aGVsbG8="], ["a"]),
]


@pytest.mark.parametrize(("kind", "good", "bad"), READ)
@pytest.mark.parametrize("mask", [False, True])
def test_text_is_refused_where_a_worker_could_not_read_it_and_nowhere_else(
    kind: Any, good: list[str], bad: list[str], mask: bool
) -> None:
    holder = msgspec.defstruct("Holder", [("at", list[kind | None])])
    about = msgspec.structs.replace(
        function(json_schema(holder, "validation")), policy=Policy(redact=("at",) if mask else ())
    )
    for text in good:
        codec.convert({"at": [text, None]}, holder)
        Schemas().check("DEP0", about, {"at": [text, None]}, 100)
    for text in bad if kind in (bytes, bytearray) else (*bad, ""):
        with pytest.raises(codec.Unfit):
            codec.convert({"at": [text]}, holder)
        with pytest.raises(InvalidPayload) as refused:
            Schemas().check("DEP0", about, {"at": [None, text]}, 100)
        assert [fault["path"] for fault in refused.value.faults] == ["$.at[1]"]


@pytest.mark.parametrize("kind", [Decimal, Decimal | None, Annotated[Decimal, msgspec.Meta(description="in euro")]])
def test_a_decimal_may_be_a_number_as_a_worker_reads_it(kind: Any) -> None:
    holder = msgspec.defstruct("Holder", [("price", kind)])
    about = function(json_schema(holder, "validation"))
    for price, read in ((12, "12"), (12.5, "12.5"), (0.1, "0.1"), (-1e300, "-1E+300"), ("12.50", "12.50")):
        Schemas().check("DEP0", about, {"price": price}, 100)
        assert str(codec.convert({"price": price}, holder).price) == read
    for wrong in (True, [12]):
        with pytest.raises(InvalidPayload, match=r"\$\.price"):
            Schemas().check("DEP0", about, {"price": wrong}, 100)
        with pytest.raises(codec.Unfit):
            codec.convert({"price": wrong}, holder)
    assert "number" not in str(json_schema(holder, "serialization"))  # a result of it is text


def test_formats_that_no_worker_holds_text_against_are_not_held_here() -> None:
    class Model(pydantic.BaseModel):
        at: dt.datetime
        wait: dt.timedelta

    day = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date"})]
    holder = msgspec.defstruct("Holder", [("model", Model), ("day", day)])
    payload = {"model": {"at": "2026-01-31", "wait": "00:05:00"}, "day": ""}
    codec.convert(payload, holder)
    Schemas().check("DEP0", function(json_schema(holder, "validation")), payload, 100)


def test_a_payload_of_another_kind_is_named_at_the_root() -> None:
    assert faults("a", {"type": "object"})[0]["path"] == "$"
    assert faults(None, {"type": "object"})[0]["path"] == "$"


def test_faults_are_bounded_in_number_and_size() -> None:
    found = faults({"items": ["x" * 10_000] * 500})
    assert len(found) == MOST_FAULTS
    assert all(len(fault["message"]) <= 500 for fault in found)


def test_a_fault_quotes_no_value_where_something_is_redacted() -> None:
    hiding = msgspec.structs.replace(function(ORDER), policy=Policy(redact=("items",)))
    for payload in ({"items": "4111-planted"}, {"items": [{"sku": 4111_1111, "n": "4111-planted"}]}, "4111-planted"):
        with pytest.raises(InvalidPayload) as refused:
            Schemas().check("DEP0", hiding, payload, 100)
        assert "4111" not in f"{refused.value} {refused.value.faults}"
        assert "[redacted]" in str(refused.value)


def test_without_a_schema_anything_goes() -> None:
    Schemas().check("DEP0", function(None), object, 100)


def test_a_schema_at_fault_leaves_the_decision_to_the_worker() -> None:
    Schemas().check("DEP0", function({"type": "nonsense"}), 1, 100)
    Schemas().check("DEP0", function({"$ref": "https://elsewhere.example/schema"}), 1, 100)


def test_validators_are_per_version() -> None:
    schemas = Schemas()
    schemas.check("DEP1", function({"type": "string"}), "x", 100)
    with pytest.raises(InvalidPayload):
        schemas.check("DEP2", function({"type": "integer"}), "x", 100)
    schemas.check("DEP1", function({"type": "string"}), "x", 100)


def test_a_path_is_spelled_so_that_people_find_the_place() -> None:
    assert json_path([]) == "$"
    assert json_path(["items", 0, "sku"]) == "$.items[0].sku"
    assert json_path(["a b", "c'd"]) == "$['a b'][\"c'd\"]"


def test_of_a_large_payload_the_first_fault_is_named_and_that_quickly() -> None:
    began = time.process_time()
    found = faults({"items": [{"sku": 7}] * 200_000}, size=SMALL_BYTES + 1)
    assert found == [{"path": "$.items[0].sku", "message": '7 is not of type "string"'}]
    assert time.process_time() - began < 3


# ---- keys, and bytes ----


class Hue(enum.Enum):
    RED = "red"


class Size(enum.IntEnum):
    SMALL = 1


@pytest.mark.parametrize(
    ("kind", "fits", "not_one", "told"),
    [
        (dict[int, str], "-1", "x", "Expected `int`, got `str`"),
        (dict[Annotated[int, msgspec.Meta(ge=0)], str], "0", "-1", "Expected `int` >= 0"),
        (dict[float, str], "1e3", "x", "Expected `float`, got `str`"),
        (dict[uuid.UUID, str], "6f9619ff-8b86-d011-b42d-00c04fc964ff", "x", "Invalid UUID"),
        (dict[dt.date, str], "2026-01-05", "x", "Invalid RFC3339 encoded date"),
        (dict[Decimal, str], "1.5", "x", "Invalid decimal string"),
        (dict[bytes, str], "YWJj", "x", "Invalid base64 encoded string"),
        (dict[Literal["a", "b"], str], "a", "x", '"x" is not one of "a" or "b"'),
        (dict[Literal[1, 2], str], "2", "3", '"3" is not one of "1" or "2"'),
        (dict[Hue, str], "red", "x", '"x" is not one of "red"'),
        (dict[Size, str], "1", "2", '"2" is not one of "1"'),
        (dict[int | None, str], "1", "x", "Expected `int`, got `str`"),
        (dict[Annotated[str, msgspec.Meta(max_length=2)], str], "ab", "abc", '"abc" is longer than 2 characters'),
    ],
)
def test_a_key_that_the_worker_cannot_read_is_a_fault_of_its_object(
    kind: Any, fits: str, not_one: str, told: str
) -> None:
    schema = json_schema(list[kind], "validation")
    Schemas().check("DEP0", function(schema), [{fits: "a"}], 100)
    assert codec.convert([{fits: "a"}], list[kind])
    assert faults([{fits: "a", not_one: "a"}], schema) == [{"path": "$[0]", "message": f"a key of it: {told}"}]
    with pytest.raises(codec.Unfit):
        codec.convert([{not_one: "a"}], list[kind])


class Parcel(msgspec.Struct):
    name: str = ""
    seal: bytes = b""
    tags: list[str] | None = None
    more: Any = None


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"name": b"abc"}, "$.name"),
        ({"tags": ["a", b"abc"]}, "$.tags[1]"),
        ({"seal": b"abc", "more": {"deep": [b"abc"]}}, None),
        ({"seal": "YWJj"}, None),
    ],
)
def test_bytes_fit_only_where_the_type_is_bytes(given: dict[str, Any], path: str | None) -> None:
    """In the schema they are text, and text is what it sees of them."""
    schemas, schema = Schemas(), json_schema(Parcel, "validation")
    seen = msgspec.to_builtins(given)
    if path is None:
        schemas.check("DEP0", function(schema), seen, 100, given)
        codec.convert(given, Parcel)
        return
    with pytest.raises(InvalidPayload) as caught:
        schemas.check("DEP0", function(schema), seen, 100, given)
    assert [fault["path"] for fault in caught.value.faults] == [path]
    assert "only where the type is bytes" in str(caught.value)
    schemas.check("DEP0", function(schema), seen, 100)
    with pytest.raises(codec.Unfit):
        codec.convert(given, Parcel)


class Scan(pydantic.BaseModel):
    image: bytes
    name: str = ""


def test_bytes_fit_the_bytes_of_a_model() -> None:
    schemas, schema = Schemas(), json_schema(Scan, "validation")
    schemas.check("DEP0", function(schema), {"image": "YWJj"}, 100, {"image": b"abc"})
    with pytest.raises(InvalidPayload, match=r"\$\.name: got bytes"):
        schemas.check("DEP0", function(schema), {"image": "", "name": "YWJj"}, 100, {"image": b"", "name": b"abc"})


@pytest.mark.parametrize("kind", [set[Any], frozenset[Any]])
def test_a_set_of_anything_holds_no_lists(kind: Any) -> None:
    schema = json_schema(kind, "validation")
    Schemas().check("DEP0", function(schema), ["a", 1, None, "YWJj"], 100, ["a", 1, None, b"abc"])
    assert faults([[1]], schema)[0]["path"] == "$[0]"
