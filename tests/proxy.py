"""What stands between a bus and its server in tests: it loses replies, and goes deaf."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from doing import impatient
from echod.bus import Bus
from server import Server


class Proxy:
    """Between a bus and its server: passes bytes on, and can lose replies or go deaf."""

    def __init__(self, server: Server) -> None:
        self.path = server.folder / "proxy.sock"
        self.target = str(server.socket)
        self.address = f"unix://{self.path}"
        self.lose_replies_to = b""  # cut the connection instead of passing on the reply to a command that holds this
        self.lose = b""  # cut the connection instead of passing on what holds this
        self.meanwhile: Callable[[], Awaitable[object]] | None = None  # what goes on before the cut is noticed
        self.deafens = b""  # from a command that holds this on, its connection alone is deaf
        self.lost = 0
        self.deaf = False
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self._clients: list[asyncio.StreamWriter] = []
        self._subscribers: list[asyncio.Event] = []  # set: deaf

    async def start(self) -> None:
        self._listener = await asyncio.start_unix_server(self._serve, self.path)

    async def close(self) -> None:
        assert self._listener is not None
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*[writer.wait_closed() for writer in self._writers], return_exceptions=True)

    @contextlib.contextmanager
    def is_deaf(self, bus: Bus) -> Iterator[None]:
        """No reply gets through for as long as the block lasts."""
        self.deaf = True
        with impatient(bus):
            yield
        self.deaf = False

    def deafen_subscribers(self) -> None:
        """Nothing gets through to who has subscribed so far; their other connections go on."""
        for deafened in self._subscribers:
            deafened.set()

    def say(self, data: bytes) -> None:
        """Say this to every client, as a server would."""
        for writer in self._clients:
            writer.write(data)
        self._clients.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_unix_connection(self.target)
        self._writers += [writer, up_writer]
        self._clients.append(writer)
        cut, deafened = asyncio.Event(), asyncio.Event()

        async def upward() -> None:
            while data := await reader.read(1 << 20):
                if self.lose and self.lose in data:
                    self.lose = b""
                    if self.meanwhile:
                        await self.meanwhile()
                    break
                if self.lose_replies_to and self.lose_replies_to in data:
                    cut.set()
                if b"SUBSCRIBE" in data:
                    self._subscribers.append(deafened)
                if self.deafens and self.deafens in data:
                    deafened.set()
                    self.deafens = b""
                up_writer.write(data)
            up_writer.close()
            writer.close()

        async def downward() -> None:
            while data := await up_reader.read(1 << 20):
                if cut.is_set():
                    self.lost += 1
                    self.lose_replies_to = b""
                    if self.meanwhile:
                        await self.meanwhile()
                    break
                if not self.deaf and not deafened.is_set():
                    writer.write(data)
            writer.close()
            up_writer.close()

        for work in (upward(), downward()):
            task = asyncio.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


@contextlib.asynccontextmanager
async def through(server: Server) -> AsyncIterator[Proxy]:
    """A proxy to that server, for as long as the block lasts."""
    proxy = Proxy(server)
    proxy.path.unlink(missing_ok=True)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()
