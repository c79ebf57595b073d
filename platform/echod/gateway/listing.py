"""Jobs of several queues as one list, newest first: ids are in mint order, so a merge by id is a merge by time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from echod.bus import Bus
from echod.gateway.problems import Problem
from echod.model.ids import is_job_id
from echod.model.job import Job, State


async def listed(
    bus: Bus, queues: Sequence[str], state: State | None, lane: str | None, limit: int, cursor: str
) -> tuple[list[Job], str | None]:
    """At most `limit` jobs older than the job `cursor`, and the next cursor: None when there are no more.

    The bus looks through a bounded stretch at a time, so a filtered list can be short, even empty, and still go on.
    """
    if cursor and not is_job_id(cursor):
        raise Problem("invalid-parameter", f"cursor: expected one that a list answered, got {cursor[:40]!r}")
    states = None if state is None else (state,)
    pages = await asyncio.gather(
        *(bus.jobs(queue, states=states, lane=lane, limit=limit, cursor=cursor or None) for queue in queues)
    )
    # Every queue was looked through down to its own cursor: what lies below the highest of them is not complete.
    seen_to = max((rest for _, rest in pages if rest), default=None)
    known = sorted((job for jobs, _ in pages for job in jobs), key=lambda job: job.id, reverse=True)
    known = [job for job in known if seen_to is None or job.id >= seen_to]
    if len(known) > limit:
        return known[:limit], known[limit - 1].id
    return known, seen_to
