"""The bus's clock as this host estimates it, and the lease under which it may make ids.

Two clocks: the server's TIME, which decides everything on the bus, and this host's monotonic one, which only measures
how long ago we heard the server. No wall clock of this host is ever read. A driven clock (`dev --clock`, tests) may
stand still; then nothing passes between two words of the server.
"""

from __future__ import annotations

import time

from echod.errors import LeaseGone
from echod.model.ids import JobId, Snowflakes, branded

NODE_LEASE_MS = 60_000  # a node renews its number to this far ahead with each beat
BEAT_S = 20.0  # who waits for news looks by itself once it is so old: news can be lost


def monotonic_ms() -> float:
    return time.monotonic() * 1000


class BusClock:
    """Bus time at the last word from the server, plus monotonic time since unless the clock is `frozen`."""

    def __init__(self) -> None:
        self.frozen = False
        self._bus_ms = 0
        self._heard_ms = monotonic_ms()

    def now_ms(self) -> int:
        return self._bus_ms if self.frozen else self._bus_ms + int(monotonic_ms() - self._heard_ms)

    def hear(self, bus_ms: int, sent_ms: float) -> None:
        """The server said `bus_ms` in answer to what was sent at `sent_ms` (monotonic): half the trip is past."""
        received_ms = monotonic_ms()
        self._bus_ms, self._heard_ms = bus_ms, (sent_ms + received_ms) / 2


class StepWatch:
    """How far the server's clock ran ahead of our monotonic one between two ticks of this pump.

    A step is TIME's advance minus the monotonic time since the last tick. Silence is none: both clocks pass.
    """

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None
        self._outage = self._restarted = False

    def restarted(self) -> None:
        """The server was away a moment ago, before our first tick: nor could others renew what they hold."""
        self._restarted = True

    def outage(self) -> None:
        """The connection was lost: holders may not have been able to renew."""
        self._outage = self._last is not None

    def driven(self) -> None:
        """Somebody moved the clock on purpose: what comes now is no step."""
        self._last = None

    def expected_ms(self) -> int:
        """What TIME should be now at the latest; 0 before a first tick; after an outage TIME at the last, negative."""
        if self._last is None:
            return -1 if self._restarted else 0
        bus_ms, heard_ms = self._last
        if self._outage:
            return -bus_ms
        return bus_ms + int(monotonic_ms() - heard_ms)

    def ticked(self, bus_ms: int, sent_ms: float) -> None:
        """A tick that left at `sent_ms` (monotonic) ran at `bus_ms`. Counted from its sending: a reply that lay unread
        while this process was frozen must not look like a step."""
        self._last = (bus_ms, sent_ms)
        self._outage = self._restarted = False


class IdMaker:
    """Job ids under a leased node number."""

    def __init__(self, clock: BusClock) -> None:
        self._clock = clock
        self._snowflakes: Snowflakes | None = None
        self._number = -1
        self._ends_ms = 0.0

    def lease(self, number: int, sent_ms: float) -> None:
        """The number is ours until a lease after `sent_ms` (monotonic, before the call left)."""
        if self._snowflakes is None or number != self._number:
            self._snowflakes, self._number = Snowflakes(number), number
        self._ends_ms = sent_ms + NODE_LEASE_MS

    def drop(self) -> None:
        self._ends_ms = 0.0

    def reserve(self, count: int) -> int:
        """The first of `count` numbers in a row. Raises LeaseGone past the lease."""
        if self._snowflakes is None or monotonic_ms() >= self._ends_ms:
            raise LeaseGone("expected a leased node number, got none or one past its lease; wait for the next beat")
        return self._snowflakes.take(self._clock.now_ms(), count)

    def job_id(self) -> JobId:
        return JobId(branded("JOB", self.reserve(1)))
