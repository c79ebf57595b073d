"""Context: what a run knows about itself, and what it can ask for.

Light on purpose: `from echofn import Context` loads the standard library's smallest parts only. Instants are on the
bus's clock, not the host's: the supervisor said what time it was when it handed the job over, and only durations are
measured here.
"""

from __future__ import annotations

import time

from echofn.enqueueing import typed
from echofn.quoting import quoted

TYPE_CHECKING = False  # type checkers read this name as true; a handler pays for no import of typing
if TYPE_CHECKING:
    import logging
    from collections.abc import Callable
    from datetime import datetime, timedelta
    from typing import Any, Generic

    from typing_extensions import TypeVar  # known to type checkers everywhere; nothing imports it

    from echofn.frames import Job
    from echofn.run import Run

    StateT = TypeVar("StateT", default=Any)

    class _Parametrised(Generic[StateT]): ...

else:
    StateT = None

    class _Parametrised:
        """Lets `Context[State]` be written, without an import of typing."""

        __slots__ = ()
        __class_getitem__ = classmethod(type(list[int]))


_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PROGRESS_S = 0.1  # pages look once a second: more is noise on the channel


class _OfJob:
    """What is said of one job: a run's, or one of a batch's."""

    __slots__ = ("_job", "_run")

    def __init__(self, run: Run, job: Job) -> None:
        self._run = run
        self._job = job

    @property
    def job_id(self) -> str:
        """The job's id: the same in each of its runs, and no other job's."""
        return self._job.id

    @property
    def attempt(self) -> int:
        """1 on its first run; grows with each charged one."""
        return self._job.attempt

    @property
    def last_attempt(self) -> bool:
        """Whether the job is dead if this run fails."""
        return self._job.last_attempt

    @property
    def fence(self) -> int:
        """How often the job was claimed: grows with every claim, so that an effect can refuse an older run."""
        return self._job.fence

    @property
    def due(self) -> datetime:
        """When it was due."""
        return _instant(self._job.due_ms)


class Context(_OfJob, _Parametrised[StateT]):
    """Given to a handler that has a parameter `ctx`, or one of this type; `Context[State]` says what `ctx.state` is."""

    __slots__ = ("_last_progress", "_session")

    def __init__(self, run: Run) -> None:
        super().__init__(run, run.job)
        self._session = run.session
        self._last_progress = 0.0

    def __repr__(self) -> str:
        return f"<Context of {self._job.id}, attempt {self._job.attempt} of {self.function}>"

    # ---- this run ----

    @property
    def function(self) -> str:
        """The function's name: "shop.pack"."""
        return self._session.function.name

    @property
    def lane(self) -> str:
        """The job's lane; "-" without one."""
        return self._job.lane

    @property
    def manual(self) -> bool:
        """Whether a person asked for this occurrence (run now, backfill)."""
        return self._job.manual

    @property
    def previous(self) -> datetime | None:
        """Recurrences: the due instant before this one."""
        return None if self._job.previous_ms is None else _instant(self._job.previous_ms)

    @property
    def next(self) -> datetime | None:
        """Recurrences: the due instant after this one."""
        return None if self._job.next_ms is None else _instant(self._job.next_ms)

    @property
    def deadline(self) -> datetime:
        """When this run is to end."""
        return _instant(self._run.now_ms + self._job.timeout_ms + self._run.extended_ms)

    @property
    def version(self) -> str:
        """The version of the code: "DEP…"."""
        return self._session.version

    @property
    def env(self) -> str:
        """ "dev" or "prod"."""
        return self._session.env

    @property
    def log(self) -> logging.Logger:
        """A logger whose lines land in this job's log."""
        return self._session.logger

    # ---- asking for something ----

    def progress(self, fraction: float, note: str = "") -> None:
        """Say how far this run is, from 0 to 1. Cheap: at most ten a second are sent, and always the last one."""
        try:
            is_one = 0 <= fraction <= 1
        except TypeError:  # user code calls this: "0.5"
            is_one = False
        if not is_one:
            raise ValueError(f"expected a fraction from 0 to 1, got {quoted(fraction)}")
        now = time.monotonic()
        at_once = now - self._last_progress >= _PROGRESS_S
        self._run.progress(float(fraction), str(note), at_once=at_once)
        if at_once:
            self._last_progress = now

    @typed
    def enqueue(
        self,
        function: Callable[..., Any] | str,
        payload: object = None,
        *,
        lane: str | None = None,
        delay: str | float | timedelta | None = None,
        at: datetime | str | None = None,
        unique: str | None = None,
        priority: int | None = None,
    ) -> str:
        """Ask for a job of another function; returns its id. The job is minted when this run ends well, and only then.

        In a batch it is minted when any job of the batch ends well; `ctx.jobs[n].enqueue` is for a child of one job.
        `unique` (1 to 255 characters): no second job of that function under this key. Whether the key is taken shows
        when the run ends; if it is, no job is minted, and the returned id stays unused. `delay`, `at`: up to 3,660 days
        ahead. Raises TypeError or ValueError for a job that cannot be minted, RuntimeError past 1,000 children or
        1 MiB, or after the run's end.
        """
        number = self._run.children.add(
            function, payload, lane=lane, delay=delay, at=at, unique=unique, priority=priority
        )
        return id_of(number)

    def extend(self, duration: str | float | timedelta) -> None:
        """Move this run's deadline by so much ("5m", seconds, timedelta), to at most 7 days after its start.

        Raises ValueError for a value that is no duration, RuntimeError once the run is to end.
        """
        from echofn.units import duration_ms  # only a handler that waits pays for it

        self._run.extend(duration_ms(duration))

    @property
    def cancelled(self) -> bool:
        """Whether this run is to end: somebody cancelled the job, or its deadline has passed.

        A sync handler that runs for long asks now and then, and returns or raises when this is true. A handler that has
        asked gets 5 s after its deadline; one that never asked is ended at its deadline. In an async handler an `await`
        raises CancelledError instead. A run that knew and ended is cancelled (or timed out), whatever it returned.
        """
        return self._run.is_asked()

    @property
    def state(self) -> StateT:
        """What the module's @lifespan yielded: `ctx.state.http`, or the object itself if it is no mapping."""
        state: StateT = self._session.state
        return state

    @property
    def jobs(self) -> tuple[BatchJob, ...]:
        """The jobs of this run, one for each payload of a batch, in the same order; without `batch=` it is one.

        In a batch `ctx.attempt` is the largest of its jobs; the other attributes are those of the first job.
        """
        return tuple(BatchJob(self._run, job, number) for number, job in self._run.members)


class BatchJob(_OfJob):
    """One job of a run: what `ctx.jobs` holds."""

    __slots__ = ("_number",)

    def __init__(self, run: Run, job: Job, number: int | None) -> None:
        super().__init__(run, job)
        self._number = number

    def __repr__(self) -> str:
        return f"<{self._job.id}, attempt {self._job.attempt}>"

    @typed
    def enqueue(
        self,
        function: Callable[..., Any] | str,
        payload: object = None,
        *,
        lane: str | None = None,
        delay: str | float | timedelta | None = None,
        at: datetime | str | None = None,
        unique: str | None = None,
        priority: int | None = None,
    ) -> str:
        """As `ctx.enqueue`, for this job alone: minted when it ends well, whatever becomes of the others."""
        number = self._run.children.add(
            function, payload, lane=lane, delay=delay, at=at, unique=unique, priority=priority, owner=self._number
        )
        return id_of(number)


def _instant(ms: int) -> datetime:
    from datetime import UTC, datetime, timedelta

    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def id_of(number: int) -> str:
    """The id of the job with this snowflake."""
    digits = ""
    for _ in range(11):
        number, rest = divmod(number, 62)
        digits = _DIGITS[rest] + digits
    return "JOB" + digits
