"""Children whose parent's node died after its settle and before it minted them: minted here, then taken off `out`.

Their ids were fixed by the settle, so minting them twice mints them once. What stands in the way of one queue's
children keeps those of the others waiting for nothing.
"""

from __future__ import annotations

from echod.bus import Bus
from echod.errors import BusError
from echod.model.job import Mint


async def sweep(bus: Bus, queue: str) -> int:
    """One bounded part of a queue's `out`; how many children left it. Raises a BusError after the others' turn."""
    by_queue: dict[str, list[Mint]] = {}
    for child in await bus.sweep_out(queue):
        by_queue.setdefault(child.queue, []).append(child.mint)
    count, failed = 0, None
    for target, mints in by_queue.items():
        try:
            settled = await bus.mint_children(target, mints)
            await bus.clear_out(queue, settled)
        except BusError as error:
            failed = failed or error
        else:
            count += len(settled)
    if failed:
        raise failed
    return count
