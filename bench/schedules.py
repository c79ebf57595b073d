"""20,000 schedules due at one instant: how fast they become jobs, how late, and what another client feels of it."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec

from bench.node import TOKEN, Node
from bench.scale import Pings, server_us
from echod.bus import Bus
from echod.cli.client import Client
from echod.deploy.snapshot import taken
from echod.model.job import Job
from echod.policy.recurring import stored, text_of
from echod.registry.archive import pieces_of
from echofn.manifest import EveryTrigger

FUNCTIONS, EACH = 20, 1000
HOUR_MS = 3_600_000
AT_ONCE = 64
FILL_S = 60  # enough to register them all on a slow machine


async def schedules(node: Node) -> str:
    """Registered at run time, due at one instant; their jobs wait in paused queues, so that only the pump works."""
    bus, queues = node.bus, [f"many.f{number}" for number in range(FUNCTIONS)]
    await _deploy(node, len(queues))
    for queue in queues:
        await bus.pause(queue)
    await bus.beat(pump=False)
    due_ms = bus.clock.now_ms() + FILL_S * 1000
    await _register(bus, queues, due_ms)
    if (left_s := (due_ms - bus.clock.now_ms()) / 1000) < 2:
        raise SystemExit(f"expected to register {FUNCTIONS * EACH:,} schedules in {FILL_S} s; raise FILL_S")
    await asyncio.sleep(left_s - 1)
    before_us, before_s = await server_us(bus), node.cpu_s()
    async with Pings(node.socket) as pings:
        while sum(stats.pending for stats in (await bus.stats(queues)).values()) < FUNCTIONS * EACH:
            await asyncio.sleep(0.25)
    server_s, cpu_s = (await server_us(bus) - before_us) / 1e6, node.cpu_s() - before_s
    jobs = [job for queue in queues for job in await _jobs(bus, queue)]
    lates = [float(job.minted_ms - due_ms) for job in jobs]
    once = Counter(job.occurrence.recurrence for job in jobs if job.occurrence)
    if set(once.values()) != {1} or len(once) != FUNCTIONS * EACH:
        raise SystemExit(f"expected {FUNCTIONS * EACH:,} schedules minted once each, got {Counter(once.values())}")
    ordered = sorted(lates)
    rate = len(lates) / max(ordered[-1], 1) * 1000
    return (
        f"{len(lates):,} minted once each, {rate:,.0f}/s; late p50 {_part(ordered, 0.5):,.0f} ms, "
        f"p99 {_part(ordered, 0.99):,.0f} ms; {server_s:.1f} s of CPU of the server, {cpu_s - server_s:.1f} s of the "
        f"node; PING of another client {pings}"
    )


async def _deploy(node: Node, count: int) -> None:
    folder = node.place / "many"
    folder.mkdir()
    code = "from echofn import queue\n" + "".join(f"\n\n@queue\ndef f{n}(): ...\n" for n in range(count))
    (folder / "many.py").write_text(code)
    body = b"".join(pieces_of(taken(folder).archive))
    headers = {"Content-Type": "application/octet-stream"}
    await asyncio.to_thread(Client(node.url, TOKEN).call, "POST", "/deploy", body, headers, timeout=120)


async def _register(bus: Bus, queues: list[str], due_ms: int) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(queue: str, number: int) -> None:
        trigger = EveryTrigger(f"s{number}", HOUR_MS, due_ms % HOUR_MS)
        async with gate:
            await bus.recur(
                queue,
                trigger.name,
                rule=text_of(trigger),
                tz="UTC",
                trigger=stored(trigger),
                payload=msgspec.msgpack.encode(None),
                next_ms=due_ms,
                generation=None,
            )

    await asyncio.gather(*(one(queue, number) for queue in queues for number in range(EACH)))


async def _jobs(bus: Bus, queue: str) -> list[Job]:
    found: list[Job] = []
    cursor = ""
    while True:
        page, cursor = await bus.jobs(queue, limit=500, cursor=cursor)
        found += page
        if not cursor:
            return found


def _part(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
