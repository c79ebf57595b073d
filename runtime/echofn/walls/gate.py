"""At most so many processes at once: what a worker starts waits until the base has counted. See seccomp_unotify(2).

The kernel's own bound (RLIMIT_NPROC) counts by uid, which a worker may share, and never counts uid 0. So the filter
stops each fork of a worker that has opened `processes=`, and asks here; threads are not asked about. Everything below
the worker counts, dead and not waited for too, as the kernel would count it.

A fork that was let through shows below the worker only once it has happened. Until then the next one waits, so that
many that fork at the same time do not all count the same ones. However long that takes: a process with much memory, or
with many mappings, is slow to copy. What was let through may also have failed, or have come and gone: then its thread
goes on, and is seen to sleep, to ask again or to be gone. A worker that was refused is heard again only after a pause:
a loop of forks costs the base nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct

from echofn import processes

# linux/seccomp.h: _IOWR('!', 0, struct seccomp_notif), _IOWR('!', 1, struct seccomp_notif_resp)
_RECEIVE = 0xC0502100
_SEND = 0xC0182101
_CONTINUE = 1
_ASKED = struct.Struct("QII64x")  # id, thread, flags, the call itself
_ANSWER = struct.Struct("QqiI")  # id, value, error, flags

SHOWS_WITHIN_S = 5.0  # where nothing tells: its thread works on, and what it started is gone
AGAIN_S = 0.002
PAUSE_S = 0.005


def hand_over(line: int, listener: int) -> None:
    """Give the listener to whoever counts, and keep nothing of it. Raises OSError."""
    with socket.socket(fileno=line) as to_base:
        socket.send_fds(to_base, [b"listener"], [listener])
    os.close(listener)


class Gate:
    """Lets the processes below `pid` be at most `most`; `own` of those below it are the worker itself."""

    def __init__(self, line: socket.socket, pid: int, most: int, own: int) -> None:
        self._line: socket.socket | None = line
        self._listener = -1
        self._pid, self._most, self._own = pid, most, own
        self._asked: tuple[int, int] | None = None  # its id, and the thread that waits
        self._let: tuple[int, frozenset[int], float] | None = None  # the last: its thread, who was there, until when
        self.again: float | None = None  # when to look next, by itself; None: when its descriptor can be read

    @property
    def descriptor(self) -> int:
        return self._line.fileno() if self._line is not None else self._listener

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._listener >= 0:
            os.close(self._listener)
            self._listener = -1

    def take(self) -> bool:
        """Take the listener in. False: the worker ended before it had one."""
        assert self._line is not None
        _, descriptors, _, _ = socket.recv_fds(self._line, 64, 1)
        self._line.close()
        self._line = None
        self._listener = descriptors[0] if descriptors else -1
        return bool(descriptors)

    @property
    def is_open(self) -> bool:
        return self._listener >= 0

    def resume(self, now: float) -> bool:
        """The time that `again` named has come. True: its descriptor is to be heard again."""
        self.again = None
        if self._asked is not None:
            self.look(now)
        return self.again is None

    def look(self, now: float) -> None:
        """Decide about who waits, if that can be decided."""
        self.again = None
        if self._asked is None:
            self._asked = self._receive()
        if self._asked is None:
            return
        number, thread = self._asked
        let, is_pending = self._let, False
        if let is not None:
            last, _, until = let
            is_pending = thread != last and now < until and _is_at_work(last)
        there = frozenset(processes.below(self._pid))  # looked at after its thread: what is over by then shows
        if let is not None and is_pending and not there - let[1]:
            self.again = now + AGAIN_S
            return
        if len(there) - self._own >= self._most:
            self._answer(number, error=-errno.EAGAIN)
            self.again = now + PAUSE_S
        else:
            self._answer(number, flags=_CONTINUE)
            self._let = (thread, there, now + SHOWS_WITHIN_S)
        self._asked = None

    def _receive(self) -> tuple[int, int] | None:
        asked = bytearray(_ASKED.size)
        try:
            fcntl.ioctl(self._listener, _RECEIVE, asked)
        except OSError:
            return None  # it was killed, or a signal took it away: it asks again if it lives
        number, thread, _ = _ASKED.unpack(asked)
        return number, thread

    def _answer(self, number: int, *, error: int = 0, flags: int = 0) -> None:
        try:
            fcntl.ioctl(self._listener, _SEND, _ANSWER.pack(number, 0, error, flags))
        except OSError:
            pass  # gone in the meantime


def _is_at_work(thread: int) -> bool:
    """Whether a thread can still be inside its fork: nothing in there sleeps so that a signal would wake it (S)."""
    try:
        with open(f"/proc/{thread}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in b"RD"
    except (OSError, IndexError):
        return False  # gone
