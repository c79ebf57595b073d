"""One worker's life as a state machine, and the order of the jobs in its hands. Pure: the shell is worker.py.

    starting --ready--> ready --stop--> stopping --gone--> gone
        \\--failed--> failed ------------------/

Jobs begin in the order in which they were handed over, at most `at_once` of them side by side, and are named by how
many were handed over before them; a worker has no other way to name a job. Whatever is out of order raises `Fault`.
How a life ends says which job pays: the one that had begun, and no other. Where several had, and nobody can say which
of them it was, none pays: each is run again alone, and pays then.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import Generic, Literal, TypeVar

import msgspec

from echod.supervisor.channel import Fault

T = TypeVar("T")

# Why we killed it ourselves. "expired": our right to run its job is gone. "released": the node is going down now.
Why = Literal["timeout", "protocol", "expired", "cancelled", "released", "startup", "base", "tmp", "memory", "threads"]


class Phase(Enum):
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"  # finishes what has begun
    FAILED = "failed"  # could not start, and said why
    GONE = "gone"


class Life(Generic[T]):
    """`T` is whatever the caller hands over for one job."""

    def __init__(self, at_once: int = 1) -> None:
        self.phase = Phase.STARTING
        self.running: dict[int, T] = {}  # begun and not ended, by position, in the order in which they began
        self.began = 0  # jobs begun so far
        self.ended = 0  # jobs answered so far
        self.why: Why | None = None  # we killed it
        self._at_once = at_once
        self._handed = 0
        self._line: deque[tuple[int, T]] = deque()
        self._taken_back: set[int] = set()

    @property
    def held(self) -> int:
        """Jobs handed over and not ended."""
        return len(self._line) + len(self.running)

    @property
    def newest(self) -> T | None:
        """The job that began last of those that run."""
        return next(reversed(self.running.values()), None)

    @property
    def unbegun(self) -> list[T]:
        """Jobs handed over and not begun, in order."""
        return [job for _, job in self._line]

    def became_ready(self) -> None:
        if self.phase is not Phase.STARTING:
            raise Fault("expected a worker to say once that it is ready")
        self.phase = Phase.READY

    def failed(self) -> None:
        if self.phase is not Phase.STARTING:
            raise Fault("expected a failed start only before the worker was ready")
        self.phase = Phase.FAILED

    def hand(self, jobs: Sequence[T]) -> int:
        """The jobs of one run frame, in its order; gives the first one's position. Only a ready worker takes any."""
        if self.phase is not Phase.READY:
            raise ValueError(f"expected a ready worker, got one that is {self.phase.value}")
        first = self._handed
        self._line.extend(enumerate(jobs, first))
        self._handed += len(jobs)
        return first

    def begun(self, index: int) -> T:
        """The job that the worker says it begins."""
        if len(self.running) >= self._at_once:
            raise Fault("expected an answer before the next job begins")
        if not self._line or self._line[0][0] != index:
            raise Fault(f"expected {self._next()} to begin, got {index}")
        _, job = self._line.popleft()
        self.running[index] = job
        self.began += 1
        return job

    def is_ahead(self, index: int) -> bool:
        """Whether the job at this position is still to begin."""
        return bool(self._line) and self._line[0][0] <= index < self._handed

    def skipped(self, index: int) -> T | None:
        """The job that the worker says it will not begin; None where we have taken it back meanwhile."""
        for place, (each, job) in enumerate(self._line):
            if each == index:
                del self._line[place]
                return job
        if index in self._taken_back:
            self._taken_back.remove(index)
            return None
        raise Fault(f"expected a job that has not begun to be skipped, got {index}")

    def answered(self, index: int) -> T:
        """The job that the worker says has ended."""
        job = self.of(index)
        del self.running[index]
        self.ended += 1
        return job

    def of(self, index: int) -> T:
        """The job at this position, which must be running."""
        try:
            return self.running[index]
        except KeyError:
            raise Fault(f"expected news of {self._who()}, got of {index}") from None

    def stop(self) -> None:
        """We asked it to begin nothing more."""
        if self.phase in {Phase.READY, Phase.STARTING}:
            self.phase = Phase.STOPPING

    def withdraw(self) -> list[T]:
        """Take back what a stopping worker will not begin any more."""
        jobs = self.unbegun
        self._taken_back.update(index for index, _ in self._line)
        self._line.clear()
        return jobs

    def kill(self, why: Why) -> bool:
        """Note why it is killed; the first reason stands. False: it was on its way out already."""
        if self.why is not None or self.phase is Phase.GONE:
            return False
        self.why = why
        return True

    def gone(self) -> tuple[list[T], list[T]]:
        """The process is no more: the jobs that had begun, and those that had not."""
        self.phase = Phase.GONE
        begun = list(self.running.values())
        self.running.clear()
        return begun, self.withdraw()

    def _next(self) -> str:
        return str(self._line[0][0]) if self._line else "no job"

    def _who(self) -> str:
        return f"a running job ({', '.join(map(str, list(self.running)[:10]))})" if self.running else "no job"


class Blame(msgspec.Struct, Generic[T], frozen=True):
    """What becomes of the jobs that had begun when a worker died."""

    charged: list[T]
    spared: list[T]  # they go back
    suspects: list[T]  # they go back and run alone: one of them did it


def blame(begun: list[T], culprits: Sequence[T], why: Why | None) -> Blame[T]:
    """`culprits`: whom the worker was killed for."""
    if why == "released":
        return Blame([], begun, [])
    if culprits:
        return Blame([job for job in begun if job in culprits], [job for job in begun if job not in culprits], [])
    if len(begun) > 1:
        return Blame([], [], begun)
    return Blame(begun, [], [])


def cause_of(status: int | None, *, why: Why | None, peak_bytes: int = 0, memory_bytes: int = 0) -> str:
    """The cause of a run without an answer: `signal:SEGV`, `exit:0`, `timeout`, `memory`, `protocol`, `lost`.

    `status` is as os.wait4 gives it; None when nobody saw it (the base died too).
    """
    match why:
        case "timeout" | "startup":
            return "timeout"
        case "protocol":
            return "protocol"
        case "tmp" | "threads":
            return f"wall:{why}"
        case "memory":
            return "memory"
        case "expired" | "base" | "cancelled" | "released":
            return "lost"
        case None:
            pass
    if status is None:
        return "lost"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        # The kernel's own kill for lack of memory looks like any other; how much the worker had used tells them apart.
        if number == signal.SIGKILL and memory_bytes and peak_bytes >= memory_bytes:
            return "memory"
        try:
            return f"signal:{signal.Signals(number).name.removeprefix('SIG')}"
        except ValueError:
            return f"signal:{number}"
    return f"exit:{os.waitstatus_to_exitcode(status)}"
