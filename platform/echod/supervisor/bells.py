"""Bells that a node heard and has no hands for: handed on to another node, and not round and round.

A bell is one name on one list: who pops it and does not serve it leaves its jobs to the next beat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from echod import log
from echod.bus import Bus
from echod.bus.clock import BEAT_S
from echod.errors import BusError
from echod.supervisor.feed import Feed

_log = log.get("supervisor")

AGAIN_S = 0.05  # from one hand-on of a queue to the next


class Bells:
    """What was handed on lately. `spawn` runs a task of the supervisor's."""

    def __init__(self, bus: Bus, spawn: Callable[[Coroutine[object, object, None]], object]) -> None:
        self._bus, self._spawn = bus, spawn
        self._loop = asyncio.get_running_loop()
        self._handed_on: dict[str, float] = {}  # when we last passed on a bell that we had no hands for
        self.resting: dict[str, asyncio.TimerHandle] = {}  # bells that came back, until a beat has passed

    def hand_on(self, queue: str) -> None:
        """Ring it again, now."""
        self._spawn(self._ring(queue))

    def hand_on_unserved(self, queue: str, *, is_draining: bool) -> None:
        """A bell for what is not served here: another node may have its function. What comes back at once nobody else
        heard: it rests for a beat, unless this node takes nothing more at all.
        """
        is_back = self._is_back(queue)
        if is_draining or not is_back:
            self.hand_on(queue)
        elif queue not in self.resting:
            self.resting[queue] = self._loop.call_later(BEAT_S, self._hand_on_later, queue)

    def hand_on_if_full(self, feed: Feed, is_draining: Callable[[], bool]) -> None:
        """At once, or a node with free hands waits for us; but where all are full it must not go round and round."""

        def look() -> None:
            if feed.rung and feed.is_full and not is_draining():
                self.hand_on(feed.queue)

        self._loop.call_later(AGAIN_S if self._is_back(feed.queue) else 0, look)

    def forget(self, queue: str) -> None:
        """The queue has no feed here any more."""
        self._handed_on.pop(queue, None)

    def close(self) -> None:
        """Hand nothing on later."""
        for timer in self.resting.values():
            timer.cancel()

    def _is_back(self, queue: str) -> bool:
        now = self._loop.time()
        is_back = now - self._handed_on.get(queue, -AGAIN_S) < AGAIN_S
        self._handed_on[queue] = now
        return is_back

    def _hand_on_later(self, queue: str) -> None:
        del self.resting[queue]
        self._handed_on[queue] = self._loop.time()
        self.hand_on(queue)

    async def _ring(self, queue: str) -> None:
        try:
            await self._bus.ring(queue)
        except BusError as error:
            _log.info("bell.not_handed_on", queue=queue, error=str(error))  # the beat rings again
