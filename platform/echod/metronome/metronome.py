"""All idle capacity of a node, parked on one blocking pop.

It listens only while there is room: a ring that nobody here can serve would be lost to the nodes that could. Where the
room went between park and ring the ring is handed on; the bell keeps it until somebody has room.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from echod.bus import Bus
from echod.registry.duty import Loop, Report

PARK_S = 60.0
HANDED_ON_S = 0.05  # before we listen again: the ring is for somebody else


class Crew(Protocol):
    """Who works: the supervisor."""

    @property
    def room(self) -> asyncio.Event:
        """Set while there is room for a job."""
        ...

    def has_room(self) -> bool:
        """Whether a job could be taken now."""
        ...

    def offer(self, queue: str) -> None:
        """This queue rang for us."""
        ...


class Metronome:
    """`run` until `stop` or cancelled."""

    name = "metronome"

    def __init__(self, bus: Bus, crew: Crew) -> None:
        self._bus = bus
        self._crew = crew
        self._loop = Loop(self)

    async def run(self) -> None:
        """Listen until `stop`, or cancelled: what was popped in that moment the bus gives back."""
        await self._loop.run()

    def stop(self) -> None:
        """End after the ring, or the minute, that is waited for now."""
        self._loop.stop()

    async def turn(self) -> Report:
        """Wait for room, then for one ring."""
        await self._crew.room.wait()
        queue = await self._bus.ring_wait(PARK_S)
        if queue is None:
            return Report(more=True)
        if self._crew.has_room():
            self._crew.offer(queue)
            return Report(more=True)
        await self._bus.ring(queue)
        return Report(sleep_s=HANDED_ON_S)
