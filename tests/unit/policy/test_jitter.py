"""Jitter: always the same for one instant, spread over the instants and over the recurrences."""

from __future__ import annotations

import pytest

from echod.errors import Refused
from echod.policy.jitter import check, job_due
from echod.policy.recurring import rule_of
from echofn.manifest import CronTrigger, EveryTrigger, Recurring

NOON = 1_780_315_200_000
MINUTE = 60_000
HOURLY = CronTrigger("report", "0 * * * *", jitter_ms=10 * MINUTE)


def offset(id: str, due_ms: int = NOON, jitter_ms: int = 10 * MINUTE) -> int:
    return job_due(id, EveryTrigger("r", 3_600_000, jitter_ms=jitter_ms), due_ms) - due_ms


def test_without_jitter_a_job_is_due_at_its_instant() -> None:
    assert offset("f/r", jitter_ms=0) == 0


def test_the_offset_of_an_instant_is_always_the_same() -> None:
    """Golden values: a pump of another version of echod must say the same."""
    assert [offset("shop.tick/report", NOON + n * 60 * MINUTE) for n in range(3)] == GOLDEN


GOLDEN = [37_395, 103_051, 200_185]


def test_offsets_lie_within_the_jitter_and_are_spread_over_it() -> None:
    found = sorted(offset("f/r", NOON + n * MINUTE) for n in range(1000))
    assert 0 <= found[0] < MINUTE
    assert 9 * MINUTE < found[-1] < 10 * MINUTE
    assert 4 * MINUTE < found[500] < 6 * MINUTE
    assert len({offset(f"f{n}/r") for n in range(100)}) > 90  # one instant, many functions


@pytest.mark.parametrize(
    ("trigger", "most"),
    [
        (EveryTrigger("r", MINUTE, jitter_ms=MINUTE), "1m"),
        (CronTrigger("r", "*/5 * * * *", jitter_ms=5 * MINUTE), "5m"),
        (CronTrigger("r", "0 9,10 * * mon-fri", jitter_ms=120 * MINUTE), "1h"),
        (CronTrigger("r", "0 6 * * *", "Europe/Berlin", jitter_ms=24 * 60 * MINUTE), "23h"),  # the day with the gap
    ],
)
def test_a_jitter_beyond_the_next_instant_is_refused(trigger: Recurring, most: str) -> None:
    with pytest.raises(Refused, match=f"jitter: expected less than {most}, the rule's shortest period"):
        check(rule_of(trigger), trigger)


@pytest.mark.parametrize(
    "trigger",
    [
        HOURLY,
        EveryTrigger("r", MINUTE, jitter_ms=MINUTE - 1),
        EveryTrigger("r", MINUTE),
        CronTrigger("r", "0 0 29 2 *", jitter_ms=7 * 86_400_000),
    ],
)
def test_a_shorter_one_is_taken(trigger: Recurring) -> None:
    check(rule_of(trigger), trigger)
