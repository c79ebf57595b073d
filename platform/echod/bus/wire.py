"""One connection: commands out, replies in, in order. asyncio on hiredis: redis-py costs 200 µs a command.

A reply that is late ends the connection: behind it, every later reply would be taken for an earlier one's.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable
from typing import Any, cast

import hiredis

from echod.errors import BusAway

# Its stub knows commands of one argument only.
_pack = cast("Callable[[tuple[Argument, ...]], bytes]", hiredis.pack_command)  # pyright: ignore[reportUnknownMemberType]
Argument = bytes | str | int | float


class Wire(asyncio.Protocol):
    """Sends and matches replies. Dies once; `closed` says so."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader()
        self._waiting: collections.deque[tuple[asyncio.Future[Any], float]] = collections.deque()
        self._unsent: list[bytes] = []
        self._timer: asyncio.Handle | None = None
        self._rings_at = 0.0  # uvloop's handle of an instant that has come does not say when
        self._transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[str] = self._loop.create_future()
        self.as_plain: set[bytes] = set()  # verbs that the server did not take as functions

    def send(self, *command: Argument, timeout_s: float) -> asyncio.Future[Any]:
        """The reply to come: a value, or hiredis.ReplyError as a value. BusAway when the connection dies before it."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self.closed.done():
            future.set_exception(BusAway(f"the connection to the bus ended: {self.closed.result()}"))
            return future
        deadline = self._loop.time() + timeout_s
        self._waiting.append((future, deadline))
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(_pack(command))
        if self._timer is None or self._rings_at > deadline:  # that of a call with more time, answered perhaps
            self._ring_at(deadline)
        return future

    def abort(self, reason: str) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()
        self._die(reason)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not inherit it

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not False:
                self.reply_received(reply)
        except hiredis.ProtocolError as error:
            self.abort(f"not a bus: {error}")

    def reply_received(self, reply: Any) -> None:
        """One reply, to whoever waited longest."""
        if not self._waiting:
            self.abort("not a bus: it answers what nobody asked")
            return
        future, _ = self._waiting.popleft()
        if not future.done():
            future.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self._die(str(exc) if exc else "closed by the server")

    def _flush(self) -> None:
        if self._transport is not None and not self.closed.done():
            self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def _check_deadline(self) -> None:
        self._timer = None
        if not self._waiting or self.closed.done():
            return
        deadline = self._waiting[0][1]
        if self._loop.time() >= deadline:
            self.abort("no answer in time")
        else:
            self._ring_at(deadline)

    def _ring_at(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._rings_at = self._loop.call_at(deadline, self._check_deadline), deadline

    def _die(self, reason: str) -> None:
        if self.closed.done():
            return
        self.closed.set_result(reason)
        if self._timer is not None:
            self._timer.cancel()
        for future, _ in self._waiting:
            if not future.done():
                future.set_exception(BusAway(f"the connection to the bus ended: {reason}"))
                future.exception()  # seen: who gave up waiting need not be told in a log
        self._waiting.clear()
