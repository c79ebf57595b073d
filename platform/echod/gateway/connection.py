"""One HTTP connection, on guard: bounded heads, heads and bodies in time, nothing that could be read in two ways.

uvicorn parses with llhttp in its strict mode, which refuses bare line feeds, folded headers, NULs, a length beside a
transfer coding, two lengths and bad chunk sizes. What it lets through and we do not: codings other than `chunked`, a
coding in HTTP/1.0, versions other than 1.0 and 1.1, CONNECT, heads and trailers without bound, and time without end.
The host of a target that is a whole address stands in for `Host`, as RFC 9112 has it (section 3.2.2). An `Upgrade` is
ignored (RFC 9110, section 7.8): llhttp would end the message with its head, so another parser reads on from there.

A timer stands only while a head or body is incomplete after a read: a request that arrives whole costs none, an idle
connection only uvicorn's own for keep-alive. RFC 9112 has the rules, section 11.2 the reasons.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
from typing import Any, Literal, cast

import httptools
import msgspec
from uvicorn.config import Config as UvicornConfig
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from echod.gateway.guard import ANY_HOST, SECURITY_HEADERS
from echod.gateway.limits import Intake
from echod.gateway.problems import MEDIA_TYPE, Problem
from echod.gateway.target import EXPECTED, Misformed, origin_form

_FRAMING = {b"connection", b"content-length", b"transfer-encoding"}  # what says how a message goes on behind its head
_MOST_FRAMING = 16  # bytes sent for each byte of a body: a chunk of one byte takes six
_ALWAYS = tuple(path.encode() for path in ANY_HOST)  # answered in a flood, too
_LAST_RECEIVED = struct.Struct("=52xI")  # tcpi_last_data_recv of the kernel's struct tcp_info, in milliseconds
_READ_BYTES = 256 * 1024  # the most that one read of the transport holds


class Bounds(msgspec.Struct, frozen=True):
    """What one connection may take of us."""

    head_s: float = 10.0  # from its first byte to its last; of a fresh connection from the start
    head_bytes: int = 32 * 1024
    headers: int = 100
    target_bytes: int = 64 * 1024  # names may be long, and percent-encoded
    body_s: float = 15.0  # to arrive, and for each body_rate bytes one second more
    body_rate: int = 16 * 1024
    linger_s: float = 3.0  # for the rest of a body that was answered early, so that its sender can read the answer
    linger_bytes: int = 64 * 1024 * 1024
    connections: int = 8192


class Connection(HttpToolsProtocol):
    """uvicorn's connection within `Bounds`."""

    bounds = Bounds()
    intake: Intake | None = None  # None: all are taken

    def __init__(
        self,
        config: UvicornConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._part: Literal["idle", "head", "body"] = "idle"
        self._refusal: Problem | None = None
        self._is_ended = False  # nothing more is read
        self._is_shown = False  # what is parsed is a head of our own, after an upgrade
        self._is_begun = False  # the request being read has a cycle, which answers it
        self._timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0  # of the head being read, by what was parsed
        self._raw_bytes = 0  # received while it was being read
        self._body_bytes = 0
        self._discarded_bytes = 0  # on this connection
        self._trailers = 0
        self._began = 0.0
        self._running: RequestResponseCycle | None = None  # what is answered now; `cycle` is what was read last

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        if len(self.connections) > self.bounds.connections:
            self._refuse(Problem("busy", "expected fewer open connections; try again later"))
        else:
            self._arm(self.bounds.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        running = self._running
        if running is not None and not running.response_complete:  # uvicorn tells the last one alone
            running.disconnected = True
            running.message_event.set()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._is_ended or self.transport.is_closing():
            self._discard(len(data))
            return
        before = self._part
        try:
            self._parse(data)
        except httptools.HttpParserInvalidURLError:
            self._spoil("bad-request", EXPECTED)
        except httptools.HttpParserError as error:  # its words are fixed ones, never the sender's
            self._spoil("bad-request", f"expected a well-formed HTTP/1.1 request: {error}")
        if self._refusal is not None:
            self._refuse(self._refusal)
        else:
            self._watch(before, len(data))

    def _parse(self, data: bytes) -> None:
        """Feed the parser. One that stops at an upgrade, behind the head, is replaced by one that reads on."""
        while True:
            parser: Any = self.parser  # None only once the connection is lost
            try:
                parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                if self._refusal is not None:
                    return
                data = data[upgrade.args[0] :]
                self._ignore_upgrade()
            else:
                return

    def _ignore_upgrade(self) -> None:
        """Have a parser that is where this one would be, had the request not asked for an upgrade.

        It is shown a head with the same framing, of which nobody hears but it; a message without a body ends there.
        """
        parser: Any = self.parser
        framing = [name + b": " + value for name, value in self.headers if name in _FRAMING]
        start = b"POST / HTTP/" + parser.get_http_version().encode()
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self._is_shown = True
        self.parser.feed_data(b"\r\n".join([start, *framing, b"", b""]))
        self._is_shown = False

    def on_message_begin(self) -> None:
        if self._is_shown:
            return
        super().on_message_begin()
        self._disarm()
        self._part, self._is_begun = "head", False
        self._head_bytes = self._raw_bytes = self._trailers = 0

    def on_url(self, url: bytes) -> None:
        if self._is_shown:
            return
        super().on_url(url)
        if len(self.url) > self.bounds.target_bytes:
            self._spoil("headers-too-large", f"expected an address of at most {self.bounds.target_bytes} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_shown:
            return
        if self._part == "body":  # a trailer: nothing of ours, and never a header
            self._trailers += 1
            if self._trailers > self.bounds.headers:
                self._spoil("headers-too-large", f"expected at most {self.bounds.headers} trailers")
            return
        self._head_bytes += len(name) + len(value) + 4
        if len(self.headers) >= self.bounds.headers:
            self._spoil("headers-too-large", f"expected at most {self.bounds.headers} headers")
        elif self._head_bytes > self.bounds.head_bytes:
            self._spoil("headers-too-large", f"expected headers of at most {self.bounds.head_bytes} bytes")
        else:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_shown:
            return
        self._disarm()
        self._part, self._body_bytes, self._raw_bytes, self._began = "body", 0, 0, self.loop.time()
        if self._refusal is None and (fault := self._fault() or self._take_target()):
            self._spoil("bad-request", fault)
        if self._refusal is None:
            self._refusal = self._turned_away()
        if self._refusal is None:
            super().on_headers_complete()
            self._is_begun = True
            if not self.cycle.keep_alive:
                self.cycle.transport = _Gentle(self)  # type: ignore[assignment]  # all that a cycle uses of one

    def on_body(self, body: bytes) -> None:
        if self._refusal is None:
            self._body_bytes += len(body)
            super().on_body(body)

    def on_message_complete(self) -> None:
        parser: Any = self.parser
        if self._refusal is None and parser.should_upgrade():
            return  # not before the parser that ignores the upgrade says so
        self._disarm()
        self._part = "idle"
        if self._refusal is None:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        was_last = not self.pipeline
        super().on_response_complete()
        if self._is_ended and was_last:
            if self._timer is None:
                self.end()
        elif self._part == "body" and was_last and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._arm(self.bounds.linger_s)

    def _fault(self) -> str | None:
        """What of a complete head could be read in two ways, or is not for us."""
        parser: Any = self.parser  # None only once the connection is lost
        version = parser.get_http_version()
        if version not in {"1.0", "1.1"}:
            return f"expected HTTP/1.1, got HTTP/{version}"
        if parser.get_method() == b"CONNECT":
            return "expected a request to this server, got CONNECT"
        codings = [value.strip().lower() for name, value in self.headers if name == b"transfer-encoding"]
        if codings and (codings != [b"chunked"] or version == "1.0"):
            return "expected Transfer-Encoding: chunked alone, in HTTP/1.1"
        if version == "1.1" and sum(name == b"host" for name, _ in self.headers) != 1:
            return "expected one Host header"
        return None

    def _take_target(self) -> str | None:
        """Have the path alone as the address, a host that the target names as `Host`; or say what is wrong with it."""
        try:
            self.url, host = origin_form(self.url)
        except Misformed as error:
            return str(error)
        if host is not None:  # in place: the scope has this list
            self.headers[:] = [header for header in self.headers if header[0] != b"host"] + [(b"host", host)]
        return None

    def _turned_away(self) -> Problem | None:
        """The problem of a request that there is no room for: said before anything is made for it, and the cheapest."""
        if self.intake is None or self.url.partition(b"?")[0] in _ALWAYS:
            return None
        return self.intake.turned_away(self._unread_s() if self.intake.lag.is_busy else None)

    def _unread_s(self) -> float:
        """How long what came last lay in the kernel before it was read (tcp(7), TCP_INFO); 0 where that is not told."""
        if sys.platform != "linux":
            return 0.0
        transport = self.transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            told = transport.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_RECEIVED.size)
            return int(_LAST_RECEIVED.unpack(told)[0]) / 1000
        return 0.0

    def _spoil(self, slug: str, detail: str) -> None:
        """Note why this connection ends; the parser's callbacks do nothing from here on."""
        self._refusal = self._refusal or Problem(slug, detail)

    def _watch(self, before: str, size_bytes: int) -> None:
        """After a read: a timer for what is incomplete, and an end to a head that grows without a line's end."""
        if self._part == "head":
            self._raw_bytes += size_bytes
            if self._raw_bytes > self.bounds.head_bytes + self.bounds.target_bytes + _READ_BYTES:
                limit = self.bounds.head_bytes
                self._refuse(Problem("headers-too-large", f"expected headers of at most {limit} bytes"))
            elif self._timer is None:
                self._arm(self.bounds.head_s)
        elif self._part == "body":
            self._raw_bytes += size_bytes
            if self._raw_bytes > self._body_bytes * _MOST_FRAMING + _READ_BYTES * 4:
                self._refuse(Problem("bad-request", "expected chunks that hold something, got framing"))
            elif self._is_answered():
                self._discard(size_bytes)
            elif self._timer is None:
                self._arm(self.bounds.body_s)
        elif self._timer is None and self._is_answered():
            if before == "body":  # the rest of a body that was answered early has come: the connection is as new
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )
            else:  # empty lines
                self._arm(self.bounds.head_s)

    def _discard(self, size_bytes: int) -> None:
        """Read on, for the sender's sake, what was answered already; within reason."""
        self._discarded_bytes += size_bytes
        if self._discarded_bytes > self.bounds.linger_bytes:
            self.transport.close()

    def _is_answered(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)  # uvicorn's own annotation leaves out the beginning
        return cycle is None or cycle.response_complete

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._timer = self.loop.call_later(seconds, self._late)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        """The timer rang: what was waited for has not come."""
        self._timer = None
        flow: FlowControl = self.flow
        if self._is_ended:
            self.transport.close()
        elif self._part == "body" and not self._is_answered():
            left_s = self._began + self.bounds.body_s + self._body_bytes / self.bounds.body_rate - self.loop.time()
            if flow.read_paused:  # it is we who do not read
                left_s = max(left_s, self.bounds.body_s)
            if left_s > 0.001:
                self._arm(left_s)
            else:
                self._refuse(Problem("too-slow", "expected the body sooner; send it faster, or less of it"))
        elif self._part == "head" and not self._is_answered() and flow.read_paused:
            self._arm(self.bounds.head_s)  # pipelined behind a request that is being answered
        elif self._part == "head":
            self._refuse(Problem("too-slow", f"expected the request's head within {self.bounds.head_s:g} s"))
        else:
            self.transport.close()

    def _refuse(self, problem: Problem) -> None:
        """End the connection with a problem, where that cannot be taken for the answer to an earlier request."""
        self._is_ended = True
        is_own = self._part == "body" and self._is_begun  # the cycle that came last is this request's
        if is_own and self.pipeline:  # it was not begun, and never will be
            self.pipeline.popleft()
        elif self._is_answered() or (is_own and not self.cycle.response_started):
            self.transport.write(_raw(problem))
            self.end()
        elif is_own:
            self.end()
        else:  # the earlier request is answered first
            self._disarm()

    def end(self) -> None:
        """Close; while a body is on its way only our side at first, so that its sender gets to read the answer."""
        self._is_ended = True
        self._disarm()
        self._unset_keepalive_if_required()
        if self._part == "body" and not self.transport.is_closing() and self.transport.can_write_eof():
            self.transport.write_eof()
            self.flow.resume_reading()
            self._arm(self.bounds.linger_s)
        else:
            self.transport.close()


class _Gentle:
    """The transport as a request's cycle uses it: closing lets the answer arrive."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.write = connection.transport.write
        self.is_closing = connection.transport.is_closing

    def close(self) -> None:
        self._connection.end()


def _raw(problem: Problem) -> bytes:
    """A problem as it goes over the wire, outside any application."""
    body = msgspec.json.encode(problem.view())
    head = [
        f"HTTP/1.1 {int(problem.status)} {problem.status.phrase}",
        f"content-type: {MEDIA_TYPE}",
        f"content-length: {len(body)}",
        *(f"{name.lower()}: {value}" for name, value in problem.headers.items()),
        *(f"{name.lower()}: {value}" for name, value in SECURITY_HEADERS.items()),
        "connection: close",
        "",
        "",
    ]
    return "\r\n".join(head).encode("latin-1") + body
