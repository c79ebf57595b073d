"""A context that stands on nothing: to call a function as the plain function it is, and to see what it asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import msgspec

from echofn import codec
from echofn.children import Children, instant_ms
from echofn.context import Context, id_of
from echofn.frames import Job
from echofn.lifespans import state_of
from echofn.package import package_around
from echofn.run import TOO_LATE, extended_ms
from echofn.signature import own_payload
from echofn.values import some_time, switch, whole

MOST_RUNS = 2**31  # of one job: more than a clock has time for
ReadT = TypeVar("ReadT")
START = datetime(2026, 1, 5, tzinfo=UTC)  # a Monday: where the clock of every test stands at first


class Enqueued(NamedTuple):
    """One `ctx.enqueue`. `function` is the name ("shop.pack"), `payload` the object that was given."""

    id: str
    function: str
    payload: Any
    lane: str | None = None
    delay: str | float | timedelta | None = None
    at: datetime | str | None = None
    unique: str | None = None
    priority: int | None = None


class FakeContext(Context):
    """A `Context` that remembers. It refuses what production refuses: a payload that does not fit, a child more than
    1,000, more time for a run that is to end.

    `state` and `cancelled` answer what was given. `enqueued`: the calls of `ctx.enqueue`, in order · `progressed`:
    (fraction, note) of each `ctx.progress` · `extended`: milliseconds of each `ctx.extend` ·
    `records`: what `ctx.log` was given, as `logging` records; `lines`: their texts.
    """

    def __init__(self, run: _Run) -> None:
        stand_in: Any = run
        super().__init__(stand_in)
        self.enqueued = run.children.enqueued
        self.progressed = run.progressed
        self.extended = run.extended
        self.records = run.session.logger.records

    @property
    def lines(self) -> list[str]:
        return [record.getMessage() for record in self.records]


def fake_context(
    *,
    function: str = "test.function",
    job_id: str = "JOB00000000000",
    attempt: int = 1,
    attempts: Sequence[int] = (),
    last_attempt: bool = False,
    fence: int | None = None,
    lane: str = "-",
    due: datetime = START,
    previous: datetime | None = None,
    next: datetime | None = None,
    manual: bool = False,
    timeout: str | float | timedelta = "60s",
    version: str = "DEP00000000000",
    env: str = "dev",
    state: object = None,
    cancelled: bool = False,
) -> FakeContext:
    """A context for a call of a handler in a test. Each argument sets the attribute of its name.

    Times stand still at `due`, with their zone; ids of enqueued jobs are JOB00000000001, JOB00000000002, … `fence` is
    the attempt unless given. `attempts` makes a context of a batch, with a job for each. `state` stands for what a
    lifespan would yield: a mapping's values become attributes. Raises ValueError for a value that no run can have, such
    as `attempt=0`.
    """
    _check(
        attempt=attempt, fence=1 if fence is None else fence, **{f"attempts[{n}]": a for n, a in enumerate(attempts)}
    )
    for option, value in (("last_attempt", last_attempt), ("manual", manual), ("cancelled", cancelled)):
        _read(option, switch, value)
    due_ms = instant_ms(due)
    attempt = max(attempts, default=attempt)
    job = Job(
        id=job_id,
        payload=codec.NIL,
        attempt=attempt,
        last_attempt=last_attempt,
        fence=attempt if fence is None else fence,
        lane=lane,
        due_ms=due_ms,
        previous_ms=None if previous is None else instant_ms(previous),
        next_ms=None if next is None else instant_ms(next),
        timeout_ms=_read("timeout", some_time, timeout),
        first_child=1,
        manual=manual,
    )
    session = SimpleNamespace(
        function=SimpleNamespace(name=function), version=version, env=env, logger=_Logger(function),
        state=state_of("the test", state),
    )  # fmt: skip
    members = [
        msgspec.structs.replace(job, id=f"JOBbatch{number:06}" if number else job_id, attempt=each, fence=each)
        for number, each in enumerate(attempts)
    ]
    return FakeContext(_Run(job, members or [job], session, due_ms, cancelled))


def _check(**counts: int) -> None:
    for option, value in counts.items():
        _read(option, whole(1, MOST_RUNS), value)


def _read(option: str, read: Callable[[Any], ReadT], value: object) -> ReadT:
    try:
        return read(value)
    except ValueError as error:
        raise ValueError(f"{option}=: {error}") from None


class _Run:
    """As much of a run as a context asks for."""

    def __init__(
        self, job: Job, members: Sequence[Job], session: SimpleNamespace, now_ms: int, cancelled: bool
    ) -> None:
        self.job = job
        self.session = session
        self.now_ms = now_ms
        self.members = tuple((None, each) for each in members)
        self.children = _Children(now_ms)
        self.progressed: list[tuple[float, str]] = []
        self.extended: list[int] = []
        self._cancelled = cancelled

    @property
    def extended_ms(self) -> int:
        return extended_ms(self.job.timeout_ms, sum(self.extended))

    def extend(self, by_ms: int) -> None:
        if self._cancelled:
            raise RuntimeError(TOO_LATE)
        self.extended.append(by_ms)

    def is_asked(self) -> bool:
        return self._cancelled

    def progress(self, fraction: float, note: str, *, at_once: bool) -> None:
        """All of them, also those that a worker would leave out as too many."""
        self.progressed.append((fraction, note))


class _Children(Children):
    """A run's children, which keeps what they were made of as it was given, too."""

    __slots__ = ("enqueued",)

    def __init__(self, now_ms: int) -> None:
        super().__init__(1, "", now_ms)
        self.enqueued: list[Enqueued] = []

    def add(
        self, function: Callable[..., Any] | str, payload: object, *, owner: int | None = None, **wishes: Any
    ) -> int:
        self._package = package_around(function)
        number = super().add(function, payload, owner=owner, **wishes)
        child = self._children[-1]
        if payload is None and not isinstance(function, str):
            payload = own_payload(function)
        self.enqueued.append(Enqueued(id_of(number), child.function, payload, **wishes))
        return number


class _Logger(logging.Logger):
    """Keeps its records, and passes them on: `caplog` and the report of a failed test see them, too."""

    def __init__(self, name: str) -> None:
        super().__init__(name, logging.INFO)
        self.records: list[logging.LogRecord] = []
        self.parent = logging.getLogger()

    def handle(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        super().handle(record)
