"""Token buckets, and the loop's lateness."""

from __future__ import annotations

import asyncio
import time

import pytest

from echod.config import Config
from echod.gateway.limits import Buckets, Intake, Lag
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


def stall() -> None:
    time.sleep(0.6)


async def test_a_few_stalls_are_not_lateness_and_a_row_of_them_is() -> None:
    """A cold start imports for a second or two; that must not refuse the first page."""
    lag = Lag()
    for stalls in range(1, 13):
        lag.arrived()
        await asyncio.sleep(0)
        stall()
        await asyncio.sleep(0.001)
        assert not (lag.is_late and stalls <= 5)
    assert lag.is_late
    async with asyncio.timeout(5):
        while lag.is_watching:
            await asyncio.sleep(0.02)
    assert not lag.is_late


async def test_nothing_is_measured_while_nobody_asks() -> None:
    assert not Lag().is_watching
