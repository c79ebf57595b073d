"""Planning: how much is claimed and handed over ahead of its turn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echod.policy.slots import (
    BUDGET_US,
    MOST_BYTES,
    MOST_JOBS,
    Call,
    Load,
    Pace,
    Rest,
    Soon,
    depth,
    hungry,
    next_call,
    observed,
    shares,
    wanted,
)


def load(*held: int, starting: int = 0, waiting: int = 0, startable: int = 0, depth: int = 1, at_once: int = 1) -> Load:
    return Load(held=held, starting=starting, waiting=waiting, startable=startable, depth=depth, at_once=at_once)


def paced(wall_us: int, payload_bytes: int = 10) -> Pace:
    return observed(Pace(), wall_us, payload_bytes)


@pytest.mark.parametrize(
    ("pace", "size"),
    [
        (Pace(), 1),  # nobody timed it yet
        (paced(20), MOST_JOBS),
        (paced(1_000), 50),
        (paced(10_000), 5),
        (paced(49_000), 1),
        (paced(5_000_000), 1),
        (paced(0), MOST_JOBS),
        (paced(20, 1_000_000), 1),  # large payloads are not piled up
        (paced(20, 100_000), 10),
    ],
)
def test_a_worker_holds_at_most_fifty_milliseconds_of_work(pace: Pace, size: int) -> None:
    assert depth(pace) == size


def test_with_priorities_nothing_is_taken_ahead_of_its_turn() -> None:
    assert depth(paced(20), ordered=True) == 1


@pytest.mark.parametrize(
    ("pace", "ordered", "size"),
    [
        (Pace(), False, 10),  # nobody timed it, and none waits behind another
        (paced(5_000_000), False, 10),
        (paced(20), True, 10),
        (paced(10_000), False, 50),  # 50 ms of work for each of the ten
        (paced(20), False, MOST_JOBS),
        (paced(20, 1_000_000), False, 10),
    ],
)
def test_a_worker_that_runs_ten_at_once_holds_ten_and_the_next(pace: Pace, ordered: bool, size: int) -> None:
    assert depth(pace, at_once=10, ordered=ordered) == size


def test_one_slow_run_ends_fetch_ahead_at_once() -> None:
    pace = paced(100)
    for _ in range(100):
        pace = observed(pace, 100, 10)
    assert depth(pace) == MOST_JOBS
    assert depth(observed(pace, 2_000_000, 10)) == 1


def test_a_run_that_the_machine_held_up_hardly_counts() -> None:
    assert depth(observed(paced(50), 4_000, 10)) >= MOST_JOBS // 2


@given(st.integers(0, 10**9), st.integers(0, 1 << 20))
def test_never_more_than_the_budget_unless_it_is_one_job(wall_us: int, payload_bytes: int) -> None:
    size = depth(paced(wall_us, payload_bytes))
    assert 1 <= size <= MOST_JOBS
    assert size == 1 or (size * wall_us <= BUDGET_US and size * payload_bytes <= MOST_BYTES)


@pytest.mark.parametrize(
    ("state", "count"),
    [
        (load(startable=2), 1),  # the first job starts one worker, not two
        (load(starting=1, startable=1, depth=10, at_once=10), 11),  # ten for it, one to start another for
        (load(0, startable=1), 2),
        (load(1, startable=1), 1),
        (load(1, 1), 0),
        (load(1, 0), 1),
        (load(1, 1, startable=2), 2),  # twice as many workers each time
        (load(1, 1, 1, 1, startable=28), 4),
        (load(starting=1, waiting=1, startable=1), 1),
        (load(starting=2, waiting=2), 0),
        (load(10, 60, depth=64), 58),
        (load(64, 64, depth=64), 0),
        (load(70, depth=64), 0),  # the size has shrunk since
        (load(waiting=5), 0),  # nobody to run anything
        (load(0, waiting=5), 0),
    ],
)
def test_what_can_be_held_is_claimed_and_no_more(state: Load, count: int) -> None:
    assert wanted(state) == count


@given(
    st.lists(st.integers(0, 200), max_size=8),
    st.integers(0, 8),
    st.integers(0, 400),
    st.integers(0, 8),
    st.integers(1, MOST_JOBS),
)
def test_claims_never_exceed_hands(held: list[int], starting: int, waiting: int, startable: int, depth: int) -> None:
    state = load(*held, starting=starting, waiting=waiting, startable=startable, depth=depth)
    room = sum(max(depth - each, 0) for each in held) + starting + startable
    assert 0 <= wanted(state) <= max(room - waiting, 0)


def test_a_worker_below_half_is_hungry() -> None:
    assert hungry(load(64, 32, depth=64))
    assert not hungry(load(64, 33, depth=64))
    assert hungry(load(0, depth=1))
    assert not hungry(load(1, depth=1))


@pytest.mark.parametrize(
    ("state", "verdicts", "rung", "closed", "decision"),
    [
        (load(0), 0, False, False, Rest()),  # idle: no call at all
        (load(0), 0, True, False, Call(1)),
        (load(1), 0, True, False, Rest()),  # rung, but no hands
        (load(0), 1, False, False, Call(1)),  # the next claim rides on the settle
        (load(1), 1, False, False, Call(0)),
        (load(0), 1, True, True, Call(0)),  # draining: settled, nothing claimed
        (load(0), 0, True, True, Rest()),
        (load(60, 50, depth=64), 20, True, False, Soon()),
        (load(60, 50, depth=64), 20, False, False, Call(18)),  # nothing to wait for
        (load(60, 20, depth=64), 40, True, False, Call(48)),
        (load(startable=1), 1, True, False, Call(1)),
    ],
)
def test_the_next_call(state: Load, verdicts: int, rung: bool, closed: bool, decision: object) -> None:
    assert next_call(state, verdicts=verdicts, rung=rung, closed=closed) == decision


@pytest.mark.parametrize(
    ("count", "held", "depth", "given_out"),
    [
        (0, [0, 0], 5, (0, 0)),
        (3, [], 5, ()),
        (1, [3, 0], 5, (0, 1)),
        (4, [0, 0], 5, (2, 2)),
        (5, [4, 0], 5, (0, 5)),
        (9, [5, 5], 5, (0, 0)),
        (9, [7, 0], 5, (0, 5)),
        (100, [0, 0, 0], 10, (10, 10, 10)),
        (2, [0, 0, 0], 1, (1, 1, 0)),
    ],
)
def test_jobs_are_shared_out_level(count: int, held: list[int], depth: int, given_out: tuple[int, ...]) -> None:
    assert shares(count, held, depth) == given_out


@given(st.integers(0, 500), st.lists(st.integers(0, 130), max_size=8), st.integers(1, 128))
def test_shares_fit_and_are_level(count: int, held: list[int], depth: int) -> None:
    given_out = shares(count, held, depth)
    assert sum(given_out) == min(count, sum(max(depth - each, 0) for each in held))
    after = [before + got for before, got in zip(held, given_out, strict=True)]
    assert all(got == 0 or level <= depth for got, level in zip(given_out, after, strict=True))
    fed = [level for got, level in zip(given_out, after, strict=True) if got]
    assert not fed or all(level >= max(fed) - 1 or level >= depth for level in after)
