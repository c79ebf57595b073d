"""The one loop: its pace, its back-off, its end."""

import asyncio
from collections.abc import Callable

import pytest

from echod.errors import BusAway, LeaseGone
from echod.registry import duty as duties
from echod.registry.duty import FIRST_PAUSE_S, Loop, Report
from server import PATIENCE_S

Turn = Report | Exception
LONGEST_S = 3600.0


class Scripted:
    """A duty whose turns are given."""

    name = "scripted"

    def __init__(self, *turns: Turn) -> None:
        self.turns = list(turns)
        self.at: list[float] = []
        self.after_turn: Callable[[], None] = lambda: None

    async def turn(self) -> Report:
        self.at.append(asyncio.get_running_loop().time())
        turn = self.turns.pop(0) if self.turns else Report()
        self.after_turn()
        if isinstance(turn, Exception):
            raise turn
        return turn

    def gaps(self) -> list[float]:
        return [after - before for before, after in zip(self.at, self.at[1:], strict=False)]


@pytest.fixture(autouse=True)
def longest_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sleeps where nothing wakes does so for longer than any test."""
    monkeypatch.setattr(duties, "LONGEST_SLEEP_S", LONGEST_S)


async def run(duty: Scripted, loop: Loop, turns: int) -> None:
    """Until the duty had so many turns."""

    def count() -> None:
        if len(duty.at) == turns:
            loop.stop()

    duty.after_turn = count
    await asyncio.wait_for(loop.run(), PATIENCE_S)


async def test_a_turn_that_was_cut_off_goes_on_at_once() -> None:
    duty = Scripted(*[Report(more=True, sleep_s=LONGEST_S)] * 50)
    await run(duty, Loop(duty), 50)


async def test_a_sleep_ends_at_its_instant() -> None:
    duty = Scripted(Report(sleep_s=0.05))
    await run(duty, Loop(duty), 2)
    assert duty.gaps()[0] > 0.045


async def test_a_sleep_ends_when_woken() -> None:
    duty = Scripted(Report(sleep_s=LONGEST_S))
    loop = Loop(duty)
    asyncio.get_running_loop().call_later(0.02, loop.wake)
    await run(duty, loop, 2)


async def test_what_wakes_during_a_turn_is_not_lost() -> None:
    duty = Scripted(Report(sleep_s=LONGEST_S))
    loop = Loop(duty)
    turns = iter((loop.wake, loop.stop))
    duty.after_turn = lambda: next(turns)()
    await asyncio.wait_for(loop.run(), PATIENCE_S)
    assert len(duty.at) == 2


@pytest.mark.parametrize("fault", [BusAway("away"), LeaseGone("gone"), RuntimeError("a bug")])
async def test_no_failure_ends_a_duty_and_each_waits_longer(fault: Exception) -> None:
    duty = Scripted(fault, fault, fault, Report(more=True), fault)
    pauses, loop = list[float](), Loop(duty)
    sleep = loop._sleep

    async def noted(pause_s: float) -> None:
        pauses.append(pause_s)
        await sleep(pause_s)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "_sleep", noted)
        await run(duty, loop, 6)
    gaps = duty.gaps()
    for gap, pause_s, longest_s in zip(gaps[:3], pauses, (0.1, 0.2, 0.4), strict=False):
        assert longest_s * 0.5 <= pause_s <= longest_s
        assert pause_s <= gap + 0.001
    assert len(pauses) == 4  # healed, it went on at once
    assert pauses[3] <= FIRST_PAUSE_S  # and the next fault is the first again


async def test_a_failing_duty_that_is_woken_all_the_time_is_no_dead_loop() -> None:
    duty = Scripted(*[BusAway("away")] * 100)
    loop = Loop(duty)
    duty.after_turn = loop.wake
    running = asyncio.create_task(loop.run())
    while len(duty.at) < 5:
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert min(duty.gaps()) >= FIRST_PAUSE_S / 2 - 0.001


async def test_a_stop_ends_a_sleep_at_once() -> None:
    duty = Scripted(Report(sleep_s=LONGEST_S))
    loop = Loop(duty)
    asyncio.get_running_loop().call_later(0.02, loop.stop)
    await asyncio.wait_for(loop.run(), PATIENCE_S)
    assert len(duty.at) == 1
