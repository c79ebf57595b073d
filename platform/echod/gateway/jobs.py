"""Jobs by id and in lists; their logs, live; cancel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import cast, get_args

from starlette.requests import Request
from starlette.responses import Response

from echod.bus.bulk import Filter
from echod.errors import BusError, UnknownFunction
from echod.gateway.desk import Desk, answer, shortened, shown, wants_page
from echod.gateway.guard import withdrawn
from echod.gateway.invoke import ended_within
from echod.gateway.listing import listed
from echod.gateway.problems import Problem
from echod.gateway.query import FILTER, filtered, number, once, one_of
from echod.gateway.sse import MEDIA_TYPE, PING_S, Event, pausing, streamed
from echod.gateway.views import View, brief_view, job_view, log_view, placed_view
from echod.gateway.wishes import wait_seconds
from echod.model.ids import JobId, is_job_id
from echod.model.job import ENDED, Job, State
from echod.policy.calls import WHY_NO_JOB

STATES: tuple[State, ...] = get_args(State)
MOST = 200
PAGE_LINES = 1_000
LAST_LINES_MS = 1_000
_FOLLOW_S = (0.1, 1.0)  # shortest and longest pause between two looks at a log that is being written


async def show(desk: Desk, request: Request) -> Response:
    """GET /jobs/{id}; with `Prefer: wait=N` once it ended, or after N seconds as it stands then."""
    job = await found(desk, request)
    applied: dict[str, str] = {}
    if (wait_s := wait_seconds(",".join(request.headers.getlist("prefer")))) and job.state not in ENDED:
        applied = {"Preference-Applied": f"wait={wait_s}"}
        with desk.waiting.expected(job.id) as event:
            ended = await ended_within(desk, request, job.id, job.function, event, wait_s, told=False)
        job = ended or await found(desk, request)
    function = desk.registry.function(job.function)
    redact = function.policy.redact if function else await desk.bus.redacted(job.function)
    view = await asyncio.to_thread(job_view, job, redact) if redact else job_view(job, ())
    view["orphaned"] = _is_orphaned(desk, job)
    view["retries"] = function.policy.retries if function else None
    if wants_page(request):
        entries = await desk.bus.logs(job.function, job.id, limit=PAGE_LINES + 1)
        view["log"] = [log_view(*entry) for entry in entries[:PAGE_LINES]]
        view["log_goes_on"] = len(entries) > PAGE_LINES
    page = shown(desk, request, "job", view)
    page.headers.update(applied)
    return page


async def index(desk: Desk, request: Request) -> Response:
    """GET /jobs: newest first, in all states unless filtered."""
    state = cast("State | None", one_of(request, "state", STATES))
    wanted = Filter((state,) if state else (), lane=once(request, "lane"))
    return await _list(desk, request, "jobs", wanted)


async def morgue(desk: Desk, request: Request) -> Response:
    """GET /morgue?function=&lane=&cause=&match=&older=&newer=: the dead, newest first."""
    return await _list(desk, request, "morgue", filtered(request, ("dead",)))


async def logs(desk: Desk, request: Request) -> Response:
    """GET /jobs/{id}/logs: everything kept, then live until the job ends; as JSON a list of what is kept now."""
    job = await found(desk, request)
    accept = request.headers.get("accept", "")
    if "application/json" in accept and MEDIA_TYPE not in accept:
        return answer(await _kept(desk, job))
    after = request.headers.get("last-event-id", "")
    if len(after) > 50 or not all(c.isdigit() or c == "-" for c in after):
        raise Problem("bad-header", f"Last-Event-ID: expected an id of this log, got {shortened(after, 40)!r}")
    return streamed(request, _followed(desk, job, after), lambda: withdrawn(request, desk.keyring, "read"))


async def cancel(desk: Desk, request: Request) -> Response:
    """POST /jobs/{id}/cancel: 200 when it is cancelled, 202 when its run was asked to stop."""
    job = await found(desk, request)
    said = await desk.bus.cancel(job.function, job.id)
    match said:
        case "cancelled":
            return answer(placed_view(job.id, job.function, "cancelled"))
        case "cancelling":
            return answer({**placed_view(job.id, job.function, "active"), "cancelling": True}, status=202)
        case "unknown":
            raise _unknown(job.id)
        case _:
            job = await found(desk, request)
            if job.state == "cancelled":  # the same request again: its first answer was lost
                return answer(placed_view(job.id, job.function, "cancelled"))
            raise Problem(
                "wrong-state", f"expected a job that has not ended, got one that is {job.state}", state=job.state
            )


async def found(desk: Desk, request: Request) -> Job:
    """The job in the path, from the queue named by `?function=`, or whichever has it."""
    text: str = request.path_params["id"]
    if not is_job_id(text):
        raise _unknown(text)
    function = request.query_params.get("function") or None
    try:
        job = await desk.bus.job(JobId(text), queue=None if function is None else await desk.known(function))
    except UnknownFunction:
        raise _unknown(text) from None
    if job is None:
        raise _unknown(text)
    return job


async def _list(desk: Desk, request: Request, page: str, wanted: Filter) -> Response:
    limit = number(request, "limit", 50, 1, MOST)
    function = once(request, "function")
    queues = await desk.bus.queues()
    names = sorted({*desk.registry.names(), *queues})
    queues = [await desk.known(function)] if function is not None else queues
    found, rest = await listed(desk.bus, queues, wanted, limit, once(request, "cursor") or "")
    views = [{**brief_view(job), "orphaned": _is_orphaned(desk, job)} for job in found]
    view: View = {"jobs": views, "cursor": rest}
    if wants_page(request):
        asked = {name: once(request, name) for name in ("function", "state", *FILTER)}
        view |= {"filter": asked, "names": names}
    return shown(desk, request, page, view)


async def _kept(desk: Desk, job: Job) -> list[View]:
    """Every line of its log: what the bus keeps of one is bounded."""
    lines: list[View] = []
    after = ""
    while entries := await desk.bus.logs(job.function, job.id, after=after):
        lines += [log_view(*entry) for entry in entries]
        after = entries[-1][0]
    return lines


async def _followed(desk: Desk, job: Job, after: str) -> AsyncGenerator[Event | None, None]:
    """The lines after `after`; then what is added, until the job has ended and was read to its last line."""
    loop = asyncio.get_running_loop()
    current: Job | None = job
    pause, spoke = _FOLLOW_S[0], loop.time()
    while not desk.closing.is_set():
        over = _is_over(desk, current)  # known before its log is read: what follows is complete
        try:
            entries = await desk.bus.logs(job.function, job.id, after=after)
            current = current if over else await desk.bus.job(job.id, queue=job.function)
        except BusError:  # away: the stream stays, and goes on where it was
            entries, over = [], False
        for after, line in entries:
            yield Event("log", log_view(after, line), id=after)
        if over and not entries:
            yield Event("end", {"id": job.id, "state": current.state if current else "unknown"})
            return
        pause = _FOLLOW_S[0] if entries else min(pause * 1.5, _FOLLOW_S[1])
        if entries:
            spoke = loop.time()
        elif loop.time() - spoke >= PING_S:
            spoke = loop.time()
            yield None
        if not over:
            await pausing(desk.closing, pause)


def _is_over(desk: Desk, job: Job | None) -> bool:
    """Whether nothing can be added any more: supervisors write the last lines of a run just after its verdict."""
    if job is None:
        return True
    return job.state in ENDED and desk.bus.clock.now_ms() - (job.ended_ms or 0) > LAST_LINES_MS


def _is_orphaned(desk: Desk, job: Job) -> bool:
    """Whether it waits for a version that has its function again; the active one has not."""
    active = desk.registry.active
    return active is not None and job.state in {"pending", "scheduled"} and desk.registry.function(job.function) is None


def _unknown(text: str) -> Problem:
    return Problem("unknown-job", f"no job {shortened(text, 40)!r}: {WHY_NO_JOB}")
