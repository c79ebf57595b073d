"""A worker: the confined process that runs the jobs of one function of one version.

Forked from the base; walls first, then the import, then jobs, in order, one at a time. It knows no bus and holds no
credential but the secrets of its module. It ends with `Stop`, with its channel, or with its parent; it is killed from
outside for everything else, so nothing here tries to be interruptible.

Guarantees on the channel: frames are written whole, under one lock; `Begun` before a run; one `Ended` a job, before
the next begins; nothing of a run after its `Ended`, whatever threads it leaves; a forked child of a handler writes
nothing at all.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from typing import NoReturn

from echofn import capture, processes, walls
from echofn.faults import Asker, advice, message_of, raw, traceback_of, type_of
from echofn.frames import (
    HEADER,
    MAX_FRAME_BYTES,
    Begun,
    Failed,
    Job,
    Ready,
    Spawn,
    Stop,
    decode_to_worker,
    framed,
)
from echofn.manifest import Function, Policy, QueueTrigger, WebhookTrigger
from echofn.masking import Mask
from echofn.package import Folder
from echofn.refusals import Refusals, told
from echofn.run import Loop, Run
from echofn.signature import Shape, shape_of


class Channel:
    """The worker's end: whole frames out, whole frames in."""

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
        """One frame's body; None at the channel's end, or when `wait` is false and none is there."""
        while (frame := self._whole()) is None:
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


class Session:
    """What all runs of a worker share."""

    def __init__(self, spawn: Spawn, channel: Channel, refusals: Refusals) -> None:
        self.refusals = refusals
        self.function: Function = spawn.function
        self.hears_webhooks = _has(spawn.function, WebhookTrigger)
        self.asker = _asker(spawn.function)
        self.mask = Mask(spawn.secrets.values())
        self.version = spawn.version
        self.env = spawn.env
        self.folder = Folder(spawn.root, spawn.package)
        self.logger = logging.getLogger(spawn.function.name)
        self.loop = Loop()
        self.send = channel.send
        self.shape: Shape
        self._channel = channel
        self._pid = os.getpid()
        self._sees_processes = spawn.level in {"off", "minimal"}
        self._spared: frozenset[int] = frozenset()  # processes started at import: part of the module's state
        self._waiting: deque[tuple[int, Job]] = deque()
        self._ahead_ms = 0.0  # the bus's clock minus our monotonic one
        self._stopping = False

    def prepare(self) -> None:
        """Import the module and find the function. Raises whatever that raises."""
        self.folder.install()
        module = self.folder.load(self.function.module)
        function = getattr(module, self.function.attribute, None)
        if function is None:
            raise LookupError(
                f"{self.function.file} has no {self.function.attribute}: its code depends on where it runs"
            )
        self.shape = shape_of(function)
        if self._sees_processes and processes.has_children():
            self._spared = frozenset(processes.descendants(self._pid))

    def serve(self) -> NoReturn:
        """Run jobs until told to stop."""
        while True:
            while not self._waiting:
                self._listen(wait=True)
            if self._stopping:
                os._exit(0)
            self.send(framed(Begun(self._waiting[0][0])))
            while self._run(*self._waiting.popleft()):
                pass

    def _is_rid_of_processes(self) -> bool:
        """End what a run has started. False where that cannot be seen from in here, and something is left."""
        if self._sees_processes:
            processes.kill_below(self._pid, self._spared)
            processes.reap_below(self._pid, self._spared)
            return True
        return processes.reaped_all()

    def _listen(self, *, wait: bool) -> None:
        """Take in what the supervisor has written."""
        while (body := self._channel.receive(wait=wait)) is not None:
            message = decode_to_worker(body)
            if isinstance(message, Stop):
                self._stopping = True
                if not self._waiting:
                    os._exit(0)
                return
            self._ahead_ms = message.now_ms - time.monotonic() * 1000
            self._waiting.extend(enumerate(message.jobs))
            wait = False

    def _run(self, index: int, job: Job) -> bool:
        """One run and its answer. True when the next job's Begun went out in the same write."""
        run = Run(self, index, job, int(self._ahead_ms + time.monotonic() * 1000))
        ended = run.go()
        if os.getpid() != self._pid:
            os._exit(0)  # a child that the handler forked, and that came back here
        is_left_with = processes.has_children() and not self._is_rid_of_processes()
        run.lines.close()
        if is_left_with:
            self.send(framed(ended))
            os._exit(0)  # what the run started is out of sight behind the walls; it ends with this process
        if self._waiting:
            self._listen(wait=False)  # a Stop comes before the next job, not after the batch
            if not self._stopping:
                self.send(framed(ended) + framed(Begun(self._waiting[0][0])))
                return True
        self.send(framed(ended))
        return False


def opened_by(policy: Policy) -> walls.Openings:
    """The openings that a function's policy asks for."""
    return walls.Openings(policy.network, policy.processes, policy.memory_bytes, policy.tmp_bytes)


def work(spawn: Spawn, channel: int, pipe: int, parent: int) -> NoReturn:
    """The whole life of a worker, from just after the fork."""
    code = 70
    try:
        _restore(channel, pipe)
        refusals = Refusals(spawn.level, opened_by(spawn.function.policy), spawn.root, spawn.tmp)
        try:
            session, up = _prepared(spawn, refusals, parent)
        except BaseException as error:
            failed = _failed(error, spawn, refusals)
            Channel(walls.CHANNEL).send(framed(failed))
        else:
            session.send(framed(up))
            session.serve()
    except BaseException as error:
        raw(2, f"echod worker: {type_of(error)}: {message_of(error, Mask(spawn.secrets.values()))}\n")
        code = 71
    finally:
        os._exit(code)


def _prepared(spawn: Spawn, refusals: Refusals, parent: int) -> tuple[Session, Ready]:
    opened = opened_by(spawn.function.policy)
    up = walls.raise_walls(walls.Order(spawn.level, spawn.root, spawn.tmp, spawn.secrets, opened), parent)
    refusals.tmp = os.environ["TMPDIR"]
    capture.install()
    faulthandler.enable(2)  # a crash leaves its Python lines in the job's output
    sys.breakpointhook = _no_terminal
    session = Session(spawn, Channel(walls.CHANNEL), refusals)  # the walls may have forked: a channel is one process's
    refusals.watch()
    start = time.perf_counter()
    session.prepare()
    return session, Ready(int((time.perf_counter() - start) * 1_000_000), up)


def _failed(error: BaseException, spawn: Spawn, refusals: Refusals) -> Failed:
    """Why there is no worker, with the wall that its import ran into."""
    folder, mask = Folder(spawn.root, spawn.package), Mask(spawn.secrets.values())
    message = message_of(error, mask) + advice(error, _asker(spawn.function))
    if (refusal := refusals.behind(error)) is not None:
        ending = f"{type_of(error)}: {message}"
        message = mask.text(told(refusal, spawn.function.file, spawn.function.line, ending))
    return Failed(type_of(error), message, traceback_of(error, folder, mask))


def _asker(function: Function) -> Asker:
    kind = "queue" if _has(function, QueueTrigger) else "webhook" if _has(function, WebhookTrigger) else "cron"
    return Asker(frozenset(function.secrets), kind, function.file, function.line)


def _has(function: Function, kind: type[QueueTrigger | WebhookTrigger]) -> bool:
    return any(isinstance(trigger, kind) for trigger in function.triggers)


def _no_terminal(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("breakpoint() needs a terminal, and a worker has none; use `echod run` for a debugger")


def _restore(channel: int, pipe: int) -> None:
    """Signals as a fresh Python has them, and descriptors 0 to 3 only."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    walls.keep_descriptors(channel, pipe)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 # for the process's life
    sys.argv = ["echofn"]
