"""The process of one worker, as the supervisor holds it: its pidfd, its channel, the pipes of its output; and its end.

The base forks it, tells of it and kills it with all its descendants. A base that does not is ended itself: without it
nobody can promise that a kill means dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from echod.supervisor.base import Base
from echod.supervisor.channel import Channel, Fault
from echod.supervisor.pipe import Pipe, Pipes
from echofn import frames, sealed

STREAMS = ("stdout", "stderr")
GONE_WITHIN_S = 5.0  # between its exit, or our kill, and the base's word that nothing is left


class Listener(Protocol):
    """Whose process it is."""

    def heard(self, found: list[frames.FromWorker]) -> None: ...

    def broke(self, fault: Fault) -> None:
        """What came was no frame."""
        ...

    def hung_up(self) -> None:
        """Its end of the channel is closed."""
        ...

    def spilled(self, stream: str, index: int, data: bytes) -> bool:
        """Bytes past Python, and the position of their run; False: to be kept until it has begun."""
        ...

    def ended(self) -> None:
        """The process is gone, its tree perhaps not."""
        ...

    def exited(self, exited: frames.Exited | None) -> None:
        """Nothing of its tree is left. None: the base died, so nobody saw how."""
        ...


class Process:
    def __init__(self, base: Base, listener: Listener) -> None:
        self.pid: int | None = None
        self.is_gone = False
        self._base, self._listener = base, listener
        self._loop = asyncio.get_running_loop()
        self._number = 0
        self._pidfd = -1
        self._pipes: Pipes | None = None
        self._channel: Channel | None = None
        self._is_killed = False
        self._given_up: asyncio.TimerHandle | None = None

    def start(self, order: Callable[[int], frames.Spawn], secrets: Mapping[str, str]) -> None:
        """Have it forked, with its variables. Raises OSError when there are no descriptors left or no base."""
        listener = self._listener
        ours, theirs = socket.socketpair()
        with theirs, sealed.new() as file, contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            files = (file.fileno(),) if secrets and sealed.put(file, secrets) else ()
            reading, writing = [0, 0], [0, 0]
            with contextlib.ExitStack() as handed_over:
                for each in range(2):
                    reading[each], writing[each] = os.pipe2(os.O_CLOEXEC)
                    undo.callback(os.close, reading[each])
                    handed_over.callback(os.close, writing[each])
                self._number = self._base.spawn(self, order, (theirs.fileno(), *writing, *files))
            undo.pop_all()
        out, err = (Pipe(end, partial(listener.spilled, name)) for end, name in zip(reading, STREAMS, strict=True))
        self._pipes = Pipes(out, err)
        self._channel = Channel(ours, listener.heard, listener.broke, listener.hung_up)

    def send(self, message: frames.ToWorker) -> None:
        if self._channel is not None:
            self._channel.send(message)

    def look(self) -> None:
        """Take in what it has said by now."""
        if self._channel is not None:
            self._channel.read()

    def begun(self) -> None:
        """A run of it has."""
        if self._pipes is not None:
            self._pipes.begun()

    def hear_pipes(self, *, again: bool) -> None:
        """What a run wrote past Python was there before its answer; for answers that came together one read will do."""
        if self._pipes is not None:
            self._pipes.hand_on() if again else self._pipes.drain()

    def drain(self) -> None:
        """Take in what it left behind."""
        if self._channel is not None:
            self._channel.drain()
        if self._pipes is not None:
            self._pipes.drain()

    def hang_up(self) -> None:
        """Nothing more of it is heard."""
        if self._channel is not None:
            self._channel.close()

    def kill(self) -> None:
        """End it and all its descendants now."""
        self._is_killed = True
        self._slay()
        self._expect_gone()

    def close(self) -> None:
        """It is no more."""
        if self._given_up is not None:
            self._given_up.cancel()
        if self._pipes is not None:
            self._pipes.close()
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        self.hang_up()

    # ---- what the base says -------------------------------------------------------------------------------------

    def spawned(self, pid: int, pidfd: int) -> None:
        self.pid, self._pidfd = pid, pidfd
        self._loop.add_reader(pidfd, self._process_ended)
        if self._is_killed:
            self._slay()

    def exited(self, exited: frames.Exited | None) -> None:
        self._listener.exited(exited)

    # ---- its end ------------------------------------------------------------------------------------------------

    def _process_ended(self) -> None:
        """The process is gone; the base follows with the status once its tree is."""
        self._loop.remove_reader(self._pidfd)
        self.is_gone = True
        self._listener.ended()
        self._expect_gone()

    def _expect_gone(self) -> None:
        if self._given_up is None:
            self._given_up = self._loop.call_later(GONE_WITHIN_S, self._base.suspect)

    def _slay(self) -> None:
        if self._pidfd >= 0:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self._base.kill(self._number)
