"""The processes that this one has started, and the end of strays: of children that it has adopted.

A node is the last subreaper above what runs user code. Where a handler without walls kills the base and its keeper
together, or an import its discovery process, what those leave falls to the node and not to process 1. Whose an orphan
is, no child can be asked: so the node knows its own by name, and what else is its child, and was not before it began
to adopt, is a stray. Own means started by `started`, or by a thread other than the main one: the kernel gives orphans
to the main thread, and /proc tells children by thread (proc_pid_task, `children`). Where it does not, nothing is ended.

Used on one loop of the main thread. There is one list of children for a process, and so one of these.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from asyncio.subprocess import Process
from collections.abc import Coroutine

from echofn import processes, walls

WITHIN_S = 5.0  # a killed process is gone in milliseconds; one that is not ours to kill, never


class Kin:
    """A process's own children, and its strays. Without `adopt` there are none."""

    def __init__(self) -> None:
        self._own: set[Process] = set()
        self._starting = 0  # processes that may be there and have no name here yet
        self._settled: list[asyncio.Future[None]] = []  # who waits until there are none of these
        self._former: set[int] | None = None  # children from before; None: nothing is adopted
        self._ending = set[int]()  # what takes its own along, and is left to it

    def adopt(self) -> None:
        """From now on orphans from below come to this process. What is its child already stays unharmed."""
        self._former = processes.children_of_main_thread()
        if self._former is not None:
            walls.adopt_orphans()

    async def started(self, starting: Coroutine[object, object, Process]) -> Process:
        """The process that `create_subprocess_exec` starts, known as our own from its first moment on."""
        self._starting += 1
        try:
            process = await starting
            self._own = {process, *(each for each in self._own if each.returncode is None)}
            return process
        finally:
            self._starting -= 1
            if not self._starting:
                for waiting in self._settled:
                    if not waiting.done():
                        waiting.set_result(None)
                self._settled.clear()

    async def left_to_end(self, pid: int, within_s: float) -> None:
        """Wait until a process is gone that takes all below it along once its parent is dead, if it has come to us.

        As a stray it would be stopped in the middle of that, and stay stopped for ever if we died, too.
        """
        if self._former is None or pid not in (processes.children_of_main_thread() or ()):
            return
        loop, gone = asyncio.get_running_loop(), asyncio.Event()
        handle = os.pidfd_open(pid)
        loop.add_reader(handle, gone.set)
        self._ending.add(pid)
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(gone.wait(), within_s)
        finally:
            self._ending.discard(pid)
            loop.remove_reader(handle)
            os.close(handle)
        _reap(pid)

    async def end_strays(self) -> tuple[int, ...]:
        """Kill each stray with everything below it, and wait until they are gone; those that there were."""
        found = set[int]()
        loop = asyncio.get_running_loop()
        until, pause_s = loop.time() + WITHIN_S, 0.001
        while strays := await self._strays():
            found |= strays
            for pid in strays:
                _end(pid)
            if loop.time() > until:
                break
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.05)
        return tuple(sorted(found))

    async def _strays(self) -> set[int]:
        """Once no process of our own is just being started."""
        while self._starting:
            self._settled.append(settled := asyncio.get_running_loop().create_future())
            await settled
        if self._former is None or (children := processes.children_of_main_thread()) is None:
            return set()
        return children - self._former - self._ending - {each.pid for each in self._own if each.returncode is None}


def _end(child: int) -> None:
    """Kill a child and what is below it; the next call finds it dead, and reaps it."""
    with contextlib.suppress(PermissionError):  # without walls it may have become somebody else (sudo)
        processes.kill_tree(child)
    _reap(child)


def _reap(child: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, os.WNOHANG | processes.WALL)


_kin = Kin()
adopt, started, left_to_end, end_strays = _kin.adopt, _kin.started, _kin.left_to_end, _kin.end_strays
