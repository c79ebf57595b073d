"""What the scripts PUBLISH, on a connection of its own: heard at once; a lost message is made good by the beat.

Where this connection alone is half-open, calls go on and nothing is heard: each beat says a word to us, and where that
does not arrive we subscribe anew.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import hiredis

from echod.bus.address import Address
from echod.bus.faults import translate
from echod.bus.link import Pauses, connect
from echod.bus.wire import Wire
from echod.errors import BusError

SUBSCRIBE_TIMEOUT_S = 0.8
UNHEARD_S = 0.5  # the word was said before the answer to the beat: who hears has it by then
WORD_S = 0.1


class _Ear(Wire):
    """A wire that hands pushed messages on."""

    def __init__(self, heard: Callable[[bytes, bytes], None]) -> None:
        super().__init__()
        self._heard = heard

    def reply_received(self, reply: Any) -> None:
        if isinstance(reply, list) and len(reply) == 3 and reply[0] == b"message":  # pyright: ignore[reportUnknownArgumentType]
            self._heard(reply[1], reply[2])  # pyright: ignore[reportUnknownArgumentType]
        else:
            super().reply_received(reply)


class News:
    """Subscribed to its channels for as long as it is open."""

    def __init__(
        self, address: Address, channels: list[str], heard: Callable[[bytes, bytes], None], again: Callable[[], None]
    ) -> None:
        self._address = address
        self._channels = channels
        self._heard = heard
        self._again = again  # called when it hears again: what was said meanwhile is lost
        self._wire: Wire | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._word = asyncio.Event()  # set by what is heard next
        self._doubting: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Subscribe. Raises BusAway or BusUnfit; afterwards it keeps itself subscribed."""
        await self._subscribe()
        self._keeper = asyncio.create_task(self._keep_up(), name="bus-news")

    def kick(self) -> None:
        if self._wire is not None:
            self._wire.abort("the bus does not answer")

    def expect_word(self) -> Callable[[], None]:
        """A word is about to be said to us; the answer is to be called when it has been."""
        wire, word = self._wire, self._word

        def said() -> None:
            if wire is not None and self._doubting is None:
                self._doubting = asyncio.create_task(self._drop_if_deaf(wire, word))

        return said

    async def _drop_if_deaf(self, wire: Wire, word: asyncio.Event) -> None:
        try:
            for wait_s in (UNHEARD_S, WORD_S):  # the second for what came in while we were kept from reading it
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await word.wait()
            if not word.is_set():
                wire.abort("it does not hear the news")
        finally:
            self._doubting = None

    async def close(self) -> None:
        if self._doubting:
            self._doubting.cancel()
            await asyncio.gather(self._doubting, return_exceptions=True)
        if self._keeper:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._wire:
            self._wire.abort("closed by us")

    async def _subscribe(self) -> None:
        wire = await connect(self._address, lambda: _Ear(self._hear))
        try:
            # One reply per channel; sent one by one so that each has its own.
            for channel in self._channels:
                reply = await wire.send("SUBSCRIBE", channel, timeout_s=SUBSCRIBE_TIMEOUT_S)
                if isinstance(reply, hiredis.ReplyError):
                    raise translate(reply)
        except BaseException:
            wire.abort("given up")
            raise
        self._wire = wire

    def _hear(self, channel: bytes, data: bytes) -> None:
        self._word.set()
        self._word = asyncio.Event()
        self._heard(channel, data)

    async def _keep_up(self) -> None:
        pauses = Pauses()
        while True:
            assert self._wire is not None
            await asyncio.shield(self._wire.closed)
            while True:
                try:
                    await self._subscribe()
                    break
                except BusError:
                    await asyncio.sleep(pauses.take())
            pauses.reset()
            self._again()
