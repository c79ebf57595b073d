"""What a worker writes while none of its runs does: at its module's import, in its lifespan, and whatever these start.

An author looks for it where the function's output is, so it is kept in the log of a job that the worker runs: the one
that runs, else the last that ran, else the first that will. Of a worker that never runs one it is in the node's log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from echod import log
from echod.supervisor.channel import Fault
from echod.supervisor.events import JobEvents
from echod.supervisor.leases import Lease
from echofn import frames

if TYPE_CHECKING:
    from echod.supervisor.worker import Worker

_log = log.get("supervisor")

MOST_LINES = 1_000  # that wait for a first job
MOST_BYTES = 64 * 1024
MOST_FRAMES = 1_000_000  # of one worker without a job; the runtime stops long before


class Outside:
    """One worker's words of no run."""

    def __init__(self, worker: Worker, jobs: JobEvents) -> None:
        self._worker, self._jobs = worker, jobs
        self._waiting: list[frames.Output] = []
        self._waiting_bytes = self._cut = 0

    def wrote(self, output: frames.Output, running: Iterable[Lease], last: Lease | None) -> None:
        """Lines, and beside which jobs. Raises Fault where they do not end."""
        lease = next(iter(running), last)
        if lease is not None:
            self._jobs.wrote(lease, output)
            return
        self._waiting_bytes += len(output.text)
        if self._waiting_bytes <= MOST_BYTES and len(self._waiting) < MOST_LINES:
            self._waiting.append(output)
            return
        self._cut += 1
        if self._cut > MOST_FRAMES:
            raise Fault(f"expected at most {MOST_FRAMES} pieces of output before a job, got more")

    def begun(self, lease: Lease) -> None:
        """A job has begun: what waited for one goes into its log."""
        for output in self._taken():
            self._jobs.wrote(lease, output)

    def close(self, function: str, *, failed: bool) -> None:
        """The worker is gone. What one that could not start has said may say why."""
        say = _log.warning if failed else _log.info
        for output in self._taken():
            say("worker.wrote", worker=self._worker.id, function=function, text=output.text)

    def _taken(self) -> list[frames.Output]:
        waiting, self._waiting = self._waiting, []
        if self._cut:
            waiting.append(frames.Output(frames.OUTSIDE, "log", "WARNING", "echod", f"{self._cut} more were cut", 0))
        self._waiting_bytes = self._cut = 0
        return waiting
