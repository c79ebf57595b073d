"""What becomes of the jobs of a worker that is gone, and when the next one may start.

Those that it died of are charged, the others go back. One that could not start, or ended before it ever answered, makes
its pool wait before it tries again, longer each time: a broken module must not become a loop of forks.
"""

from __future__ import annotations

import asyncio

from echod import log
from echod.supervisor.events import Departure, PoolEvents
from echod.supervisor.leases import Lease, instant
from echod.supervisor.life import blame
from echod.supervisor.line import Line
from echod.supervisor.worker import Worker
from echofn import frames

_log = log.get("supervisor")

BACK_OFF_S = 0.2
BACK_OFF_CAP_S = 30.0
EXCUSED = 3  # ends before any job began, one after the other, after which the job in hand pays


class Losses:
    """Of one pool, whose jobs wait in `waiting`."""

    def __init__(self, function: str, events: PoolEvents, waiting: Line) -> None:
        self._function, self._events, self._waiting = function, events, waiting
        self._loop = asyncio.get_running_loop()
        self._failures = 0  # workers in a row that never answered a job
        self._not_before = 0.0
        self._timers: set[asyncio.TimerHandle] = set()

    @property
    def may_start(self) -> bool:
        """Whether it is time for the next try."""
        return instant() >= self._not_before

    def answered(self) -> None:
        """A worker did its work: the next failure is the first again."""
        self._failures = 0

    def mourn(self, worker: Worker, departure: Departure) -> None:
        """It died in the middle of its jobs."""
        fate = blame(list(departure.begun), departure.culprits, departure.why)
        _log.warning(
            "worker.died",
            worker=worker.id,
            function=self._function,
            jobs=[lease.job.id for lease in departure.begun],
            charged=[lease.job.id for lease in fate.charged],
            cause=departure.cause,
            why=departure.why,
        )
        for lease in fate.charged:
            self._waiting.clear(lease)
            self._events.crashed(worker, lease, departure)
        self._waiting.suspect(fate.suspects)
        back = fate.spared + fate.suspects
        if back:
            self._events.released(back)

    def barren(self, worker: Worker, departure: Departure, unbegun: list[Lease], *, is_last: bool) -> None:
        """It never answered a job: wait before the next try. Where nothing else can run the jobs, one of them pays.

        `unbegun`: what it had in hand; who pays is taken out. `is_last`: the pool has no other worker.
        """
        self._failures += 1
        failed = departure.failed or frames.Failed(*_why_not(departure))
        cause = departure.failed.cause if departure.failed else departure.cause
        _log.warning(
            "worker.not_started", worker=worker.id, function=self._function, failures=self._failures,
            error=f"{failed.exception}: {failed.message}",
        )  # fmt: skip
        self._back_off()
        if departure.was_ready and self._failures < EXCUSED:
            return
        if unbegun:
            self._events.not_started(unbegun.pop(0), failed, cause)
        elif self._waiting and is_last:
            first, *rest = self._waiting.take_all()
            self._waiting.put_back(rest)
            self._events.not_started(first, failed, cause)
        if is_last:
            self.give_back()

    def not_hired(self, error: Exception, *, is_last: bool) -> None:
        """There is not even a process: wait before the next try."""
        _log.error("worker.not_started", function=self._function, error=f"{type(error).__name__}: {error}")
        self._failures += 1
        self._back_off()
        if is_last:
            self.give_back()

    def give_back(self) -> None:
        """All that waits goes back to its lanes."""
        if leases := self._waiting.take_all():
            self._events.released(leases)

    def wake_in(self, wait_s: float) -> None:
        """Have the pool plan again then."""
        self._timers = {timer for timer in self._timers if not timer.cancelled() and timer.when() > self._loop.time()}
        self._timers.add(self._loop.call_later(wait_s, self._events.moved))

    def close(self) -> None:
        """No timer stays."""
        for timer in self._timers:
            timer.cancel()

    def _back_off(self) -> None:
        wait_s = min(BACK_OFF_S * 2 ** min(self._failures - 1, 10), BACK_OFF_CAP_S)
        self._not_before = instant() + wait_s
        self.wake_in(wait_s + 0.001)


def _why_not(departure: Departure) -> tuple[str, str, str]:
    """Type, message, traceback for a worker that ended without a word."""
    if departure.why == "startup":
        return "StartTimeout", departure.detail, ""
    return "StartFailed", departure.detail or f"the worker ended before its first job ({departure.cause})", ""
