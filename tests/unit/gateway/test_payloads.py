"""Bodies as payloads."""

from __future__ import annotations

import math
import struct
import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echod.gateway.payloads import Payload, payload_of
from echod.gateway.problems import Problem
from echod.policy.nesting import MAX_DEPTH
from echofn.codec import NIL

JSON = {"content-type": "application/json"}
MSGPACK = {"content-type": "application/msgpack"}
LIMIT = 1024 * 1024


def refused(body: bytes, headers: dict[str, str] = JSON) -> Problem:
    with pytest.raises(Problem) as caught:
        payload_of(body, headers)
    return caught.value


@pytest.mark.parametrize("headers", [{}, JSON, MSGPACK, {"content-type": "text/plain"}])
def test_an_empty_body_is_a_null_payload(headers: dict[str, str]) -> None:
    payload = payload_of(b"", headers)
    assert (payload.value, payload.packed) == (None, NIL)


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "APPLICATION/JSON",
        "application/json; charset=utf-8",
        'application/json;charset="UTF-8"',
        "application/cloudevents+json",
        "text/json",
    ],
)
def test_json_under_its_names(content_type: str) -> None:
    payload = payload_of('{"name": "Zoë 🦊", "n": [1, 2.5, true, null]}'.encode(), {"content-type": content_type})
    assert msgspec.msgpack.decode(payload.packed) == {"name": "Zoë 🦊", "n": [1, 2.5, True, None]}


@pytest.mark.parametrize("content_type", ["application/msgpack", "application/x-msgpack", "application/vnd.msgpack"])
def test_msgpack_under_its_names(content_type: str) -> None:
    body = msgspec.msgpack.encode({"raw": b"\x00\xff", "n": 2**64 - 1})
    payload = payload_of(body, {"content-type": content_type})
    assert msgspec.msgpack.decode(payload.packed) == {"raw": b"\x00\xff", "n": 2**64 - 1}
    assert payload.seen == {"raw": "AP8=", "n": 2**64 - 1}


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/xml",
        "nonsense",
        "application/json; charset=latin-1",
        "application/json; charset=utf-16",
        "application/" + "x" * 10_000,
    ],
)
def test_another_media_type_is_415_and_names_those_that_are_taken(content_type: str) -> None:
    problem = refused(b"{}", {"content-type": content_type} if content_type else {})
    assert problem.status == 415
    assert "expected" in problem.detail
    assert len(problem.detail) < 300


@pytest.mark.parametrize(
    ("body", "position", "line", "column"),
    [
        (b"{nope", 1, 1, 2),
        (b'{\n  "a": 1,\n  nope\n}', 14, 3, 3),
        (b"[1,2", 4, 1, 5),
        (b" ", 1, 1, 2),
        (b"[1]x", 4, 1, 5),
        (b"NaN", 0, 1, 1),
        (b"[Infinity]", 1, 1, 2),
        (b"\xef\xbb\xbf{}", 0, 1, 1),
        (b'["a\xff"]', 3, 1, 4),
        (b'"\xc3"', 1, 1, 2),
        ('{"a": "é'.encode("utf-16"), 0, 1, 1),
    ],
)
def test_a_body_that_is_not_json_is_400_with_its_position(body: bytes, position: int, line: int, column: int) -> None:
    problem = refused(body)
    assert (problem.status, problem.slug) == (400, "invalid-body")
    assert (problem.hints["position"], problem.hints["line"], problem.hints["column"]) == (position, line, column)
    assert f"line {line}, column {column} (byte {position})" in problem.detail


@pytest.mark.parametrize("body", [b'"\\ud800"', b'"\\ud800x"', b'"\\udc00"', b'{"a": "\\ud800\\u0041"}'])
def test_half_a_surrogate_pair_is_refused(body: bytes) -> None:
    assert refused(body).status == 400


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, -(2**63), 0])
def test_integers_of_64_bits_are_taken(number: int) -> None:
    assert msgspec.msgpack.decode(payload_of(str(number).encode(), JSON).packed) == number


@pytest.mark.parametrize("number", [str(2**64), str(-(2**63) - 1), "9" * 400])
def test_longer_integers_are_422_with_their_path(number: str) -> None:
    problem = refused(f'{{"a": [{{"n": {number}}}]}}'.encode())
    assert (problem.status, problem.slug) == (422, "invalid-payload")
    fault = {"path": "$.a[0].n", "message": "expected an integer of at most 64 bits, got a longer one"}
    assert problem.hints["faults"] == [fault]


def test_an_integer_too_long_to_be_read_at_all_is_422() -> None:
    assert refused(b"9" * 100_000).status == 422


def test_a_number_that_no_float_holds_is_422() -> None:
    assert refused(b"[1e999]").status == 422


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_non_finite_numbers_are_422_with_their_path(number: float) -> None:
    problem = refused(msgspec.msgpack.encode({"x": [number]}), MSGPACK)
    assert problem.status == 422
    assert problem.detail.startswith("$.x[0]: expected a finite number")


@pytest.mark.parametrize(
    "body",
    [
        msgspec.msgpack.encode({1: 2}),
        msgspec.msgpack.encode({b"k": 2}),
        msgspec.msgpack.encode(msgspec.msgpack.Ext(5, b"x")),
        b"\xd6\xff" + struct.pack(">I", 1),  # a timestamp
    ],
)
def test_msgpack_that_json_has_no_kind_for_is_422(body: bytes) -> None:
    assert refused(body, MSGPACK).status == 422


@pytest.mark.parametrize(
    "body", [b"\xc1", b"\x92\x01", b"\xa2\xff\xff", b"\xc0\xc0", b"\xdd\xff\xff\xff\xff", b"\x81\x90\x01"]
)
def test_a_body_that_is_not_msgpack_is_400(body: bytes) -> None:
    assert refused(body, MSGPACK).status in {400, 422}


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 2_000, LIMIT // 2 - 1])
def test_deep_nesting_is_422_and_quick(depth: int) -> None:
    for body, headers in ((b"[" * depth + b"]" * depth, JSON), (b"\x91" * depth + b"\xc0", MSGPACK)):
        problem = refused(body, headers)
        assert problem.status == 422
        assert "nesting" in problem.detail
    assert payload_of(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH, JSON).value is not None


def test_a_payload_over_1_mib_of_msgpack_is_413() -> None:
    problem = refused(b"[" + b",".join([b"1.5"] * 200_000) + b"]")
    assert problem.status == 413
    assert str(LIMIT) in problem.detail
    body = b'"' + b"x" * (LIMIT - 8) + b'"'
    assert len(payload_of(body, JSON).packed) <= LIMIT


def test_of_two_equal_keys_the_last_counts() -> None:
    assert payload_of(b'{"a": 1, "a": 2}', JSON).value == {"a": 2}


@pytest.mark.parametrize("value", [[1] * 500_000, [[]] * 340_000, [{"a": 1}] * 110_000, ["x"] * 250_000])
def test_a_payload_at_the_limit_does_not_hold_up_the_gateway(value: list[object]) -> None:
    for body, headers in ((msgspec.json.encode(value), JSON), (msgspec.msgpack.encode(value), MSGPACK)):
        began = time.process_time()
        assert payload_of(body, headers).value == value
        assert time.process_time() - began < 5  # half a second at most, times ten


def outcome(body: bytes, headers: dict[str, str]) -> Payload | Problem:
    try:
        return payload_of(body, headers)
    except Problem as problem:
        return problem


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner))


@settings(deadline=None)
@given(st.binary(max_size=200), st.sampled_from([JSON, MSGPACK]))
def test_any_bytes_are_a_payload_or_a_problem(body: bytes, headers: dict[str, str]) -> None:
    found = outcome(body, headers)
    if isinstance(found, Problem):
        assert found.status in {400, 413, 422}
    else:
        msgspec.msgpack.decode(found.packed)


@settings(deadline=None)
@given(VALUES)
def test_any_value_is_carried_as_it_is_or_refused_with_its_path(value: object) -> None:
    try:
        body = msgspec.msgpack.encode(value)
    except (OverflowError, UnicodeEncodeError):  # there are no such bytes
        return
    found = outcome(body, MSGPACK)
    if isinstance(found, Problem):
        assert found.detail.startswith("$")
    else:
        assert found.packed == body
