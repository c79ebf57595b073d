import math

from hypothesis import given
from hypothesis import strategies as st

from echod.policy.buckets import bounds, index, percentiles


@given(st.floats(1, 1e12))
def test_a_value_lies_within_its_bucket(value: float) -> None:
    low, high = bounds(index(value))
    assert low * (1 - 1e-9) <= value < high * (1 + 1e-9)


def test_all_below_a_millisecond_share_one_bucket() -> None:
    assert {index(value) for value in (-5, 0, 0.001, 0.999, 1)} == {0}
    assert bounds(0) == (0.0, 1.1)


@given(st.lists(st.integers(1, 10**7), min_size=1, max_size=300))
def test_percentiles_are_off_by_a_tenth_at_most(values: list[int]) -> None:
    histogram: dict[int, int] = {}
    for value in values:
        histogram[index(value)] = histogram.get(index(value), 0) + 1
    shares = (0.5, 0.95, 0.99, 1.0)
    for share, found in zip(shares, percentiles(histogram, shares), strict=True):
        exact = sorted(values)[max(math.ceil(share * len(values)), 1) - 1]
        assert found is not None
        assert exact / 1.11 - 1 <= found <= exact * 1.11 + 1


def test_without_a_count_there_is_no_percentile() -> None:
    assert percentiles({}, [0.5, 0.99]) == [None, None]
    assert percentiles({3: 0}, [0.5]) == [None]
