"""Children whose parent's node died after its settle and before it minted them: minted here, then taken off `out`.

Their ids were fixed by the settle, so minting them twice mints them once.
"""

from __future__ import annotations

from echod.bus import Bus
from echod.model.job import Mint


async def sweep(bus: Bus, queue: str) -> int:
    """One bounded part of a queue's `out`; how many children left it."""
    children = await bus.sweep_out(queue)
    by_queue: dict[str, list[Mint]] = {}
    for child in children:
        by_queue.setdefault(child.queue, []).append(child.mint)
    for target, mints in by_queue.items():
        await bus.mint(
            target, mints
        )  # every answer says that nothing is left to do: minted now, before, or too long ago
    await bus.clear_out(queue, [child.mint.id for child in children])
    return len(children)
