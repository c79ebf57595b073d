"""One beat for the whole process: told to everybody, and made up for at once after a reconnect."""

from __future__ import annotations

import asyncio

from echod.bus import Bus
from echod.bus.answers import BeatAnswer
from echod.node.beat import Beat
from echod.registry.duty import LONGEST_SLEEP_S
from valkey import Server


async def test_each_answer_is_told_to_all_and_a_reconnect_beats_at_once(bus: Bus, server: Server) -> None:
    one: list[BeatAnswer] = []
    other: list[BeatAnswer] = []
    heard = asyncio.Event()
    beat = Beat(bus, pump=True, hear=[one.append, other.append, lambda _: heard.set()])
    beating = asyncio.create_task(beat.run())
    async with asyncio.timeout(LONGEST_SLEEP_S / 2):  # sooner than the next one is due by itself
        await heard.wait()
        heard.clear()
        server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await heard.wait()
    assert len(one) >= 2
    assert one == other
    assert one[0].rank == 0
    beating.cancel()
