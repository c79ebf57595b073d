"""Many jobs at once: drain and purge of a function, move to a lane, redrive and purge of the morgue by a filter.

A call does a bounded part and answers a cursor where there is more. The same call again, or a cursor used twice,
changes nothing twice: what was cancelled, moved, purged or redriven is not what the filter means any more. What comes
after a sweep's first call is not of it. `dry_run=1` counts and changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, cast, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from echod.bus.bulk import Filter, Picked
from echod.gateway.desk import Desk, answer, shortened
from echod.gateway.jobs import found
from echod.gateway.problems import Problem
from echod.gateway.query import filtered, once, one_of
from echod.gateway.shapes import Count, JobText
from echod.gateway.views import View, placed_view
from echofn.units import rate

PARTS = 8  # calls to the bus that pick and change, per request
RATE_PATTERN = r"^([1-9][0-9]{0,5}/([1-9][0-9]{0,3})?(s|m|h))?$"
CURSOR_PATTERN = (
    r"^([0-9]{1,14}\.[0-9]{1,9}\.(-|[0-9]{1,14}|JOB[0-9A-Za-z]{11})\.(-?[0-9]{1,14}:JOB[0-9A-Za-z]{11})?\..*)?$"
)
End = Literal["done", "dead", "cancelled"]
ENDS: tuple[End, ...] = get_args(End)
Cursor = str | None

_RATE = re.compile(RATE_PATTERN, re.ASCII)
_CURSOR = re.compile(CURSOR_PATTERN, re.ASCII | re.DOTALL)
_TEXT: View = {"type": "string"}
SWEEP: Mapping[str, View] = {
    "dry_run": {"enum": ["0", "1"]},
    "cursor": {"type": "string", "pattern": CURSOR_PATTERN},
}
WAITING: Mapping[str, View] = {"lane": _TEXT, "scheduled": {"enum": ["0", "1"]}, **SWEEP}
RATE: View = {"type": "string", "pattern": RATE_PATTERN}


class Refused(msgspec.Struct, frozen=True):
    """A dead job whose unique key `owner` has by now."""

    id: JobText
    owner: JobText


class Drained(msgspec.Struct, frozen=True):
    """What was cancelled of what was meant; with a cursor there is more."""

    name: str
    lane: str | None
    matched: Count
    cancelled: Count
    cursor: Cursor


class MovedJobs(msgspec.Struct, frozen=True):
    """What lies in the lane now of what was meant; with a cursor there is more."""

    name: str
    to: str
    matched: Count
    moved: Count
    cursor: Cursor


class Purged(msgspec.Struct, frozen=True):
    """What is gone of what was meant; with a cursor there is more."""

    name: str | None
    state: End
    matched: Count
    purged: Count
    cursor: Cursor


class RedrivenJobs(msgspec.Struct, frozen=True):
    """What runs again of what was meant, and what another job's unique key keeps dead; with a cursor there is more."""

    matched: Count
    redriven: Count
    refused: list[Refused]
    cursor: Cursor


class _Place(msgspec.Struct):
    """Where a sweep is: begun when, so many picked, up to what, and how far within which queue."""

    start_ms: int = 0
    picked: int = 0
    upto: str = ""
    at: str = ""
    queue: str = ""

    def text(self) -> str:
        return f"{self.start_ms}.{self.picked}.{self.upto or '-'}.{self.at}.{self.queue}"


Act = Callable[[str, Picked], Awaitable[None]]


async def drain(desk: Desk, request: Request) -> Response:
    """POST /functions/{name}/drain?lane=&scheduled=1: cancel what waits; what runs, runs on."""
    name, wanted = await _queue(desk, request), _waiting(request)
    cancelled = 0

    async def act(queue: str, picked: Picked) -> None:
        nonlocal cancelled
        cancelled += len(await desk.bus.drain(queue, picked.ids))

    matched, cursor = await _sweep(desk, request, [name], wanted, act)
    return answer(Drained(name, wanted.lane, matched, cancelled, cursor))


async def move(desk: Desk, request: Request) -> Response:
    """POST /functions/{name}/move?lane=&to=&scheduled=1: what waits in a lane goes to another."""
    name, wanted, to = await _queue(desk, request), _waiting(request), _target(request)
    if wanted.lane is None:
        raise Problem(
            "invalid-parameter", "lane: expected the lane to move from, got none; `-` is the one without a name"
        )
    moved = 0

    async def act(queue: str, picked: Picked) -> None:
        nonlocal moved
        moved += len(await desk.bus.move(queue, picked.ids, to))

    matched, cursor = await _sweep(desk, request, [name], wanted, act)
    return answer(MovedJobs(name, to, matched, moved, cursor))


async def move_one(desk: Desk, request: Request) -> Response:
    """POST /jobs/{id}/move?to=: one job that waits goes to another lane."""
    to, job = _target(request), await found(desk, request)
    if not await desk.bus.move(job.function, [job.id], to):
        job = await found(desk, request)
        raise Problem("wrong-state", f"expected a job that waits, got one that is {job.state}", state=job.state)
    return answer(placed_view(job.id, job.function, job.state))


async def purge(desk: Desk, request: Request) -> Response:
    """POST /functions/{name}/purge?state=: delete ended jobs and their logs."""
    name, asked = await _queue(desk, request), one_of(request, "state", ENDS)
    if asked is None:
        raise Problem("invalid-parameter", f"state: expected one of {', '.join(ENDS)}, got none")
    return await _purged(desk, request, [name], name, cast("End", asked))


async def purge_morgue(desk: Desk, request: Request) -> Response:
    """POST /morgue/purge?function=: delete dead jobs and their logs."""
    queues, name = await _queues(desk, request)
    return await _purged(desk, request, queues, name, "dead")


async def _purged(desk: Desk, request: Request, queues: Sequence[str], name: str | None, state: End) -> Response:
    purged = 0

    async def act(queue: str, picked: Picked) -> None:
        nonlocal purged
        purged += len(await desk.bus.purge(queue, picked.ids, [state]))

    matched, cursor = await _sweep(desk, request, queues, filtered(request, (state,)), act)
    return answer(Purged(name, state, matched, purged, cursor))


async def redrive(desk: Desk, request: Request) -> Response:
    """POST /morgue/redrive?function=&lane=&cause=&match=&older=&newer=&rate=10/s: dead jobs run again."""
    (queues, _), wanted, spread = await _queues(desk, request), filtered(request, ("dead",)), _rate(request)
    redriven, refused, place = 0, list[Refused](), _cursor(request)

    async def act(queue: str, picked: Picked) -> None:
        """The n-th of a sweep is due n periods after its begin, whichever call brings it."""
        nonlocal redriven
        count, period_ms = spread or (1, 0)
        due = [place.start_ms + (place.picked + n) * period_ms // count for n in range(len(picked.ids))]
        said = await desk.bus.redrive(queue, picked.ids, due_ms=due if spread else ())
        redriven += len(said.ids)
        refused.extend(Refused(*pair) for pair in said.refused)

    matched, cursor = await _sweep(desk, request, queues, wanted, act, place)
    return answer(RedrivenJobs(matched, redriven, refused, cursor))


async def redrive_one(desk: Desk, request: Request) -> Response:
    """POST /jobs/{id}/redrive: a dead job is pending again, with its id and history."""
    job = await found(desk, request)
    said = await desk.bus.redrive(job.function, [job.id])
    for _, owner in said.refused:
        detail = f"expected a job whose unique key is free, got one whose key is {owner}'s by now; end that one first"
        raise Problem("key-taken", detail, job=owner, url=f"/jobs/{owner}")
    if not said.ids:
        job = await found(desk, request)
        raise Problem("wrong-state", f"expected a dead job, got one that is {job.state}", state=job.state)
    return answer(placed_view(job.id, job.function, "pending"))


async def _sweep(
    desk: Desk, request: Request, queues: Sequence[str], wanted: Filter, act: Act, place: _Place | None = None
) -> tuple[int, Cursor]:
    """Pick and act, a bounded part, queue by queue in the order of their names. How many were meant; where to go on."""
    place, dry_run, matched = place or _cursor(request), one_of(request, "dry_run", ("0", "1")) == "1", 0
    left = [queue for queue in sorted(queues) if queue >= place.queue]
    for _ in range(PARTS):
        if not left:
            return matched, None
        if left[0] != place.queue:
            place.queue, place.upto, place.at = left[0], "", ""
        picked = await desk.bus.pick(place.queue, wanted, upto=place.upto, cursor=place.at)
        place.start_ms, place.upto, place.at = place.start_ms or picked.now_ms, picked.upto, picked.cursor
        if picked.ids and not dry_run:
            await act(place.queue, picked)
        matched += len(picked.ids)
        place.picked += len(picked.ids)
        if not picked.cursor:
            left.pop(0)
    if left and left[0] != place.queue:
        place = _Place(place.start_ms, place.picked, queue=left[0])
    return matched, place.text() if left else None


async def _queue(desk: Desk, request: Request) -> str:
    """The function in the path: one that is gone, too, for as long as its jobs lie there."""
    return await desk.known(request.path_params["name"])


async def _queues(desk: Desk, request: Request) -> tuple[list[str], str | None]:
    """That of `function=`, which is answered too; else all that have dead jobs."""
    function = once(request, "function")
    if function is not None:
        return [await desk.known(function)], function
    stats = await desk.bus.stats(await desk.bus.queues())
    return [queue for queue, counts in stats.items() if counts.dead], None


def _waiting(request: Request) -> Filter:
    scheduled = one_of(request, "scheduled", ("0", "1")) == "1"
    return Filter(("pending", "scheduled") if scheduled else ("pending",), lane=once(request, "lane"))


def _rate(request: Request) -> tuple[int, int] | None:
    """So many in a period of ms."""
    text = once(request, "rate")
    if text is None:
        return None
    if not _RATE.fullmatch(text):
        raise Problem("invalid-parameter", f"rate: expected one such as 100/s, 5/m, 3/10s, got {shortened(text)!r}")
    return rate(text)


def _target(request: Request) -> str:
    to = once(request, "to")
    if to is None:
        raise Problem("invalid-parameter", "to: expected the lane to move to, got none; `-` is the one without a name")
    return to


def _cursor(request: Request) -> _Place:
    text = once(request, "cursor")
    if text is None:
        return _Place()
    if not _CURSOR.fullmatch(text):
        raise Problem("invalid-parameter", f"cursor: expected one that this call answered, got {shortened(text)!r}")
    start, picked, upto, at, queue = text.split(".", 4)
    return _Place(int(start), int(picked), "" if upto == "-" else upto, at, queue)
