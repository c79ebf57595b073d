"""A worker's end of its channel: whole frames out, under one lock; what the supervisor wants, in.

Frames come in while a handler runs, too: an async worker's loop reads them, and a sync handler that asks whether it was
cancelled looks for itself. So a handler that does not ask pays for neither a thread nor a signal.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

from echofn.frames import (
    HEADER,
    MAX_FRAME_BYTES,
    Cancel,
    Job,
    Run,
    Skipped,
    Stop,
    Withdraw,
    decode_to_worker,
    framed,
)


class Channel:
    """Whole frames out, whole frames in."""

    def __init__(self, descriptor: int) -> None:
        self._socket: socket.socket | None = socket.socket(fileno=descriptor)
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._waiting: deque[bytes] = deque()
        self._received = b""
        os.register_at_fork(after_in_child=self._abandon)

    def send(self, data: bytes) -> None:
        """Write frames. A signal handler that prints in the middle of a write has its frame sent after it."""
        self._waiting.append(data)
        if self._owner == threading.get_ident():
            return
        with self._lock:
            self._owner = threading.get_ident()
            try:
                while self._waiting and self._socket:
                    self._socket.sendall(self._waiting.popleft())
            except OSError:
                os._exit(0)  # the supervisor is gone: there is nobody to work for
            finally:
                self._owner = None

    def receive(self, *, wait: bool) -> bytes | None:
        """One frame's body; None when `wait` is false and none is there. Ends the process at the channel's end."""
        while (frame := self._whole()) is None:
            if self._socket is None and not wait:
                return None  # a child that a handler forked has no channel
            try:
                data = self._socket.recv(1 << 18, 0 if wait else socket.MSG_DONTWAIT) if self._socket else b""
            except BlockingIOError:
                return None
            except OSError:
                data = b""
            if not data:
                os._exit(0)
            self._received += data
        return frame

    def _whole(self) -> bytes | None:
        if len(self._received) < HEADER.size:
            return None
        size = HEADER.unpack_from(self._received)[0]
        if size > 64 * MAX_FRAME_BYTES:
            os._exit(70)
        end = HEADER.size + size
        if len(self._received) < end:
            return None
        body, self._received = self._received[HEADER.size : end], self._received[end:]
        return body

    def _abandon(self) -> None:
        if self._socket:
            self._socket.close()
            self._socket = None


class Inbox:
    """What the supervisor has handed over and nobody has begun, and what it wants to end."""

    def __init__(self, channel: Channel) -> None:
        self.waiting: deque[tuple[int, Job]] = deque()
        self.stopping = False  # begin nothing more
        self.on_cancel: Callable[[int], None] = _nobody
        self._channel = channel
        self._lock = threading.Lock()
        self._handed = 0
        self._ahead_ms = 0.0  # the bus's clock minus our monotonic one

    @property
    def now_ms(self) -> int:
        """The bus's clock."""
        return int(self._ahead_ms + time.monotonic() * 1000)

    def listen(self, *, wait: bool) -> None:
        """Take in what the supervisor has written; with `wait` at least one frame."""
        with self._lock:
            self._take_in(wait)

    def glance(self) -> None:
        """The same from anywhere, at any time: it neither waits nor gets in the way."""
        if self._lock.acquire(blocking=False):
            try:
                self._take_in(wait=False)
            finally:
                self._lock.release()

    def take(self) -> tuple[int, Job] | None:
        """The next job, which is begun then; None where there is none, or none is to begin."""
        with self._lock:
            return self.waiting.popleft() if self.waiting and not self.stopping else None

    def _take_in(self, wait: bool) -> None:
        while (body := self._channel.receive(wait=wait)) is not None:
            wait = False
            match decode_to_worker(body):
                case Run(jobs=jobs, now_ms=now_ms):
                    self._ahead_ms = now_ms - time.monotonic() * 1000
                    self.waiting.extend(enumerate(jobs, self._handed))
                    self._handed += len(jobs)
                case Stop():
                    self.stopping = True
                case Cancel(index=index):
                    if not self._skip(index):
                        self.on_cancel(index)
                case Withdraw(index=index):
                    self._skip(index)

    def _skip(self, index: int) -> bool:
        """Forget a job that has not begun. False: it has."""
        for place, (each, _) in enumerate(self.waiting):
            if each == index:
                del self.waiting[place]
                self._channel.send(framed(Skipped(index)))
                return True
        return False


def _nobody(_index: int) -> None:
    """Between runs there is nothing to cancel."""
