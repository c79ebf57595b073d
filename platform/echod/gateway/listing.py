"""Jobs of several queues as one list, newest first: ids are in mint order, so a merge by id is a merge by time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from echod.bus import Bus
from echod.bus.bulk import Filter
from echod.gateway.problems import Problem
from echod.model.ids import is_job_id
from echod.model.job import Job

PARTS = 8  # looks at the bus per request: enough for the ten thousand that a function keeps


async def listed(
    bus: Bus, queues: Sequence[str], wanted: Filter, limit: int, cursor: str
) -> tuple[list[Job], str | None]:
    """At most `limit` jobs older than the job `cursor`, and the next cursor: None when there are no more.

    The bus looks through a bounded stretch at a time, and a request through a few of them, so a filtered list can be
    short, even empty, and still go on.
    """
    if cursor and not is_job_id(cursor):
        raise Problem("invalid-parameter", f"cursor: expected one that a list answered, got {cursor[:40]!r}")
    found: list[Job] = []
    rest: str | None = cursor
    for _ in range(PARTS):
        some, rest = await _stretch(bus, queues, wanted, limit - len(found), rest or None)
        found += some
        if rest is None or len(found) == limit:
            break
    return found, rest


async def _stretch(
    bus: Bus, queues: Sequence[str], wanted: Filter, limit: int, cursor: str | None
) -> tuple[list[Job], str | None]:
    pages = await asyncio.gather(*(bus.jobs(queue, wanted, limit=limit, cursor=cursor) for queue in queues))
    # Every queue was looked through down to its own cursor: what lies below the highest of them is not complete.
    seen_to = max((rest for _, rest in pages if rest), default=None)
    known = sorted((job for jobs, _ in pages for job in jobs), key=lambda job: job.id, reverse=True)
    known = [job for job in known if seen_to is None or job.id >= seen_to]
    if len(known) > limit:
        return known[:limit], known[limit - 1].id
    return known, seen_to
