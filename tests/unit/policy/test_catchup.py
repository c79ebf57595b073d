"""Backlogs: every due instant is minted or counted, once; which one is governed by grace and policy."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echod.errors import Refused
from echod.policy.catchup import GRACE_MS, LIMIT, Missed, Plan, plan
from echod.policy.cron import parse
from echod.policy.every import EveryRule

NOW = 1_800_000_000_000
POLICIES: tuple[Missed, ...] = ("skip", "last", "all")


def whole(
    rule: EveryRule, due_ms: int, now_ms: int, missed: Missed, cap: int, limit: int
) -> tuple[int, list[int], int, int]:
    """All pieces of a plan: dropped, minted, next, number of pieces."""
    dropped, minted, pieces = 0, [], 0
    while True:
        piece = plan(rule, due_ms, now_ms, missed=missed, cap=cap, limit=limit)
        assert piece.drop + len(piece.mint) <= limit
        assert not (piece.drop and minted), "a drop after a mint"
        dropped, minted, due_ms, pieces = dropped + piece.drop, minted + list(piece.mint), piece.next_ms, pieces + 1
        if not piece.more:
            return dropped, minted, due_ms, pieces


@settings(deadline=None)
@given(
    period=st.integers(1_000, 100_000),
    backlog_ms=st.integers(-50_000, 3_000_000),
    missed=st.sampled_from(POLICIES),
    cap=st.integers(0, 50),
    limit=st.integers(1, 200),
)
def test_each_due_instant_has_exactly_one_outcome(
    period: int, backlog_ms: int, missed: Missed, cap: int, limit: int
) -> None:
    rule = EveryRule(period)
    due = rule.next_after(NOW - backlog_ms)
    all_due = list(range(due, NOW + 1, period))
    on_time = [instant for instant in all_due if instant >= NOW - GRACE_MS]
    late = [instant for instant in all_due if instant < NOW - GRACE_MS]
    match missed:
        case "skip":
            wanted = on_time
        case "last":
            wanted = on_time or late[-1:]
        case "all":
            wanted = (late[-cap:] if cap else []) + on_time

    dropped, minted, next_ms, _ = whole(rule, due, NOW, missed, cap, limit)
    assert minted == wanted
    assert dropped == len(all_due) - len(wanted)
    assert next_ms == (all_due[-1] + period if all_due else due)


@pytest.mark.parametrize(("missed", "minted"), [("skip", 0), ("last", 1), ("all", 100)])
def test_a_thousand_due_minutes(missed: Missed, minted: int) -> None:
    rule, now = parse("* * * * *"), NOW + 30_000
    found = plan(rule, NOW - 999 * 60_000, now, missed=missed, cap=100, limit=10_000)
    assert found.drop == 1000 - minted
    assert found.mint == tuple(NOW - n * 60_000 for n in reversed(range(minted)))


def test_ten_seconds_late_is_on_time_and_a_millisecond_more_is_not() -> None:
    rule = parse("* * * * *")
    assert plan(rule, NOW, NOW + 10_000, missed="skip").mint == (NOW,)
    assert plan(rule, NOW, NOW + 10_001, missed="skip") == Plan(1, (), NOW + 60_000, more=False, dropped_ms=NOW)


def test_what_is_not_due_yet_waits() -> None:
    assert plan(EveryRule(1_000), NOW + 1, NOW) == Plan(0, (), NOW + 1, more=False)


def test_a_year_of_seconds_comes_in_bounded_pieces() -> None:
    rule = parse("* * * * * *", "Europe/Berlin")
    found = plan(rule, NOW - 365 * 86_400_000, NOW)
    last_ms = NOW - 365 * 86_400_000 + (LIMIT - 1) * 1000
    assert found == Plan(LIMIT, (), last_ms + 1000, more=True, dropped_ms=last_ms)


def test_a_rule_without_a_next_instant_is_refused_and_not_dropped() -> None:
    class Ends:
        tz, canonical = "UTC", "ends"

        def next_after(self, after_ms: int) -> int:
            raise Refused("expected another instant")

        previous = next_after

    with pytest.raises(Refused):
        plan(Ends(), NOW, NOW)
