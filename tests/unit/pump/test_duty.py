"""The one loop: its pace, its back-off, its end."""

import asyncio
from collections.abc import Callable

import pytest

from echod.errors import BusAway, LeaseGone
from echod.registry.duty import FIRST_PAUSE_S, LONGEST_SLEEP_S, Loop, Report

Turn = Report | Exception


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


async def run(duty: Scripted, loop: Loop, turns: int) -> None:
    """Until the duty had so many turns."""

    def count() -> None:
        if len(duty.at) == turns:
            loop.stop()

    duty.after_turn = count
    await asyncio.wait_for(loop.run(), 10)


async def test_a_turn_that_was_cut_off_goes_on_at_once() -> None:
    duty = Scripted(*[Report(more=True)] * 50)
    await run(duty, Loop(duty), 50)
    assert sum(duty.gaps()) < 0.5


async def test_a_sleep_ends_at_its_instant() -> None:
    duty = Scripted(Report(sleep_s=0.05))
    await run(duty, Loop(duty), 2)
    assert 0.045 < duty.gaps()[0] < 0.5


async def test_a_sleep_ends_when_woken() -> None:
    duty = Scripted(Report(sleep_s=LONGEST_SLEEP_S))
    loop = Loop(duty)
    asyncio.get_running_loop().call_later(0.02, loop.wake)
    await run(duty, loop, 2)
    assert duty.gaps()[0] < 1


async def test_what_wakes_during_a_turn_is_not_lost() -> None:
    duty = Scripted(Report(sleep_s=LONGEST_SLEEP_S))
    loop = Loop(duty)
    turns = iter((loop.wake, loop.stop))
    duty.after_turn = lambda: next(turns)()
    await asyncio.wait_for(loop.run(), 5)
    assert len(duty.at) == 2


@pytest.mark.parametrize("fault", [BusAway("away"), LeaseGone("gone"), RuntimeError("a bug")])
async def test_no_failure_ends_a_duty_and_each_waits_longer(fault: Exception) -> None:
    duty = Scripted(fault, fault, fault, Report(more=True))
    await run(duty, Loop(duty), 5)
    gaps = duty.gaps()
    for number, gap in enumerate(gaps[:3]):
        assert FIRST_PAUSE_S * 2**number * 0.5 <= gap + 0.001
    assert gaps[3] < 0.1  # healed


async def test_a_failing_duty_that_is_woken_all_the_time_is_no_dead_loop() -> None:
    duty = Scripted(*[BusAway("away")] * 100)
    loop = Loop(duty)
    duty.after_turn = loop.wake
    running = asyncio.create_task(loop.run())
    await asyncio.sleep(0.35)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert 2 <= len(duty.at) <= 7


async def test_a_stop_ends_a_sleep_at_once() -> None:
    duty = Scripted(Report(sleep_s=LONGEST_SLEEP_S))
    loop = Loop(duty)
    asyncio.get_running_loop().call_later(0.02, loop.stop)
    await asyncio.wait_for(loop.run(), 2)
    assert len(duty.at) == 1
