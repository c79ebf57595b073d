"""What a claimed job costs the server among few lanes and among 100,000: free ones, limited ones, ones that wait."""

from __future__ import annotations

import contextlib
import statistics
from itertools import product

from bench.scale import BULK, NIL, bare, server_us
from echod.bus import Bus
from echod.errors import BusAway
from echod.model.job import Mint
from echofn.manifest import Policy

FEW, SOME, MANY = 10, 50, 100_000
ROUNDS, CLAIMS = 7, 20
# Turns a claim. Of 10 each is another lane's in every queue: how many there are is all that differs. Of 50 the ten
# lanes have five each, and share what a lane costs; among fifty lanes each is another lane's again.
TURNS = (10, 50)
SIDES = ((FEW, 10), (FEW, 50), (SOME, 50), (MANY, 10), (MANY, 50))  # lanes, turns a claim
COUNTED = Policy(lane_concurrency=1_000_000, lane_rate="1000000/h")  # counted, and never reached
FULL = Policy(lane_concurrency=1)
MEANT = {"free": "no limit", "counted": "limits of lanes", "waiting": "beside lanes at their limit"}


async def minted(bus: Bus, queue: str, lanes: int, jobs: int, name: str = "L") -> None:
    """`jobs` jobs, lane after lane."""
    for start in range(0, jobs, BULK):
        if start % 50_000 == 0:
            await bus.beat(pump=False)  # ids are made for a minute
        numbers = range(start, min(start + BULK, jobs))
        with contextlib.suppress(BusAway):  # a disk that stalls under the append-only file: a few jobs more or fewer
            await bus.mint(queue, [Mint(id=bus.new_job_id(), payload=NIL, lane=f"{name}{n % lanes}") for n in numbers])


async def claimed(bus: Bus, queue: str, claims: int, turns: int) -> int:
    """Jobs of so many claims; the feed's next claim would be like them."""
    return sum([len((await bus.claim(queue, "WRK00000000001", turns, 3_600_000)).jobs) for _ in range(claims)])


async def lanes() -> str:
    """Round by round the same claims in each queue, so that what else the machine does hits all of them."""
    async with bare() as (bus, _):
        jobs = ROUNDS * CLAIMS * sum(TURNS)
        for limited, policy in (("free", Policy()), ("counted", COUNTED)):
            for count in (FEW, SOME, MANY):
                await bus.configure(f"{limited}-{count}", policy, 1)
                await minted(bus, f"{limited}-{count}", count, max(jobs + count, 2 * count))
        for count in (FEW, SOME, MANY):  # each of these lanes has a job that is active, and one that waits for its end
            queue = f"waiting-{count}"
            await bus.configure(queue, FULL, 1)
            await minted(bus, queue, count, 2 * count)
            await claimed(bus, queue, count // max(TURNS) + 1, max(TURNS))
            await minted(bus, queue, jobs, jobs, "free")
        costs: dict[tuple[str, int, int], list[float]] = {}
        for _ in range(ROUNDS):
            for kind, (count, turns) in product(MEANT, SIDES):
                queue, jobs = f"{kind}-{count}", CLAIMS * turns
                before = await server_us(bus)
                done = await claimed(bus, queue, CLAIMS, turns)
                assert done == jobs, f"expected {jobs} jobs of {queue}, got {done}"
                costs.setdefault((kind, count, turns), []).append((await server_us(bus) - before) / done)
        told: list[str] = []
        for kind, (count, turns) in product(MEANT, SIDES[:3]):
            few, many = (statistics.median(costs[kind, lanes, turns]) for lanes in (count, MANY))
            told.append(
                f"{MEANT[kind]}, {turns} a claim, {count} lanes {few:.1f} µs, {MANY:,} {many:.1f}: {many / few:.2f}"
            )
        return f"a claimed job: {'; '.join(told)}"
