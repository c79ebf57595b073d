"""When to tick which queue: instants of this host's monotonic clock, in seconds. Pure."""

from __future__ import annotations


class Agenda:
    """The next tick of each queue that has one."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}

    def bring_forward(self, queue: str, at_s: float) -> bool:
        """Tick `queue` at `at_s`, unless it is ticked before. Answers whether this is now the soonest of all."""
        soonest = self.soonest()
        if at_s < self._at.get(queue, float("inf")):
            self._at[queue] = at_s
        return soonest is None or at_s < soonest

    def soonest(self) -> float | None:
        """When the next tick is; None where nothing is known to come."""
        return min(self._at.values(), default=None)

    def take(self, now_s: float, limit: int) -> list[str]:
        """Up to `limit` queues whose tick has come, longest overdue first; they leave the agenda."""
        come = sorted((at_s, queue) for queue, at_s in self._at.items() if at_s <= now_s)[:limit]
        for _, queue in come:
            del self._at[queue]
        return [queue for _, queue in come]


def rank_delay_s(rank: int) -> float:
    """How much later than the first this pump ticks: a race would be harmless, but would cost every pump a call."""
    return 0.0 if rank <= 0 else min(0.05 * rank, 0.2)
