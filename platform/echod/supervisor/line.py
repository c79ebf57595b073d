"""The claimed jobs of a pool that no worker has in hand, in order; and which of them may have no neighbours.

When a worker dies that ran several jobs side by side and nobody can say which of them it died of, all of them are
suspects: they go back uncharged, and each runs alone when it comes again, so that the one that did it pays for itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from echod.model.ids import JobId
from echod.supervisor.leases import Lease, instant

SUSPECT_S = 600.0  # after which one that did not come back was run by another node


class Line:
    def __init__(self) -> None:
        self._jobs: deque[Lease] = deque()
        self._suspects: dict[JobId, float] = {}  # since when

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, lease: Lease) -> bool:
        return lease in self._jobs

    def append(self, lease: Lease) -> None:
        self._jobs.append(lease)

    def remove(self, lease: Lease) -> None:
        self._jobs.remove(lease)

    def put_back(self, leases: list[Lease]) -> None:
        """To its front."""
        self._jobs.extendleft(reversed(leases))

    def take(self, count: int) -> list[Lease]:
        """The next jobs that may have neighbours, out of the line."""
        if not self._suspects:
            return [self._jobs.popleft() for _ in range(count)]
        taken = [lease for lease in self._jobs if not self._is_suspect(lease)][:count]
        for lease in taken:
            self._jobs.remove(lease)
        return taken

    def take_all(self) -> list[Lease]:
        taken = list(self._jobs)
        self._jobs.clear()
        return taken

    @property
    def alone(self) -> list[Lease]:
        """The jobs in line that may have no neighbours."""
        return [lease for lease in self._jobs if self._is_suspect(lease)] if self._suspects else []

    def suspect(self, leases: Iterable[Lease]) -> None:
        """One of these did it."""
        self._suspects.update((member.job.id, instant()) for lease in leases for member in lease.members)

    def clear(self, lease: Lease) -> None:
        """What there was to know about this one is known."""
        if self._suspects:
            for member in lease.members:
                self._suspects.pop(member.job.id, None)

    def forget(self, now: float) -> None:
        """Suspicions that came to nothing."""
        if self._suspects:
            self._suspects = {job: since for job, since in self._suspects.items() if now - since < SUSPECT_S}

    def _is_suspect(self, lease: Lease) -> bool:
        return any(member.job.id in self._suspects for member in lease.members)
