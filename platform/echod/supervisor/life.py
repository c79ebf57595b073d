"""One worker's life as a state machine, and the order of the jobs in its hands. Pure: the shell is worker.py.

    starting --ready--> ready --stop--> stopping --gone--> gone
        \\--failed--> failed ------------------/

Jobs are answered in the order in which they were handed over, one at a time, by their position within the frame that
brought them; a worker has no other way to name a job. Whatever is out of order raises `Fault`. How a life ends says
which job pays: the one that had begun, and no other.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import Generic, Literal, TypeVar

from echod.supervisor.channel import Fault

T = TypeVar("T")

# Why we killed it ourselves. "expired": our right to run its job is gone. "released": the node is going down now.
Why = Literal["timeout", "protocol", "expired", "cancelled", "released", "startup", "base", "tmp"]


class Phase(Enum):
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"  # finishes what has begun
    FAILED = "failed"  # could not start, and said why
    GONE = "gone"


class Life(Generic[T]):
    """`T` is whatever the caller hands over for one job."""

    def __init__(self) -> None:
        self.phase = Phase.STARTING
        self.current: T | None = None  # begun and not ended
        self.ended = 0  # jobs answered so far
        self.why: Why | None = None  # we killed it
        self._current_index = 0
        self._line: deque[tuple[int, T]] = deque()

    @property
    def held(self) -> int:
        """Jobs handed over and not ended."""
        return len(self._line) + (self.current is not None)

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

    def hand(self, jobs: Sequence[T]) -> None:
        """The jobs of one run frame, in its order. Only a ready worker takes any."""
        if self.phase is not Phase.READY:
            raise ValueError(f"expected a ready worker, got one that is {self.phase.value}")
        self._line.extend(enumerate(jobs))

    def begun(self, index: int) -> T:
        """The job that the worker says it begins."""
        if self.current is not None:
            raise Fault("expected an answer before the next job begins")
        if not self._line or self._line[0][0] != index:
            raise Fault(f"expected {self._next()} to begin, got {index}")
        self._current_index, self.current = self._line.popleft()
        return self.current

    def answered(self, index: int) -> T:
        """The job that the worker says has ended."""
        job = self.running(index)
        self.current = None
        self.ended += 1
        return job

    def running(self, index: int) -> T:
        """The job that is running now, which must be `index`."""
        if self.current is None or self._current_index != index:
            raise Fault(
                f"expected news of {'the running job' if self.current is not None else 'no job'}, got of {index}"
            )
        return self.current

    def stop(self) -> None:
        """We asked it to begin nothing more."""
        if self.phase in {Phase.READY, Phase.STARTING}:
            self.phase = Phase.STOPPING

    def withdraw(self) -> list[T]:
        """Take back what a stopping worker will not begin any more."""
        jobs = self.unbegun
        self._line.clear()
        return jobs

    def kill(self, why: Why) -> bool:
        """Note why it is killed; the first reason stands. False: it was on its way out already."""
        if self.why is not None or self.phase is Phase.GONE:
            return False
        self.why = why
        return True

    def gone(self) -> tuple[T | None, list[T]]:
        """The process is no more: the job that had begun, and those that had not."""
        self.phase = Phase.GONE
        begun, self.current = self.current, None
        return begun, self.withdraw()

    def _next(self) -> str:
        return str(self._line[0][0]) if self._line else "no job"


def cause_of(status: int | None, *, why: Why | None, peak_bytes: int = 0, memory_bytes: int = 0) -> str:
    """The cause of a run without an answer: `signal:SEGV`, `exit:0`, `timeout`, `memory`, `protocol`, `lost`.

    `status` is as os.wait4 gives it; None when nobody saw it (the base died too).
    """
    match why:
        case "timeout" | "startup":
            return "timeout"
        case "protocol":
            return "protocol"
        case "tmp":
            return "wall:tmp"
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
