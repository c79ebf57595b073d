"""`python -m bench [NAME …]`: each figure as it is taken; without names all. Compare only within one run."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec

from bench import scale, shares
from bench.flood import flood
from bench.keeping import growth, memory
from bench.node import TOKEN, Node, running
from bench.schedules import schedules
from echod.bus import Bus
from echod.cli.client import Client
from echod.deploy.snapshot import taken
from echod.model.ids import JobId
from echod.model.job import Job, Mint
from echod.registry.archive import pieces_of
from echofn.manifest import Policy

NIL = msgspec.msgpack.encode(None)
BULK = 500
FLOOD = 2_800


async def ended(bus: Bus, queue: str, job_id: JobId, timeout_s: float = 30.0) -> Job:
    """The job's record once it is done."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        job = await bus.job(job_id, queue=queue)
        if job and job.state == "done":
            return job
        await asyncio.sleep(0.002)
    raise SystemExit(f"{job_id} of {queue} did not end within {timeout_s} s")


async def warm(bus: Bus, queue: str) -> None:
    """One job to its end: the base, the first worker and the queue are there afterwards."""
    job_id = bus.new_job_id()
    await bus.mint(queue, [Mint(id=job_id, payload=NIL)])
    await ended(bus, queue, job_id)


async def drain(node: Node, queue: str = "load.noop", jobs: int = 30_000) -> str:
    """No-op jobs/s: minted while the queue is paused, then drained by two workers behind the walls this machine has."""
    bus = node.bus
    await warm(bus, queue)
    await bus.pause(queue)
    began = time.perf_counter()
    for _ in range(0, jobs, BULK):
        await bus.mint(queue, [Mint(id=bus.new_job_id(), payload=NIL) for _ in range(BULK)])
    minted = time.perf_counter() - began
    before, began = node.cpu_s(), time.perf_counter()
    await bus.resume(queue)
    await settled(bus, queue)
    took = time.perf_counter() - began
    cost = (node.cpu_s() - before) / jobs * 1e6
    rates = f"{jobs / took:,.0f} jobs/s, minted {jobs / minted:,.0f}/s in calls of {BULK}"
    return f"{rates}; {cost:.0f} µs of CPU a job in all"


async def batches(node: Node) -> str:
    """The same by a function that takes fifty at once; and the server's CPU for a claimed job, alone and in a batch."""
    drained = await drain(node, "load.noops")
    costs: list[str] = []
    for lanes in (10, 10_000):
        singly, together = await claimed_us(node.bus, lanes, None), await claimed_us(node.bus, lanes, 50)
        costs.append(f"{singly:.1f} and {together:.1f} µs among {lanes:,} lanes")
    return f"{drained}; a claimed job alone and in a batch {', '.join(costs)}"


async def claimed_us(bus: Bus, lanes: int, batch: int | None) -> float:
    """Microseconds of the server for each of 20,000 claimed jobs, alone or in batches."""
    jobs, queue = 20_000, f"bench-{lanes}-{batch}"
    turns = 50 // min(batch or 1, jobs // lanes)  # so that a call brings 50 jobs
    await bus.configure(queue, Policy(batch=batch), 1_000_000)
    await bus.beat(pump=False)  # ids are made for a minute
    for start in range(0, jobs, BULK):
        numbers = range(start, start + BULK)
        await bus.mint(queue, [Mint(id=bus.new_job_id(), payload=NIL, lane=f"L{number % lanes}") for number in numbers])
    before, claimed = await server_us(bus), 0
    while claimed < jobs:
        claimed += len((await bus.claim(queue, "WRK00000000001", turns)).jobs)
    return (await server_us(bus) - before) / jobs


async def server_us(bus: Bus) -> float:
    """CPU that the server's main thread has used so far."""
    told = (await bus.link.command("INFO", "cpu")).decode()
    return sum(float(told.split(f"used_cpu_{kind}_main_thread:")[1].split()[0]) * 1e6 for kind in ("user", "sys"))


async def durable(node: Node) -> str:
    """Mints answered when they are on disk, by so many callers at once, and plain ones beside them."""
    bus, queue, rates = node.bus, "bench-durable", list[str]()
    for callers in (1, 100, 2_000):
        plain, synced = [await minted_s(bus, queue, callers, fsync=fsync) for fsync in (False, True)]
        rates.append(f"{callers:,} callers {synced:,.0f}/s, plain {plain:,.0f}/s")
    return "; ".join(rates)


async def minted_s(bus: Bus, queue: str, callers: int, *, fsync: bool) -> float:
    """Jobs a second of callers of which each mints one job after another for three seconds."""
    jobs, began = 0, time.perf_counter()
    await bus.beat(pump=False)  # ids are made for a minute

    async def call() -> None:
        nonlocal jobs
        while time.perf_counter() - began < 3:
            await bus.mint_outside(queue, Mint(id=bus.new_job_id(), payload=NIL), fsync=fsync)
            jobs += 1

    await asyncio.gather(*[call() for _ in range(callers)])
    return jobs / (time.perf_counter() - began)


async def isolation(node: Node) -> str:
    """A process for each job, beside warm workers: both figures of both, in one run."""
    told: list[str] = []
    for suffix, jobs in (("", 30_000), ("_alone", 500)):
        await node.bus.beat(pump=False)  # ids are made for a minute
        drained = await drain(node, f"load.noop{suffix}", jobs)
        await node.bus.beat(pump=False)
        quick = await dispatch(node, f"load.stamp{suffix}", count=50, pause_s=0.2)
        told.append(f"{'job' if suffix else 'worker'}: {drained}; mint to first line {quick}")
    return " | ".join(told)


async def dispatch(node: Node, queue: str = "load.stamp", count: int = 300, pause_s: float = 0.02) -> str:
    """Mint to the handler's first line on an idle node, one job at a time."""
    bus, waits = node.bus, list[float]()
    await warm(bus, queue)
    for _ in range(count):
        await asyncio.sleep(pause_s)
        job_id, began = bus.new_job_id(), time.monotonic_ns()
        await bus.mint(queue, [Mint(id=job_id, payload=NIL)])
        job = await ended(bus, queue, job_id)
        waits.append((msgspec.msgpack.decode(job.result or NIL) - began) / 1e6)
    return spread(waits)


async def late(node: Node) -> str:
    """Delayed jobs: the handler's first line after the due instant."""
    bus, queue, lates = node.bus, "load.wall", list[float]()
    await warm(bus, queue)
    ids = [(bus.new_job_id(), 400 + 37 * number) for number in range(200)]
    await bus.mint(queue, [Mint(id=job_id, payload=NIL, in_ms=in_ms) for job_id, in_ms in ids])
    for job_id, _ in ids:
        job = await ended(bus, queue, job_id)
        lates.append(msgspec.msgpack.decode(job.result or NIL) / 1e6 - job.due_ms)
    return spread(lates)


async def cron(node: Node) -> str:
    """`every("1s")`: the handler's first line after the due instant."""
    await asyncio.sleep(20)
    jobs, _ = await node.bus.jobs("load.tick", limit=18)
    lates = [
        msgspec.msgpack.decode(full.result) / 1e3
        for job in jobs
        if (full := await node.bus.job(job.id)) and full.result
    ]
    return spread(lates)


async def crash(node: Node) -> str:
    """A handler that aborts: mint to the first line of its second run."""
    bus, queue, waits = node.bus, "load.crash", list[float]()
    await warm(bus, queue)
    for _ in range(20):
        job_id, began = bus.new_job_id(), time.monotonic_ns()
        await bus.mint(queue, [Mint(id=job_id, payload=NIL)])
        job = await ended(bus, queue, job_id)
        waits.append((msgspec.msgpack.decode(job.result or NIL) - began) / 1e6)
    return spread(waits)


async def idle(node: Node) -> str:
    """What a minute costs with one `every("1s")` function: CPU of the node and its server."""
    before = node.cpu_s()
    await asyncio.sleep(30)
    return f"{(node.cpu_s() - before) * 2:.2f} CPU s/min beside one job a second"


def spread(values_ms: Sequence[float]) -> str:
    """p50, p99, max in ms."""
    ordered = sorted(values_ms)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return (
        f"p50 {statistics.median(ordered):.2f} ms, p99 {p99:.2f} ms, max {ordered[-1]:.2f} ms ({len(ordered)} samples)"
    )


async def deploy(node: Node) -> str:
    """A folder of 50 modules, from packing it to the end of its first job on a node that served nothing; the median.

    And of 50 modules that all import the same ten libraries of 300 lines.
    """
    client, folder, told = Client(node.url, TOKEN), node.place / "fifty", list[str]()
    folder.mkdir()
    for shape, imports in (("apart", ""), ("sharing", "".join(f"from . import _lib{each}\n" for each in range(10)))):
        took = list[float]()
        for turn in range(5):
            for number in range(10):
                lines = (f"def f{line}(a, b=({turn}, 2)): return (a + {line}) * 2\n" for line in range(300))
                (folder / f"_lib{number}.py").write_text("".join(lines))
            for number in range(50):
                (folder / f"m{number}.py").write_text(imports + _answering(f"{shape}.{turn}.{number}"))
            began = time.perf_counter()
            _deployed(client, folder)
            _answers(client, "m49.f", f"{shape}.{turn}.49")
            took.append(time.perf_counter() - began)
        told.append(f"{shape} {statistics.median(took):.2f} s, max {max(took):.2f} s ({len(took)} deploys)")
    return "; ".join(told)


async def rollback(node: Node) -> str:
    """From the request to the end of the first job on the version before."""
    client, folder, took = Client(node.url, TOKEN), node.place / "one", list[float]()
    folder.mkdir()
    versions: list[str] = []
    for text in ("old", "new"):
        (folder / "m.py").write_text(_answering(text))
        versions.append(_deployed(client, folder))
        _answers(client, "m.f", text)
    for turn in range(20):
        began = time.perf_counter()
        client.post(f"/versions/{versions[turn % 2]}/activate")
        _answers(client, "m.f", ("old", "new")[turn % 2])
        took.append((time.perf_counter() - began) * 1000)
    return spread(took)


def _answering(text: str) -> str:
    return f"from echofn import queue\n\n@queue()\ndef f(payload):\n    return {text!r}\n"


def _deployed(client: Client, folder: Path) -> str:
    """The version that a folder became."""
    body = b"".join(pieces_of(taken(folder).archive))
    headers = {"Content-Type": "application/octet-stream"}
    return str(client.call("POST", "/deploy", body, headers, timeout=120).body["version"])


def _answers(client: Client, name: str, text: str) -> None:
    """Call until the code that says `text` answers."""
    headers = {"Content-Type": "application/json", "Prefer": "wait=10"}
    while client.call("POST", f"/functions/{name}", b"null", headers).body != text:
        pass


async def floods(node: Node) -> str:
    """2,800 requests at once, on as many new connections, to a process that has answered none yet; and once more, warm.

    Accepted are a few hundred, quickly; the rest is told to come again. /healthz, asked without pause beside them, has
    what the loop was late by.
    """
    host, _, port = node.url.removeprefix("http://").partition(":")
    head = ["POST /functions/load.noop HTTP/1.1", "Host: localhost", f"Authorization: Bearer {TOKEN}"]
    request = "\r\n".join([*head, "Content-Type: application/json", "Content-Length: 4", "", "null"]).encode()
    told: list[str] = []
    for when in ("fresh", "warm"):
        seen = await asyncio.to_thread(flood, (host, int(port)), request, FLOOD)
        took, turned = seen.accepted_ms(), seen.count(429, 503)
        rest = f", {FLOOD - len(took) - turned} unanswered" if len(took) + turned < FLOOD else ""
        late = f"loop late by {spread(seen.probes)}"
        told.append(f"{when}: {len(took)} accepted {spread(took)}, {turned} told to come again{rest}; {late}")
        await settled(node.bus, "load.noop")
    return " | ".join(told)


async def settled(bus: Bus, queue: str) -> None:
    """Once no job of it is waiting or running."""
    while (stats := (await bus.stats([queue]))[queue]).pending or stats.active:
        await asyncio.sleep(0.02)  # in another process


BENCHES: dict[str, Callable[[Node], Awaitable[str]]] = {
    bench.__name__: bench
    for bench in (
        *(
            drain,
            batches,
            durable,
            dispatch,
            isolation,
            late,
            cron,
            crash,
            idle,
            floods,
            memory,
            growth,
            deploy,
            rollback,
            schedules,
        ),
    )
}


BARE: dict[str, Callable[[], Awaitable[str]]] = {
    bench.__name__: bench for bench in (scale.tick, scale.promote, shares.lanes)
}


async def main(names: Sequence[str]) -> None:
    if unknown := [name for name in names if name not in {*BENCHES, *BARE}]:
        raise SystemExit(f"expected some of {', '.join([*BENCHES, *BARE])}, got {', '.join(unknown)}")
    for name in names or [*BENCHES, *BARE]:
        if name in BARE:
            print(f"{name:9} {await BARE[name]()}", flush=True)
            continue
        async with running(deploys=name in {"deploy", "rollback", "schedules"}) as node:
            print(f"{name:9} {await BENCHES[name](node)}", flush=True)


asyncio.run(main(sys.argv[1:]))
