"""A gateway as it runs: uvicorn on loopback, a real bus, a version with functions. Jobs are run by claiming them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec

from echod.bus import Bus
from echod.config import Config
from echod.gateway.app import create_app
from echod.gateway.connection import Bounds
from echod.gateway.desk import Desk
from echod.gateway.server import Server
from echod.model.ids import NodeId, VersionId
from echod.model.job import Claimed, Dead, Done, Error, Hold, Retry, RunRecord, Verdict
from echod.policy.recurring import stored, text_of, zone_of
from echod.registry.registry import Registry, Said
from echofn.manifest import CronTrigger, EveryTrigger, Function, LoadError, Manifest, Off, Policy, QueueTrigger, Trigger
from server import PATIENCE_S
from server import Server as Valkey

VERSION = VersionId("DEP00000000001")
OLDER = VersionId("DEP00000000000")
LEASE_MS = 60_000
NAMED: dict[str, Any] = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "integer"}}},
}


def function(name: str, *triggers: Trigger, schema: dict[str, Any] | None = None, **policy: Any) -> Function:
    """A function of the manifest."""
    module, _, attribute = name.partition(".")
    return Function(
        name,
        module,
        attribute or "handler",
        f"{module}.py",
        3,
        Policy(**policy),
        triggers or (QueueTrigger(),),
        takes_payload=True,
        payload_schema=schema,
        doc="What it does.",
    )


FUNCTIONS = (
    function("hello.greet", schema=NAMED),
    function("hello.any"),
    function("shop.pack", lane="customer.id"),
    function("shop.once", unique=True),
    function("shop.keyed", unique="order", until=60_000),
    function("shop.small", max_pending=2, priority=3),
    function("shop.usual", QueueTrigger(msgspec.msgpack.encode({"name": "Bo", "at": b"x"})), schema=NAMED, lane="name"),
    function("odd name/{x}:#?%🦊"),
    function("tick.beat", EveryTrigger("20s", 20_000), QueueTrigger(), lane="who"),
    function("report.weekly", CronTrigger("0 6 * * mon Europe/Berlin", "0 6 * * mon", "Europe/Berlin")),
)
ERRORS = (LoadError("broken", "broken.py", "invalid syntax", 4, 7, "syntax"),)


@dataclass
class Rig:
    """What a test drives."""

    valkey: Valkey
    bus: Bus
    registry: Registry
    desk: Desk
    server: Server
    http: httpx.AsyncClient
    status: dict[str, object]

    async def call(self, name: str, payload: object, **headers: str) -> httpx.Response:
        """POST a payload as JSON; header names are written with underscores."""
        sent = {b"Content-Type": b"application/json"}
        sent |= {key.replace("_", "-").encode(): value.encode() for key, value in headers.items()}
        return await self.http.post(f"/functions/{name}", content=msgspec.json.encode(payload), headers=sent)

    async def mint(self, name: str, payload: object = None, **headers: str) -> str:
        """The id of a job that was taken."""
        answer = await self.call(name, payload, **headers)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    async def claim(self, name: str) -> Claimed:
        """Claim the next job of a function; waits for one."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if jobs := (await self.bus.claim(name, "WRK1", 1, LEASE_MS)).jobs:
                    return jobs[0]
                await asyncio.sleep(0.005)

    async def first(self, name: str) -> str:
        """The id of the newest job of a function; waits for one."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if jobs := (await self.bus.jobs(name))[0]:
                    return jobs[0].id
                await asyncio.sleep(0.005)

    async def settle(self, name: str, verdict: Verdict) -> None:
        answer = await self.bus.settle(name, "WRK1", [verdict], lease_ms=LEASE_MS)
        assert not answer.refused

    async def run(self, name: str, result: object = None) -> Claimed:
        """Run the next job of a function to a good end."""
        job = await self.claim(name)
        await self.settle(name, Done(hold(job), self.record(job), msgspec.msgpack.encode(result)))
        return job

    async def fail(self, name: str, error: Error, *, retry: bool = False) -> Claimed:
        """Run the next job of a function to a bad end."""
        job = await self.claim(name)
        bad = (
            Retry(hold(job), self.record(job), error, after_ms=60_000)
            if retry
            else Dead(hold(job), self.record(job), error)
        )
        await self.settle(name, bad)
        return job

    def record(self, job: Claimed) -> RunRecord:
        return RunRecord(
            "WRK1", VERSION, job.claimed_ms + 5, job.claimed_ms + 25, cpu_us=1500, peak_bytes=1 << 20, cold=True
        )

    async def recur(self, name: str, *, next_ms: int | None = None) -> None:
        """Write the recurrences of a function to the bus, as a node does after a switch."""
        found = self.registry.function(name)
        assert found is not None
        for trigger in found.triggers:
            if not isinstance(trigger, QueueTrigger):
                await self.bus.recur(
                    name,
                    trigger.name,
                    rule=text_of(trigger),
                    tz=zone_of(trigger),
                    trigger=stored(trigger),
                    payload=trigger.payload,
                    next_ms=next_ms or self.bus.clock.now_ms() + 3_600_000,
                    generation=1,
                )


def hold(job: Claimed) -> Hold:
    return Hold(job.id, job.attempts, job.holder)


def nobody() -> Mapping[str, object]:
    """The status of a node that has nothing to tell."""
    return {}


@contextlib.asynccontextmanager
async def serving(
    valkey: Valkey,
    *,
    deployed: bool = True,
    errors: tuple[LoadError, ...] = (),
    off: tuple[Off, ...] = (),
    **settings: Any,
) -> AsyncIterator[Rig]:
    """A gateway for the length of the block. `settings` go to its Config; `deploys` and `bounds` are its own."""
    deploys = settings.pop("deploys", "the folder is the truth: edit it")
    bounds: Bounds | None = settings.pop("bounds", None)
    with tempfile.TemporaryDirectory() as folder:
        config = Config(**{"port": 0, "state": Path(folder), **settings})
        async with contextlib.AsyncExitStack() as stack:
            bus = await Bus.open(valkey.address)
            stack.push_async_callback(bus.close)
            await bus.join(NodeId("NOD00000000001"))
            registry = Registry(bus, Path(folder))
            if deployed:
                await publish(bus, FUNCTIONS, errors, off=off)
                await registry.refresh()
            status: dict[str, object] = {}
            app = create_app(bus, registry, config, status=lambda: status, level="minimal", deploys=deploys)
            server = Server(app, config, bounds)
            await server.start()
            stack.push_async_callback(server.stop)
            host, port = server.address
            http = httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=2 * PATIENCE_S)
            await stack.enter_async_context(http)
            yield Rig(valkey, bus, registry, app.state.desk, server, http, status)


async def publish(
    bus: Bus,
    functions: tuple[Function, ...],
    errors: tuple[LoadError, ...] = (),
    version: VersionId = VERSION,
    off: tuple[Off, ...] = (),
) -> None:
    """Store and activate a version that holds these functions."""
    manifest = msgspec.msgpack.encode(Manifest("functions", functions, off=off))
    await bus.put_version(version, [b""], manifest)
    said = Said(errors, hashlib.sha256(manifest).digest())
    active = await bus.activate(version, errors=msgspec.msgpack.encode(said))
    for found in functions:
        await bus.configure(found.name, found.policy, active.generation)


async def until(fact: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    """Wait for a fact."""
    async with asyncio.timeout(seconds):
        while True:
            if fact():
                return
            await asyncio.sleep(0.002)
