"""The roles of a node, composed: gateway, pump, worker, and the folder that is served, over one bus and one beat.

What is composed here knows nothing of each other: the metronome is handed the supervisor's `offer`, the pump and the
registry are told what the beat answered, the gateway is handed the way to deploy.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from typing import cast

import msgspec

from echod import log
from echod.bus.answers import BeatAnswer, Told
from echod.config import Config
from echod.deploy.live import Live, Saved
from echod.deploy.publish import place_of
from echod.errors import BusError, BusUnfit, Refused
from echod.gateway.app import create_app
from echod.gateway.server import Server
from echod.metronome.metronome import Metronome
from echod.model.ids import NodeId, branded
from echod.node import terminal
from echod.node.beat import Beat
from echod.node.console import Console
from echod.node.parts import Parts
from echod.node.standby import Standby
from echod.pump.pump import Pump
from echod.registry.registry import UNSERVED
from echod.supervisor.supervisor import Supervisor

_log = log.get("node")

DRAIN_DEV_S = 3.0  # who presses ctrl-c wants the prompt back; what is cut off is released, uncharged
DRAIN_S = (
    20.0  # with what follows (workers are killed, their base ends) within the 30 s that systemd and Kubernetes leave
)
JOIN_S = 1.0
MOST_AILS, AIL_CHARS = 20, 500  # told of one node


class Roles:
    """What runs on one bus connection until `drain`. `failed` is resolved with what ended a part that never ends."""

    def __init__(self, parts: Parts, standby: Standby, *, quit: Callable[[], None]) -> None:
        self._parts = parts
        self._standby = standby
        self._quit = quit
        self._node = NodeId(branded("NOD", secrets.randbits(63)))
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: Server | None = None
        self._supervisor: Supervisor | None = None
        self._metronome: asyncio.Task[None] | None = None
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.url: str | None = None

    async def come_up(self, down: AsyncExitStack) -> None:
        """Start what can wait for a version: `down` undoes it in reverse order."""
        parts = self._parts
        down.push_async_callback(self._leave)
        down.push_async_callback(self._end_tasks)
        await self._join()
        if "gateway" in parts.names:
            await self._open_gateway(down)
        if "worker" in parts.names:
            self._supervisor = Supervisor(
                parts.bus, parts.registry, parts.config, node=self._node, level=parts.walls.level
            )
            self.keep("supervisor", self._supervisor.run())
            self._metronome = self.keep("metronome", Metronome(parts.bus, self._supervisor).run())
        shown = str(Config(bus=parts.address).masked()["bus"])
        terminal.banner(parts.verb, self.url, shown, str(parts.folder or "the bus's active version"))
        if self._supervisor is not None:
            terminal.sandbox(parts.walls.level, parts.walls.missing)
        if parts.bus.driven:
            terminal.clock(parts.bus.clock.now_ms(), frozen=parts.bus.clock.frozen)

    async def serve(self, first: Awaitable[Saved | None] | None) -> None:
        """Start what acts on a version. `first`: the folder's, on its way; nothing older is served until then."""
        parts = self._parts
        hear: list[Callable[[BeatAnswer], object]] = [lambda answer: parts.registry.seen(answer.active)]
        if first is not None:
            await first
        else:
            with contextlib.suppress(BusError, Refused):
                await parts.registry.refresh()
        self.keep("registry", parts.registry.run())
        if "pump" in parts.names:
            pump = Pump(parts.bus, parts.registry)
            hear.append(pump.heard)
            self.keep("pump", pump.run())
        if self._supervisor is not None:
            parts.registry.running = self._supervisor.running
        beat = Beat(parts.bus, pump="pump" in parts.names, hear=hear, running=parts.registry.needed, told=self._tell)
        parts.registry.on_use = beat.wake
        if self._supervisor is not None:
            parts.registry.on_change(beat.wake)
            self._supervisor.on_told = beat.wake
        self.keep("beat", beat.run())
        _log.info("node.started", node=self._node, verb=parts.verb)
        active = parts.registry.active
        shown = str(Config(bus=parts.address).masked()["bus"])
        terminal.ready(parts.verb, self.url, shown, parts.walls.level, parts.walls.missing, active)
        if active is None:
            terminal.say(parts.registry.unreadable or "no version deployed; run `echod deploy FOLDER`")
            return
        terminal.functions(active.manifest.functions, parts.bus.clock.now_ms(), self.url)
        terminal.off(active.manifest.off)
        if self.url:
            terminal.unset(active.manifest.functions, os.environ)
        terminal.errors(active.errors)

    def watch(self, live: Live, down: AsyncExitStack) -> None:
        """Follow the folder's saves, and take the terminal's keys."""
        parts = self._parts
        if parts.config.reload:
            self.keep("watch", live.run(terminal.saved))
        if self.url and terminal.is_for_people():
            console = Console(parts.bus, live, self.url, parts.config.token, self._quit)
            console.open()
            down.push_async_callback(console.close)

    def keep(self, name: str, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run a part that only ends with the node."""

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (failure := task.exception()) is not None and not self.failed.done():
                self.failed.set_result(failure)

        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(ended)
        return task

    async def drain(self) -> None:
        """Take nothing new; let running jobs end, for a while."""
        if self._metronome is not None:
            self._metronome.cancel()
        duties: list[Awaitable[object]] = []
        if self._server is not None:
            duties.append(self._server.stop())
        if self._supervisor is not None:
            terminal.draining(sum(workers["busy"] for workers in self._workers().values()))
            duties.append(self._supervisor.drain(DRAIN_DEV_S if self._parts.verb == "dev" else DRAIN_S))
        await asyncio.gather(*duties)  # side by side: nothing is claimed while the last requests end

    def release(self) -> None:
        """Cut the drain short: what runs goes back to its lane, uncharged."""
        if self._supervisor is not None:
            self.keep("release", self._supervisor.release())

    async def _join(self) -> None:
        """Lease a node number; waited for while the bus is away, a replica, or does not let us."""
        while True:
            try:
                return await self._parts.bus.join(self._node, info=self._info())
            except BusError as error:
                if isinstance(error, BusUnfit) and self._parts.config.bus is None:
                    raise
                await self._standby.tell(error)
                await asyncio.sleep(JOIN_S)

    def _info(self) -> bytes:
        """What the nodes page says of this one."""
        parts = self._parts
        about = {
            "verb": parts.verb,
            "roles": sorted(parts.names),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "sandbox": parts.walls.level,
            "folder": str(parts.folder) if parts.folder else None,
            "open_port": parts.open_port,
        }
        return msgspec.msgpack.encode(about)

    def _tell(self) -> Told:
        """What the other nodes hear of this one with each beat."""
        if self._supervisor is None:
            return Told()
        registry = self._parts.registry
        ails = [*self._supervisor.ails, *([registry.unreadable] if registry.unreadable else ())]
        errors = registry.active.errors if registry.active else ()
        ails += [place_of(error) for error in errors if error.kind == UNSERVED]
        return Told(tuple(ail[:AIL_CHARS] for ail in ails[:MOST_AILS]), *self._supervisor.warmth())

    async def _leave(self) -> None:
        with contextlib.suppress(BusError):
            await self._parts.bus.leave()

    async def _end_tasks(self) -> None:
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _open_gateway(self, down: AsyncExitStack) -> None:
        parts = self._parts
        deploys = parts.publisher if parts.folder is None else self._no_deploys()
        app = create_app(
            parts.bus, parts.registry, parts.config, status=self._status, level=parts.walls.level, deploys=deploys
        )
        self._server = Server(app, parts.config)
        await self._standby.end()
        await self._server.start()
        down.push_async_callback(self._server.stop)
        host, port = self._server.address
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def _no_deploys(self) -> str:
        verb, folder = self._parts.verb, self._parts.folder
        said = f"this echod serves the folder {folder} as it is; "
        if verb == "dev":
            return f"{said}save there what should change"
        return f"{said}change it and start again, or run `echod {verb}` without a folder and deploy to that"

    def _status(self) -> dict[str, object]:
        """What only the node knows, for the gateway's answers."""
        degraded = [f"sandbox {self._parts.walls.level}: without {lack}" for lack in self._parts.walls.missing]
        return {"mode": self._parts.verb, "node": self._node, "degraded": degraded, "workers": self._workers()}

    def _workers(self) -> Mapping[str, Mapping[str, int]]:
        """This node's workers by function."""
        if self._supervisor is None:
            return {}
        return cast("Mapping[str, Mapping[str, int]]", self._supervisor.status()["workers"])
