"""The wait before a switch: worker nodes make workers of the next version ready while the one before still serves.

Nothing depends on it: a node that does not answer is not waited for, and one that takes long is, for a while.
"""

from __future__ import annotations

import asyncio

from echod.bus import Bus
from echod.model.ids import VersionId
from echod.registry import peers

HEARD_WITHIN_S = 1.0  # a node that lives says by then that it is at it
READY_WITHIN_S = 10.0
LOOK_S, LOOK_LATER_S = 0.02, 0.1


async def warmed(bus: Bus, version: VersionId) -> None:
    """Return when all worker nodes that answer have workers of a stored version ready. Raises BusError."""
    if not (asked := {peer.row.id for peer in await peers.workers(bus)}):
        return
    call = await bus.warm(version)
    loop = asyncio.get_running_loop()
    began = loop.time()
    while (waited_s := loop.time() - began) < READY_WITHIN_S:
        told = {row.id: row.told for row in await bus.nodes() if row.id in asked}
        is_heard = waited_s > HEARD_WITHIN_S
        if not any(call in each.warming or not (is_heard or call in each.warm) for each in told.values()):
            return
        await asyncio.sleep(LOOK_LATER_S if is_heard else LOOK_S)
