"""Children whose parent's node died after its settle and before it minted them: minted here, then taken off `out`.

Their ids were fixed by the settle, so minting them twice mints them once. A child that cannot be minted does not hold
up the others: it is skipped, and tried again at the next beat.
"""

from __future__ import annotations

from collections.abc import Iterable

from echod.bus import Bus
from echod.errors import BusError
from echod.model.job import Mint


class Outbox:
    """What is to be swept of the queues that a beat named, and where in each to go on."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._cursors: dict[str, str] = {}

    def __bool__(self) -> bool:
        """Whether there is a part left to sweep."""
        return bool(self._cursors)

    def heard(self, queues: Iterable[str]) -> None:
        """These have children in `out`. One that is being swept goes on where it is."""
        for queue in queues:
            self._cursors.setdefault(queue, "")

    async def sweep(self) -> int:
        """One bounded part of each queue's `out`; how many children left it.

        Raises a BusError: the queue that it came of is behind the others then, who have their turn with the next call.
        """
        return sum([await self._part(queue) for queue in tuple(self._cursors)])

    async def _part(self, queue: str) -> int:
        children, following = await self._bus.sweep_out(queue, cursor=self._cursors.pop(queue))
        if following:
            self._cursors[queue] = following
        by_queue: dict[str, list[Mint]] = {}
        for child in children:
            by_queue.setdefault(child.queue, []).append(child.mint)
        count, failed = 0, None
        for target, mints in by_queue.items():
            try:
                settled = await self._bus.mint_children(target, mints)
                await self._bus.clear_out(queue, settled)
            except BusError as error:
                failed = failed or error
            else:
                count += len(settled)
        if failed:
            raise failed
        return count
