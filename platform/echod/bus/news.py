"""What the scripts PUBLISH, on a connection of its own: heard at once; a lost message is made good by the beat."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from echod.bus.address import Address
from echod.bus.link import Pauses, connect
from echod.bus.wire import Wire
from echod.errors import BusError

SUBSCRIBE_TIMEOUT_S = 0.8


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

    async def open(self) -> None:
        """Subscribe. Raises BusAway or BusUnfit; afterwards it keeps itself subscribed."""
        await self._subscribe()
        self._keeper = asyncio.create_task(self._keep_up(), name="bus-news")

    def kick(self) -> None:
        if self._wire is not None:
            self._wire.abort("the bus does not answer")

    async def close(self) -> None:
        if self._keeper:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._wire:
            self._wire.abort("closed by us")

    async def _subscribe(self) -> None:
        wire = await connect(self._address, lambda: _Ear(self._heard))
        # One reply per channel; sent one by one so that each has its own.
        for channel in self._channels:
            await wire.send("SUBSCRIBE", channel, timeout_s=SUBSCRIBE_TIMEOUT_S)
        self._wire = wire

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
