"""GET /functions and GET /functions/{name} as objects: what is deployed, what waits, how it has been going.

The page, the JSON route and the live stream show the same object; it is put together here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from echod.bus import Bus
from echod.bus.answers import Metrics, QueueStats, RecurrenceRow
from echod.gateway import figures
from echod.gateway.instants import recurring, upcoming_of
from echod.gateway.views import View, function_view, instant, load_error_view, off_view
from echod.model.job import Job
from echod.registry.registry import Registry
from echofn.manifest import Function

RECENT_MS = 5 * 60_000  # how far back the strip of occurrences goes
HOUR_MS = 3_600_000
FRESH_MS = 5000  # what is counted by time alone, a rate say, is at most so old
_STRIP = 100  # jobs looked at for it, per function
NOTHING = QueueStats(pending=0, active=0, scheduled=0, dead=0, done=0, paused=False)


class Watch:
    """The functions again and again: what has not moved since the last picture is not read anew from the bus."""

    def __init__(self, bus: Bus, registry: Registry) -> None:
        self._bus = bus
        self._registry = registry
        self._known: dict[str, tuple[QueueStats, int, Metrics, list[Job]]] = {}  # as of those counts and that instant

    async def picture(self) -> View:
        """GET /functions with its extras, and `now`."""
        bus, active = self._bus, self._registry.active
        functions = active.manifest.functions if active else ()
        stats, rows = await asyncio.gather(bus.stats([function.name for function in functions]), bus.recurrences())
        read = await asyncio.gather(
            *(self._read(function, stats.get(function.name, NOTHING), rows) for function in functions)
        )
        now_ms = bus.clock.now_ms()
        version = str(active.version) if active else ""
        return {
            "functions": [
                entry(function, version, stats.get(function.name, NOTHING), hour, rows, now_ms)
                for function, (hour, _) in zip(functions, read, strict=True)
            ],
            "errors": [load_error_view(error) for error in active.errors] if active else [],
            "off": [off_view(off) for off in active.manifest.off] if active else [],
            "occurrences": occurrences([job for _, jobs in read for job in jobs], now_ms),
            "now": instant(now_ms),
        }

    async def _read(
        self, function: Function, stats: QueueStats, rows: Sequence[RecurrenceRow]
    ) -> tuple[Metrics, list[Job]]:
        """The last hour of a function, and its latest jobs if it has schedules."""
        period = self._bus.clock.now_ms() // FRESH_MS
        known = self._known.get(function.name)
        if known is not None and known[:2] == (stats, period):
            return known[2:]
        metrics = await self._bus.metrics(function.name, HOUR_MS)
        is_scheduled = bool(recurring(function)) or any(row.queue == function.name for row in rows)
        jobs = (await self._bus.jobs(function.name, limit=_STRIP))[0] if is_scheduled else []
        self._known[function.name] = (stats, period, metrics, jobs)
        return metrics, jobs


def entry(
    function: Function, version: str, stats: QueueStats, hour: Metrics, rows: Sequence[RecurrenceRow], now_ms: int
) -> View:
    """One function with its figures of the last hour."""
    mine = [row for row in rows if row.queue == function.name]
    duration = figures.percentiles(hour.duration)
    return {
        **function_view(function, version, stats),
        "oldest_ms": None if stats.oldest_ms is None else max(0, now_ms - stats.oldest_ms),
        "series": figures.series(hour),
        "rate": figures.rate(hour, now_ms),
        "p50": duration["p50"],
        "p95": duration["p95"],
        "next": upcoming_of(function, mine, now_ms),
    }


def occurrences(jobs: Iterable[Job], now_ms: int) -> list[View]:
    """Those that a due instant of the last minutes became, oldest first."""
    since_ms = now_ms - RECENT_MS
    return [
        {
            "function": job.function,
            "recurrence": job.occurrence.recurrence,
            "due": instant(job.occurrence.due_ms),
            "job": job.id,
            "state": job.state,
            "manual": job.occurrence.manual,
        }
        for job in sorted(jobs, key=lambda job: job.id)
        if job.occurrence and job.occurrence.due_ms >= since_ms
    ]
