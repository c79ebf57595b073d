"""A time zone as two mappings between instants and wall times, in whole seconds.

A *wall time* is what the zone's clocks show, counted like an epoch second (days * 86400 + seconds of the day). It
repeats in a fold and jumps over a gap; every question about either is answered here and nowhere else.
"""

from __future__ import annotations

import difflib
import functools
import importlib.resources
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from echod.errors import Refused

_EPOCH = datetime(1970, 1, 1)
_PROBE = 6 * 3600  # no zone has ever changed its offset twice within six hours
_SECOND = timedelta(seconds=1)


class Zone:
    """What one zone's clocks show, and when."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._info = UTC if name == "UTC" else ZoneInfo(name)

    def offset(self, second: int) -> int:
        """Seconds east of UTC at an instant."""
        if self._info is UTC:
            return 0
        return _seconds(datetime.fromtimestamp(second, self._info).utcoffset())

    def wall(self, second: int) -> int:
        """What the clocks show at an instant."""
        return second + self.offset(second)

    def first(self, wall: int) -> int:
        """The first instant at which the clocks show `wall` or later: a fold's first pass, a gap's end."""
        if self._info is UTC:
            return wall
        naive = _EPOCH + wall * _SECOND
        second = wall - _seconds(naive.replace(tzinfo=self._info, fold=0).utcoffset())
        if self.wall(second) == wall:
            return second
        before = wall - _seconds(naive.replace(tzinfo=self._info, fold=1).utcoffset())
        return self._bisect(before, second)

    def reached(self, second: int) -> int:
        """The latest wall time that the clocks have shown up to an instant: in a second pass, the end of the first."""
        if self._info is UTC:
            return second
        moment = datetime.fromtimestamp(second, self._info)
        wall = second + _seconds(moment.utcoffset())
        if not moment.fold:
            return wall
        return self.wall(self._bisect(self.first(wall), second) - 1)

    def change_after(self, low: int, high: int) -> int | None:
        """The first instant in (low, high] with another offset than the one before it."""
        if self._info is UTC:
            return None
        offset = self.offset(low)
        while low < high:
            probe = min(low + _PROBE, high)
            if self.offset(probe) != offset:
                return self._bisect(low, probe)
            low = probe
        return None

    def change_before(self, low: int, high: int) -> int | None:
        """The last instant in (low, high] with another offset than the one before it."""
        if self._info is UTC:
            return None
        offset = self.offset(high)
        while low < high:
            probe = max(high - _PROBE, low)
            if self.offset(probe) != offset:
                return self._bisect(probe, high)
            high = probe
        return None

    def _bisect(self, low: int, high: int) -> int:
        """The instant of the one change in (low, high]."""
        offset = self.offset(low)
        while high - low > 1:
            middle = (low + high) // 2
            if self.offset(middle) == offset:
                low = middle
            else:
                high = middle
        return high


@functools.cache
def names() -> frozenset[str]:
    """Every zone there is, spelled as in the IANA database."""
    return frozenset(importlib.resources.files("tzdata").joinpath("zones").read_text("ascii").split())


@functools.lru_cache(maxsize=1024)
def zone(name: str) -> Zone:
    """The zone of that exact name. Raises Refused: never silently UTC, never the host's own zone."""
    if name not in names():
        shown = repr(name if len(name) <= 40 else name[:39] + "…")
        raise Refused(f"expected a time zone like 'Europe/Berlin' or 'UTC', got {shown}{_nearest(name)}")
    return Zone(name)


def _nearest(name: str) -> str:
    wanted = name.lower()[:40]
    by_lower = {known.lower(): known for known in names()}
    close = difflib.get_close_matches(wanted, by_lower, n=1, cutoff=0.75)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else ""


def _seconds(offset: timedelta | None) -> int:
    assert offset is not None  # every ZoneInfo has one
    return offset // _SECOND
