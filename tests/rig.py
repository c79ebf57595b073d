"""A supervisor with what it needs around it: a folder of handlers, a registry that serves it, a bell and a clockwork.

As a program, `python rig.py ADDRESS FOLDER NODE LEASE_MS`, it is a node of its own, for tests that freeze or kill one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from echod.bus import Bus
from echod.config import Config
from echod.errors import BusError
from echod.model.ids import JobId, NodeId, VersionId
from echod.model.job import Job, Mint
from echod.supervisor import Supervisor
from echofn.manifest import Backoff, Constant, Function, Manifest, Policy, QueueTrigger

PACKAGE = "functions"
PATIENCE_S = 60.0
VERSION = VersionId("DEP00000000001")


class Served(msgspec.Struct, frozen=True):
    version: VersionId
    generation: int
    manifest: Manifest
    errors: tuple[Any, ...] = ()


class Shelf:
    """Versions on disk, and which is active."""

    def __init__(self, root: Path) -> None:
        self.active: Served | None = None
        self._root = root
        self._served: dict[VersionId, Served] = {}
        self._listeners: list[Callable[[], None]] = []

    def put(self, version: str, source: str, functions: Sequence[Function]) -> Served:
        """Write a version whose one module is `jobs`."""
        folder = self._root / version / PACKAGE
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "jobs.py").write_text(textwrap.dedent(source))
        served = Served(VersionId(version), len(self._served) + 1, Manifest(PACKAGE, tuple(functions)))
        self._served[served.version] = served
        return served

    def activate(self, served: Served) -> None:
        generation = self.active.generation + 1 if self.active else 1
        self.active = Served(served.version, generation, served.manifest)
        for listener in list(self._listeners):
            listener()

    def function(self, name: str) -> Function | None:
        functions = self.active.manifest.functions if self.active else ()
        return next((each for each in functions if each.name == name), None)

    async def folder(self, version: VersionId) -> Path:
        return self._root / version

    async def manifest(self, version: VersionId) -> Manifest | None:
        served = self._served.get(version)
        return served.manifest if served else None

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback)


def function(
    attribute: str,
    *,
    backoff: Backoff | None = None,
    context: bool = True,
    is_async: bool = False,
    startup_ms: int | None = None,
    **policy: Any,
) -> Function:
    """`jobs.<attribute>(payload, ctx)`, as discovery would describe it."""
    return Function(
        name=f"jobs.{attribute}",
        module="jobs",
        attribute=attribute,
        file="jobs.py",
        line=1,
        policy=Policy(backoff=backoff or Constant(20), **policy),
        triggers=(QueueTrigger(),),
        takes_payload=True,
        takes_context=context,
        is_async=is_async,
        startup_ms=startup_ms,
    )


class Rig:
    """A node of one supervisor. `bus` is its own; `outside` belongs to whoever mints and looks."""

    def __init__(self, bus: Bus, outside: Bus, shelf: Shelf, state: Path, **options: Any) -> None:
        self.bus, self.outside, self.shelf, self.state = bus, outside, shelf, state
        lease_ms = options.pop("lease_ms", 15_000)
        node = options.pop("node", "NOD00000000001")
        level = options.pop("level", "minimal")
        config = Config(state=state, lease_ms=lease_ms)
        self.supervisor = Supervisor(bus, shelf, config, node=NodeId(node), level=level, **options)
        self._ended: dict[str, asyncio.Event] = {}
        outside.on("ended", lambda job: self._event(job).set())
        self._tasks: list[asyncio.Task[None]] = []
        self.running: asyncio.Task[None] | None = None
        self.listening = True

    def start(self) -> None:
        self.running = asyncio.create_task(self.supervisor.run())
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._tick())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.supervisor.stop()
        if self.running is not None:
            await self.running

    async def mint(self, attribute: str, payload: object, **options: Any) -> JobId:
        [job] = await self.mint_many(attribute, [payload], **options)
        return job

    async def mint_many(self, attribute: str, payloads: Sequence[object], **options: Any) -> list[JobId]:
        mints = [
            Mint(
                id=self.outside.new_job_id(),
                payload=msgspec.msgpack.encode(payload),
                wait=self.outside.wait_channel,
                **options,
            )
            for payload in payloads
        ]
        for start in range(0, len(mints), 250):  # a call has its time limit
            await self.outside.mint(f"jobs.{attribute}", mints[start : start + 250])
        return [mint.id for mint in mints]

    async def job(self, attribute: str, job: str) -> Job:
        found = await self.outside.job(job, queue=f"jobs.{attribute}")
        assert found is not None
        return found

    async def ended(self, attribute: str, job: str, within_s: float = PATIENCE_S) -> Job:
        """The job, once it has ended."""
        try:
            await asyncio.wait_for(self._event(job).wait(), within_s)
        except TimeoutError:
            raise AssertionError(f"not ended within {within_s} s: {await self.job(attribute, job)}") from None
        return await self.job(attribute, job)

    async def all_ended(self, attribute: str, jobs: Sequence[str], within_s: float = PATIENCE_S) -> list[Job]:
        return [await self.ended(attribute, job, within_s) for job in jobs]

    async def until(self, holds: Callable[[], Any], within_s: float = PATIENCE_S) -> Any:
        """Wait until something that nobody announces holds."""
        end = asyncio.get_running_loop().time() + within_s
        while True:
            got = holds()
            if asyncio.iscoroutine(got):
                got = await got
            if got:
                return got
            assert asyncio.get_running_loop().time() < end, "did not come to hold"
            await asyncio.sleep(0.005)

    async def running_job(self, attribute: str, job: str, within_s: float = PATIENCE_S) -> int:
        """The pid of the one worker that is busy with this job."""

        def pid() -> int | None:
            seen = self.workers(attribute)
            return seen["pids"][0] if seen["busy"] == 1 else None  # type: ignore[no-any-return]

        return int(await self.until(pid, within_s))

    def workers(self, attribute: str) -> dict[str, Any]:
        status = self.supervisor.status()["workers"]
        return status.get(f"jobs.{attribute}", {"count": 0, "busy": 0, "pids": [], "cold_starts": 0})  # type: ignore[attr-defined, no-any-return]

    def _event(self, job: str) -> asyncio.Event:
        return self._ended.setdefault(job, asyncio.Event())

    async def _listen(self) -> None:
        while True:
            await self.supervisor.room.wait()
            queue = await self.bus.ring_wait(1.0)
            if queue is not None:
                self.supervisor.offer(queue)

    async def _tick(self) -> None:
        """Promote what is due and recover what is lost, as a pump does."""
        while True:
            soonest = 20
            with contextlib.suppress(BusError):
                for served in self.shelf.active.manifest.functions if self.shelf.active else ():
                    answer = await self.bus.tick(served.name)
                    if answer.next_in_ms is not None:
                        soonest = min(soonest, answer.next_in_ms)
            await asyncio.sleep(max(soonest, 1) / 1000)


@contextlib.asynccontextmanager
async def rig(
    address: str, folder: Path, source: str, functions: Sequence[Function], **options: Any
) -> AsyncIterator[Rig]:
    """A running node that serves `source`."""
    bus = await Bus.open(address)
    outside = await Bus.open(address)
    await bus.join(NodeId(options.get("node", "NOD00000000001")))
    await outside.join(NodeId("NOD00000000099"))
    shelf = Shelf(folder / "versions")
    shelf.activate(shelf.put(VERSION, source, functions))
    node = Rig(bus, outside, shelf, folder / "state", **options)
    node.start()
    try:
        yield node
    finally:
        await node.stop()
        await bus.close()
        await outside.close()


async def _serve(address: str, folder: str, node: str, lease_ms: str) -> None:
    """A node in a process of its own: serves FOLDER, whose functions.msgpack describes it, until SIGTERM."""
    root = Path(folder)
    functions = msgspec.msgpack.decode((root / "functions.msgpack").read_bytes(), type=tuple[Function, ...])
    source = (root / "source.py").read_text()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with rig(address, root, source, functions, node=node, lease_ms=int(lease_ms)):
        print("serving", os.getpid(), flush=True)
        await ended.wait()


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
