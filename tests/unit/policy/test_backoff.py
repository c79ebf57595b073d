import pytest
from hypothesis import given
from hypothesis import strategies as st

from echod.policy.backoff import wait_ms
from echofn.manifest import Constant, Exponential, Linear, Waits


@pytest.mark.parametrize(
    ("failures", "longest"), [(1, 500), (2, 1_000), (3, 2_000), (11, 512_000), (12, 600_000), (10_000, 600_000)]
)
def test_exponential_waits_double_up_to_the_cap(failures: int, longest: int) -> None:
    assert wait_ms(Exponential(), failures, 1.0) == longest
    assert wait_ms(Exponential(), failures, 0.0) == 0
    assert wait_ms(Exponential(), failures, 0.25) == longest // 4


@given(st.integers(0, 10**6), st.floats(0, 1), st.integers(1, 10**9), st.integers(1, 10**9))
def test_jitter_stays_within_its_bounds(failures: int, roll: float, base: int, cap: int) -> None:
    assert 0 <= wait_ms(Exponential(base, cap), failures, roll) <= cap


def test_linear_waits_grow_by_their_base_up_to_the_cap() -> None:
    assert [wait_ms(Linear(700, 2_000), failures, 0.5) for failures in (0, 1, 2, 3, 99)] == [700, 700, 1400, 2000, 2000]


def test_a_constant_wait_is_the_same_each_time() -> None:
    assert [wait_ms(Constant(700), failures, 0.5) for failures in (1, 2, 99)] == [700, 700, 700]


def test_the_last_wait_of_a_list_repeats() -> None:
    assert [wait_ms(Waits((10, 20, 30)), failures, 0.5) for failures in (0, 1, 2, 3, 4, 99)] == [10, 10, 20, 30, 30, 30]
    assert wait_ms(Waits(()), 1, 0.5) == 0
