"""The connection that carries the calls: pipelined, reconnecting, every call answered or BusAway in time.

It owns one Wire at a time. A call whose connection broke is sent again while its time lasts: every script, and every
command we send, may be (design 4.3). It does not know what the calls mean.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import hiredis

from echod.bus import address as addresses
from echod.bus.faults import code_of, means_another_server, translate
from echod.bus.scripts import Script
from echod.bus.wire import Argument, Wire
from echod.errors import BusAway, BusError, EchodError

CALL_TIMEOUT_S = 0.8
TRIP = 500  # commands
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0


async def handshake(wire: Wire, address: addresses.Address, timeout_s: float) -> None:
    """Authenticate, choose the database, and see that the server serves. Raises BusAway or BusUnfit."""
    replies: list[asyncio.Future[Any]] = []
    if address.password is not None:
        credentials = [address.username, address.password] if address.username else [address.password]
        replies.append(wire.send("AUTH", *credentials, timeout_s=timeout_s))
    if address.db:
        replies.append(wire.send("SELECT", address.db, timeout_s=timeout_s))
    replies.append(wire.send("PING", timeout_s=timeout_s))
    for reply in await asyncio.gather(*replies):
        if isinstance(reply, hiredis.ReplyError):
            raise translate(reply)


async def connect(address: addresses.Address, factory: Callable[[], Wire]) -> Wire:
    """A wire that serves. Raises BusAway or BusUnfit within the time of a call."""
    wire: Wire | None = None
    try:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            wire = await addresses.connect(address, factory)
            await handshake(wire, address, CALL_TIMEOUT_S)
    except TimeoutError:
        if wire:
            wire.abort("no answer in time")
        raise BusAway(f"the bus at {addresses.where(address)} does not answer") from None
    except BaseException:
        if wire:
            wire.abort("given up")
        raise
    return wire


def is_lost(reply: Any) -> bool:
    """Whether a verb did not run since the server has it not, or not in the form that it was called in."""
    return isinstance(reply, hiredis.ReplyError) and (
        code_of(reply) == "NOSCRIPT" or str(reply) == "ERR Function not found" or _forbids_functions(reply)
    )


def _forbids_functions(reply: hiredis.ReplyError) -> bool:
    return code_of(reply) == "NOPERM" and "'fcall'" in str(reply)


async def load(wire: Wire, script: Script, lost: hiredis.ReplyError, timeout_s: float) -> Any:
    """Load a verb whose call was answered `lost`; an error reply where the server takes it in neither form.

    A function needs memory, rights of its own in an ACL, and a server that takes writes; where one is missing, this
    connection calls the verb as a plain script from now on.
    """
    if _forbids_functions(lost):
        wire.as_plain.add(script.function)
    if script.function not in wire.as_plain:
        reply = await wire.send(b"FUNCTION", b"LOAD", script.library, timeout_s=timeout_s)
        if not isinstance(reply, hiredis.ReplyError) or str(reply).endswith("already exists"):
            return script.function
        if code_of(reply) not in ("OOM", "NOPERM", "READONLY"):
            return reply
        wire.as_plain.add(script.function)
    return await wire.send(b"SCRIPT", b"LOAD", script.plain, timeout_s=timeout_s)


class Pauses:
    """Waits between attempts: doubling with jitter, bounded."""

    def __init__(self) -> None:
        self._next = FIRST_PAUSE_S

    def take(self) -> float:
        pause = self._next * random.uniform(0.5, 1.0)
        self._next = min(self._next * 2, LONGEST_PAUSE_S)
        return pause

    def reset(self) -> None:
        self._next = FIRST_PAUSE_S


class Link:
    """Calls to the server."""

    def __init__(self, address: addresses.Address, on_change: Callable[[bool], None]) -> None:
        self._address = address
        self._on_change = on_change
        self._wire: Wire | None = None
        self._came_up = asyncio.Event()
        self._trouble: EchodError = BusAway("not connected yet")
        self._keeper: asyncio.Task[None] | None = None
        self.patience_s = CALL_TIMEOUT_S  # how long a call may take; tests on a busy machine have more of it

    @property
    def connected(self) -> bool:
        return self._wire is not None and not self._wire.closed.done()

    async def open(self) -> None:
        """Connect, once. Raises BusAway or BusUnfit; afterwards the link keeps itself up."""
        self._adopt(await connect(self._address, Wire))
        self._keeper = asyncio.create_task(self._keep_up(), name="bus-link")

    async def close(self) -> None:
        if self._keeper:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._wire:
            self._wire.abort("closed by us")
        self._wire = None

    async def command(self, *command: Argument, timeout_s: float | None = None) -> Any:
        """One command's reply. Raises BusAway, BusFull, BusUnfit or BusError."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self.patience_s if timeout_s is None else timeout_s)
        while True:
            wire = await self._wire_before(deadline)
            try:
                reply = await wire.send(*command, timeout_s=max(deadline - loop.time(), 0.001))
            except BusAway:
                if loop.time() >= deadline - 0.001:
                    raise
                continue
            if isinstance(reply, hiredis.ReplyError):
                self._refuse(wire, reply)
            return reply

    async def commands(self, batch: list[tuple[Argument, ...]]) -> list[Any]:
        """Replies to many commands, a part of them in one trip; an error reply of any is raised."""
        replies: list[Any] = []
        for start in range(0, len(batch), TRIP):  # each trip has a call's time to itself
            replies += await asyncio.gather(*[self.command(*command) for command in batch[start : start + TRIP]])
        return replies

    async def script(
        self, script: Script, keys: tuple[str, str], arguments: list[Argument], resent: list[Argument] | None = None
    ) -> Any:
        """A script's reply; loaded where the server does not have it.

        `resent`: the arguments once it may have run and its reply was lost.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.patience_s
        may_have_run = False
        while True:
            wire = await self._wire_before(deadline)
            left = max(deadline - loop.time(), 0.001)
            given = resent if may_have_run and resent else arguments
            try:
                reply = await wire.send(*script.call(wire.as_plain), *keys, *given, timeout_s=left)
                if is_lost(reply) and loop.time() < deadline:
                    reply = await load(wire, script, reply, left)
                    if not isinstance(reply, hiredis.ReplyError):
                        continue
            except BusAway:
                if loop.time() >= deadline - 0.001:
                    raise
                may_have_run = True
                continue
            if isinstance(reply, hiredis.ReplyError):
                self._refuse(wire, reply)
            return reply

    async def scripts(self, calls: list[tuple[Script, tuple[str, str], list[Argument]]]) -> list[Any]:
        """Replies to many scripts, a part of them in one trip."""
        replies: list[Any] = []
        for start in range(0, len(calls), TRIP):
            replies += await asyncio.gather(*[self.script(*call) for call in calls[start : start + TRIP]])
        return replies

    def _refuse(self, wire: Wire, reply: hiredis.ReplyError) -> None:
        error = translate(reply)
        if means_another_server(error):
            wire.abort(str(error))
        raise error

    async def _wire_before(self, deadline: float) -> Wire:
        wire = self._wire
        if wire is not None and not wire.closed.done():
            return wire
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    await self._came_up.wait()
                    wire = self._wire
                    if wire is not None and not wire.closed.done():
                        return wire
                    await asyncio.sleep(0)
        except TimeoutError:
            raise BusAway(str(self._trouble)) from None

    def _adopt(self, wire: Wire) -> None:
        self._wire = wire
        self._came_up.set()
        self._on_change(True)

    async def _keep_up(self) -> None:
        pauses = Pauses()
        while True:
            assert self._wire is not None
            reason = await asyncio.shield(self._wire.closed)
            self._came_up.clear()
            self._trouble = BusAway(f"the bus at {addresses.where(self._address)} is away: {reason}")
            self._on_change(False)
            while True:
                try:
                    wire = await connect(self._address, Wire)
                    break
                except BusError as error:
                    self._trouble = error
                    await asyncio.sleep(pauses.take())
            pauses.reset()
            self._adopt(wire)
