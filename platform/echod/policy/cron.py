"""When a cron rule is due: exact instants, forward and back, in the rule's own zone.

cronsim parses (after our own check, crontext) and says which days match; the walk over wall times and daylight saving
is ours. As in Debian cron a rule whose minute or hour field starts with `*` follows elapsed time: it is due whenever
the clocks show a matching time, in both passes of a fold and never in a gap. Any other is due once per matching wall
time: at the first instant at which the clocks show it *or later*, which is a fold's first pass and a gap's end.

Every question is answered in a bounded number of steps: days are looked for within 45 years (29 February on one weekday
is 40 years apart at most), and a rule for which there are none is refused when it is parsed.
"""

from __future__ import annotations

import functools
from bisect import bisect_left, bisect_right
from calendar import isleap
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta

from cronsim import CronSim, CronSimError
from cronsim.explain import Expression

from echod.errors import Refused
from echod.policy import crontext
from echod.policy.zones import Zone, zone

_DAY = 86_400
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_ONE = timedelta(days=1)
_YEARS_AHEAD = 45
_LAST_MS = 253_000_000_000_000  # year 9987: datetime ends soon after
_SOME_INSTANT = datetime(2024, 1, 1, tzinfo=UTC)
_FAR = 5 * _DAY  # further ahead than any change of offset can shift a wall time, twice over
_NEAR = 2 * _DAY  # further than one can
# One year of each kind: seven first weekdays, leap or not. What matches in none of them matches never.
_KINDS_OF_YEAR = tuple({(date(year, 1, 1).weekday(), isleap(year)): year for year in range(2000, 2028)}.values())


class CronRule:
    """A parsed rule in its zone. Made by `parse`."""

    def __init__(self, canonical: str, where: Zone) -> None:
        self.canonical = canonical
        self.tz = where.name
        self._zone = where
        self._calendar = Calendar(canonical)
        minute, hour = canonical.split()[-5:-3]
        self._follows_elapsed_time = minute.startswith("*") or hour.startswith("*")

    def next_after(self, after_ms: int) -> int:
        """The first due instant strictly after `after_ms`. Raises Refused where there is none."""
        second = _within(after_ms) // 1000
        if self._follows_elapsed_time:
            return self._next_shown(second + 1) * 1000
        return self._zone.first(self._calendar.next(self._zone.reached(second) + 1)) * 1000

    def previous(self, before_ms: int) -> int:
        """The last due instant strictly before `before_ms`. Raises Refused where there is none."""
        second = (_within(before_ms) - 1) // 1000
        if self._follows_elapsed_time:
            return self._last_shown(second) * 1000
        return self._zone.first(self._calendar.previous(self._zone.reached(second))) * 1000

    def _next_shown(self, second: int) -> int:
        """The first instant from `second` on at which the clocks show a matching time."""
        end = second + _YEARS_AHEAD * 366 * _DAY
        while second < end:
            wall = self._zone.wall(second)
            wait = self._calendar.next(wall) - wall
            far = wait > _FAR
            change = self._zone.change_after(second, second + (_NEAR if far else wait))
            if change is not None:
                second = change  # up to here nothing matched; from here the clocks show something else
            elif far:
                second += wait - _NEAR  # no change nearby, so nothing earlier is shown again before then
            else:
                return second + wait
        raise self._never()

    def _last_shown(self, second: int) -> int:
        """The last instant up to `second` at which the clocks showed a matching time."""
        end = second - _YEARS_AHEAD * 366 * _DAY
        while second > end:
            wall = self._zone.wall(second)
            back = wall - self._calendar.previous(wall)
            far = back > _FAR
            change = self._zone.change_before(second - (_NEAR if far else back), second)
            if change is not None:
                second = change - 1
            elif far:
                second -= back - _NEAR
            else:
                return second - back
        raise self._never()

    def _never(self) -> Refused:
        return Refused(f"cron {self.canonical!r}: expected a rule that can fire, got none of its times in {self.tz}")


class Calendar:
    """The wall times that a rule names, without any zone."""

    def __init__(self, canonical: str) -> None:
        try:
            parsed = CronSim(canonical, _SOME_INSTANT)
        except CronSimError as error:  # it finds some of the impossible dates itself
            raise _impossible(canonical) from error
        self._match_day = parsed.match_day
        self._months = frozenset(parsed.months)
        self._hours = sorted(parsed.hours)
        self._minutes = sorted(parsed.minutes)
        self._seconds = sorted(parsed.seconds)
        self._first_time = self._hours[0] * 3600 + self._minutes[0] * 60 + self._seconds[0]
        self._last_time = self._hours[-1] * 3600 + self._minutes[-1] * 60 + self._seconds[-1]
        if not any(self._matches(day) for year in _KINDS_OF_YEAR for day in _days(year, self._months)):
            raise _impossible(canonical)

    def next(self, wall: int) -> int:
        """The first matching wall time at or after `wall`."""
        number, time = divmod(wall, _DAY)
        day = date.fromordinal(_EPOCH_ORDINAL + number)
        found = self._time_from(time) if self._matches(day) else None
        return _wall(day, found) if found is not None else _wall(self._day_after(day), self._first_time)

    def previous(self, wall: int) -> int:
        """The last matching wall time at or before `wall`."""
        number, time = divmod(wall, _DAY)
        day = date.fromordinal(_EPOCH_ORDINAL + number)
        found = self._time_until(time) if self._matches(day) else None
        return _wall(day, found) if found is not None else _wall(self._day_before(day), self._last_time)

    def _matches(self, day: date) -> bool:
        return day.month in self._months and bool(self._match_day(day))

    def _day_after(self, day: date) -> date:
        last_year = min(day.year + _YEARS_AHEAD, 9998)
        day += _ONE
        while day.year <= last_year:
            if day.month not in self._months:
                day = (day.replace(day=28) + 4 * _ONE).replace(day=1)
            elif self._match_day(day):
                return day
            else:
                day += _ONE
        raise Refused(f"expected a day within {_YEARS_AHEAD} years, got none up to {last_year}")

    def _day_before(self, day: date) -> date:
        first_year = max(day.year - _YEARS_AHEAD, 2)
        day -= _ONE
        while day.year >= first_year:
            if day.month not in self._months:
                day = day.replace(day=1) - _ONE
            elif self._match_day(day):
                return day
            else:
                day -= _ONE
        raise Refused(f"expected a day within {_YEARS_AHEAD} years, got none back to {first_year}")

    def _time_from(self, time: int) -> int | None:
        """The first matching second of the day at or after `time`."""
        hour, minute, second = time // 3600, time // 60 % 60, time % 60
        at = bisect_left(self._hours, hour)
        if at < len(self._hours) and self._hours[at] == hour:
            in_hour = bisect_left(self._minutes, minute)
            if in_hour < len(self._minutes) and self._minutes[in_hour] == minute:
                in_minute = bisect_left(self._seconds, second)
                if in_minute < len(self._seconds):
                    return hour * 3600 + minute * 60 + self._seconds[in_minute]
                in_hour += 1
            if in_hour < len(self._minutes):
                return hour * 3600 + self._minutes[in_hour] * 60 + self._seconds[0]
            at += 1
        if at < len(self._hours):
            return self._hours[at] * 3600 + self._minutes[0] * 60 + self._seconds[0]
        return None

    def _time_until(self, time: int) -> int | None:
        """The last matching second of the day at or before `time`."""
        hour, minute, second = time // 3600, time // 60 % 60, time % 60
        at = bisect_right(self._hours, hour) - 1
        if at >= 0 and self._hours[at] == hour:
            in_hour = bisect_right(self._minutes, minute) - 1
            if in_hour >= 0 and self._minutes[in_hour] == minute:
                in_minute = bisect_right(self._seconds, second) - 1
                if in_minute >= 0:
                    return hour * 3600 + minute * 60 + self._seconds[in_minute]
                in_hour -= 1
            if in_hour >= 0:
                return hour * 3600 + self._minutes[in_hour] * 60 + self._seconds[-1]
            at -= 1
        if at >= 0:
            return self._hours[at] * 3600 + self._minutes[-1] * 60 + self._seconds[-1]
        return None


@functools.lru_cache(maxsize=4096)
def parse(rule: str, tz: str = "UTC") -> CronRule:
    """The rule in its zone. Raises Refused for what is no rule, no zone, or could never fire."""
    parsed = CronRule(crontext.canonical(rule), zone(tz))
    parsed.next_after(int(_SOME_INSTANT.timestamp()) * 1000)  # in its zone the time may lie in every year's gap
    return parsed


def describe(rule: str) -> str:
    """A rule in words: "At 06:00 on Monday". Raises Refused."""
    fields = crontext.canonical(rule).split()
    return str(Expression(fields if len(fields) == 6 else ["0", *fields]).explain())


def _days(year: int, months: frozenset[int]) -> Iterator[date]:
    for month in sorted(months):
        day = date(year, month, 1)
        while day.month == month:
            yield day
            day += _ONE


def _wall(day: date, time: int) -> int:
    return (day.toordinal() - _EPOCH_ORDINAL) * _DAY + time


def _within(instant_ms: int) -> int:
    if not -1 <= instant_ms <= _LAST_MS:  # -1: the question whether 1970 itself is due
        raise Refused(f"expected an instant from 1970 to 9987, got {instant_ms} ms")
    return instant_ms


def _impossible(canonical: str) -> Refused:
    return Refused(f"cron {canonical!r}: expected a date that exists, got one that no year has; it would never fire")
