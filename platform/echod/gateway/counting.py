"""Histograms that only grow, as Prometheus wants them, out of the bus's histograms per minute.

They start at zero with the gateway's first scrape, as Prometheus expects of a process, and add up from there.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

import msgspec

from echod.bus import Bus
from echod.bus.answers import Metrics
from echod.gateway.figures import MINUTE_MS

HISTOGRAMS = ("duration", "wait", "late")
_LONGEST_MS = 119 * MINUTE_MS  # with the minute that runs two hours: for so long minutes are kept


class Counts:
    """What was counted since the gateway was first asked, per queue."""

    def __init__(self) -> None:
        self.deliveries: Counter[tuple[str, str]] = Counter()  # requests to webhooks, by function and outcome
        self.unfit: Counter[tuple[str, str]] = Counter()  # lanes and keys of webhooks that were objects, by option
        self._sums: dict[str, _Sum] = {}

    async def read(self, bus: Bus, queue: str) -> Metrics:
        """The sum up to now."""
        minute_ms = bus.clock.now_ms() // MINUTE_MS * MINUTE_MS
        known = self._sums.get(queue) or _Sum(minute_ms, Metrics(0), Metrics(0))
        since_ms, before = known.minute_ms, known.before
        if minute_ms < since_ms:  # the clock stepped back: what it shows now was counted already
            return known.answered
        if minute_ms - since_ms > _LONGEST_MS:  # not asked for two hours: what came in their first part is lost to us
            since_ms, before = minute_ms - _LONGEST_MS, known.answered
        # Windows end with the minute that runs, and are asked in one trip: both see that minute alike.
        recent, current = await asyncio.gather(
            bus.metrics(queue, minute_ms - since_ms + MINUTE_MS), bus.metrics(queue, MINUTE_MS)
        )
        answered = added(before, recent)
        self._sums[queue] = _Sum(minute_ms, added(answered, current, sign=-1), answered)
        return answered


class _Sum(msgspec.Struct, frozen=True):
    """What was counted before a minute, and what was last answered."""

    minute_ms: int
    before: Metrics
    answered: Metrics


def added(one: Metrics, other: Metrics, *, sign: int = 1) -> Metrics:
    """Histograms of both; with sign -1, those of the first without the second's."""
    histograms = {name: _added(getattr(one, name), getattr(other, name), sign) for name in HISTOGRAMS}
    return msgspec.structs.replace(one, **histograms)


def _added(one: Mapping[int, int], other: Mapping[int, int], sign: int) -> dict[int, int]:
    return {bucket: one.get(bucket, 0) + sign * other.get(bucket, 0) for bucket in {*one, *other}}
