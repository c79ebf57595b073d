"""The lanes of functions that have work: how much waits, at what weight, and whether they are served."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from echod.bus import Bus
from echod.gateway.views import View
from echofn.manifest import Function


async def lanes_of(bus: Bus, functions: Sequence[Function]) -> list[View]:
    """Function by function, the lane that is served next first."""
    found = await asyncio.gather(*(bus.lanes(function.name) for function in functions))
    return [
        {
            "function": function.name,
            "lane": row.lane,
            "pending": row.pending,
            "weight": row.weight,
            "paused": row.paused,
            "rests_ms": row.rests_ms,
            "path": function.policy.lane,
        }
        for function, rows in zip(functions, found, strict=True)
        for row in rows
    ]
