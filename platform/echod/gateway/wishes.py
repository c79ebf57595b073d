"""What a caller wishes for a job beside its payload: the Echo-… headers, Idempotency-Key and Prefer, read strictly.

A header that cannot be honoured is refused: none is ignored. `Prefer` alone may be (RFC 7240, section 2).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec
from starlette.datastructures import Headers

from echod.gateway.problems import Problem
from echod.policy.calls import KEY_MS, key_ms
from echofn.children import check_instant, wait_ms
from echofn.frames import FURTHEST_PRIORITY, MAX_KEY
from echofn.units import duration_ms

WAIT_CAP_S = 60
_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_WAIT = re.compile(r"\s*wait\s*=\s*\"?(\d{1,9})\"?\s*(;.*)?", re.IGNORECASE | re.ASCII)


class Wishes(msgspec.Struct, frozen=True):
    """`wait_s` 0: not waiting. `lane`, `unique`, `priority` None: by the function's policy. At most one of `in_ms` and
    `at_ms`. `key_ms`: how long `key` names its job."""

    wait_s: int = 0
    key: str | None = None
    key_ms: int = KEY_MS
    lane: str | None = None
    in_ms: int | None = None
    at_ms: int | None = None
    unique: str | None = None
    priority: int | None = None
    version: str | None = None
    fsync: bool = False


def wishes_of(headers: Headers, now_ms: int) -> Wishes:
    """The wishes in a request's headers. Raises the problem of the first that cannot be taken."""
    durable = _one(headers, "Echo-Durable")
    if durable is not None and durable.strip().lower() != "fsync":
        raise Problem("bad-header", f"Echo-Durable: expected fsync, got {durable[:40]!r}")
    in_ms = _read(headers, "Echo-Delay", wait_ms)
    due_ms = _read(headers, "Echo-At", lambda text: at_ms(text, now_ms))
    if in_ms is not None and due_ms is not None:
        raise Problem("bad-header", "expected Echo-Delay or Echo-At, got both")
    key = _key(headers, "Idempotency-Key")
    kept_ms = _read(headers, "Echo-Key-For", lambda text: key_ms(duration_ms(text)))
    if key is None and kept_ms is not None:
        raise Problem("bad-header", "Echo-Key-For: expected Idempotency-Key beside it, got none")
    return Wishes(
        wait_s=wait_seconds(",".join(headers.getlist("prefer"))),
        key=key,
        key_ms=KEY_MS if kept_ms is None else kept_ms,
        unique=_key(headers, "Echo-Unique"),
        priority=_priority(_one(headers, "Echo-Priority")),
        lane=_text(_one(headers, "Echo-Lane"), "Echo-Lane"),
        in_ms=in_ms,
        at_ms=due_ms,
        version=_one(headers, "Echo-Version"),
        fsync=durable is not None,
    )


def wait_seconds(prefer: str) -> int:
    """The seconds of `Prefer: wait=N`, at most 60; the first counts; what cannot be read is no preference."""
    for part in prefer.split(","):
        found = _WAIT.fullmatch(part)
        if found:
            return min(int(found[1]), WAIT_CAP_S)
    return 0


def _one(headers: Headers, name: str) -> str | None:
    """A header that may be there once: of two values neither can be honoured."""
    values = headers.getlist(name)
    if len(values) > 1:
        raise Problem("bad-header", f"{name}: expected it once, got it {len(values)} times")
    return values[0] if values else None


def at_ms(text: str, now_ms: int) -> int:
    """The instant in milliseconds since the epoch. Raises ValueError."""
    expected = "expected an RFC 3339 instant such as 2026-03-29T01:00:00Z"
    if not _RFC_3339.fullmatch(text.strip()):
        raise ValueError(f"{expected}, got {text.strip()[:60]!r}")
    try:
        moment = datetime.fromisoformat(text.strip().upper())
        found = int((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{expected}, got {text.strip()[:60]!r} ({error})") from None
    check_instant(found, now_ms, text.strip())
    return found


def _read(headers: Headers, name: str, read: Callable[[str], int]) -> int | None:
    text = _one(headers, name)
    if text is None:
        return None
    try:
        return read(text.strip())
    except ValueError as error:
        raise Problem("bad-header", f"{name}: {error}") from None


def _key(headers: Headers, header: str) -> str | None:
    key = _text(_one(headers, header), header)
    if key is not None and not 0 < len(key) <= MAX_KEY:
        raise Problem("bad-header", f"{header}: expected 1 to {MAX_KEY} characters, got {len(key)}")
    return key


def _priority(text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"[+-]?\d{1,7}", text.strip(), re.ASCII) or abs(int(text)) > FURTHEST_PRIORITY:
        expected = f"expected a whole number from -{FURTHEST_PRIORITY} to {FURTHEST_PRIORITY}"
        raise Problem("bad-header", f"Echo-Priority: {expected}, got {text.strip()[:40]!r}")
    return int(text)


def _text(raw: str | None, header: str) -> str | None:
    """A header's value; its bytes are UTF-8 (the server hands them over as Latin-1)."""
    if raw is None:
        return None
    try:
        return raw.encode("latin-1").decode().strip()
    except UnicodeError:
        raise Problem("bad-header", f"{header}: expected UTF-8") from None
