"""Limits intake in three ways: rate per client and path, requests at once, and lateness of the loop.

The first is a token bucket, written as the instant at which it is full again (GCRA): one number per bucket, and nothing
to do while nobody asks. The second is found as TCP finds it: the bound grows by one for each full round that was quick
enough, and is cut when a request under it was not (RFC 5681, additive increase, multiplicative decrease). A burst that
one turn of the loop takes in shows no lateness yet; it is this bound that it meets. The third is measured by a timer
that stands only in the second after a request came: what it rings late by, smoothed, is how long every other request
waits, whatever keeps the loop. What waits in the kernel, to be accepted or read, the loop does not see: many requests
in a row that lay there for too long are lateness, too.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

import msgspec
from starlette.datastructures import QueryParams

from echod.config import Config, is_loopback
from echod.gateway.problems import Problem
from echofn.units import rate

DEFAULT_LIMIT = "1000/s"  # of clients beyond this machine
LOGIN_LIMIT = "30/m"  # of everybody: guesses of a token, and of a link's code
OFF = "off"
_STRANGERS_BYTES = 64 * 1024 * 1024  # of bodies on their way whose senders showed no token; apart, so that they keep
_CALLERS_BYTES = 256 * 1024 * 1024  # nobody out who showed one
_ARCHIVES = 4  # of deploys at once: each is held whole, packed and unpacked, until it is switched to
_STEP_BYTES = 16 * 1024
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


_SOME = 8
_INERTIA = 8  # samples it takes for lateness to show: a cold start imports for a second or two, and is no overload


class Pace(msgspec.Struct, frozen=True):
    """When the loop counts as late. A sample counts `most_s` at most: a few stalls turn nobody away.

    One with `flood` requests in it counts at once, and up to `worst_s`: then it is they who keep the loop.
    """

    every_s: float = 0.05
    watched_s: float = 1.0
    late_s: float = 0.25
    most_s: float = 0.4
    flood: int = 64
    worst_s: float = 1.0


class Lag:
    """How late the loop is, in seconds, while requests come."""

    def __init__(self, pace: Pace | None = None) -> None:
        self._pace = pace or Pace()
        self._timer: asyncio.TimerHandle | None = None
        self._expected = self._until = 0.0
        self._arrivals = 0  # in the sample being taken
        self._was_busy = False  # in the one before it
        self._overdue = 0  # requests in a row that lay unread for too long
        self._unread_s = 0.0  # the last of them
        self.seconds = 0.0

    @property
    def is_late(self) -> bool:
        return self.is_watching and self.behind_s > self._pace.late_s

    @property
    def behind_s(self) -> float:
        """How long a request waits now."""
        return max(self.seconds, self._unread_s if self._overdue >= self._pace.flood else 0.0)

    @property
    def is_busy(self) -> bool:
        """Whether so many came lately that it is worth asking how long each had lain unread."""
        return self._was_busy or self._arrivals >= _SOME

    @property
    def is_watching(self) -> bool:
        return self._timer is not None

    def arrived(self, unread_s: float | None = None) -> None:
        """A request came, and had lain in the kernel for so long, None where that was not asked: watch for a while."""
        loop = asyncio.get_running_loop()
        self._arrivals += 1
        if unread_s is not None:
            self._overdue = self._overdue + 1 if unread_s > self._pace.late_s else 0
            self._unread_s = unread_s
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
        late_s = max(loop.time() - self._expected, 0.0)
        self.seconds += (min(late_s, self._pace.most_s) - self.seconds) / _INERTIA
        if self._arrivals >= self._pace.flood:
            self.seconds = max(self.seconds, min(late_s, self._pace.worst_s))
        self._was_busy = self._arrivals >= _SOME
        self._arrivals = 0
        if not self._was_busy:
            self._overdue = 0
        self._timer = None
        if loop.time() < self._until:
            self._arm(loop)


class Aim(msgspec.Struct, frozen=True):
    """How soon requests should be answered, and between which bounds their number is looked for."""

    within_s: float = 0.5
    least: int = 16
    first: int = 128
    most: int = 512
    cut: float = 0.7


class Crowd:
    """The requests that are being worked on, and how many may be.

    One that waits for something else (its own body, a result) is none of them.
    """

    def __init__(self, aim: Aim | None = None) -> None:
        self._aim = aim or Aim()
        self.size = 0
        self.limit = float(self._aim.first)
        self._cut_at = 0.0

    @property
    def is_full(self) -> bool:
        return self.size >= int(self.limit)

    def entered(self) -> int:
        """One more; the size with it."""
        self.size += 1
        return self.size

    def left(self, began_s: float, now_s: float, among: int) -> None:
        """One less, which came when there were `among`. Few that take their time say nothing about the many."""
        self.size -= 1
        if among * 2 < self.limit:
            return
        if now_s - began_s <= self._aim.within_s:
            self.limit = min(self.limit + 1 / self.limit, self._aim.most)
        elif began_s >= self._cut_at:  # those from before the last cut say again what was heard
            self.limit = max(self.limit * self._aim.cut, self._aim.least)
            self._cut_at = now_s


class Bodies:
    """The bodies that have come in part, in bytes, and how many they may be together.

    Each is bounded by its own limit, those who send them are not: thousands that stop before their end are gigabytes.
    Where there is no room, the slowest goes: whose last `_STEP_BYTES` came the longest ago, and more than `quiet_s`. So
    whoever stalls, or drips, keeps nobody out; and none that comes well is cut off for one that comes later.
    """

    def __init__(self, most: int, quiet_s: float = 2.0) -> None:
        self._most, self._quiet_s = most, quiet_s
        self.size = 0
        self._steps: OrderedDict[Work, float] = OrderedDict()  # when each took its last step, the longest ago first

    def grew(self, work: Work, size_bytes: int) -> None:
        """So much more of a body. Raises `busy` where there is no room for it."""
        now_s = asyncio.get_running_loop().time()
        while self.size + size_bytes > self._most:
            slowest, since_s = next(iter(self._steps.items()), (work, now_s))
            if slowest is work or now_s - since_s < self._quiet_s:
                raise busy("expected fewer bodies on their way at once")
            slowest.shed()
        self.size += size_bytes
        has_stepped = work.held_bytes % _STEP_BYTES + size_bytes >= _STEP_BYTES
        if has_stepped or work not in self._steps:
            self._steps[work] = now_s
            self._steps.move_to_end(work)

    def left(self, work: Work) -> None:
        """It takes no room any more."""
        self.size -= work.held_bytes
        self._steps.pop(work, None)


class Work:
    """One request's place in the crowd: from when it has come whole until its answer, or its waiting, begins.

    Until it has come whole it has one among the bodies instead. One that came at a stroke never needs that.
    """

    __slots__ = ("_among", "_began_s", "_bodies", "_crowd", "_reader", "held_bytes", "is_shed")

    def __init__(self, crowd: Crowd, bodies: Bodies) -> None:
        self._crowd: Crowd | None = crowd
        self._bodies = bodies
        self._reader: asyncio.Task[object] | None = None  # who waits for the rest of the body
        self.held_bytes = 0
        self.is_shed = False
        self._among = 0
        self._began_s = 0.0

    def grew(self, size_bytes: int) -> None:
        """A part of its body came, not the last. Raises `busy` where there is no room for it."""
        if self._crowd is not None:
            self._bodies.grew(self, size_bytes)
            self.held_bytes += size_bytes
            self._reader = asyncio.current_task()

    def shed(self) -> None:
        """Give up its body, for others' sake."""
        self.end()
        self.is_shed = True
        if self._reader is not None:
            self._reader.cancel()  # in its `receive`, which says so

    def begin(self) -> None:
        """Take the place, once. Raises `busy` where there is none."""
        self._let_go()
        if self._crowd is None or self._among:
            return
        if self._crowd.is_full:
            self._crowd = None
            raise busy("expected fewer requests at once")
        self._began_s = asyncio.get_running_loop().time()
        self._among = self._crowd.entered()

    def end(self) -> None:
        """Leave it, for good."""
        self._let_go()
        crowd, self._crowd = self._crowd, None
        if crowd is not None and self._among:
            crowd.left(self._began_s, asyncio.get_running_loop().time(), self._among)

    def _let_go(self) -> None:
        if self.held_bytes:
            self._bodies.left(self)
            self.held_bytes = 0


def busy(why: str) -> Problem:
    """Come again in a moment."""
    return Problem("busy", f"{why}; try again later")


class Intake:
    """What a gateway takes in. A flood is turned away by its connections, before anything is made for a request."""

    def __init__(self, config: Config) -> None:
        limit = config.request_limit
        self._by_path = None if limit == OFF else Buckets(limit or DEFAULT_LIMIT)
        self._spares_local = limit is None
        self._logins = None if limit == OFF else Buckets(LOGIN_LIMIT)
        self.lag = Lag()
        self.crowd = Crowd()
        self.strangers = Bodies(_STRANGERS_BYTES)
        self.callers = Bodies(_CALLERS_BYTES)
        self.archives = asyncio.Semaphore(_ARCHIVES)

    def turned_away(self, unread_s: float | None) -> Problem | None:
        """Count a request, which lay in the kernel for so long; `busy` where there is no room for it."""
        self.lag.arrived(unread_s)
        if self.lag.is_late:
            return busy(f"this gateway is {self.lag.behind_s * 1000:.0f} ms behind")
        return busy("expected fewer requests at once") if self.crowd.is_full else None

    def check(self, method: str, path: str, client: str, query: bytes = b"") -> None:
        """Take a request's token. Raises `too-many-requests` with when to come again."""
        now_s = asyncio.get_running_loop().time()
        wait_s = 0.0
        if self._logins is not None and path == "/login" and (method == "POST" or "code" in QueryParams(query)):
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
