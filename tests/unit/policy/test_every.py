import pytest
from hypothesis import given
from hypothesis import strategies as st

from echod.errors import Refused
from echod.policy import every
from echod.policy.every import EveryRule


@given(st.integers(1, 10**10), st.integers(-(10**13), 10**13), st.integers(0, 10**13))
def test_dues_are_the_anchor_and_whole_periods(period: int, anchor: int, instant: int) -> None:
    after, before = every.next_after(period, anchor, instant), every.previous(period, anchor, instant)
    assert before < instant < after
    assert (after - anchor) % period == (before - anchor) % period == 0
    assert after - before == (period if (instant - anchor) % period else 2 * period)


def test_dues_are_aligned_to_the_epoch_without_an_anchor() -> None:
    assert EveryRule(20_000).next_after(1_800_000_047_000) == 1_800_000_060_000


def test_the_canonical_rule_tells_periods_and_anchors_apart() -> None:
    assert EveryRule(20_000).canonical == EveryRule(20_000, 40_000).canonical == "every 20s"
    assert EveryRule(90_000, 5_000).canonical == "every 90s from 5s"


@pytest.mark.parametrize("period", [0, -1, 999])
def test_a_period_below_a_second_is_refused(period: int) -> None:
    with pytest.raises(Refused, match="at least 1s"):
        EveryRule(period)
