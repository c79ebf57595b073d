"""What the bus keeps: bytes for a pending job, and what is left of a million jobs."""

from __future__ import annotations

import os

from bench.node import Node
from echod.bus import Bus
from echod.bus.clock import StepWatch
from echod.model.job import Done, Hold, Mint, RunRecord

PAYLOAD = b"\xd9\x1e" + b"x" * 30  # 32 bytes, the largest that counts as small
BULK = 500


async def memory(node: Node) -> str:
    """Bytes of the server for a pending job of 32 bytes, in all structures; at most 400 (design §4.10)."""
    bus, told = node.bus, list[str]()
    for lanes in (1, 10, 1_000):
        jobs, queue = 100_000, f"bench-memory-{lanes}"
        await _minted(bus, queue, 1, lanes)  # the queue's own keys
        before = await _used(bus)
        await _minted(bus, queue, jobs, lanes)
        base = bus.base(queue)
        places = await bus.link.command("MEMORY", "USAGE", f"{base}jobs", "SAMPLES", "0")
        each = (await _used(bus) - before) / jobs
        told.append(f"{each:.0f} in {lanes:,} lane{'s' if lanes > 1 else ''} (of them {places / jobs:.0f} for lists)")
    return "; ".join(told)


async def growth(node: Node) -> str:
    """What is kept after each tenth of a million jobs (GROWTH_JOBS): keys, and MB of the server."""
    jobs, bus, told = int(os.environ.get("GROWTH_JOBS", "1000000")), node.bus, list[str]()
    queue, ran = "bench-growth", 0
    await bus.link.command("HSET", f"{bus.base(queue)}meta", "keep_count", 1_000)
    for tenth in range(10):
        while ran < jobs * (tenth + 1) // 10:
            await bus.beat(pump=True)
            bus.steps = StepWatch()
            await _minted(bus, queue, BULK, 10, first=ran)
            ran += BULK
            answer = await bus.claim(queue, "WRK00000000001", BULK)
            verdicts = [
                Done(Hold(job.id, job.attempts, job.holder), RunRecord("w", "DEP", job.claimed_ms, job.claimed_ms + 1))
                for job in answer.jobs
            ]
            await bus.settle(queue, "WRK00000000001", verdicts)
        keys = await bus.link.command("DBSIZE")
        told.append(f"{ran:,}: {keys:,} keys, {await _used(bus) / 1e6:.1f} MB")
    return "; ".join(told)


async def _minted(bus: Bus, queue: str, jobs: int, lanes: int, first: int = 0) -> None:
    for start in range(first, first + jobs, BULK):
        numbers = range(start, min(start + BULK, first + jobs))
        await bus.mint(
            queue, [Mint(id=bus.new_job_id(), payload=PAYLOAD, lane=f"L{number % lanes}") for number in numbers]
        )
        if start % 20_000 == 0:
            await bus.beat(pump=False)  # ids are made for a minute


async def _used(bus: Bus) -> int:
    told: bytes = await bus.link.command("INFO", "memory")
    return int(told.split(b"used_memory:")[1].split()[0])
