"""Children of finished runs, minted into their queues at once. What is lost here the pump makes good from `out`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence

from echod import log
from echod.bus import Bus
from echod.errors import BusError
from echod.model.job import Child

_log = log.get("supervisor")


Spawn = Callable[[Coroutine[object, object, None]], asyncio.Task[None]]  # a task whose failure ends the supervisor


class Fanout:
    def __init__(self, bus: Bus, spawn: Spawn) -> None:
        self._bus, self._spawn = bus, spawn

    def send(self, parent_queue: str, children: Sequence[Child]) -> None:
        """Mint them, then take them off the parent queue's `out`, where the settle put them: nothing hangs on this."""
        self._spawn(self._deliver(parent_queue, children))

    async def _deliver(self, parent_queue: str, children: Sequence[Child]) -> None:
        by_queue: dict[str, list[Child]] = {}
        for child in children:
            by_queue.setdefault(child.queue, []).append(child)
        try:
            for queue, some in by_queue.items():
                await self._bus.clear_out(
                    parent_queue, await self._bus.mint_children(queue, [one.mint for one in some])
                )
        except BusError as error:
            _log.warning("child.left", queue=parent_queue, count=len(children), error=str(error))
