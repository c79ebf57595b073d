"""A worker's channel: frames out, frames in. What comes in was written by user code's process and is not trusted.

A length is checked before a byte of its body is kept; a body is decoded into a closed union with msgspec's own depth
limit; anything else is a `Fault`, after which the channel says no more. A slow or half frame only waits: the run's
timeout ends it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import msgspec

from echofn import frames

READ_BYTES = 64 * 1024
DRAIN_READS = 256
_HEADER_BYTES = frames.HEADER.size


class Fault(Exception):
    """The worker broke the protocol. The text says how, for the log and the job's error."""


class Splitter:
    """Cuts a byte stream into decoded frames. Pure."""

    def __init__(self, cap: int = frames.MAX_FRAME_BYTES) -> None:
        self._cap = cap
        self._rest = bytearray()
        self._need = _HEADER_BYTES  # bytes in `_rest` before anything new can be said

    def feed(self, chunk: bytes) -> tuple[list[frames.FromWorker], Fault | None]:
        """The frames that `chunk` completes, and what was wrong after them. Nothing may be fed after a fault."""
        if self._rest:
            self._rest += chunk
            if len(self._rest) < self._need:
                return [], None
            data = bytes(self._rest)
            self._rest.clear()
        else:
            data = chunk
        found: list[frames.FromWorker] = []
        view = memoryview(data)
        at, end = 0, len(data)
        while end - at >= _HEADER_BYTES:
            (size,) = frames.HEADER.unpack_from(data, at)
            if size > self._cap:
                return found, Fault(f"expected a frame of at most {self._cap} bytes, got a header that says {size}")
            if end - at - _HEADER_BYTES < size:
                self._need = _HEADER_BYTES + size
                break
            body = view[at + _HEADER_BYTES : at + _HEADER_BYTES + size]
            try:
                found.append(frames.decode_from_worker(body))
            except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError) as error:
                return found, Fault(f"expected a known frame, got {type(error).__name__}: {str(error)[:200]}")
            at += _HEADER_BYTES + size
        else:
            self._need = _HEADER_BYTES
        if at < end:
            self._rest += view[at:]
        return found, None


class Channel:
    """Our end of a worker's stream socket. Callbacks come from the loop; none after `close`."""

    def __init__(
        self,
        sock: socket.socket,
        on_frames: Callable[[list[frames.FromWorker]], None],
        on_fault: Callable[[Fault], None],
        on_end: Callable[[], None],
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._splitter = Splitter()
        self._on_frames, self._on_fault, self._on_end = on_frames, on_fault, on_end
        self._outbox = bytearray()
        self._reading = True
        self._closed = False
        self._loop.add_reader(sock, self.read)

    def send(self, message: frames.ToWorker) -> None:
        """Write a frame, now or as soon as the worker reads. A worker that is gone is noticed by its exit, not here."""
        if self._closed:
            return
        data = frames.framed(message)
        if self._outbox:
            self._outbox += data
            return
        sent = self._try_send(data)
        if sent < len(data):
            self._outbox += memoryview(data)[sent:]
            self._loop.add_writer(self._sock, self._flush)

    def read(self) -> bool:
        """Take what has arrived, one chunk at most; False: nothing had. For the loop, and who must know the latest."""
        if not self._reading:
            return False
        try:
            chunk = self._sock.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            chunk = b""
        if not chunk:
            self._stop_reading()
            self._on_end()
            return False
        found, fault = self._splitter.feed(chunk)
        if found:
            self._on_frames(found)
        if fault is not None and self._reading:
            self._stop_reading()
            self._on_fault(fault)
        return True

    def drain(self) -> None:
        """Read what a worker left behind before it went: it counts. Bounded, as a child of it may still be writing."""
        for _ in range(DRAIN_READS):
            if not self.read():
                return

    def close(self) -> None:
        """Forget the socket."""
        if self._closed:
            return
        self._stop_reading()
        if self._outbox:
            self._loop.remove_writer(self._sock)
        self._closed = True
        self._sock.close()

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._sock)

    def _try_send(self, data: bytes | memoryview) -> int:
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)  # nobody reads it any more

    def _flush(self) -> None:
        sent = self._try_send(memoryview(self._outbox))
        del self._outbox[:sent]
        if not self._outbox:
            self._loop.remove_writer(self._sock)
