"""Exact instants of cron rules, over daylight saving and odd calendars. (A3) and the like name a field report."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import process_time
from zoneinfo import ZoneInfo

import pytest

from echod.errors import Refused
from echod.policy.cron import describe, parse

CASES = json.loads((Path(__file__).parents[2] / "data" / "cron.json").read_text())


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def text(instant_ms: int) -> str:
    return datetime.fromtimestamp(instant_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def following(rule: str, tz: str, after: str, count: int) -> list[str]:
    parsed, instant, found = parse(rule, tz), ms(after), []
    for _ in range(count):
        instant = parsed.next_after(instant)
        found.append(text(instant))
    return found


@pytest.mark.parametrize("case", CASES, ids=[f"{case['expr']} {case['tz']} {case['why']}" for case in CASES])
def test_a_rule_is_due_at_exactly_these_instants(case: dict) -> None:
    assert following(case["expr"], case["tz"], case["after"], len(case["expect"])) == case["expect"]


@pytest.mark.parametrize("case", CASES, ids=[f"{case['expr']} {case['tz']} {case['why']}" for case in CASES])
def test_going_back_meets_the_same_instants(case: dict) -> None:
    rule, expected = parse(case["expr"], case["tz"]), [ms(instant) for instant in case["expect"]]
    assert [rule.previous(instant) for instant in expected[1:]] == expected[:-1]
    assert all(rule.next_after(instant - 1) == instant for instant in expected)
    assert not any(rule.next_after(instant) == instant + 1 for instant in expected)


@pytest.mark.parametrize(
    ("rule", "tz", "after", "expected"),
    [
        # the last due instant lies in the first pass, the pump starts again in the second (A3, A9)
        ("30 * * * *", "Europe/Helsinki", "2017-10-29T00:30:00Z", ["2017-10-29T01:30:00Z", "2017-10-29T02:30:00Z"]),
        ("30 * * * *", "Europe/Helsinki", "2017-10-29T01:45:00Z", ["2017-10-29T02:30:00Z"]),
        ("*/5 * * * *", "America/New_York", "2026-11-01T05:58:00Z", ["2026-11-01T06:00:00Z", "2026-11-01T06:05:00Z"]),
        # a fixed time is not repeated in the second pass, whenever one asks (A3, A11)
        ("30 1 * * *", "America/New_York", "2026-11-01T06:10:00Z", ["2026-11-02T06:30:00Z"]),
        ("30 1 * * *", "America/New_York", "2026-11-01T05:30:00Z", ["2026-11-02T06:30:00Z"]),
        # hourly and daily keep their own hour over both changes (A14)
        ("0 3 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", ["2026-10-25T02:00:00Z", "2026-10-26T02:00:00Z"]),
        ("0 0 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", ["2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"]),
        # a star in the minute or the hour follows elapsed time: nothing in the gap, both passes of the fold
        ("*/30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", ["2026-03-30T00:00:00Z", "2026-03-30T00:30:00Z"]),
        (
            "*/30 2 * * *",
            "Europe/Berlin",
            "2026-10-24T12:00:00Z",
            ["2026-10-25T00:00:00Z", "2026-10-25T00:30:00Z", "2026-10-25T01:00:00Z", "2026-10-25T01:30:00Z"],
        ),
        # with seconds the minute and the hour decide, too: sixty walls in the gap are one instant, the fold counts once
        ("* 30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]),
        ("15 30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", ["2026-10-25T00:30:15Z", "2026-10-26T01:30:15Z"]),
        # a range that means every hour is still no star
        ("0 0-23 * * *", "US/Pacific", "2026-11-01T07:30:00Z", ["2026-11-01T08:00:00Z", "2026-11-01T10:00:00Z"]),
        # a zone that leaves out a whole day
        ("0 9 * * *", "Pacific/Apia", "2011-12-29T12:00:00Z", ["2011-12-29T19:00:00Z", "2011-12-30T10:00:00Z"]),
        # midnight comes twice
        ("0 0 * * *", "America/Havana", "2026-10-31T12:00:00Z", ["2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"]),
        # a star in one day field makes both count, a stepped one too (Debian)
        ("0 0 */10 * 1", "UTC", "2026-01-01T00:00:00Z", ["2026-05-11T00:00:00Z", "2026-06-01T00:00:00Z"]),
        ("0 0 13 * */5", "UTC", "2026-01-01T00:00:00Z", ["2026-02-13T00:00:00Z", "2026-03-13T00:00:00Z"]),
        ("0 9 * * 1", "UTC", "2026-01-01T00:00:00Z", ["2026-01-05T09:00:00Z", "2026-01-12T09:00:00Z"]),
        # leap days, over the year 2100 that has none (B2)
        ("0 9 29 2 *", "UTC", "2096-03-01T00:00:00Z", ["2104-02-29T09:00:00Z"]),
        ("0 0 29 2 */6", "UTC", "2026-01-01T00:00:00Z", ["2032-02-29T00:00:00Z", "2048-02-29T00:00:00Z"]),
        ("0 0 * 2 4#5", "UTC", "2026-01-01T00:00:00Z", ["2052-02-29T00:00:00Z", "2080-02-29T00:00:00Z"]),
        ("0 5 LW * *", "UTC", "2027-01-15T00:00:00Z", ["2027-01-29T05:00:00Z", "2027-02-26T05:00:00Z"]),
        ("0 0 * * 2#5", "UTC", "2026-01-01T00:00:00Z", ["2026-03-31T00:00:00Z", "2026-06-30T00:00:00Z"]),
    ],
)
def test_a_rule_is_due_next(rule: str, tz: str, after: str, expected: list[str]) -> None:
    assert following(rule, tz, after, len(expected)) == expected


@pytest.mark.parametrize("day", ["2019-10-06", "2026-04-05", "2026-10-04"])
def test_a_change_of_thirty_minutes_loses_no_hour_in_either_direction(day: str) -> None:  # A1
    rule, zone = parse("0 * * * *", "Australia/Lord_Howe"), ZoneInfo("Australia/Lord_Howe")
    start = datetime.fromisoformat(day).replace(tzinfo=zone) - timedelta(hours=6)
    minutes = [start.astimezone(UTC) + timedelta(minutes=count) for count in range(36 * 60)]
    expected = [int(each.timestamp() * 1000) for each in minutes if each.astimezone(zone).minute == 0]
    last = None
    for minute in minutes:
        instant = int(minute.timestamp() * 1000)
        assert (rule.next_after(instant - 1) == instant) == (instant in expected)
        if instant in expected:
            last = instant
        elif last is not None:
            assert rule.previous(instant) == last


def test_aliases_are_the_rules_they_stand_for() -> None:
    assert [
        parse(alias).canonical
        for alias in ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually")
    ] == ["0 * * * *", "0 0 * * *", "0 0 * * *", "0 0 * * 0", "0 0 1 * *", "0 0 1 1 *", "0 0 1 1 *"]


@pytest.mark.parametrize(
    ("rules", "canonical"),
    [
        (("0 6 * * mon", "00 06 * * MON", " 0  6 * * 1 ", "0 0 6 * * 1", "0-0 6 */1 * 1,1"), "0 6 * * 1"),
        (("0 0 * * 7", "0 0 * * sun", "0 0 * * Sun", "@weekly"), "0 0 * * 0"),
        (("0 0 5,1,1 feb,JAN *", "0 0 1,5 1,2 *"), "0 0 1,5 1,2 *"),
        (("5/15 * * * *",), "5/15 * * * *"),
        (("0 0 lw * 5l", "0 0 LW * friL"), "0 0 LW * 5L"),
        (("*,5 * * * *",), "*,5 * * * *"),  # it starts with a star, the next one does not
        (("5,* * * * *",), "5,* * * * *"),
        (("30 0 6 * * *",), "30 0 6 * * *"),
    ],
)
def test_equal_rules_have_one_canonical_spelling(rules: tuple[str, ...], canonical: str) -> None:
    assert {parse(rule).canonical for rule in rules} == {canonical}
    assert parse(canonical).canonical == canonical


def test_a_rule_in_words() -> None:
    assert describe("0 6 * * mon") == "At 06:00 on Monday"
    assert describe("*/10 * * * * *") == "Every 10th second of every minute"


def test_the_furthest_date_is_found_quickly() -> None:
    started = process_time()
    assert following("0 0 29 2 */6", "Europe/Berlin", "2096-03-01T00:00:00Z", 1) == ["2116-02-28T23:00:00Z"]
    assert process_time() - started < 0.5  # ten times what it takes


def test_an_instant_outside_the_calendar_is_refused() -> None:
    rule = parse("* * * * *")
    for instant in (-2, 253_000_000_000_001, 10**30):
        with pytest.raises(Refused, match="expected an instant"):
            rule.next_after(instant)
    assert rule.next_after(-1) == 0
