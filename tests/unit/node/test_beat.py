"""One beat for the whole process: told to everybody, and made up for at once after a reconnect."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from echod.bus import Bus
from echod.bus.answers import BeatAnswer
from echod.node import beat
from echod.node.beat import Beat
from echod.registry import duty
from echod.registry.archive import archived, pieces_of, version_of
from echod.registry.registry import Registry
from echofn.manifest import Manifest
from server import PATIENCE_S, Server


@pytest.fixture(autouse=True)
def none_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """No beat but the first comes unless something wakes it."""
    for module in (duty, beat):
        monkeypatch.setattr(module, "LONGEST_SLEEP_S", 3600.0)


async def test_each_answer_is_told_to_all_and_a_reconnect_beats_at_once(bus: Bus, server: Server) -> None:
    one: list[BeatAnswer] = []
    other: list[BeatAnswer] = []
    heard = asyncio.Event()
    beats = Beat(bus, pump=True, hear=[one.append, other.append, lambda _: heard.set()])
    beating = asyncio.create_task(beats.run())
    async with asyncio.timeout(PATIENCE_S):
        await heard.wait()
        heard.clear()
        server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await heard.wait()
    assert len(one) >= 2
    assert one == other
    assert one[0].rank == 0
    beating.cancel()


async def test_a_version_that_is_put_to_use_is_named_at_once_and_so_stays_stored(bus: Bus, tmp_path: Path) -> None:
    registry = Registry(bus, tmp_path)
    heard = asyncio.Event()
    beats = Beat(bus, pump=False, hear=[lambda _: heard.set()], running=registry.needed)
    registry.on_use = beats.wake
    beating = asyncio.create_task(beats.run())
    archives = [archived("functions", {"m.py": b"x = %d\n" % number}) for number in range(13)]
    for archive in archives:
        await bus.put_version(version_of(archive), pieces_of(archive), msgspec.msgpack.encode(Manifest("functions")))
    first, *later = map(version_of, archives)
    async with asyncio.timeout(PATIENCE_S):
        await heard.wait()
        await bus.activate(first)
        heard.clear()
        await registry.folder(first)
        await heard.wait()
    for version in later:
        await bus.activate(version)
    assert await bus.get_manifest(first) is not None
    beating.cancel()
    registry.close()
