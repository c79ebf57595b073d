"""HTTP/1.1 to one gateway over a few kept connections, on asyncio and httptools: what echod needs anyway.

It sends once and answers once. Whether to send again is decided above: an answer that did not come whole is Broken.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

import httptools
import msgspec

from echod.errors import Refused

MOST_CONNECTIONS = 8
CLOSED = "expected an open client, got one that was closed; make another"


class Broken(Exception):
    """No whole answer: not reachable, cut off, too late. Whether the request took effect is unknown."""


class Unreachable(Broken):
    """Nobody listens there, or the name is none: nothing was sent."""


class Reply(msgspec.Struct, frozen=True):
    """An answer; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class _Wire(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reply: asyncio.Future[Reply] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self.reusable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    async def ask(self, request: bytes) -> Reply:
        assert self._transport is not None
        self._parser, self._headers, self._body = httptools.HttpResponseParser(self), {}, []
        self._reply = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._reply
        finally:
            self._reply = None

    def close(self) -> None:
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"what it answers is no HTTP ({error})")

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(str(exc or "it hung up"))

    def _fail(self, reason: str) -> None:
        self.reusable = False
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(Broken(reason))

    # ---- called by the parser ----

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self.reusable = self.reusable and self._parser.should_keep_alive()
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(Reply(self._parser.get_status_code(), self._headers, b"".join(self._body)))


class Connections:
    """The way to one gateway. `url` may carry a path prefix (behind a proxy)."""

    def __init__(self, url: str, token: str | None, most: int = MOST_CONNECTIONS) -> None:
        parts = urlsplit(url)
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if parts.scheme not in {"http", "https"} or not host:
            raise Refused(f"expected http://HOST:PORT, https://… or a bus's valkey://… or unix:///path, got {url!r}")
        self.url = url.rstrip("/")
        self._host, self._port = host, port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/")
        sent = {"Host": parts.netloc.rpartition("@")[2], "Accept": "application/json"}
        if token:
            sent["Authorization"] = f"Bearer {token}"
        self._sent = sent
        self._idle: list[_Wire] = []
        self._free = asyncio.Semaphore(most)
        self._is_closed = False

    async def ask(self, method: str, path: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> Reply:
        """Send once. Raises Broken; Refused once closed."""
        if self._is_closed:
            raise Refused(CLOSED)
        request = self._request(method, path, body, headers)
        async with self._free:
            wire: _Wire | None = None
            try:
                async with asyncio.timeout(timeout_s):
                    wire = self._kept() or await self._opened()
                    reply = await wire.ask(request)
            except TimeoutError:
                raise Broken(f"no answer within {timeout_s:.1f} s") from None
            except OSError as error:
                text = error.strerror or str(error)
                if isinstance(error, socket.gaierror) or f"[Errno {errno.ECONNREFUSED}]" in str(error):
                    raise Unreachable(text) from None
                raise Broken(text) from None
            else:
                if wire.reusable and not self._is_closed:
                    self._idle.append(wire)
                return reply
            finally:
                if wire is not None and wire not in self._idle:
                    wire.close()

    def close(self) -> None:
        """Hang up, for good."""
        self._is_closed = True
        for wire in self._idle:
            wire.close()
        self._idle.clear()

    def _kept(self) -> _Wire | None:
        while self._idle:
            wire = self._idle.pop()
            if wire.reusable:
                return wire
        return None

    async def _opened(self) -> _Wire:
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_connection(_Wire, self._host, self._port, ssl=self._tls)
        return wire

    def _request(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        lines = [f"{method} {self._prefix}{path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in {**self._sent, **headers}.items()]
        lines.append(f"Content-Length: {len(body)}")
        if any(not line.isprintable() and set(line) & {"\r", "\n", "\0"} for line in lines):
            raise ValueError("expected text of one line for what goes as a header, got a line break in it")
        head = "\r\n".join(lines)
        # UTF-8, as the gateway reads them: a lane may be called anything.
        with contextlib.suppress(UnicodeEncodeError):
            return head.encode() + b"\r\n\r\n" + body
        raise ValueError("expected text that UTF-8 can hold, got a lone surrogate")
