"""What is told about workers and their jobs, and to whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from echod.supervisor.leases import Lease
from echod.supervisor.life import Why
from echofn import frames

if TYPE_CHECKING:
    from echod.supervisor.worker import Worker


class Departure(msgspec.Struct, frozen=True):
    """How a worker ended, and what was left in its hands."""

    begun: tuple[Lease, ...]  # begun and not answered
    culprits: tuple[Lease, ...]  # those of them that it was killed for
    unbegun: tuple[Lease, ...]
    was_ready: bool
    failed: frames.Failed | None  # it could not start and said why
    why: Why | None  # we ended it
    cause: str
    detail: str  # of a protocol error
    cpu_us: int  # of the whole worker
    peak_bytes: int


class JobEvents(Protocol):
    """What happens to jobs on a worker; the queue's runs listen."""

    def began(self, worker: Worker, lease: Lease) -> None: ...

    def answered(self, worker: Worker, lease: Lease, ended: frames.Ended) -> None: ...

    def wrote(self, lease: Lease, output: frames.Output) -> None: ...

    def progressed(self, lease: Lease, progress: frames.Progress) -> None: ...

    def left(self, worker: Worker, last: Lease | None, left: frames.Left) -> None:
        """The end of a lifespan failed, after the last job that the worker ran, if it ran one."""
        ...

    def spilled(self, lease: Lease, stream: str, data: bytes) -> None:
        """Bytes written past Python, to the process's own stdout or stderr."""
        ...


class LifeEvents(Protocol):
    """What happens to the worker itself; its pool listens."""

    def ready(self, worker: Worker) -> None: ...

    def withdrawn(self, worker: Worker, leases: list[Lease]) -> None:
        """A stopping worker will not begin these any more."""
        ...

    def gone(self, worker: Worker, departure: Departure) -> None: ...


class PoolEvents(JobEvents, Protocol):
    """What a pool tells about the jobs in its hands."""

    def prepare(self, lease: Lease) -> frames.Job:
        """The job as its worker sees it. Raises LeaseGone."""
        ...

    def crashed(self, worker: Worker, lease: Lease, departure: Departure) -> None: ...

    def not_started(self, lease: Lease, failed: frames.Failed, cause: str) -> None: ...

    def released(self, leases: list[Lease]) -> None: ...

    def moved(self) -> None:
        """A worker became ready or is gone, or a back-off is over: plan again."""
        ...
