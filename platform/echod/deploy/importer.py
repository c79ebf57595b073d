"""One discovery process: started, perhaps long before it is needed, asked once, and gone with everything below it.

Python and what it loads make most of the time of describing a small folder; a process that waits for its order saves
that from every save. It costs nothing while it waits, and ends with this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Mapping
from io import FileIO

import msgspec

from echod import kin, log
from echofn import sealed
from echofn.discovery_protocol import (
    MAX_ANSWER_BYTES,
    Described,
    Discover,
    Finished,
    Importing,
    decode_answer,
    framed,
)
from echofn.frames import HEADER

_log = log.get("deploy")

SLACK_S = 5.0  # beyond a module's limit: for the process to start, and to name a culprit
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}


class Importer:
    """A process that waits for one order."""

    def __init__(self, process: asyncio.subprocess.Process, channel: socket.socket, secrets: FileIO) -> None:
        self._process = process
        self._channel = channel
        self._secrets = secrets  # a file that the process has open, too

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

    async def ask(self, order: Discover, secrets: Mapping[str, Mapping[str, str]]) -> dict[str, Described]:
        """The answers by module, as far as the process got. `secrets`: the variables of the modules that have any."""
        answers: dict[str, Described] = {}
        writer: asyncio.StreamWriter | None = None
        try:
            limit = MAX_ANSWER_BYTES + HEADER.size
            reader, writer = await asyncio.open_connection(sock=self._channel, limit=limit)
            parts = {module: sealed.put(self._secrets, each) for module, each in secrets.items()}
            writer.write(framed(msgspec.structs.replace(order, secrets=parts)))
            while True:
                async with asyncio.timeout(order.time_limit_ms / 1000 + SLACK_S):
                    (size,) = HEADER.unpack(await reader.readexactly(HEADER.size))
                    if size > MAX_ANSWER_BYTES:
                        raise ValueError(f"an answer of {size} bytes")
                    message = decode_answer(await reader.readexactly(size))
                match message:
                    case Described():
                        answers[message.module] = message
                    case Finished():
                        return answers
                    case Importing():
                        pass
        except (TimeoutError, OSError, asyncio.IncompleteReadError, ValueError, msgspec.MsgspecError) as error:
            _log.error("discovery.broke_off", error=repr(error), answered=len(answers), asked=len(order.modules))
            return answers
        finally:
            if writer is not None:
                writer.close()

    async def close(self) -> None:
        """End the process. Its channel's end is its sign to take everything below it along; an import without walls may
        have killed it before.
        """
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
