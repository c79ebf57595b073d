"""The parked pop: one connection that blocks on the bell for as long as nothing happens.

Its block is at most a minute and its socket is watched for a little longer than that, so a half-open connection ends
in a reconnect and never in a wait for ever; the node's beat kicks it as soon as a call fails. Where this connection
alone is half-open, calls go on: then the beat says that the bell has rung while our pop was out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import hiredis

from echod.bus.address import Address
from echod.bus.faults import translate
from echod.bus.link import Pauses, connect
from echod.bus.wire import Wire
from echod.errors import BusError

LONGEST_BLOCK_S, SHORTEST_BLOCK_S = 60.0, 0.05  # a block of 0 would be for ever
WATCH_S = 3.0
UNBLOCK_AGAIN_S = 0.1
UNHEARD_S = 0.5  # a pop that is well has heard a name on the bell by then
WORD_S = 0.1  # for a reply that is on its way on that connection


class Park:
    """A pop on the bell, by one caller at a time."""

    def __init__(
        self,
        address: Address,
        bell: str,
        unblock: Callable[[int], Awaitable[Any]],
        give_back: Callable[[str], Awaitable[Any]],
        listed: Callable[[], Awaitable[int]],
    ) -> None:
        self._address = address
        self._bell = bell
        self._unblock = unblock
        self._give_back = give_back
        self._listed = listed
        self._popped: asyncio.Future[Any] | None = None  # of the pop that is out
        self._doubting: asyncio.Task[None] | None = None
        self._wire: Wire | None = None
        self._client_id = 0
        self._pauses = Pauses()
        self._clearing: asyncio.Task[None] | None = None

    async def pop(self, timeout_s: float) -> str | None:
        """The (escaped) name of a queue that rang, or None after the timeout.

        Whatever the server does, it only takes longer.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            if self._clearing:
                await asyncio.shield(self._clearing)
            try:
                wire = await self._connected()
                block_s = min(max(deadline - loop.time(), SHORTEST_BLOCK_S), LONGEST_BLOCK_S)
                reply = await self._blocked(wire, block_s)
            except BusError:
                self._drop("failed")
                if loop.time() >= deadline:
                    return None
                await asyncio.sleep(min(self._pauses.take(), max(deadline - loop.time(), 0)))
                continue
            self._pauses.reset()
            if reply is not None:
                return bytes(reply[1]).decode()
            if loop.time() >= deadline:
                return None

    def kick(self) -> None:
        """The server does not answer: do not wait for this connection to notice."""
        self._drop("the bus does not answer")

    def doubt(self) -> None:
        """There is a name on the bell. Where a pop is out and does not get it, the server does not know of the pop."""
        if self._popped is not None and not self._popped.done() and self._doubting is None:
            self._doubting = asyncio.create_task(self._drop_if_deaf(self._popped))

    async def _drop_if_deaf(self, popped: asyncio.Future[Any]) -> None:
        try:
            await asyncio.wait({popped}, timeout=UNHEARD_S)
            if not popped.done() and await self._listed():
                await asyncio.wait({popped}, timeout=WORD_S)
                if not popped.done():
                    self._drop("it does not hear the bell")
        except BusError:
            pass  # the next beat looks again
        finally:
            self._doubting = None

    async def close(self) -> None:
        if self._doubting:
            self._doubting.cancel()
            await asyncio.gather(self._doubting, return_exceptions=True)
        if self._clearing:
            await asyncio.gather(self._clearing, return_exceptions=True)
        self._drop("closed by us")

    async def _connected(self) -> Wire:
        if self._wire is None or self._wire.closed.done():
            wire = await connect(self._address, Wire)
            try:
                self._client_id = int(await wire.send("CLIENT", "ID", timeout_s=WATCH_S))
            except BaseException:
                wire.abort("given up")
                raise
            self._wire = wire  # only now: a pop on a wire whose id we do not know could not be ended
        return self._wire

    async def _blocked(self, wire: Wire, block_s: float) -> Any:
        popped = wire.send("BLPOP", self._bell, round(block_s, 3), timeout_s=block_s + WATCH_S)
        self._popped = popped
        try:
            reply = await asyncio.shield(popped)
        except asyncio.CancelledError:
            self._clearing = asyncio.create_task(self._clear(wire, popped))
            raise
        if isinstance(reply, hiredis.ReplyError):
            raise translate(reply)
        return reply

    async def _clear(self, wire: Wire, popped: asyncio.Future[Any]) -> None:
        """The caller went away: end the block, and hand back what was popped in that very moment."""
        try:
            while not popped.done():  # the server may read this before the pop that went out just before it
                await self._unblock(self._client_id)
                await asyncio.wait({popped}, timeout=UNBLOCK_AGAIN_S)
            reply = await popped
            if isinstance(reply, list):
                await self._give_back(bytes(reply[1]).decode())  # pyright: ignore[reportUnknownArgumentType]
        except BusError:
            wire.abort("given up")  # the beat rings again
        finally:
            self._clearing = None

    def _drop(self, reason: str) -> None:
        if self._wire is not None:
            self._wire.abort(reason)
        self._wire = None
