"""The gateway's HTTP server: uvicorn on a socket that is bound here, started and stopped by the node.

uvicorn's own loop wakes ten times a second and takes over the process's signals; a node wants neither: idle, it sleeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import socket
import time
from collections.abc import Generator
from email.utils import formatdate

import uvicorn
from starlette.applications import Starlette
from uvicorn.server import ServerState

from echod.config import Config
from echod.errors import Refused
from echod.gateway.connection import Bounds, Connection

DRAIN_S = 3
_ACCEPTS = 16  # connections a turn of the loop: libuv takes one for each descriptor, and a busy turn is a long one
_BACKLOG = 65_535  # the kernel takes what net.core.somaxconn allows; whom it has no room for asks again in 1, 3, 7 s


class Server:
    """`start` binds and serves; `stop` ends the streams, lets requests finish within three seconds, and closes."""

    def __init__(self, app: Starlette, config: Config, bounds: Bounds | None = None) -> None:
        self._app = app
        self._bounds = bounds or Bounds(connections=_connections())
        self._config = config
        self._socket: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None
        self._server: _Uvicorn | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that are listened on; once started."""
        if self._socket is None:
            raise RuntimeError("expected a started server")
        host, port, *_ = self._socket.getsockname()
        return str(host), int(port)

    async def start(self) -> None:
        """Listen. Raises Refused when the address cannot be had."""
        self._socket = listening(self._config.host, self._config.port)
        settings = uvicorn.Config(
            self._app,
            loop="none",
            http=type("Bounded", (Connection,), {"bounds": self._bounds, "intake": self._app.state.desk.intake}),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=DRAIN_S,
        )
        self._server = _Uvicorn(settings)
        listeners = [self._socket, *(self._socket.dup() for _ in range(_ACCEPTS - 1))]
        self._task = asyncio.create_task(self._server.serve(sockets=listeners))
        ready = asyncio.create_task(self._server.ready.wait())
        await asyncio.wait({self._task, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        """Stop listening, end what is open."""
        if self._server is None or self._task is None:
            return
        self._app.state.desk.close()
        self._server.stop()
        await self._task


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers, and with nothing to do while nobody asks."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.server_state = _Dated()
        self.ready = asyncio.Event()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self.should_exit = True
        self._stopping.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def main_loop(self) -> None:
        self.ready.set()
        await self._stopping.wait()


class _Dated(ServerState):
    """What connections share, with a `Date` that is written when an answer begins; uvicorn's is by a timer."""

    def __init__(self) -> None:
        self._second, self._headers = 0, [(b"date", b"")]
        super().__init__()

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        second = int(time.time())
        if second != self._second:
            self._second, self._headers = second, [(b"date", formatdate(second, usegmt=True).encode())]
        return self._headers

    @default_headers.setter
    def default_headers(  # pyright: ignore[reportIncompatibleVariableOverride]
        self, headers: list[tuple[bytes, bytes]]
    ) -> None:
        """uvicorn's, of when it started."""


def _connections() -> int:
    """As many as there are files to open, but for those that the rest of the process needs."""
    most = Bounds().connections
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else max(64, min(most, soft - 256))


def listening(host: str, port: int) -> socket.socket:
    """A listening socket. Raises Refused, naming what to do, when the address is busy or not ours."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise Refused(
                f"port {port} on {host} is in use; end what listens there, or choose another with --port"
            ) from None
        raise Refused(f"expected an address to listen on, got {host}:{port} ({error.strerror or error})") from None
