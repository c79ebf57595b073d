"""One discovery process: started, perhaps long before it is needed, asked about one folder, and gone with all below it.

Python and what it loads make most of the time of describing a small folder; a process that waits for its order saves
that from every save. It costs nothing while it waits, and ends with this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import sys
from collections.abc import Generator, Mapping, Sequence, Sized
from io import FileIO

import msgspec

from echod import kin, log
from echofn import sealed
from echofn.discovery_protocol import (
    MAX_ANSWER_BYTES,
    Described,
    Discover,
    Finished,
    FromDiscovery,
    Parse,
    Said,
    ToDiscovery,
    decode_answer,
    framed,
)
from echofn.frames import HEADER

_log = log.get("deploy")

LIMIT_MS = 10_000  # for a file to be parsed, and for a module to be imported
SLACK_S = 5.0  # beyond a module's limit: for the process to start, and to name a culprit
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}


_BROKEN = (TimeoutError, OSError, asyncio.IncompleteReadError, ValueError, msgspec.MsgspecError)


class Importer:
    """A process that waits for what to parse, and then for one order."""

    def __init__(self, process: asyncio.subprocess.Process, channel: socket.socket, secrets: FileIO) -> None:
        self._process = process
        self._channel = channel
        self._secrets = secrets  # a file that the process has open, too
        self.until = math.inf  # on the loop's clock: when it must have answered all
        self.is_broken = False  # nothing more comes of it
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None  # over the channel, once asked

    @classmethod
    async def started(cls) -> Importer:
        """A new one. Must be called in the main thread, with which the process is to end."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs, contextlib.ExitStack() as unless_started:
            unless_started.callback(ours.close)
            secrets = unless_started.enter_context(sealed.new())
            process = await kin.started(asyncio.create_subprocess_exec(
                sys.executable, "-I", "-B", "-m", "echofn.discovery", str(theirs.fileno()), str(secrets.fileno()),
                pass_fds=(theirs.fileno(), secrets.fileno()), env=ENVIRONMENT,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,  # what user code prints at import is not the node's to show
            ))  # fmt: skip
            unless_started.pop_all()
        return cls(process, ours, secrets)

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    @property
    def is_late(self) -> bool:
        """Whether it was not done in time."""
        return asyncio.get_running_loop().time() >= self.until

    async def parse(self, sources: Sequence[bytes], limit_ms: int = LIMIT_MS) -> list[Said]:
        """What the syntax of these files says, in their order, as far as the process got within its limits."""
        answers: list[Said] = []
        with self._noted("parsing", answers, len(sources)):
            await self._say(Parse(tuple(sources), limit_ms))
            while isinstance(message := await self._heard(limit_ms), Said):
                answers.append(message)
        return answers

    async def answers(self) -> bool:
        """Whether the process is there and waits."""
        try:
            await self._say(Parse(()))
            return isinstance(await self._heard(0), Finished)
        except _BROKEN:
            return False

    async def ask(self, order: Discover, secrets: Mapping[str, Mapping[str, str]]) -> dict[str, Described]:
        """The answers by module, as far as the process got. `secrets`: the variables of the modules that have any."""
        answers: dict[str, Described] = {}
        with self._noted("importing", answers, len(order.modules)):
            parts = {module: sealed.put(self._secrets, each) for module, each in secrets.items()}
            await self._say(msgspec.structs.replace(order, secrets=parts))
            while not isinstance(message := await self._heard(order.time_limit_ms), Finished):
                if isinstance(message, Described):
                    answers[message.module] = message
        return answers

    @contextlib.contextmanager
    def _noted(self, doing: str, answers: Sized, asked: int) -> Generator[None]:
        """What it did not come to answer is unknown, and the log says why."""
        try:
            yield
        except _BROKEN as error:
            self.is_broken = True
            _log.error("discovery.broke_off", doing=doing, error=repr(error), answered=len(answers), asked=asked)

    async def _say(self, order: ToDiscovery) -> None:
        if self._streams is None:
            limit = MAX_ANSWER_BYTES + HEADER.size
            self._streams = await asyncio.open_connection(sock=self._channel, limit=limit)
        writer = self._streams[1]
        writer.write(framed(order))
        await writer.drain()

    async def _heard(self, limit_ms: int) -> FromDiscovery:
        if self._streams is None:
            raise ConnectionError("nothing was asked")
        reader = self._streams[0]
        until = asyncio.get_running_loop().time() + limit_ms / 1000 + SLACK_S
        async with asyncio.timeout_at(min(until, self.until)):
            (size,) = HEADER.unpack(await reader.readexactly(HEADER.size))
            if size > MAX_ANSWER_BYTES:
                raise ValueError(f"an answer of {size} bytes")
            return decode_answer(await reader.readexactly(size))

    async def close(self) -> None:
        """End the process. Its channel's end is its sign to take everything below it along; an import without walls may
        have killed it before.
        """
        if self._streams is not None:
            self._streams[1].close()
        self._channel.close()
        self._secrets.close()
        try:
            async with asyncio.timeout(SLACK_S):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()  # not SIGKILL: what runs below it would stay a while longer
            await self._process.wait()
        if strays := await kin.end_strays():
            _log.warning("strays.ended", pids=strays)
