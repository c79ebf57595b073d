"""Schedules: listed; registered and removed at run time; run, backfilled, paused and resumed.

An id is `function/name`, percent-encoded or not.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from echod.bus.answers import RecurrenceRow
from echod.errors import Refused
from echod.gateway import instants
from echod.gateway.desk import Desk, answer, body_of, shortened, shown
from echod.gateway.guard import demand
from echod.gateway.problems import Problem, suggestions
from echod.gateway.shapes import Count, Instant, JobText
from echod.gateway.views import View, instant, instant_or_none, placed_view, schedule_view
from echod.model.job import NO_LANE, Taken
from echod.policy import places
from echod.policy.recurring import Rule, restored, rule_of
from echod.registry import schedules
from echod.registry.schedules import GONE
from echofn.children import instant_ms

_wanted = msgspec.json.Decoder(schedules.Wanted).decode
MOST_FILLED = 10_000
_Instant = Annotated[str, msgspec.Meta(max_length=64)]


class Window(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /schedules/{id}/backfill: past instants from `from` to `to` (RFC 3339), both included.

    `plan`: only say how many they are.
    """

    from_: _Instant = msgspec.field(name="from")
    to: _Instant | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_FILLED)] = 1000
    plan: bool = False


class ScheduleShape(msgspec.Struct):
    """A recurrence."""

    id: str
    function: str
    rule: str
    tz: str
    next: Instant | None
    last: Instant | None
    missed: Count
    skipped: Count
    paused: bool
    error: str | None
    origin: Literal["code", "runtime"]
    overlap: Literal["allow", "skip", "queue", "replace"]
    jitter: str | None


class ScheduleFilled(msgspec.Struct):
    """What a backfill came to: how many instants the window has, and the jobs that were made for them now."""

    id: str
    plan: bool
    instants: Count
    first: Instant | None
    last: Instant | None
    minted: Count
    already: Count
    jobs: list[JobText]


class ScheduleRemoved(msgspec.Struct):
    id: str
    removed: bool


class Schedules(msgspec.Struct):
    schedules: list[ScheduleShape]


class SchedulePaused(msgspec.Struct):
    id: str
    paused: bool
    next: Instant | None


_window = msgspec.json.Decoder(Window)


async def index(desk: Desk, request: Request) -> Response:
    """GET /schedules."""
    rows = sorted(await desk.bus.recurrences(), key=lambda row: (row.queue, row.name))
    return shown(desk, request, "schedules", {"schedules": [_view(desk, row) for row in rows]})


async def add(desk: Desk, request: Request) -> Response:
    """POST /schedules: register one of nobody's code (201), or change the rule of its name (200)."""
    demand(request, "invoke")  # it brings a payload of its own
    desk.active()
    try:
        wanted = _wanted(await request.body())
    except msgspec.ValidationError as error:
        raise Problem("invalid-parameter", f"the body: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise Problem("invalid-body", f"expected JSON: {shortened(str(error), 200)}") from None
    row, is_new = await schedules.register(desk.bus, desk.registry, desk.schemas, wanted)
    place = f"/schedules/{quote(f'{row.queue}/{row.name}', safe='')}"
    return answer(_view(desk, row), status=201 if is_new else 200, headers={"Location": place})


async def remove(desk: Desk, request: Request) -> Response:
    """DELETE /schedules/{id}: of those registered at run time; jobs it made stay."""
    row = await _found(desk, request)
    await schedules.remove(desk.bus, row)
    return answer({"id": f"{row.queue}/{row.name}", "removed": True})


async def run(desk: Desk, request: Request) -> Response:
    """POST /schedules/{id}/run: a job of it now; its next due stays."""
    row = await _found(desk, request)
    desk.function(row.queue)  # a job of a function that is gone would wait, and nobody would know why
    lane = _lane(desk, row)
    while isinstance(minted := await desk.bus.run_now(row.queue, row.name, desk.bus.new_job_id(), lane=lane), Taken):
        pass  # another job has that id
    if minted is None:
        raise _unknown(f"{row.queue}/{row.name}", [])
    headers = {"Location": f"/jobs/{minted.id}", "Echo-Job": minted.id}
    return answer(placed_view(minted.id, row.queue, "pending"), status=202, headers=headers)


async def backfill(desk: Desk, request: Request) -> Response:
    """POST /schedules/{id}/backfill: a job by hand for each past instant of a window, once while its row is kept.

    Sent again, or for a window that overlaps, it answers the jobs there are and makes no second one.
    """
    wanted = await body_of(request, _window)
    row = await _found(desk, request)
    desk.function(row.queue)
    now_ms = desk.bus.clock.now_ms()
    from_ms = _read("from", wanted.from_)
    to_ms = now_ms if wanted.to is None else _read("to", wanted.to)
    if wanted.to is not None and to_ms < from_ms:
        told = f"from: expected an instant not after to, {wanted.to}, got {wanted.from_}; swap them"
        raise Problem("invalid-parameter", told)
    to_ms = min(to_ms, now_ms)
    dues = await asyncio.to_thread(instants.within, _rule(row), from_ms, to_ms, wanted.limit)
    if len(dues) > wanted.limit:
        told = f"expected at most {wanted.limit} instants from {wanted.from_} to {instant(to_ms)}, got more"
        raise Problem("invalid-parameter", f"{told}; narrow the window, or raise limit= (at most {MOST_FILLED})")
    jobs = [(due_ms, desk.bus.new_job_id()) for due_ms in (() if wanted.plan else dues)]
    filled = await desk.bus.backfill(row.queue, row.name, jobs, lane=_lane(desk, row))
    if filled is None:
        raise _unknown(f"{row.queue}/{row.name}", [])
    made = [each.id for each in filled if each.is_new]
    view = {
        "id": f"{row.queue}/{row.name}",
        "plan": wanted.plan,
        "instants": len(dues),
        "first": instant_or_none(dues[0] if dues else None),
        "last": instant_or_none(dues[-1] if dues else None),
        "minted": len(made),
        "already": len(filled) - len(made),
        "jobs": made,
    }
    return answer(view, status=202 if made else 200)


def _read(name: str, text: str) -> int:
    try:
        return instant_ms(text)
    except (ValueError, OverflowError) as error:
        raise Problem("invalid-parameter", f"{name}: {error}") from None


async def pause(desk: Desk, request: Request) -> Response:
    """POST /schedules/{id}/pause: instants from now on are skipped, and counted."""
    row = await _found(desk, request)
    await desk.bus.pause_recurrence(row.queue, row.name)
    return answer({"id": f"{row.queue}/{row.name}", "paused": True, "next": None})


async def resume(desk: Desk, request: Request) -> Response:
    """POST /schedules/{id}/resume: the first instant after now is the next."""
    row = await _found(desk, request)
    next_ms = row.next_ms
    while row.paused:
        on = await asyncio.to_thread(instants.resumed, _rule(row), row.due_ms, desk.bus.clock.now_ms())
        next_ms = on.next_ms
        said = await desk.bus.resume_recurrence(
            row.queue, row.name, on.next_ms, skipped=on.skipped, last_ms=on.last_ms, revision=row.revision
        )
        if said != "stale":
            break
        row = await _found(desk, request)  # a switch changed its rule meanwhile
    return answer({"id": f"{row.queue}/{row.name}", "paused": False, "next": instant_or_none(next_ms)})


def _view(desk: Desk, row: RecurrenceRow) -> View:
    """A row as it stands; one whose function is gone says so before it is due."""
    view = schedule_view(row)
    if row.is_own and not row.error and desk.registry.active and desk.registry.function(row.queue) is None:
        view["error"] = GONE
    return view


def _rule(row: RecurrenceRow) -> Rule:
    try:
        return rule_of(restored(row.policy))
    except msgspec.MsgspecError as error:
        raise Problem(
            "refused", f"{row.queue}/{row.name}: its stored rule cannot be read ({error}); deploy it again"
        ) from None


def _lane(desk: Desk, row: RecurrenceRow) -> str:
    """The lane of its jobs: by the function's policy, walked over the schedule's own payload."""
    function = desk.registry.function(row.queue)
    if function is None:
        return NO_LANE
    try:
        return places.lane_of(function.policy, msgspec.msgpack.decode(restored(row.policy).payload))
    except (Refused, msgspec.MsgspecError):
        return NO_LANE


async def _found(desk: Desk, request: Request) -> RecurrenceRow:
    """The schedule in the path; a function's name and a schedule's may hold slashes themselves."""
    asked: str = request.path_params["id"]
    rows = await desk.bus.recurrences()
    for row in rows:
        if f"{row.queue}/{row.name}" == asked:
            return row
    raise _unknown(asked, [f"{row.queue}/{row.name}" for row in rows])


def _unknown(asked: str, known: list[str]) -> Problem:
    detail = f"no schedule is called {shortened(asked)!r}; GET /schedules lists them"
    return Problem("unknown-schedule", detail, suggestions=suggestions(asked, known))
