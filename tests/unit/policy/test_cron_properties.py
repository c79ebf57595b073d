"""Rules against a reference that looks at every minute: over changes of offset, in any zone, forward and back."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from echod.errors import Refused
from echod.policy.cron import parse
from echod.policy.zones import names

MINUTE_MS = 60_000
ZONES = sorted(name for name in names() if not name.startswith("Etc/"))
RESTLESS = [
    "Africa/Casablanca",
    "America/Havana",
    "America/New_York",
    "America/Santiago",
    "America/St_Johns",
    "Antarctica/Casey",
    "Antarctica/Troll",
    "Asia/Gaza",
    "Australia/Lord_Howe",
    "Europe/Berlin",
    "Europe/Dublin",
    "Pacific/Apia",
    "Pacific/Kiritimati",
]


@dataclass(frozen=True)
class Drawn:
    """A field's text, and the values it stands for as far as this file knows."""

    text: str
    values: frozenset[int]


def fields(low: int, high: int) -> st.SearchStrategy[Drawn]:
    values = st.integers(low, high)
    everything = frozenset(range(low, high + 1))
    steps = st.integers(1, high - low).map(lambda step: Drawn(f"*/{step}", frozenset(range(low, high + 1, step))))
    lists = st.sets(values, min_size=1, max_size=4).map(
        lambda some: Drawn(",".join(map(str, sorted(some))), frozenset(some))
    )
    ranges = (
        st.tuples(values, values)
        .map(sorted)
        .map(lambda ends: Drawn(f"{ends[0]}-{ends[1]}", frozenset(range(ends[0], ends[1] + 1))))
    )
    return st.one_of(st.just(Drawn("*", everything)), steps, lists, ranges)


@dataclass(frozen=True)
class Rule:
    minute: Drawn
    hour: Drawn
    day: Drawn
    weekday: Drawn

    @property
    def text(self) -> str:
        return f"{self.minute.text} {self.hour.text} {self.day.text} * {self.weekday.text}"

    def names(self, wall: datetime) -> bool:
        if wall.minute not in self.minute.values or wall.hour not in self.hour.values:
            return False
        in_month, in_week = wall.day in self.day.values, wall.isoweekday() % 7 in self.weekday.values
        if "*" in (self.day.text[0], self.weekday.text[0]):
            return in_month and in_week
        return in_month or in_week

    def due(self, start: datetime, minutes: int, zone: ZoneInfo) -> Iterator[int]:
        """By looking at the clock each minute, as cron's daemon does."""
        reached = (start - timedelta(days=2)).astimezone(zone).replace(tzinfo=None)
        for back in range(2 * 1440, 0, -1):
            reached = max(reached, (start - timedelta(minutes=back)).astimezone(zone).replace(tzinfo=None))
        follows = self.minute.text.startswith("*") or self.hour.text.startswith("*")
        for count in range(minutes):
            instant = start + timedelta(minutes=count)
            wall = instant.astimezone(zone).replace(tzinfo=None)
            if follows:
                is_due = self.names(wall)
            else:
                is_due = any(self.names(passed) for passed in _minutes(reached, wall))
                reached = max(reached, wall)
            if is_due:
                yield int(instant.timestamp()) * 1000


def _minutes(after: datetime, until: datetime) -> Iterator[datetime]:
    while after < until:
        after += timedelta(minutes=1)
        yield after


def mostly_any(low: int, high: int) -> st.SearchStrategy[Drawn]:
    anything = st.just(Drawn("*", frozenset(range(low, high + 1))))
    return st.one_of(anything, anything, anything, fields(low, high))


RULES = st.builds(Rule, fields(0, 59), fields(0, 23), mostly_any(1, 31), mostly_any(0, 6))


def near_a_change(zone: ZoneInfo, start: datetime) -> datetime:
    """The minute of the zone's first change of offset after `start`, within some years; else `start`."""
    offset = start.astimezone(zone).utcoffset()
    for hours in range(0, 3 * 366 * 24, 12):
        later = start + timedelta(hours=hours)
        if later.astimezone(zone).utcoffset() != offset:
            while later.astimezone(zone).utcoffset() != offset:
                later -= timedelta(minutes=1)
            return later
    return start


@settings(max_examples=120, deadline=None)
@given(
    rule=RULES,
    tz=st.one_of(st.sampled_from(RESTLESS), st.sampled_from(ZONES)),
    start=st.datetimes(datetime(1975, 1, 1), datetime(2045, 1, 1)),
    before=st.integers(0, 30 * 60),
    hours=st.one_of(st.none(), st.sets(st.integers(-2, 2), min_size=1)),
)
@example(  # three hours back at two in the morning: local dates interleave
    Rule(
        Drawn("0", frozenset({0})),
        Drawn("23", frozenset({23})),
        Drawn("*", frozenset(range(1, 32))),
        Drawn("*", frozenset(range(7))),
    ),
    "Antarctica/Casey",
    datetime(2010, 1, 1),
    600,
    None,
)
def test_next_and_previous_meet_what_a_look_at_every_minute_finds(
    rule: Rule, tz: str, start: datetime, before: int, hours: set[int] | None
) -> None:
    zone = ZoneInfo(tz)
    change = near_a_change(zone, start.replace(second=0, microsecond=0, tzinfo=UTC))
    begin = change - timedelta(minutes=before)
    if hours:  # the hours about the change, which a rule seldom names by chance
        some = frozenset((change.astimezone(zone).hour + hour) % 24 for hour in hours)
        rule = replace(rule, hour=Drawn(",".join(map(str, sorted(some))), some))
    assume(
        all((begin + timedelta(hours=hours)).astimezone(zone).utcoffset().seconds % 60 == 0 for hours in range(-48, 49))
    )  # type: ignore[union-attr]
    minutes = 2 * 1440
    expected = list(rule.due(begin, minutes, zone))
    try:
        parsed = parse(rule.text, tz)
    except Refused:
        assert not expected
        return
    first, last = int(begin.timestamp()) * 1000, int(begin.timestamp()) * 1000 + (minutes - 1) * MINUTE_MS

    found, instant = [], first - 1
    while (instant := parsed.next_after(instant)) <= last:
        found.append(instant)
    assert found == expected

    found, instant = [], last + 1
    while (instant := parsed.previous(instant)) >= first:
        found.append(instant)
    assert found[::-1] == expected

    around = int(change.timestamp()) * 1000
    for asked in range(max(around - 180 * MINUTE_MS, first), min(around + 180 * MINUTE_MS, last), MINUTE_MS):
        later = [due for due in expected if due > asked]
        earlier = [due for due in expected if due < asked]
        assert not later or parsed.next_after(asked) == later[0]
        assert not earlier or parsed.previous(asked) == earlier[-1]
        assert (parsed.next_after(asked - 1) == asked) == (asked in expected)


@settings(max_examples=200, deadline=None)
@given(rule=RULES, tz=st.sampled_from(ZONES), after=st.integers(0, 4_000_000_000_000))
def test_next_strictly_increases_and_agrees_with_previous(rule: Rule, tz: str, after: int) -> None:
    try:
        parsed = parse(rule.text, tz)
    except Refused:
        return
    first = parsed.next_after(after)
    second = parsed.next_after(first)
    assert after < first < second
    assert parsed.previous(second) == first
    assert parsed.previous(first) <= after
    assert parsed.next_after(first - 1) == first == parsed.next_after(after)
    assert not (second - first > 1000 and parsed.next_after(first + 999) == first + 1000)


@pytest.mark.parametrize("tz", ["UTC", "Europe/Vienna", "Australia/Lord_Howe"])
def test_every_second_means_every_second(tz: str) -> None:
    rule = parse("* * * * * *", tz)
    start = int(datetime(2025, 10, 26, 0, 59, 55, tzinfo=UTC).timestamp()) * 1000
    instant = start
    for count in range(1, 4000):
        instant = rule.next_after(instant)
        assert instant == start + count * 1000
