"""A worker's and a supervisor's part for one job at a time, in the test's own process.

The run is echofn's, the verdict is the supervisor's; what is left out is what lies between them in production: the
frames, the fork, the walls, the time limit.
"""

from __future__ import annotations

import asyncio
import bdb
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TextIO, TypeVar, cast

from echod.bus import Bus as EchodBus
from echod.model.job import Claimed, Done, Verdict
from echod.registry.registry import Registry
from echod.supervisor import batches, outcomes
from echod.supervisor.channel import Fault, Splitter
from echod.supervisor.children import Blocks
from echod.supervisor.fanout import Fanout
from echod.supervisor.handover import batch_frame, job_frame
from echod.supervisor.journal import Journal
from echod.supervisor.leases import Lease
from echofn import capture, frames
from echofn.batches import BatchRun
from echofn.channel import Channel
from echofn.manifest import Function
from echofn.masking import Mask
from echofn.options import fail_on_of
from echofn.refusals import Refusals
from echofn.run import Run
from echofn.signature import shape_of
from echofn.testing.loading import Source
from echofn.worker import Session, opened_by

CLAIMER = WORKER = "WRK00000000001"
LEASE_MS = 15_000
ROLL = 1.0  # full jitter's longest wait: 500 ms, 1 s, 2 s, …
T = TypeVar("T")
_Said = frames.Output | frames.Progress


class Hands:
    """Claims jobs, runs them, settles them. Its coroutines belong to the bus's loop, `run` to the test's thread."""

    def __init__(self, bus: EchodBus, registry: Registry) -> None:
        self._bus = bus
        self._registry = registry
        self._blocks = Blocks(bus.reserve)
        self._tasks: set[asyncio.Task[None]] = set()
        self._benches: dict[tuple[str, str], _Bench] = {}

    async def claim(self, queues: list[str]) -> list[Lease]:
        """One job, or one batch, of each queue that has one to give."""
        answers = await asyncio.gather(*(self._bus.claim(queue, CLAIMER, 1, LEASE_MS) for queue in queues))
        found: list[Lease] = []
        for queue, answer in zip(queues, answers, strict=True):
            leases = [self._leased(job, queue) for job in answer.jobs]
            found += batches.joined(leases, leases[0].function.policy.batch) if leases else ()
        return found

    def run(self, lease: Lease, source: Source) -> tuple[frames.Ended, list[_Said]]:
        """Run the handler of a job, or of a batch, here and now: how it ended, and what it wrote."""
        key = lease.function.name, lease.version
        bench = self._benches.get(key)
        if bench is None:
            bench = self._benches[key] = _Bench(lease.function, lease.version, source)
        now_ms = self._bus.clock.now_ms()
        lease.first_child = self._blocks.take(now_ms / 1000) if lease.function.takes_context else 0
        if lease.function.policy.batch is None:
            return bench.run(lease, job_frame(lease.job, lease.function, lease.first_child), now_ms, source)
        jobs = [member.job for member in lease.members]
        return bench.run(lease, batch_frame(jobs, lease.function, lease.first_child), now_ms, source)

    async def settle(self, queue: str, lease: Lease, ended: frames.Ended, said: list[_Said]) -> None:
        """Say what became of it, and mint what it asked for."""
        await self._write(queue, lease, said)
        if lease.first_child:
            is_used = ended.children or any(part.children for part in lease.parts.values())
            self._blocks.give_back(lease.first_child, used=bool(is_used))
        run = outcomes.record(WORKER, lease, self._bus.clock.now_ms(), 0, ended, cold=False)
        verdicts: list[Verdict]
        try:
            if lease.function.policy.batch is None:
                verdicts = [outcomes.of(lease, run, ended, self._registry.function, roll=ROLL)]
            else:
                of_each = batches.answered(lease, run, ended, self._registry.function, roll=ROLL)
                verdicts = [verdict for _, verdict in of_each]
        except Fault as fault:
            verdicts = [outcomes.crashed(each, run, "protocol", str(fault), roll=ROLL) for each in lease.members]
        answer = await self._bus.settle(queue, CLAIMER, verdicts, lease_ms=LEASE_MS)
        for verdict in verdicts:
            if isinstance(verdict, Done) and verdict.children and verdict.hold.id not in answer.refused:
                Fanout(self._bus, self._spawn).send(queue, verdict.children)
        await asyncio.gather(*self._tasks)

    def close(self) -> None:
        """Nothing runs any more: the loops of async handlers go."""
        for bench in self._benches.values():
            bench.close()

    def _leased(self, job: Claimed, queue: str) -> Lease:
        function, active = self._registry.function(queue), self._registry.active
        assert function is not None  # only queues of loaded functions are claimed from
        assert active is not None
        return Lease(job, function, active.version, 0.0, LEASE_MS / 1000)

    async def _write(self, queue: str, lease: Lease, said: list[_Said]) -> None:
        if not said:
            return
        journal = Journal(queue, self._bus, self._spawn, os.environ)
        for each in said:
            match each:
                case frames.Output():
                    journal.wrote(lease, each)
                case frames.Progress():
                    journal.progressed(lease, each)
        for other in lease.others if lease.output_bytes else ():
            journal.pointed(other, lease)
        await journal.close()

    def _spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _Bench:
    """Where the runs of one function happen: a worker's session without its process."""

    def __init__(self, function: Function, version: str, source: Source) -> None:
        spawn = frames.Spawn(0, function, source.folder.package, "", version, 0, "", env=source.env, level="off")
        self._sent: list[bytes] = []
        refusals = Refusals("off", opened_by(function.policy), source.folder.path, "")
        self._session = Session(spawn, cast("Channel", _Sink(self._sent)), refusals, Mask())
        self._session.folder = source.folder
        _beside_a_loop(lambda: self._session.enter(source.module))

    def run(self, lease: Lease, job: frames.Job, now_ms: int, source: Source) -> tuple[frames.Ended, list[_Said]]:
        self._session.shape = shape_of(source.handler())
        self._session.mask = Mask(os.environ[name] for name in self._session.function.secrets if name in os.environ)
        self._session.fail_on = fail_on_of(source.handler(), source.env)
        self._sent.clear()
        run = (_BatchRun if self._session.shape.is_batched else _Run)(self._session, 0, job, now_ms)
        with _heard(), _timer_kept():
            ended = _beside_a_loop(run.go)
        run.lines.close()
        if run.raised is not None and _is_for_the_test(run.raised):
            raise run.raised
        told, _ = Splitter().feed(b"".join(self._sent))
        for each in told:
            if isinstance(each, frames.Part):
                lease.hear(each)
        return ended, [each for each in told if isinstance(each, _Said)]

    def close(self) -> None:
        _beside_a_loop(self._session.leave)
        loop = self._session.loop._loop
        if loop is not None:  # as asyncio.run leaves it
            loop.close()
            asyncio.set_event_loop(None)


class _Run(Run):
    """A run that keeps what its handler raised."""

    raised: BaseException | None = None

    def _failed(self, error: BaseException) -> dict[str, Any]:
        self.raised = error
        return super()._failed(error)


class _BatchRun(BatchRun):
    """The same of a batch; an exception in its list counts as raised, too."""

    raised: BaseException | None = None

    def _failed(self, error: BaseException) -> dict[str, Any]:
        self.raised = error
        return super()._failed(error)


class _Sink:
    """A worker's channel that leads nowhere."""

    def __init__(self, sent: list[bytes]) -> None:
        self.send = sent.append


def _is_for_the_test(error: BaseException) -> bool:
    """Whether an exception is no outcome of the run: ctrl-c, the debugger's quit, pytest's own fail and skip."""
    if isinstance(error, (Exception, SystemExit, GeneratorExit, asyncio.CancelledError)):
        return isinstance(error, bdb.BdbQuit)
    return True


def _beside_a_loop(work: Callable[[], T]) -> T:
    """In an async test this thread has a loop already, and an async handler needs one of its own: it gets a thread."""
    if asyncio._get_running_loop() is None:
        return work()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


@contextlib.contextmanager
def _timer_kept() -> Generator[None]:
    """A run ends with its alarms; the test's own alarm, which may be its time limit, goes on."""
    left_s, every_s = signal.getitimer(signal.ITIMER_REAL)
    began = time.monotonic()
    try:
        yield
    finally:
        if left_s:
            signal.setitimer(signal.ITIMER_REAL, max(left_s - (time.monotonic() - began), 0.001), every_s)


@contextlib.contextmanager
def _heard() -> Generator[None]:
    """What the handler prints and logs goes to its job, and where it would go in any test."""
    root, records = logging.getLogger(), _Records()
    level, stdout, stderr = root.level, sys.stdout, sys.stderr
    root.addHandler(records)
    root.setLevel(min(level, logging.INFO))
    sys.stdout, sys.stderr = cast("TextIO", _Tee("stdout", stdout)), cast("TextIO", _Tee("stderr", stderr))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = stdout, stderr
        root.removeHandler(records)
        root.setLevel(level)


class _Records(capture.Records):
    def emit(self, record: logging.LogRecord) -> None:
        if capture.current.get() is not None:
            super().emit(record)


class _Tee:
    """A stream whose text is a run's, too, when it is written by one."""

    def __init__(self, name: str, stream: TextIO) -> None:
        self._name = name
        self._stream = stream
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        lines = capture.current.get()
        if lines is not None and text:
            lines.write(self._name, text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
