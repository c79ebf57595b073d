"""A node's life: state folder, bus, roles, signals. The roles themselves are composed in `roles`.

How it dies: the first SIGTERM, SIGINT or SIGHUP drains (no new requests, no new claims, running jobs may end), a second
one releases what runs at once. On SIGKILL the kernel ends its children (embedded server, base, discovery), and the base
its workers; leases run out and others take over. While it lives, what a killed base leaves falls to it, and is ended.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import uvloop

from echod import kin, log
from echod.bus import Bus
from echod.bus.address import parse
from echod.bus.exposed import open_port
from echod.config import Config
from echod.deploy.discovery import Discovery
from echod.deploy.live import Live
from echod.deploy.publish import Publisher
from echod.deploy.snapshot import served_folder
from echod.errors import BusAway, BusUnfit, Refused
from echod.node import terminal
from echod.node.doors import Walls, bar, chosen, needs_token, refuse_open_door, wanted
from echod.node.dotenv import loaded
from echod.node.embedded import Embedded, find_binary
from echod.node.lock import StateLock
from echod.node.parts import Parts
from echod.node.standby import Standby
from echod.policy import diagnosis
from echod.registry.peers import About
from echod.registry.registry import Registry

if TYPE_CHECKING:
    from echod.node.roles import Roles

_log = log.get("node")

AWAY_S, UNFIT_S = 1.0, 3.0  # between two looks at a bus that is away, or that cannot be used
RESTARTED_S = 60  # a server that is up for less was away just before we came


def serve(config: Config, names: frozenset[str], folder: Path | None, *, dev: bool) -> int:
    """Run a node until it is stopped; the exit code. Raises Refused for what cannot be served, BusUnfit."""
    verb = "dev" if dev else "start" if len(names) > 1 else next(iter(names))
    if "gateway" in names:  # asked again once the bus answers, which may have tokens: a state that is new has none
        refuse_open_door(config, verb, has_tokens=verb != "dev" and (config.bus is not None or config.state.exists()))
    if config.clock and (not dev or config.bus is not None):
        raise Refused(
            "--clock: expected `echod dev` on its embedded bus, got "
            + (
                f"`echod {verb}`: its clock is the server's own; unset ECHOD_CLOCK"
                if not dev
                else "--bus; leave one out"
            )
        )
    if config.bus is not None:
        parse(config.bus)  # what is no address is refused here; a bus behind one is waited for
    served = served_folder(folder) if folder is not None else None
    if dev and served is not None:
        os.environ.update(loaded(served, os.environ))  # discovery and workers take secrets from the environment
    node = Node(config, verb, names, served, chosen(wanted(config.sandbox, verb), config.state))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(node.run())


class Node:
    """One life."""

    def __init__(self, config: Config, verb: str, names: frozenset[str], folder: Path | None, walls: Walls) -> None:
        self._config = config
        self._verb = verb
        self._names = names
        self._folder = folder
        self._walls = walls
        self._lock: StateLock | None = None
        self._embedded: Embedded | None = None
        self._told = asyncio.Event()
        self._roles: Roles | None = None
        self._starting: asyncio.Task[object] | None = None

    async def run(self) -> int:
        """Come up, serve, go down. 0: told to stop; 1: a part failed."""
        self._starting = asyncio.current_task()
        kin.adopt()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._signalled)
        try:
            async with AsyncExitStack() as down:
                self._roles = roles = await self._come_up(down)
                self._starting = None
                roles.failed.add_done_callback(lambda _: self._told.set())
                await self._told.wait()
                await roles.drain()
        except asyncio.CancelledError:
            if not self._told.is_set():
                raise
            return 0
        if roles.failed.done():
            failure = roles.failed.result()
            _log.error("node.failed", error=repr(failure), exc_info=failure)
            return 1
        return 0

    async def _come_up(self, down: AsyncExitStack) -> Roles:
        """What takes long goes side by side: the server loads, the folder is discovered, the roles are imported."""
        discovery = Discovery(self._walls.level, self._config.env, scratch=self._config.state.absolute() / "tmp")
        down.push_async_callback(discovery.close)
        if self._folder is not None:
            await discovery.prepare()
        importing = asyncio.ensure_future(asyncio.to_thread(importlib.import_module, "echod.node.roles"))
        address = await self._address(down)
        standby = Standby(self._config, self._walls.level, serves="gateway" in self._names)
        down.push_async_callback(standby.end)
        bus = await self._open(address, standby)
        down.push_async_callback(bus.close)
        port = await open_port(bus, address) if "worker" in self._names else None
        about = About(self._verb, tuple(sorted(self._names)), sandbox=self._walls.level, open_port=port)
        registry = Registry(bus, self._config.state, own=about if "worker" in self._names else None, judge=bar)
        down.callback(registry.close)
        publisher = Publisher(bus, registry, discovery)
        live = Live(self._folder, publisher, self._config.state) if self._folder is not None else None
        first = asyncio.ensure_future(live.follow()) if live is not None else None
        if first is not None:
            down.callback(first.cancel)
        parts = Parts(
            bus, address, registry, publisher, self._config, self._verb, self._names, self._folder, self._walls, port
        )
        roles: Roles = (await importing).Roles(parts, standby, quit=self._signalled)
        if self._embedded is not None:
            roles.keep("server", self._embedded.run())
        await roles.come_up(down)
        if self._lock is not None and roles.url:
            self._lock.announce(roles.url)
        await roles.serve(first)
        if live is not None and self._verb == "dev":
            roles.watch(live, down)
        return roles

    async def _address(self, down: AsyncExitStack) -> str:
        """The bus to use: the one given, or our own on a state folder that is ours alone."""
        if self._verb in {"dev", "start"}:
            self._lock = StateLock(self._config.state)
            down.callback(self._lock.release)
        if self._config.bus is not None:
            return self._config.bus
        binary = find_binary(self._config.valkey_server, os.environ)
        self._embedded = Embedded(self._config.state, binary)
        down.push_async_callback(self._embedded.stop)
        await self._embedded.start()
        return self._embedded.address

    async def _open(self, address: str, standby: Standby) -> Bus:
        """The bus, waited for as long as it takes: whoever starts everything at once need not order it.

        One of yours that cannot be used is waited for, too, until its password, or whatever it is, was mended.
        """
        while True:
            try:
                bus = await Bus.open(address, app=self._config.app, driven=self._config.clock)
                try:
                    await self._look_at(bus)
                except BaseException:
                    await bus.close()
                    raise
                return bus
            except BusAway as error:
                await standby.tell(error)
                await asyncio.sleep(AWAY_S)
            except BusUnfit as error:
                if self._config.bus is None:
                    raise
                await standby.tell(error)
                await asyncio.sleep(UNFIT_S)

    async def _look_at(self, bus: Bus) -> None:
        """What is asked of a bus before anything is served. Raises Refused for a gateway that would ask no token."""
        if "gateway" in self._names and not self._config.token and needs_token(self._config, self._verb):
            held = await bus.tokens()
            known = any(row.kind == "token" and not row.is_over(bus.clock.now_ms()) for row in held.rows)
            refuse_open_door(self._config, self._verb, has_tokens=known)
        vitals = msgspec.convert(await bus.server(), diagnosis.Vitals)
        if self._config.bus is not None and vitals.uptime_s < RESTARTED_S:  # on our own nobody else had leases
            bus.steps.restarted()
        for ail in diagnosis.ails(vitals):
            _log.error("bus.ails", what=ail)
            terminal.alarm(ail)

    def _signalled(self) -> None:
        if not self._told.is_set():
            self._told.set()
            if self._starting is not None:
                self._starting.cancel()
        elif self._roles is not None:
            self._roles.release()
