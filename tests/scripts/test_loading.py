"""A server that is up and still reads its files: away, said so in time, and then whole."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from audit import audit
from doing import claim_one, done, impatient, mint, settle
from echod.bus import Bus
from echod.errors import BusAway
from server import PATIENCE_S, Server, running

SLOW = ("--key-load-delay", "300")  # µs for each command of the file; it looks at its clients every 1,024 of them
FILLED = 200_000  # commands in the file: a minute of loading, if the test did not end it
FILL = "for n = 1, tonumber(ARGV[1]) do redis.call('SET', 'filler', n) end"


async def test_a_loading_server_is_away_until_it_has_loaded_and_then_has_every_job() -> None:
    async with running(*SLOW, append_only=True) as server:
        bus = await Bus.open(server.address)
        try:
            await bus.join("NODloading")
            ids = await mint(bus, count=3)
            server.command("EVAL", FILL, "0", str(FILLED))
            server.stop()
            starting = asyncio.create_task(asyncio.to_thread(server.start))
            await loading(server)
            with pytest.raises(BusAway):
                await Bus.open(server.address)
            with impatient(bus), pytest.raises(BusAway):
                await bus.stats(["f"])
            assert b"LOADING" in str(server.command("PING")).encode()  # it was loading still while we asked
            server.command("CONFIG", "SET", "key-load-delay", "0")
            await starting
            async with asyncio.timeout(PATIENCE_S):
                while not bus.connected:
                    await asyncio.sleep(0.01)
            assert sorted(audit(server, "f").rows) == sorted(ids)
            await settle(bus, [done(await claim_one(bus))])
        finally:
            await bus.close()


async def loading(server: Server) -> None:
    """Returns while the server loads."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(OSError):
                if "LOADING" in str(server.command("PING")):
                    return
            await asyncio.sleep(0.002)
