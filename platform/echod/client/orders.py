"""What a client asks for and hears, in values that no address knows of: orders and records of jobs."""

from __future__ import annotations

import difflib
import hashlib
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from types import UnionType
from typing import Any, NamedTuple, TypedDict, TypeVar, Union, get_args, get_origin

import msgspec

from echod.errors import InvalidPayload, NotCallable, Refused
from echod.model.job import ENDED, Error, Reason, State
from echod.policy import calls
from echofn import children, codec, frames
from echofn.package import package_around
from echofn.quoting import quoted
from echofn.signature import shape_of
from echofn.units import duration_ms

Duration = str | int | float | timedelta
T = TypeVar("T")
KEPT_MS = 60_000  # for how much longer than its client's patience an order is known by its key
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A job to enqueue. `payload` is msgpack; None: as the function's policy says.

    `key` names this request, and is the caller's own (`is_keyed`) or made for the length of the call (`known_ms`).
    """

    function: str
    payload: bytes
    key: str
    lane: str | None = None
    in_ms: int | None = None
    at_ms: int | None = None
    unique: str | None = None
    priority: int | None = None
    durable: bool = False
    is_keyed: bool = False

    @property
    def digest(self) -> str:
        """What the key stands for, at the gateway too."""
        return hashlib.sha256(self.payload).hexdigest()


class Ticket(msgspec.Struct, frozen=True):
    """What is known of a job that was enqueued. `state` None: it has ended, and retention has deleted it since."""

    id: str
    function: str
    state: State | None


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it stands. Instants are UTC; `result` is as JSON has it, bytes as base64, and None before the end."""

    id: str
    function: str
    lane: str
    state: State
    reason: Reason | None
    attempts: int
    failures: int
    due: datetime
    minted: datetime
    started: datetime | None
    ended: datetime | None
    error: Error | None
    result: Any = None
    version: str | None = None
    progress: tuple[float, str] | None = None

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED


class ManyOptions(TypedDict, total=False):
    """Options of many jobs at once; those that are left out are as the function's policy says.

    lane: the fair share. delay ("5m", seconds) or at (an instant with its zone): not before. priority: lower is first.
    """

    lane: str | None
    delay: Duration | None
    at: datetime | str | None
    priority: int | None


class Options(ManyOptions, total=False):
    """Options of one job: those of many, and more.

    unique: a key that one job at a time has, for as long as the function's `until` says. durable: the call returns once
    the job is on disk. key: an idempotency key; for 24 h the same key and payload answer with the first job.
    """

    unique: str | None
    durable: bool
    key: str | None


def check_options(method: str, options: Mapping[str, object], known: Iterable[str]) -> None:
    """Raise TypeError for an option that a method does not have, with one like it."""
    known = sorted(known)
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}=? " if near else ""
            raise TypeError(f"{method}() has no option {name}=; {hint}there are {', '.join(known)}")


class Target(NamedTuple):
    """A function as orders name it, and the type of its results (Any: as they are stored)."""

    name: str
    result_type: Any


def payloads_of(given: Iterable[Any]) -> Iterable[Any]:
    """The payloads of many orders. Raises TypeError for what is none, or one: of text every letter would be a job."""
    kind = type(given)
    if issubclass(kind, str | bytes | bytearray | Mapping) or not hasattr(kind, "__iter__"):
        told = f"expected a list of them, got {quoted(given)} ({kind.__name__})"
        raise TypeError(f"payloads=: {told}; for one job use enqueue(), or put it in a list")
    return given


def unknown(id: str) -> Refused:
    """The error of an id that no job has, in the gateway's words."""
    return Refused(f"no job {id[:40]!r}: {calls.WHY_NO_JOB}")


def target_of(function: Callable[..., Any] | str, package: str | None) -> Target:
    """Whom an order is for. `package` is the served folder's; None: what its module's name says.

    Raises TypeError for what is neither a name nor annotated, NotCallable for what its webhook alone may start.
    """
    if isinstance(function, str):
        return Target(children.named(function, ""), Any)
    try:
        name = children.named(function, package_around(function) if package is None else package)
    except children.NotCallable as error:
        raise NotCallable(str(error)) from None
    shape = shape_of(function)
    return Target(name, _without_errors(shape.result_type) if shape.is_batched else shape.result_type)


def _without_errors(kind: Any) -> Any:
    """The type of one result of a batch: an exception in its place is that job's error, and no result."""
    if get_origin(kind) not in (Union, UnionType):
        return kind
    parts: tuple[Any, ...] = get_args(kind)
    kept = [each for each in parts if not _is_error(each)]
    return Union[tuple(kept)] if kept else Any  # noqa: UP007 # of as many as there are


def _is_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)


def order_of(
    target: Target,
    function: Callable[..., Any] | str,
    payload: object,
    *,
    lane: str | None = None,
    delay: Duration | None = None,
    at: datetime | str | None = None,
    unique: str | None = None,
    priority: int | None = None,
    durable: bool = False,
    key: str | None = None,
) -> Order:
    """An order, checked as far as that needs no echod. Raises InvalidPayload, TypeError or ValueError."""
    check_text("lane", lane)
    for option, text in (("unique", unique), ("key", key)):
        check_text(option, text)
        if text is not None and not 0 < len(text) <= frames.MAX_KEY:
            raise ValueError(f"{option}=: expected 1 to {frames.MAX_KEY} characters, got {len(text)}")
    if not isinstance(durable, bool):  # pyright: ignore[reportUnnecessaryIsInstance] # user code calls this
        raise TypeError(f"durable=: expected True or False, got {durable!r:.100} ({type(durable).__name__})")
    if delay is not None and at is not None:
        raise ValueError("expected delay= or at=, got both")
    if durable and not all(fits_a_header(text) for text in (lane, unique, key)):
        raise ValueError("durable=: expected lane=, unique= and key= of one printable line beside it, got another")
    children.check_priority(priority)
    in_ms = None if delay is None else milliseconds("delay", delay, duration_ms)
    if in_ms is not None and in_ms > frames.FURTHEST_MS:
        raise ValueError(f"delay=: expected at most {frames.FURTHEST_DAYS} days, got {quoted(delay)}")
    return Order(
        function=target.name,
        payload=packed(target, function, payload),
        key=secrets.token_urlsafe(16) if key is None else key,
        lane=lane,
        in_ms=in_ms,
        at_ms=None if at is None else milliseconds("at", at, children.instant_ms),
        unique=unique,
        priority=priority,
        durable=durable,
        is_keyed=key is not None,
    )


def known_ms(patience_s: float) -> int:
    """How long a key that the client made names its job: nobody sends the order again after that."""
    return int(patience_s * 1000) + KEPT_MS


def since_boot_s() -> float:
    """The machine's own clock. Unlike a loop's it goes on while the machine is suspended, as the bus's does."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def packed(target: Target, function: Callable[..., Any] | str, payload: object) -> bytes:
    """A payload as it goes to the bus. Raises InvalidPayload."""
    try:
        return children.packed(function, target.name, payload)
    except ValueError as error:
        raise InvalidPayload(str(error)) from None


def check_text(option: str, text: object, *, required: bool = False) -> None:
    """Raise TypeError or ValueError for what is no text that can be sent; None may stand for one not `required`."""
    if text is None and not required:
        return
    if not isinstance(text, str):
        raise TypeError(f"{option}=: expected text, got {quoted(text)} ({type(text).__name__})")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{option}=: expected text that UTF-8 can hold, got a lone surrogate") from None
    if size > children.MAX_TEXT:
        raise ValueError(f"{option}=: expected at most {children.MAX_TEXT:,} bytes, got {size:,}")


def instant_text(ms: int) -> str:
    """RFC 3339 of milliseconds since the epoch."""
    return (_EPOCH + timedelta(milliseconds=ms)).isoformat()


def fits_a_header(text: str | None) -> bool:
    """Whether a header can say it as it is."""
    return text is None or (text.isprintable() and text == text.strip() and len(text) <= 1_000)


def milliseconds(option: str, value: T, read: Callable[[T], int]) -> int:
    """An option's value in milliseconds. Raises ValueError or TypeError, which names the option."""
    try:
        return read(value)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{option}=: {error}") from None


def result_of(record: Record, result_type: Any) -> Any:
    """A result as the handler's own type. Raises Refused where it does not fit; `record.result` is what is there."""
    if result_type is Any:
        return record.result
    try:
        return codec.convert(record.result, result_type)
    except codec.Unfit as error:
        raise Refused(
            f"the result of {record.id} does not fit what {record.function} says it returns: {error}"
        ) from None
