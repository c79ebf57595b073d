"""The pipes behind a worker's stdout and stderr: what is written past Python, by C code, processes and crashes.

Such bytes say nothing of a run. So the worker says it between them: before it begins a run it writes a mark into both
(`frames.MARK`), and what follows belongs to that run, however late it is read here. Bytes of a run whose `Begun` has
not been read yet are held until it has.

Each job writes a mark, and that must not wake the loop: the pipes are read when a job ends, and on their own only after
a pause.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable

from echofn.frames import MARK, MARK_BYTES, OUTSIDE, POSITION

READ_BYTES = 64 * 1024
DRAIN_READS = 16  # what a pipe holds, and a little
QUIET_S = 0.05
MOST_HELD_BYTES = 1024 * 1024  # an honest worker says `Begun` before

Deal = Callable[[int, bytes], bool]  # (index of the run, its bytes) -> False to keep them until its `Begun` is read


class Pipe:
    """One reading end, which it owns. Read as it comes, whatever is kept of it: a full pipe would stop the worker."""

    def __init__(self, descriptor: int, deal: Deal) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self._deal = deal
        self._whose = OUTSIDE
        self._cut = b""  # the beginning of a mark, where a read ended within it
        self._held: deque[tuple[int, bytes]] = deque()
        self._held_bytes = 0

    def drain(self) -> None:
        """Read what is there now."""
        self.hand_on()
        for _ in range(DRAIN_READS):
            if not self.read():
                return

    def read(self) -> bool:
        """Whether there may be more."""
        if self.descriptor < 0:
            return False
        try:
            data = os.read(self.descriptor, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            raise EOFError
        is_full = len(data) == READ_BYTES
        self._take(self._cut + data, is_full)
        self.hand_on()
        return is_full  # else it took all there was

    def hand_on(self) -> None:
        """What is held, as far as it can be dealt with by now."""
        while self._held and self._deal(*self._held[0]):
            self._held_bytes -= len(self._held.popleft()[1])

    def _take(self, data: bytes, is_cut: bool) -> None:
        """Part the bytes by the marks in them. Marks are written whole, so only a full read can end within one."""
        self._cut = b""
        if data.count(MARK) * MARK_BYTES == len(data):  # as between jobs that write nothing
            self._whose = POSITION.unpack_from(data, len(data) - POSITION.size)[0]
            return
        if is_cut and (at := _begun(data)) is not None:
            data, self._cut = data[:at], data[at:]
        first, *rest = data.split(MARK)
        self._hold(first)
        for part in rest:
            if len(part) >= POSITION.size:  # less is none of ours
                self._whose = POSITION.unpack_from(part)[0]
                self._hold(part[POSITION.size :])

    def _hold(self, data: bytes) -> None:
        if data and self._held_bytes < MOST_HELD_BYTES:
            self._held.append((self._whose, data))
            self._held_bytes += len(data)


class Pipes:
    """Both of a worker."""

    def __init__(self, stdout: Pipe, stderr: Pipe) -> None:
        self._pipes = (stdout, stderr)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._has_stirred = False  # since the timer was set
        self._listen()

    def begun(self) -> None:
        """A run has begun; most end soon, and are read then."""
        self._has_stirred = True
        if self._timer is None:
            for pipe in self._pipes:
                if pipe.descriptor >= 0:
                    self._loop.remove_reader(pipe.descriptor)
            self._timer = self._loop.call_later(QUIET_S, self._rang)

    def drain(self) -> None:
        """Read what is there now."""
        self._has_stirred = True
        for pipe in self._pipes:
            self._over(pipe, pipe.drain)

    def hand_on(self) -> None:
        """Of what was read, what could not be dealt with before."""
        for pipe in self._pipes:
            pipe.hand_on()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for pipe in self._pipes:
            self._close(pipe)

    def _rang(self) -> None:
        if self._has_stirred:
            self._has_stirred = False
            self._timer = self._loop.call_later(QUIET_S, self._rang)
        else:
            self._timer = None
            self._listen()

    def _listen(self) -> None:
        for pipe in self._pipes:
            if pipe.descriptor >= 0:
                pipe.hand_on()
                self._loop.add_reader(pipe.descriptor, self._over, pipe, pipe.read)

    def _over(self, pipe: Pipe, read: Callable[[], object]) -> None:
        try:
            read()
        except EOFError:
            self._close(pipe)

    def _close(self, pipe: Pipe) -> None:
        if pipe.descriptor >= 0:
            self._loop.remove_reader(pipe.descriptor)
            os.close(pipe.descriptor)
            pipe.descriptor = -1


def _begun(data: bytes) -> int | None:
    """Where a mark begins of which the rest is missing; the earliest, as a position may look like a beginning."""
    at = data.find(MARK[:1], max(len(data) - MARK_BYTES + 1, 0))
    while at >= 0:
        if data[at : at + len(MARK)] == MARK[: len(data) - at]:
            return at
        at = data.find(MARK[:1], at + 1)
    return None
