"""The headers beside a payload."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from echod.gateway.problems import Problem
from echod.gateway.wishes import wait_seconds, wishes_of
from echofn.frames import FURTHEST_MS

NOW = 1_790_000_000_000


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [
        ("", 0),
        ("wait=10", 10),
        ("WAIT=10", 10),
        ('wait="7"', 7),
        ("wait = 7", 7),
        ("respond-async, wait=5", 5),
        ("wait=5; x=y, handling=strict", 5),
        ("wait=3, wait=9", 3),
        ("wait=0", 0),
        ("wait=61", 60),
        ("wait=999999999", 60),
        ("wait=99999999999999999999", 0),
        ("wait=-1", 0),
        ("wait=1.5", 0),
        ("wait=abc", 0),
        ("wait=٣", 0),
        ("waits=4", 0),
        ("respond-async", 0),
    ],
)
def test_prefer_wait_as_in_rfc_7240(prefer: str, seconds: int) -> None:
    assert wait_seconds(prefer) == seconds


def test_no_headers_are_no_wishes() -> None:
    wishes = wishes_of(Headers({}), NOW)
    assert wishes == type(wishes)()


@pytest.mark.parametrize(
    ("text", "ms"), [("5m", 300_000), ("5", 5000), ("250ms", 250), ("30s", 30_000), ("0s", 0), (" 1d ", 86_400_000)]
)
def test_a_delay(text: str, ms: int) -> None:
    assert wishes_of(Headers(raw=[(b"echo-delay", text.encode())]), NOW).in_ms == ms


@pytest.mark.parametrize("text", ["", "soon", "-5m", "5m5", "٥m", "1e9w", "99999999999w", "nan", "9" * 5000 + "s"])
def test_a_bad_delay_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(Problem, match="Echo-Delay: expected") as caught:
        wishes_of(Headers(raw=[(b"echo-delay", text.encode())]), NOW)
    assert caught.value.status == 400
    assert len(caught.value.detail) < 300


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-03-29T01:00:00Z", 1_774_746_000_000),
        ("2026-03-29T01:00:00.250Z", 1_774_746_000_250),
        ("2026-03-29t03:00:00+02:00", 1_774_746_000_000),
        ("2026-03-29 01:00:00z", 1_774_746_000_000),
        ("2026-03-29T01:00:00.123456789Z", 1_774_746_000_123),
    ],
)
def test_an_instant(text: str, ms: int) -> None:
    assert wishes_of(Headers(raw=[(b"echo-at", text.encode())]), NOW).at_ms == ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tomorrow",
        "2026-03-29",
        "2026-03-29T01:00:00",
        "2026-13-29T01:00:00Z",
        "2026-02-30T01:00:00Z",
        "2026-03-29T25:00:00Z",
        "2026-03-29T01:00:60Z",
        "20260329T010000Z",
        "2026-W13-7T01:00:00Z",
        "1774746000",
        "9999-12-31T23:59:59Z",
        "0001-01-01T00:00:00Z",
        "2026-03-29T01:00:00+99:00",
        "٢٠٢٦-03-29T01:00:00Z",
    ],
)
def test_a_bad_instant_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(Problem, match="Echo-At: expected an RFC 3339 instant") as caught:
        wishes_of(Headers(raw=[(b"echo-at", text.encode())]), NOW)
    assert caught.value.status == 400


def test_an_instant_too_far_ahead_is_refused() -> None:
    assert FURTHEST_MS < 2**40
    with pytest.raises(Problem, match="within 3660 days"):
        wishes_of(Headers({"echo-at": "2126-01-01T00:00:00Z"}), NOW)


def test_delay_and_instant_together_are_refused() -> None:
    with pytest.raises(Problem, match="got both"):
        wishes_of(Headers({"echo-at": "2026-03-29T01:00:00Z", "echo-delay": "1s"}), NOW)


def test_fsync_is_the_only_durability_to_ask_for() -> None:
    assert wishes_of(Headers({"echo-durable": " FSYNC "}), NOW).fsync
    assert not wishes_of(Headers({}), NOW).fsync
    with pytest.raises(Problem, match="expected fsync, got 'yes'"):
        wishes_of(Headers({"echo-durable": "yes"}), NOW)


@pytest.mark.parametrize("key", ["", " ", "x" * 256])
def test_an_idempotency_key_is_bounded(key: str) -> None:
    with pytest.raises(Problem, match="Idempotency-Key"):
        wishes_of(Headers({"idempotency-key": key}), NOW)


@pytest.mark.parametrize("text", ["0s", "25h", "-1s", "soon", ""])
def test_how_long_a_key_is_known_is_bounded(text: str) -> None:
    with pytest.raises(Problem, match="Echo-Key-For: expected"):
        wishes_of(Headers({"idempotency-key": "k", "echo-key-for": text}), NOW)


def test_header_text_is_utf_8() -> None:
    raw = [(b"echo-lane", "Zoë 🦊".encode())]
    assert wishes_of(Headers(raw=raw), NOW).lane == "Zoë 🦊"
    with pytest.raises(Problem, match="Echo-Lane: expected UTF-8"):
        wishes_of(Headers(raw=[(b"echo-lane", b"\xff\xfe")]), NOW)


@pytest.mark.parametrize(
    "name", ["Idempotency-Key", "Echo-Key-For", "Echo-Lane", "Echo-Delay", "Echo-At", "Echo-Version", "Echo-Durable"]
)
def test_a_header_that_comes_twice_cannot_be_honoured(name: str) -> None:
    raw = [(name.lower().encode(), b"1s"), (name.lower().encode(), b"2s")]
    with pytest.raises(Problem, match=f"{name}: expected it once, got it 2 times"):
        wishes_of(Headers(raw=raw), NOW)


def test_preferences_may_come_in_several_lines() -> None:
    raw = [(b"prefer", b"respond-async"), (b"prefer", b"wait=7")]
    assert wishes_of(Headers(raw=raw), NOW).wait_s == 7
