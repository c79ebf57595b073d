"""The one loop that background duties run in. A duty says what a turn is; pace, stop, back-off and logging are here.

A turn is bounded, safe to repeat, and safe to run twice at once with another node's. When it fails because the bus is
away, the loop waits longer each time, at most some seconds, and goes on: no failure of one turn ends a duty.
"""

from __future__ import annotations

import asyncio
import random
from typing import Protocol

import msgspec

from echod import log
from echod.bus.clock import BEAT_S
from echod.errors import BusError, LeaseGone

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
LONGEST_SLEEP_S = BEAT_S


class Report(msgspec.Struct, frozen=True):
    """How a turn ended: cut off (`more`: go on at once), or with nothing to do for `sleep_s`. `did`: for the log."""

    more: bool = False
    sleep_s: float = LONGEST_SLEEP_S
    did: dict[str, int] = {}


class Duty(Protocol):
    """One background duty."""

    @property
    def name(self) -> str:
        """A noun, for the log."""
        ...

    async def turn(self) -> Report:
        """One bounded turn."""
        ...


class Loop:
    """Turns of one duty until `stop`."""

    def __init__(self, duty: Duty) -> None:
        self._duty = duty
        self._log = log.get(duty.name)
        self._woken = asyncio.Event()
        self._stopped = False
        self._failures = 0

    def wake(self) -> None:
        """There is something to do before the sleep ends."""
        self._woken.set()

    def stop(self) -> None:
        """End after the turn that runs now."""
        self._stopped = True
        self._woken.set()

    async def run(self) -> None:
        """Turn after turn, until `stop` or cancelled."""
        while not self._stopped:
            self._woken.clear()
            pause_s = await self._turn()
            if pause_s > 0 and not self._stopped:
                await self._sleep(pause_s)

    async def _turn(self) -> float:
        """One turn; how long to sleep after it."""
        try:
            report = await self._duty.turn()
        except (BusError, LeaseGone) as error:
            return self._failed(str(error) or error.code)
        except Exception as error:  # one of the two places: no fault of a turn ends the node
            self._log.exception("turn.crashed", error=repr(error))
            return self._failed(None)
        if self._failures:
            self._log.info("turn.recovered", after=self._failures)
            self._failures = 0
        if any(report.did.values()):
            self._log.debug("turn.done", **report.did)
        return 0.0 if report.more else min(report.sleep_s, LONGEST_SLEEP_S)

    def _failed(self, error: str | None) -> float:
        self._failures += 1
        if error is not None and self._failures == 1:  # once an outage, not once a try
            self._log.warning("turn.failed", error=error)
        longest_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * float(1 << min(self._failures - 1, 10)))
        return longest_s * random.uniform(0.5, 1.0)

    async def _sleep(self, pause_s: float) -> None:
        """Sleep, unless woken; after a failure a tenth of a second at least, however often one is woken."""
        if self._failures:
            await asyncio.sleep(min(pause_s, FIRST_PAUSE_S))
            pause_s -= FIRST_PAUSE_S
        if pause_s <= 0:
            return
        try:
            async with asyncio.timeout(pause_s):
                await self._woken.wait()
        except TimeoutError:
            pass
