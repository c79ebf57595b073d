"""The base: the exec'd process that workers are forked from. One per supervisor, started again when it dies.

The supervisor itself never forks: `create_subprocess_exec` goes through fork and exec in C, from the main thread,
because the base's parent-death signal is tied to the thread that started it. The base's environment is replaced. What
is started is its keeper, which ends only after the base and everything below it: then every worker is told at once.
What is left all the same, where both were killed together, is the node's stray by then (`kin`), and ended here.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import sys
from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from echod import kin, log
from echod.errors import Refused
from echofn import frames, processes

_log = log.get("supervisor")

MODULE = "echofn.base"
UP_WITHIN_S = 10.0
END_WITHIN_S = 2.0
BACK_OFF_S = 0.1
BACK_OFF_CAP_S = 10.0
STEADY_S = 30.0  # a base that lived this long died of something new
DATAGRAM_BYTES = 256 * 1024
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "OPENBLAS_NUM_THREADS": "1",  # a pool of threads for each worker would count against its limits
    "MALLOC_ARENA_MAX": "2",
}


class Child(Protocol):
    """What the base tells a worker's handle."""

    def spawned(self, pid: int, pidfd: int) -> None: ...

    def exited(self, exited: frames.Exited | None) -> None:
        """Nothing of the worker is left. None: the base died, so nobody saw how."""
        ...


class Base:
    """The running base, whichever incarnation. `on_change` is called when it came up or went down."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.pid: int | None = None  # None: not up
        self.starts = 0
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._children: dict[int, Child] = {}
        self._sock: socket.socket | None = None
        self._outbox: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._closing = asyncio.Event()
        self._came_up = asyncio.Event()
        self._suspected = asyncio.Event()
        self._python = ""

    @property
    def is_up(self) -> bool:
        return self.pid is not None

    async def run(self) -> None:
        """Keep a base running until `close`. Raises Refused when this machine cannot run one at all."""
        back_off = BACK_OFF_S
        while not self._closing.is_set():
            began = self._loop.time()
            await self._run_one()
            if self._closing.is_set():
                return
            if self._loop.time() - began > STEADY_S:
                back_off = BACK_OFF_S
            _log.error("base.died", restart_in_s=round(back_off, 1))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), back_off)
            back_off = min(back_off * 2, BACK_OFF_CAP_S)

    def close(self) -> None:
        """End the base and every worker with it; `run` returns once it is gone."""
        self._closing.set()

    def spawn(self, child: Child, order: Callable[[int], frames.Spawn], descriptors: tuple[int, ...]) -> int:
        """Have a worker forked; `order` makes the frame for its number. Its descriptors may be closed after the call.

        Raises OSError when the base is not up.
        """
        if self.pid is None:
            raise BrokenPipeError("the base is not up")
        number = next(self._numbers)
        self._send(frames.encode(order(number)), descriptors)
        self._children[number] = child
        return number

    def kill(self, number: int) -> None:
        """Have a worker and every descendant of it killed. Of one that is gone already nothing happens."""
        if number in self._children:
            with contextlib.suppress(OSError):
                self._send(frames.encode(frames.Kill(number)), ())

    def suspect(self) -> None:
        """It does not do what it was told: end it, and every worker with it; another one follows."""
        if self.pid is not None and not self._suspected.is_set():
            _log.error("base.suspected", pid=self.pid)
            self._suspected.set()

    async def _run_one(self) -> None:
        """One incarnation, from its start until it is gone."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        process: asyncio.subprocess.Process | None = None
        try:
            ours.setblocking(False)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * DATAGRAM_BYTES)
            process = await kin.started(asyncio.create_subprocess_exec(
                sys.executable, "-I", "-B", "-m", MODULE, str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL, pass_fds=(theirs.fileno(),), env=ENVIRONMENT, start_new_session=True,
            ))  # fmt: skip
            theirs.close()
            self.starts += 1
            self._suspected.clear()
            self._sock = ours
            self._loop.add_reader(ours, self._readable)
            await self._watch(process)
        except OSError as error:
            _log.error("base.not_started", error=str(error))
        finally:
            theirs.close()
            base = self._disconnect(ours)
            if process is not None:
                await _end(process)
                if base is not None:
                    await kin.left_to_end(base, END_WITHIN_S)
                if strays := await kin.end_strays():
                    _log.warning("strays.ended", pids=strays)
            self._bereave()

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Wait until the base is gone or is to go."""
        gone = self._loop.create_task(process.wait())
        closing = self._loop.create_task(self._closing.wait())
        suspected = self._loop.create_task(self._suspected.wait())
        up = self._loop.create_task(self._came_up.wait())
        try:
            await asyncio.wait({gone, closing, up}, timeout=UP_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
            if gone.done() or closing.done():
                return
            if not up.done():
                _log.error("base.stuck", waited_s=UP_WITHIN_S)
                return
            if self._python != sys.version:
                # Another interpreter, or another library of it, would run other code than discovery saw.
                raise Refused(
                    f"expected workers to run Python {sys.version!r}, got {self._python!r}; mend the installation"
                )
            await asyncio.wait({gone, closing, suspected}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (gone, closing, suspected, up):
                task.cancel()

    def _disconnect(self, ours: socket.socket) -> int | None:
        """Hear its last words and hang up, which ends it if it still runs; the process that was up, if one was."""
        if self._sock is ours:
            self._readable()
            self._loop.remove_reader(ours)
            if self._outbox:
                self._loop.remove_writer(ours)
        for _, descriptors in self._outbox:
            _close(descriptors)
        self._outbox.clear()
        ours.close()
        base, self._sock, self.pid = self.pid, None, None
        self._came_up.clear()
        return base

    def _bereave(self) -> None:
        """Whoever is still listed died with the base."""
        children, self._children = self._children, {}
        for child in children.values():
            child.exited(None)
        self._on_change()

    def _readable(self) -> None:
        sock = self._sock
        while sock is not None and sock is self._sock:
            try:
                data, descriptors, _, _ = socket.recv_fds(sock, DATAGRAM_BYTES, 4, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except OSError:
                data, descriptors = b"", []
            if not data:
                self._loop.remove_reader(sock)  # its exit follows, or is forced by `_end`
                return
            try:
                self._heard(frames.decode_from_base(data), descriptors)
            except msgspec.MsgspecError as error:
                _log.error("base.unclear", error=str(error))
                _close(descriptors)

    def _heard(self, message: frames.FromBase, descriptors: list[int]) -> None:
        match message:
            case frames.Up(pid=pid, python=python):
                self.pid, self._python = pid, python
                self._came_up.set()
                _log.info("base.started", pid=pid)
                self._on_change()
            case frames.Spawned(number=number, pid=pid):
                child = self._children.get(number)
                if child is None or len(descriptors) != 1:
                    _close(descriptors)
                else:
                    child.spawned(pid, descriptors[0])
                return
            case frames.Exited(number=number):
                child = self._children.pop(number, None)
                if child is not None:
                    child.exited(message)
        _close(descriptors)

    def _send(self, data: bytes, descriptors: tuple[int, ...]) -> None:
        """Send one datagram, or keep it (with copies of its descriptors) until the base reads again."""
        if self._sock is None:
            raise BrokenPipeError("the base is not up")
        if not self._outbox:
            try:
                socket.send_fds(self._sock, [data], descriptors)
                return
            except BlockingIOError:
                self._loop.add_writer(self._sock, self._flush)
        self._outbox.append((data, tuple(os.dup(descriptor) for descriptor in descriptors)))

    def _flush(self) -> None:
        assert self._sock is not None
        while self._outbox:
            data, descriptors = self._outbox[0]
            try:
                socket.send_fds(self._sock, [data], descriptors)
            except BlockingIOError:
                return
            except OSError:
                pass  # it is gone: its exit tells all of them
            self._outbox.popleft()
            _close(descriptors)
        self._loop.remove_writer(self._sock)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Its socket is closed, which ends it; make sure."""
    try:
        await asyncio.wait_for(process.wait(), END_WITHIN_S)
    except TimeoutError:
        processes.kill_below(process.pid)  # what cannot hear, being stopped, takes nothing along by itself
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _close(descriptors: tuple[int, ...] | list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
