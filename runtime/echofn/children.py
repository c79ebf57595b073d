"""Children: the jobs that a run asks for with ctx.enqueue, kept until the run ends well."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from echofn import codec
from echofn.annotations import marks_of, name_of
from echofn.frames import (
    FURTHEST_DAYS,
    FURTHEST_MS,
    FURTHEST_PRIORITY,
    MAX_CHILDREN,
    MAX_KEY,
    MAX_PAYLOAD_BYTES,
    Child,
)
from echofn.masking import Mask
from echofn.quoting import hidden, quoted
from echofn.signature import own_payload, shape_of
from echofn.units import duration_ms

MAX_CHILDREN_BYTES = 1024 * 1024
MAX_TEXT = 10_000  # a lane of any sort is taken; the bus shortens it
_shape_of = functools.lru_cache(maxsize=64)(shape_of)
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


class Children:
    """The children of one run, numbered from the block that came with it."""

    __slots__ = ("_bytes", "_children", "_closed", "_first", "_lock", "_mask", "_now_ms", "_owners", "_package")

    def __init__(self, first: int, package: str, now_ms: int, mask: Mask | None = None) -> None:
        """`now_ms`: by the bus's clock. `mask` knows the values of the secrets, which no child may carry onto it."""
        self._first = first
        self._now_ms = now_ms
        self._package = package
        self._mask = mask
        self._lock = threading.Lock()
        self._children: list[Child] = []
        self._owners: list[int | None] = []  # of a batch, whose each is; None: the run's
        self._bytes = 0
        self._closed = False

    def add(
        self,
        function: Callable[..., Any] | str,
        payload: object,
        *,
        lane: str | None,
        delay: str | float | timedelta | None,
        at: datetime | str | None,
        unique: str | None,
        priority: int | None,
        owner: int | None = None,
    ) -> int:
        """The number of a new child. Raises TypeError, ValueError, or RuntimeError past a limit."""
        name = named(function, self._package)
        data = packed(function, name, payload)
        parts = {"payload": data, "name": name.encode(), "lane": _held(lane), "key": _held(unique)}
        if self._mask is not None and (carriers := [what for what, part in parts.items() if self._mask.is_in(part)]):
            raise ValueError(
                f"expected a {carriers[0]} without the value of a secret, as it lies on the bus; "
                f"let secrets= of {hidden(name, 200)} name it, too"
            )
        if delay is not None and at is not None:
            raise ValueError("expected delay= or at=, got both")
        delay_ms = None if delay is None else wait_ms(delay)
        at_ms = None
        if at is not None:
            check_instant(at_ms := instant_ms(at), self._now_ms, at)
        check_key("unique=", unique)
        check_priority(priority)
        size = len(data) + len(name) + _text("lane", lane) + _text("unique", unique) + 64
        with self._lock:
            if self._closed:
                raise RuntimeError("the run has ended: ctx.enqueue belongs to the run it was given to")
            if len(self._children) == MAX_CHILDREN or self._bytes + size > MAX_CHILDREN_BYTES:
                raise RuntimeError(
                    f"a run enqueues at most {MAX_CHILDREN:,} jobs and 1 MiB; enqueue jobs that enqueue the rest"
                )
            number = self._first + len(self._children)
            self._children.append(Child(number, name, data, lane, delay_ms, at_ms, unique, priority))
            self._owners.append(owner)
            self._bytes += size
        return number

    def close(self) -> tuple[Child, ...]:
        """All of them; no more are taken."""
        with self._lock:
            self._closed = True
            return tuple(self._children)

    def of(self, owner: int | None) -> tuple[Child, ...]:
        """Those of one job of a batch, or of the run as such; no more are taken."""
        children = zip(self.close(), self._owners, strict=True)
        return tuple(child for child, own in children if own == owner)


def check_priority(priority: int | None) -> None:
    """Raises ValueError. The bus takes what comes, and has written the row when it finds that it is no number."""
    if priority is not None and (type(priority) is not int or abs(priority) > FURTHEST_PRIORITY):
        most = f"{FURTHEST_PRIORITY:,}"
        raise ValueError(f"expected a whole priority from -{most} to {most}, got {quoted(priority)}")


def check_key(what: str, key: str | None) -> None:
    """Raises TypeError, or ValueError for a key that none of a job's may be: an empty one is no key at all."""
    if key is None:
        return
    if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance] # user code calls this
        raise TypeError(f"expected text for {what}, got {type(key).__name__}")
    if not 0 < len(key) <= MAX_KEY:
        do = "leave it out for a job without a key" if not key else "a hash of it is short enough"
        raise ValueError(f"{what}: expected 1 to {MAX_KEY} characters, got {len(key):,}; {do}")


def wait_ms(delay: str | float | timedelta) -> int:
    """Milliseconds that a job is to wait. Raises ValueError for what is no duration, or further than one may wait."""
    found = duration_ms(delay)
    if found > FURTHEST_MS:
        raise ValueError(f"expected a wait of at most {FURTHEST_DAYS} days, got {quoted(delay)}")
    return found


def check_instant(at_ms: int, now_ms: int, written: datetime | str) -> None:
    """Raises ValueError for an instant that no job may wait for."""
    if not 0 <= at_ms <= now_ms + FURTHEST_MS:
        raise ValueError(
            "expected an RFC 3339 instant such as 2026-03-29T01:00:00Z, "
            f"after 1970 and within {FURTHEST_DAYS} days from now, got {quoted(written)}"
        )


def instant_ms(value: datetime | str) -> int:
    """Milliseconds since the epoch of an aware datetime, or of RFC 3339 text. Raises ValueError or TypeError."""
    moment = value
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment)
        except ValueError:
            raise ValueError(f"expected an instant like 2026-03-29T01:00:00Z, got {quoted(value)}") from None
    if not isinstance(moment, datetime):  # pyright: ignore[reportUnnecessaryIsInstance] # user code calls this
        raise TypeError(f"expected a datetime or RFC 3339 text, got {type(value).__name__}")
    if moment.tzinfo is None:
        raise ValueError(f"expected an instant with its zone, got {quoted(value)}; add one, as in datetime.now(UTC)")
    ms = (moment - _EPOCH) // timedelta(milliseconds=1)
    if ms < 0:
        raise ValueError(f"expected an instant after 1970, got {quoted(value)}")
    return ms


class NotCallable(ValueError):
    """A function that its webhook alone may start: it cannot be started around what it verifies."""

    def __init__(self, name: str, paths: Iterable[str]) -> None:
        started = f"{name} is started by its webhook alone, at {', '.join(paths)}"
        super().__init__(f"{started}; add @queue to call it here")


def named(function: Callable[..., Any] | str, package: str) -> str:
    """The name of a function to enqueue, given it or its name. Raises TypeError, ValueError, or NotCallable."""
    if isinstance(function, str):
        if not 0 < len(function) <= 200:
            raise ValueError(f"expected a function's name, got {quoted(function)}")
        _text("function", function)
        return function
    marks = [mark for mark in marks_of(function) if mark.kind != "lifespan"]
    if not marks:
        told = f"expected a function annotated with @queue, or the name of one, got {quoted(function)}"
        raise TypeError(f"{told}; annotate it, in the served folder")
    name = name_of(function, package)
    if all(mark.kind == "webhook" for mark in marks):
        raise NotCallable(name, [str(path) for mark in marks for path in mark.arguments[:1]])
    return name


def packed(function: Callable[..., Any] | str, name: str, payload: object) -> bytes:
    """A payload as it is stored, checked by the function's type where it is given. Raises ValueError."""
    try:
        if payload is None and not isinstance(function, str):
            payload = own_payload(function)
        data = codec.encode(payload, MAX_PAYLOAD_BYTES, "payload")
        if not isinstance(function, str) and (shape := _shape_of(function)).takes_payload:
            codec.convert(codec.decode(data), shape.payload_type)
    except codec.Unfit as error:
        told = f"expected one, as a None does not fit ({error})" if payload is None else str(error)
        raise ValueError(f"payload for {name}: {told}") from None
    return data


def _held(text: object) -> bytes:
    return text.encode("utf-8", "replace") if isinstance(text, str) else b""


def _text(what: str, value: str | None) -> int:
    if value is None:
        return 0
    if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance] # user code calls this
        raise TypeError(f"expected text for {what}=, got {type(value).__name__}")
    size = len(value.encode())  # a lone surrogate is a UnicodeEncodeError here, at the caller's line
    if size > MAX_TEXT:
        raise ValueError(f"expected at most {MAX_TEXT:,} bytes for {what}=, got {size:,}")
    return size
