"""When the runs of one worker are to end. A run is told at its deadline, and is over after its grace.

Told first are those that hear it: async runs, and sync ones that have asked for ctx.cancelled. The others are over at
their deadline. One timer serves all runs of a worker: it is moved when it fires too early, not with every job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Literal

from echod.supervisor.channel import Fault
from echod.supervisor.leases import Lease, instant
from echofn.frames import MAX_RUN_MS

MOST_EXTENSIONS = 1_000_000  # of one run
_SLACK_S = 0.001  # a timer may fire this early


class Deadlines:
    """`look` takes in what the worker has said by now; `tell` asks a run to end; `over` gets those that did not."""

    def __init__(
        self,
        running: Mapping[int, Lease],
        *,
        look: Callable[[], object],
        tell: Callable[[Lease], None],
        over: Callable[[list[Lease]], None],
    ) -> None:
        self._running = running
        self._look, self._tell, self._over = look, tell, over
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._rings_at = 0.0  # uvloop's handle of an instant that has come does not say when
        self._closed = False

    def begin(self, lease: Lease) -> None:
        """A run has begun: its time counts from now."""
        policy = lease.function.policy
        self._set(lease, self._loop.time() + (policy.grace_ms if lease.told else policy.timeout_ms) / 1000)

    def extend(self, lease: Lease, by_ms: int) -> None:
        """The run asks for more. Too late for one that was told to end. Raises Fault when it never stops asking."""
        lease.extensions += 1
        if lease.extensions > MOST_EXTENSIONS:
            raise Fault(f"expected at most {MOST_EXTENSIONS} words of more time, got more")
        if lease.told is None and lease.begun is not None:
            latest = self._loop.time() - (instant() - lease.begun) + MAX_RUN_MS / 1000
            lease.deadline = max(lease.deadline, min(lease.deadline + by_ms / 1000, latest))

    def interrupt(self, lease: Lease, why: Literal["timeout", "cancelled"]) -> None:
        """Ask a run to end, begun or not; the first reason stands."""
        if lease.told is not None:
            return
        lease.told = why
        self._tell(lease)
        if lease.index in self._running:
            self._set(lease, self._loop.time() + lease.function.policy.grace_ms / 1000)

    def close(self) -> None:
        """The worker is on its way out."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _set(self, lease: Lease, at: float) -> None:
        lease.deadline = at
        if not self._closed and (self._timer is None or self._rings_at > at):
            self._arm(at)

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._rings_at = self._loop.call_at(at, self._fire), at

    def _fire(self) -> None:
        self._timer = None
        self._look()  # an answer that has arrived counts
        if self._closed:
            return
        due = [lease for lease in self._running.values() if lease.deadline <= self._loop.time() + _SLACK_S]
        over = [lease for lease in due if lease.told is not None or not _hears(lease)]
        for lease in due:
            if lease not in over:
                self.interrupt(lease, "timeout")
        if over:
            self._over(over)
        elif self._running:
            self._arm(min(lease.deadline for lease in self._running.values()))


def _hears(lease: Lease) -> bool:
    return lease.function.is_async or lease.listens
