"""How much is taken in: requests by path and client, and none at all while the loop is late.

The first is a token bucket, written as the instant at which it is full again (GCRA): one number per bucket, and nothing
to do while nobody asks. The second is measured by a timer that stands only in the second after a request came: what it
rings late by, smoothed, is how long every other request waits; more of them are turned away in time.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

import msgspec

from echod.config import Config, is_loopback
from echod.gateway.problems import Problem
from echofn.units import rate

DEFAULT_LIMIT = "1000/s"  # of clients beyond this machine
LOGIN_LIMIT = "30/m"  # of everybody: guesses
OFF = "off"
_MOST_BUCKETS = 16_384
_LONGEST_PATH = 200


class Buckets:
    """Token buckets of one rate, each with one period's worth of tokens, by any key; the least used go first."""

    def __init__(self, limit: str) -> None:
        self.count, self.period_ms = rate(limit)
        self._full_at: OrderedDict[tuple[str, str], float] = OrderedDict()

    def wait_s(self, key: tuple[str, str], now_s: float) -> float:
        """Take a token: 0.0; or how long until there is one."""
        one_s = self.period_ms / 1000 / self.count
        full_at = max(self._full_at.get(key, now_s), now_s)
        wait_s = full_at + one_s - (now_s + self.period_ms / 1000)
        if wait_s > 1e-9:
            return wait_s
        self._full_at[key] = full_at + one_s
        self._full_at.move_to_end(key)
        if len(self._full_at) > _MOST_BUCKETS:
            self._full_at.popitem(last=False)
        return 0.0


_INERTIA = 8  # samples it takes for lateness to show: a cold start imports for a second or two, and is no overload


class Pace(msgspec.Struct, frozen=True):
    """When the loop counts as late. A sample counts `most_s` at most: a few stalls turn nobody away."""

    every_s: float = 0.05
    watched_s: float = 1.0
    late_s: float = 0.25
    most_s: float = 0.4


class Lag:
    """How late the loop is, in seconds, while requests come."""

    def __init__(self, pace: Pace | None = None) -> None:
        self._pace = pace or Pace()
        self._timer: asyncio.TimerHandle | None = None
        self._expected = self._until = 0.0
        self.seconds = 0.0

    @property
    def is_late(self) -> bool:
        return self.is_watching and self.seconds > self._pace.late_s

    @property
    def is_watching(self) -> bool:
        return self._timer is not None

    def arrived(self) -> None:
        """A request came: watch for a while."""
        loop = asyncio.get_running_loop()
        self._until = loop.time() + self._pace.watched_s
        if self._timer is None:
            self.seconds = 0.0
            self._arm(loop)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._expected = loop.time() + self._pace.every_s
        self._timer = loop.call_at(self._expected, self._rang)

    def _rang(self) -> None:
        loop = asyncio.get_running_loop()
        late_s = min(max(loop.time() - self._expected, 0.0), self._pace.most_s)
        self.seconds += (late_s - self.seconds) / _INERTIA
        self._timer = None
        if loop.time() < self._until:
            self._arm(loop)


class Intake:
    """What a gateway takes in. `check` raises the problem that a request too many is."""

    def __init__(self, config: Config) -> None:
        limit = config.request_limit
        self._by_path = None if limit == OFF else Buckets(limit or DEFAULT_LIMIT)
        self._spares_local = limit is None
        self._logins = None if limit == OFF else Buckets(LOGIN_LIMIT)
        self.lag = Lag()

    def check(self, method: str, path: str, client: str) -> None:
        """Count a request. Raises `busy`, or `too-many-requests` with when to come again."""
        self.lag.arrived()
        if self.lag.is_late:
            raise Problem("busy", f"this gateway is {self.lag.seconds * 1000:.0f} ms behind; try again later")
        now_s = asyncio.get_running_loop().time()
        wait_s = 0.0
        if self._logins is not None and method == "POST" and path == "/login":
            wait_s = self._logins.wait_s((client, path), now_s)
        if not wait_s and self._by_path is not None and not (self._spares_local and is_loopback(client)):
            wait_s = self._by_path.wait_s((client, path[:_LONGEST_PATH]), now_s)
        if wait_s:
            seconds = max(1, -int(-wait_s // 1))
            raise Problem(
                "too-many-requests",
                f"expected fewer requests for this path from one client; try again in {seconds} s",
                headers={"Retry-After": str(seconds)},
            )
