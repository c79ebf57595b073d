"""Token buckets, and the loop's lateness."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from echod.config import Config
from echod.gateway.limits import Aim, Bodies, Buckets, Crowd, Intake, Lag, Pace, Work
from echod.gateway.problems import Problem


def test_a_bucket_gives_a_periods_worth_at_once_and_then_one_at_a_time() -> None:
    buckets = Buckets("10/s")
    key = ("client", "/path")
    assert [buckets.wait_s(key, 100.0) for _ in range(10)] == [0.0] * 10
    assert buckets.wait_s(key, 100.0) == pytest.approx(0.1)
    assert buckets.wait_s(key, 100.1) == 0.0
    assert buckets.wait_s(key, 100.1) == pytest.approx(0.1)
    assert [buckets.wait_s(key, 200.0) for _ in range(11)].count(0.0) == 10
    assert buckets.wait_s(("other", "/path"), 200.0) == 0.0
    assert buckets.wait_s(("client", "/other"), 200.0) == 0.0


def test_strangers_paths_take_bounded_memory() -> None:
    buckets = Buckets("10/s")
    for number in range(40_000):
        buckets.wait_s(("client", str(number)), 1.0)
    assert len(buckets._full_at) <= 16_384


@pytest.mark.parametrize(
    ("limit", "client", "passes"),
    [(None, "127.0.0.1", True), (None, "10.0.0.7", False), ("1000/s", "127.0.0.1", False), ("off", "10.0.0.7", True)],
)
async def test_the_default_spares_this_machine_and_a_limit_that_was_set_spares_nobody(
    limit: str | None, client: str, passes: bool
) -> None:
    intake = Intake(Config(request_limit=limit))
    many(intake, client)
    if passes:
        many(intake, client)
    else:
        with pytest.raises(Problem) as raised:
            many(intake, client, 10_000)
        assert (raised.value.slug, raised.value.headers["Retry-After"]) == ("too-many-requests", "1")
    intake.lag.close()


def many(intake: Intake, client: str, count: int = 1000) -> None:
    for _ in range(count):
        intake.check("GET", "/jobs", client)


Pass = Callable[[float], Awaitable[None]]


@pytest.fixture
async def passes(monkeypatch: pytest.MonkeyPatch) -> Pass:
    """Let so many seconds pass on the loop's clock in one go, and what was due in them be done. Else it stands."""
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)

    async def passed(seconds: float) -> None:
        nonlocal now
        now += seconds
        for _ in range(3):
            await asyncio.sleep(0)

    return passed


async def test_a_few_stalls_are_not_lateness_and_a_row_of_them_is(passes: Pass) -> None:
    """A cold start imports for a second or two; that must not refuse the first page."""
    lag = Lag()
    for stalls in range(1, 13):
        lag.arrived()
        await passes(0.6)
        assert not (lag.is_late and stalls <= 5)
    assert lag.is_late
    for _ in range(30):
        await passes(Pace().every_s)
    assert (lag.is_watching, lag.is_late) == (False, False)


async def test_a_stall_that_many_requests_make_is_lateness_at_once(passes: Pass) -> None:
    for arrivals, is_late in ((63, False), (64, True)):
        lag = Lag()
        for _ in range(arrivals):
            lag.arrived()
        await passes(0.6)
        assert lag.is_late == is_late
        lag.close()


async def test_many_in_a_row_that_lay_unread_are_lateness_until_one_did_not() -> None:
    lag = Lag(Pace(flood=16, late_s=0.25))
    for _ in range(16):
        assert not lag.is_late
        lag.arrived(0.5)
    assert lag.is_late
    assert lag.behind_s == 0.5
    lag.arrived()  # not asked
    assert lag.is_late
    lag.arrived(0.1)
    assert not lag.is_late
    lag.close()


def test_a_crowd_may_grow_while_it_is_answered_in_time_and_is_cut_when_not() -> None:
    crowd = Crowd(Aim(within_s=0.5, least=4, first=8, most=10))
    for _ in range(400):  # full and quick
        for _ in range(int(crowd.limit)):
            among = crowd.entered()
        assert crowd.is_full
        for _ in range(crowd.size):
            crowd.left(100.0, 100.4, among)
    assert (crowd.size, crowd.limit) == (0, 10)
    for _ in range(10):
        among = crowd.entered()
    for _ in range(10):  # one slow round cuts once
        crowd.left(101.0, 101.6, among)
    assert crowd.limit == pytest.approx(7)
    for round in range(10):
        crowd.left(102.0 + round, 102.6 + round, crowd.entered() + 9)
    assert crowd.limit == 4


def test_few_slow_requests_say_nothing_about_how_many_there_may_be() -> None:
    crowd = Crowd(Aim(first=8))
    for _ in range(20):
        crowd.left(1.0, 31.0, crowd.entered())
    assert crowd.limit == 8


async def test_a_request_takes_one_place_and_leaves_it_once() -> None:
    crowd = Crowd(Aim(first=1))
    one, two = Work(crowd, Bodies(0)), Work(crowd, Bodies(0))
    one.begin()
    one.begin()
    assert crowd.size == 1
    for _ in range(2):
        with contextlib.suppress(Problem):
            two.begin()
        two.end()
    one.end()
    one.end()
    one.begin()
    assert crowd.size == 0


async def test_nothing_is_measured_while_nobody_asks() -> None:
    assert not Lag().is_watching
