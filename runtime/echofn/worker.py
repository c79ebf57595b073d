"""A worker: the confined process that runs the jobs of one function of one version.

Forked from the base; walls first, then the import, then the lifespan, then jobs: begun in order, one at a time or, of
an async function, several on one loop (serving.py). It knows no bus and holds no credential but the secrets of its
module. It ends with `Stop`, with its channel, or with its parent. A run is asked to end by a `Cancel`; where it does
not, the process is killed from outside: nothing here tries to be interruptible.

Guarantees on the channel: frames are written whole, under one lock; `Begun` before a run; one `Ended` a job; nothing of
a run after its `Ended`, whatever threads it leaves; a forked child of a handler writes nothing at all.
"""

from __future__ import annotations

import contextvars
import faulthandler
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

from echofn import capture, walls
from echofn.batches import BatchRun
from echofn.blocked import told
from echofn.channel import Channel, Inbox
from echofn.faults import Asker, cause_of, explained, message_of, raw, traceback_of, type_of
from echofn.frames import OUTSIDE, Failed, Imported, Job, Ready, Spawn, framed
from echofn.lifespans import Lifespan, State
from echofn.manifest import Function, Policy, QueueTrigger, WebhookTrigger
from echofn.masking import Mask
from echofn.options import fail_on_of
from echofn.package import Folder
from echofn.refusals import Refusals
from echofn.run import Loop, Meter, Run
from echofn.sealed import take
from echofn.serving import serve
from echofn.signature import Shape, shape_of


class Session:
    """What all runs of a worker share."""

    def __init__(self, spawn: Spawn, channel: Channel, refusals: Refusals, mask: Mask) -> None:
        self.refusals = refusals
        self.function: Function = spawn.function
        self.hears_webhooks = _has(spawn.function, WebhookTrigger)
        self.asker = _asker(spawn)
        self.mask = mask
        self.version = spawn.version
        self.env = spawn.env
        self.folder = Folder(spawn.root, spawn.package)
        self.logger = logging.getLogger(spawn.function.name)
        self.marks: capture.Marks
        self.loop = Loop()
        self.meter = Meter()
        self.send = channel.send
        self.outside = capture.Lines(OUTSIDE, channel.send, time.perf_counter(), mask)
        self.context = contextvars.Context()  # of nobody's run
        self.context.run(capture.current.set, self.outside)
        self.shape: Shape
        self.fail_on: tuple[type[BaseException], ...] = ()
        self.state: Any = State(spawn.function.file, {})
        self.is_asked: Callable[[Run], bool] = _nobody_asks  # or what whoever serves puts here
        self._lifespan: Lifespan | None = None

    def prepare(self) -> None:
        """Import the module, find the function, enter the lifespan. Raises whatever that raises."""
        self.folder.install()
        module = self.folder.load(self.function.module)
        function = getattr(module, self.function.attribute, None)
        if function is None:
            raise LookupError(
                f"{self.function.file} has no {self.function.attribute}: its code depends on where it runs"
            )
        self.shape = shape_of(function)
        self.fail_on = fail_on_of(function, self.env)
        if self.function.startup_ms is not None:
            self.send(framed(Imported()))
            self.enter(module)

    def enter(self, module: ModuleType) -> None:
        """Start the lifespan of a module that has one. Raises what that raises."""
        if self.function.startup_ms is not None:
            self._lifespan = Lifespan(module, self.function.file)
            self.state = self._lifespan.enter(self.loop)

    def run_of(self, index: int, job: Job, now_ms: int) -> Run:
        """The run of a job that has come, or of a batch."""
        return (BatchRun if self.shape.is_batched else Run)(self, index, job, now_ms)

    def leave(self) -> None:
        """The last job has ended: the rest of the lifespan."""
        left = None
        if self._lifespan is not None:
            self.outside.renew()
            left = self._lifespan.leave(self.loop, self.folder, self.mask)
        self.outside.close()
        if left is not None:
            self.send(framed(left))


def _nobody_asks(_run: Run) -> bool:
    return False


def opened_by(policy: Policy) -> walls.Openings:
    """The openings that a function's policy asks for."""
    return walls.Openings(policy.network, policy.processes, policy.memory_bytes, policy.tmp_bytes)


def work(
    spawn: Spawn, channel: int, pipes: tuple[int, int], sealed: int | None = None, *, parent: int, line: int | None
) -> NoReturn:
    """The whole life of a worker, from just after the fork.

    `sealed`: the file of its secrets, where it has any. `line`: to the base, where it counts processes.
    """
    code, mask = 70, Mask()
    try:
        secrets = {} if sealed is None else take(sealed)
        mask = Mask(secrets.values())
        capture.hide(mask)
        _restore(channel, pipes, line)
        refusals = Refusals(spawn.level, opened_by(spawn.function.policy), spawn.root, spawn.tmp)
        try:
            session, inbox, up = _prepared(spawn, secrets, mask, refusals, parent, None if line is None else walls.LINE)
        except BaseException as error:
            failed = _failed(error, spawn, refusals, mask)
            if (outside := capture.current.get()) is not None:
                outside.close()
            Channel(walls.CHANNEL).send(framed(failed))
        else:
            session.send(framed(up))
            serve(session, inbox, spawn.level, walls.CHANNEL)
    except BaseException as error:
        raw(2, f"echod worker: {type_of(error, mask)}: {message_of(error, mask)}\n")
        code = 71
    finally:
        os._exit(code)


def _prepared(
    spawn: Spawn, secrets: dict[str, str], mask: Mask, refusals: Refusals, parent: int, line: int | None
) -> tuple[Session, Inbox, Ready]:
    opened = opened_by(spawn.function.policy)
    up = walls.raise_walls(walls.Order(spawn.level, spawn.root, spawn.tmp, secrets, opened, line), parent)
    refusals.tmp = os.environ["TMPDIR"]
    faulthandler.enable(2)  # a crash leaves its Python lines in the job's output
    sys.breakpointhook = _no_terminal
    own_end = Channel(walls.CHANNEL)  # the walls may have forked: a channel is one process's
    session = Session(spawn, own_end, refusals, mask)
    capture.install(session.outside, session.folder)
    session.marks = capture.Marks()
    refusals.watch()
    session.prepare()
    return session, Inbox(own_end), Ready(up)


def _failed(error: BaseException, spawn: Spawn, refusals: Refusals, mask: Mask) -> Failed:
    """Why there is no worker, with the wall that its import or its lifespan ran into."""
    folder, asker = Folder(spawn.root, spawn.package), _asker(spawn)
    cause, message = cause_of(error, asker), explained(error, asker, mask)
    if (refusal := refusals.behind(error)) is not None:
        ending = f"{type_of(error, mask)}: {message}"
        message = mask.text(told(refusal, spawn.function.file, spawn.function.line, ending))
        cause = f"wall:{refusal.wall}"
    return Failed(type_of(error, mask), message, traceback_of(error, folder, mask), cause)


def _asker(spawn: Spawn) -> Asker:
    function = spawn.function
    kind = "queue" if _has(function, QueueTrigger) else "webhook" if _has(function, WebhookTrigger) else "cron"
    memory_bytes = 0 if spawn.level == "off" else function.policy.memory_bytes
    return Asker(frozenset(function.secrets), kind, function.file, function.line, memory_bytes)


def _has(function: Function, kind: type[QueueTrigger | WebhookTrigger]) -> bool:
    return any(isinstance(trigger, kind) for trigger in function.triggers)


def _no_terminal(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("breakpoint() needs a terminal, and a worker has none; use `echod run` for a debugger")


def _restore(channel: int, pipes: tuple[int, int], line: int | None) -> None:
    """Signals as a fresh Python has them, and no descriptors but its own."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    walls.keep_descriptors(channel, pipes, line)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 # for the process's life
    sys.argv = ["echofn"]
