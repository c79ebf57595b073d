"""The base: the process that workers are forked from. `python -I -B -m echofn.base FD`, FD a SOCK_SEQPACKET socket.

Owns the process tree below it: it alone knows every worker's pid as a parent does, reaps it, and tells its end. It
has one thread, runs no user code and holds no credentials (a worker's secrets pass through it unread), so its forks
are safe and what a worker inherits is harmless.

Guarantees: `Exited` is sent only when nothing of that worker's tree is left. A child of its own that is no worker is
killed with its whole tree as soon as it is seen: when any child ends, and when a worker says at the end of a run that
there is one. When the supervisor dies (its control socket ends, or SIGTERM comes, which is what the kernel sends when
the parent dies) everything below is killed, then the base ends. For its own end by SIGKILL, which a handler without
walls can bring about, there is its keeper: the process between supervisor and base, which adopts what the base leaves,
kills it, and ends. A worker that could not be forked is told as `Exited` with pid 0 and status 1 << 8, without
`Spawned`.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import struct
import sys
import time
import traceback
from types import FrameType
from typing import NoReturn

from echofn import processes, walls
from echofn.frames import Exited, Kill, Spawn, Spawned, Up, decode_to_base, encode
from echofn.walls.gate import Gate
from echofn.worker import work

# What handlers use most: imported once here, shared by every worker.
_PRELOAD = {"asyncio", "csv", "dataclasses", "decimal", "enum", "hashlib", "inspect", "json", "logging", "pathlib"} | {
    *("random", "secrets", "tempfile", "typing", "urllib.parse", "urllib.request", "uuid", "zoneinfo"),
}
_CREDENTIALS = struct.Struct("3i")


class Base:
    """The loop over the control socket and the ends of children."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._pid = os.getpid()
        self._numbers: dict[int, int] = {}  # pid -> the supervisor's number, while the worker is not reaped
        self._pids: dict[int, int] = {}
        self._ended: list[Exited] = []  # reaped, but something of their trees may be left
        self._gates: dict[int, Gate] = {}  # by descriptor: of workers that start processes
        self._poll = select.poll()

    def serve(self) -> NoReturn:
        wake, alarm = os.pipe()
        for end in (wake, alarm):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _ignore)
        self._poll.register(self._control, select.POLLIN)
        self._poll.register(wake, select.POLLIN)
        self._tell(Up(self._pid, sys.version))
        while True:
            for descriptor, event in self._poll.poll(self._patience_ms()):
                if descriptor == wake:
                    _drain(wake)
                    self._reap()
                elif descriptor in self._gates:
                    self._ask(descriptor, event)
                else:
                    self._hear()
            self._ask_again()

    def _hear(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, 1 << 18, 4)
        except ConnectionError:
            data, descriptors = b"", []
        if not data:
            processes.end_with_all()
        try:
            message = decode_to_base(data)
            if isinstance(message, Kill):
                self._kill(message.number)
            else:
                self._spawn(message, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _spawn(self, spawn: Spawn, descriptors: list[int]) -> None:
        channel, stdout, stderr, *sealed = descriptors
        counted = spawn.function.policy.processes > 0 and spawn.level in {"standard", "strict"}
        lines: tuple[socket.socket, ...] = ()
        try:
            if counted:
                lines = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            pid = os.fork()
        except OSError:
            for line in lines:
                line.close()
            self._tell(Exited(spawn.number, 0, 1 << 8, 0, 0))
            return
        if pid == 0:
            to_base = lines[1].fileno() if lines else None
            work(spawn, channel, (stdout, stderr), *sealed, parent=self._pid, line=to_base)
        if lines:
            lines[1].close()
            self._watch(Gate(lines[0], pid, spawn.function.policy.processes, own=int(spawn.level == "strict")))
        self._numbers[pid], self._pids[spawn.number] = spawn.number, pid
        handle = os.pidfd_open(pid)
        try:
            self._tell(Spawned(spawn.number, pid), handle)
        finally:
            os.close(handle)

    def _watch(self, gate: Gate) -> None:
        self._gates[gate.descriptor] = gate
        self._poll.register(gate.descriptor, select.POLLIN)

    def _ask(self, descriptor: int, event: int) -> None:
        """A worker's line or listener has something to say."""
        gate = self._gates[descriptor]
        if gate.is_open and event & select.POLLIN:
            gate.look(time.monotonic())
            if gate.again is not None:
                self._poll.modify(descriptor, 0)
            return
        self._poll.unregister(descriptor)
        del self._gates[descriptor]
        if not gate.is_open and gate.take():
            self._watch(gate)
        else:
            gate.close()  # nobody is left whom the filter binds

    def _ask_again(self) -> None:
        """Those whose time has come: who waits, or may be heard again."""
        now = time.monotonic()
        for descriptor, gate in self._gates.items():
            if gate.again is not None and gate.again <= now and gate.resume(now):
                self._poll.modify(descriptor, select.POLLIN)

    def _patience_ms(self) -> float | None:
        soonest = min((gate.again for gate in self._gates.values() if gate.again is not None), default=None)
        return None if soonest is None else max((soonest - time.monotonic()) * 1000, 0) + 1

    def _kill(self, number: int) -> None:
        """The worker and its whole tree: a subreaper's descendants are all below it."""
        pid = self._pids.get(number)
        if pid is None:
            return  # ended already
        processes.kill_tree(pid)

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            number = self._numbers.pop(pid, None)
            if number is not None:
                del self._pids[number]
                cpu_us = int((usage.ru_utime + usage.ru_stime) * 1_000_000)
                self._ended.append(Exited(number, pid, status, cpu_us, usage.ru_maxrss * 1024))
        # A child of ours that is no worker has no place here: live workers keep their own orphans, so a worker that
        # has died left it, or a handler started it beside its worker (clone(2) with CLONE_PARENT, behind no filter).
        if (self._ended or self._has_strays()) and not processes.kill_below(self._pid, set(self._numbers)):
            for exited in self._ended:
                self._tell(exited)
            self._ended.clear()

    def _has_strays(self) -> bool:
        children = processes.children_of_one_thread(self._pid)
        return children is None or not children <= self._numbers.keys()

    def _tell(self, message: Up | Spawned | Exited, descriptor: int | None = None) -> None:
        try:
            socket.send_fds(self._control, [encode(message)], [] if descriptor is None else [descriptor])
        except OSError:
            processes.end_with_all()


def keep(base: int, parent: int) -> NoReturn:
    """Outlive the base, however it ends, and take along what it leaves; the same when the parent is gone."""
    signal.signal(signal.SIGTERM, processes.end_with_all)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    walls.adopt_orphans()
    walls.die_with_parent(signal.SIGTERM, parent)
    os.waitid(os.P_PID, base, os.WEXITED)
    processes.end_with_all()


def main(descriptor: int) -> NoReturn:
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    parent = os.getppid()
    peer = _CREDENTIALS.unpack(control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[0]
    if peer not in (parent, 0):  # 0: the supervisor lives in another pid namespace
        os._exit(1)  # the supervisor made the socket: it died before we could ask for its death
    keeper = os.getpid()
    if (pid := os.fork()) != 0:
        control.close()
        keep(pid, parent)
    base = Base(control)
    signal.signal(signal.SIGTERM, processes.end_with_all)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.getpid() != os.getsid(0):
        os.setsid()  # the terminal's Ctrl-C is the supervisor's to hear
    walls.adopt_orphans()
    walls.die_with_parent(signal.SIGTERM, keeper)
    for name in sorted(_PRELOAD):
        __import__(name)
    gc.collect()
    gc.freeze()  # so that no collection in a worker copies these pages
    try:
        base.serve()
    except BaseException:
        traceback.print_exc()
    processes.end_with_all()


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """SIGCHLD only has to wake the poll: a child has ended, or a worker saw one of ours that it does not know."""


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 4096):
            pass
    except BlockingIOError:
        pass


if __name__ == "__main__":
    main(int(sys.argv[1]))
