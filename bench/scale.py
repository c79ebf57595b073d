"""What a million costs: ticks and promotions of one queue, on a server with nothing else to do."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from os import environ
from pathlib import Path

import msgspec

from bench.node import PATIENCE_S
from echod.bus import Bus
from echod.model.ids import NodeId
from echod.model.job import Mint
from echod.node.embedded import Embedded, find_binary

NIL = msgspec.msgpack.encode(None)
BULK = 500
FEW, MANY = 1_000, 1_000_000
HOUR_MS = 3_600_000
ROUNDS = 9
BEAT_S = 10.0  # ids are made for a minute

# In a process of its own, so that what is measured is the server and not this loop.
_PING = """
import socket, sys, threading, time
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    while not over.is_set():
        began = time.perf_counter()
        server.sendall(b"PING\\r\\n")
        server.recv(64)
        print((time.perf_counter() - began) * 1000)
        time.sleep(0.001)
"""


class Pings:
    """PING by a client of its own, again and again for as long as the block lasts: how long each took."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.took_ms: list[float] = []

    async def __aenter__(self) -> Pings:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _PING, str(self._path), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        out, _ = await self._process.communicate(b"")
        self.took_ms = sorted(map(float, out.split()))

    def __str__(self) -> str:
        p99 = self.took_ms[int(len(self.took_ms) * 0.99)]
        return f"p50 {statistics.median(self.took_ms):.2f}, p99 {p99:.2f}, max {self.took_ms[-1]:.2f} ms"


@asynccontextmanager
async def bare() -> AsyncIterator[tuple[Bus, Path]]:
    """A server as `dev` embeds it, without a node, and its socket."""
    with tempfile.TemporaryDirectory(prefix="echod-bench-") as place:
        server = Embedded(Path(place), find_binary(environ.get("ECHOD_VALKEY_SERVER"), environ))
        await server.start()
        try:
            bus = await Bus.open(server.address)
            bus.link.patience_s = PATIENCE_S
            await bus.join(NodeId("NOD00000000001"))
            yield bus, Path(place) / "valkey.sock"
            await bus.close()
        finally:
            await server.stop()


async def scheduled(bus: Bus, queue: str, count: int, at_ms: int) -> None:
    """Mint `count` jobs that are due at one instant."""
    beaten_s = float("-inf")
    for start in range(0, count, BULK):
        if time.monotonic() - beaten_s > BEAT_S:
            await bus.beat(pump=False)
            beaten_s = time.monotonic()
        mints = [Mint(id=bus.new_job_id(), payload=NIL, at_ms=at_ms) for _ in range(min(BULK, count - start))]
        await bus.mint(queue, mints)


async def server_us(bus: Bus) -> float:
    """CPU that the server's main thread has used so far."""
    told = (await bus.link.command("INFO", "cpu")).decode()
    return sum(float(told.split(f"used_cpu_{kind}_main_thread:")[1].split()[0]) * 1e6 for kind in ("user", "sys"))


async def tick_us(bus: Bus, queue: str, ticks: int, due: int) -> float:
    """Server's CPU of a tick, each of which promotes `due` jobs of its own."""
    for _ in range(ticks if due else 0):
        await scheduled(bus, queue, due, bus.clock.now_ms() + 1)
    before = await server_us(bus)
    for _ in range(ticks):
        await bus.tick(queue)
    return (await server_us(bus) - before) / ticks


async def at_rest(bus: Bus) -> None:
    """Once the server writes no file anew: meanwhile its first write to a page copies it, whoever makes it."""
    while "1" in [(await bus.info("persistence")).get(f"{kind}_in_progress") for kind in ("aof_rewrite", "rdb_bgsave")]:
        await asyncio.sleep(0.5)


async def tick() -> str:
    """A tick of a queue with 1,000 and with 1,000,000 scheduled jobs: with nothing due, and with 100 due for each.

    Each on a server of its own, in turns, so that what else this machine does is in both; the median of the rounds.
    """
    async with bare() as (few, _), bare() as (many, _):
        sides = ((few, FEW), (many, MANY))
        for bus, count in sides:
            await scheduled(bus, "bench", count, bus.clock.now_ms() + 24 * HOUR_MS)
        took: dict[tuple[int, int], list[float]] = {}
        for _ in range(ROUNDS):
            for bus, count in sides:
                await at_rest(bus)
                await bus.beat(pump=False)
                for ticks, due in ((200, 0), (20, 100)):
                    took.setdefault((count, due), []).append(await tick_us(bus, "bench", ticks, due))
        cost = {key: statistics.median(each) for key, each in took.items()}
        told = [f"{cost[count, 0]:.0f} and {cost[count, 100]:.0f} µs at {count:,}" for _, count in sides]
        ratios = [cost[MANY, due] / cost[FEW, due] for due in (0, 100)]
        return f"{'; '.join(told)}: ratio {ratios[0]:.2f} and {ratios[1]:.2f}"


async def promote() -> str:
    """A million jobs due at one instant: how fast they reach their lane, and another client's PING meanwhile."""
    async with bare() as (bus, path):
        began, some = time.perf_counter(), MANY // 50
        await scheduled(bus, "trial", some, bus.clock.now_ms() + HOUR_MS)
        fill_s = (time.perf_counter() - began) * MANY / some  # as busy as this machine is
        queue, due_ms = "bench", bus.clock.now_ms() + int(fill_s * 2000) + 20_000
        await scheduled(bus, queue, MANY, due_ms)
        if bus.clock.now_ms() > due_ms:
            raise SystemExit(f"expected to mint {MANY:,} jobs within {fill_s * 2 + 20:.0f} s; run it when less goes on")
        while (left_ms := due_ms - bus.clock.now_ms()) > -50:
            await asyncio.sleep(min(max(left_ms / 1000, 0.01), 10))
            await bus.beat(pump=False)
        async with Pings(path) as pings:
            began, promoted, answer = time.perf_counter(), 0, await bus.tick(queue)
            while promoted < MANY:
                promoted += answer.promoted
                answer = await bus.tick(queue)
            took = time.perf_counter() - began
        return f"{MANY / took:,.0f} jobs/s; PING {pings}"
