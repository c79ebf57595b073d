"""Children whose parent's node died after its settle and before it minted them: minted here, then taken off `out`.

Their ids were fixed by the settle, so minting them twice mints them once. A child that cannot be minted holds up
nothing else: it is skipped, and tried again at the next beat.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from echod.bus import Bus
from echod.model.job import Mint
from echod.pump.setbacks import Setbacks

QUEUES_AT_ONCE = 16  # between them what is due is promoted


class Outbox:
    """What is to be swept of the queues that a beat named, and where in each to go on."""

    def __init__(self, bus: Bus, setbacks: Setbacks) -> None:
        self._bus = bus
        self._setbacks = setbacks
        self._cursors: dict[str, str] = {}

    def __bool__(self) -> bool:
        """Whether there is a part left to sweep."""
        return bool(self._cursors)

    def heard(self, queues: Iterable[str]) -> None:
        """These have children in `out`. One that is being swept goes on where it is."""
        for queue in queues:
            self._cursors.setdefault(queue, "")

    async def sweep(self) -> int:
        """One bounded part of `out` of some queues; how many children left it.

        Raises BusAway and what else is everybody's: the queue that it came of is behind the others then.
        """
        return sum([await self._part(queue) for queue in tuple(self._cursors)[:QUEUES_AT_ONCE]])

    async def _part(self, queue: str) -> int:
        count = 0
        part = self._bus.sweep_out(queue, cursor=self._cursors.pop(queue))
        for children, following in await self._setbacks.alone(queue, part):
            if following:
                self._cursors[queue] = following
            by_queue: dict[str, list[Mint]] = {}
            for child in children:
                by_queue.setdefault(child.queue, []).append(child.mint)
            for target, mints in by_queue.items():
                count += sum(await self._setbacks.alone(target, self._mint(queue, target, mints)))
        return count

    async def _mint(self, queue: str, target: str, mints: Sequence[Mint]) -> int:
        settled = await self._bus.mint_children(target, mints)
        await self._bus.clear_out(queue, settled)
        return len(settled)
