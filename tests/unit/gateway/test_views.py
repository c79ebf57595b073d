"""Records as JSON."""

from __future__ import annotations

import json
import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echod.gateway.views import instant, job_view, value_of
from echod.model.ids import JobId
from echod.model.job import Error, History, Job, Occurrence


def test_an_instant_is_rfc_3339_utc_with_milliseconds() -> None:
    assert instant(1_774_746_000_007) == "2026-03-29T01:00:00.007Z"
    assert instant(0) == "1970-01-01T00:00:00.000Z"
    assert instant(-5) == "1970-01-01T00:00:00.000Z"
    assert instant(10**18) == "9999-12-31T23:59:59.999Z"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        ({"a": [1, 2.5, "é", True]}, {"a": [1, 2.5, "é", True]}),
        (b"\x00\xff", "AP8="),
        (2**64 - 1, 2**64 - 1),
        (-(2**63), -(2**63)),
        ([math.nan, math.inf, -math.inf, 1.0], [None, None, None, 1.0]),
        ({1: "a", 2.5: "b", False: "c"}, {"1": "a", "2.5": "b", "false": "c"}),
        ({None: 1, b"\xff": 2}, {"null": 1, "/w==": 2}),
        (msgspec.msgpack.Ext(7, b"x"), {"$ext": 7, "data": "eA=="}),
    ],
)
def test_any_result_becomes_json(value: object, shown: object) -> None:
    seen = value_of(msgspec.msgpack.encode(value))
    assert seen == shown
    json.dumps(seen, allow_nan=False)


@pytest.mark.parametrize("packed", [b"\xc1", b"\xa2\xff\xff", b"\x92\x01", b"", b"\x91" * 100_000 + b"\xc0"])
def test_bytes_that_are_no_value_are_shown_as_they_are(packed: bytes) -> None:
    seen = value_of(packed)
    assert isinstance(seen, dict)
    assert "$msgpack" in seen


def test_a_deep_result_does_not_break_the_page() -> None:
    for depth in (100, 600, 900):
        json.dumps(value_of(b"\x91" * depth + b"\xc0"))


def test_a_key_that_is_a_list_becomes_text() -> None:
    assert value_of(b"\x81\x92\x01\x02\x03") == {"(1, 2)": 3}


def test_a_job_has_the_fields_of_the_contract() -> None:
    job = Job(
        id=JobId("JOB00000000001"),
        function="shop.pack",
        lane="acme",
        state="dead",
        reason=None,
        attempts=2,
        failures=2,
        payload=msgspec.msgpack.encode({"n": 1}),
        result=None,
        error=Error("ValueError", "no", "Traceback …", "error"),
        due_ms=1_774_746_000_000,
        minted_ms=1_774_746_000_001,
        started_ms=1_774_746_000_002,
        ended_ms=1_774_746_000_003,
        occurrence=Occurrence("shop.pack/daily", 1_774_746_000_000),
        parent=None,
        version="DEP00000000001",
        progress=(0.4, "half way"),
        history=(
            History(
                1, "retry", "WRK1", "DEP00000000001", 1_774_746_000_002, 1_774_746_000_003, "error", 5, 1500, 9, True
            ),
        ),
    )
    view = job_view(job, ())
    assert set(view) >= {
        *("id", "function", "lane", "state", "reason", "attempts", "failures", "payload", "result", "error", "due"),
        *("minted", "started", "ended", "occurrence", "parent", "version", "history"),
    }
    assert view["error"] == {"type": "ValueError", "message": "no", "traceback": "Traceback …", "cause": "error"}
    assert view["occurrence"] == {"recurrence": "shop.pack/daily", "due": "2026-03-29T01:00:00.000Z", "manual": False}
    assert view["progress"] == [0.4, "half way"]
    assert view["history"] == [
        {
            "attempt": 1,
            "worker": "WRK1",
            "version": "DEP00000000001",
            "started": "2026-03-29T01:00:00.002Z",
            "ended": "2026-03-29T01:00:00.003Z",
            "outcome": "retry",
            "cause": "error",
            "wait_ms": 5,
            "cpu_s": 0.0015,
            "peak_bytes": 9,
            "cold": True,
        }
    ]


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_on_the_bus_become_json(packed: bytes) -> None:
    json.dumps(value_of(packed), allow_nan=False)
    msgspec.json.encode(value_of(packed))
