"""GET and POST /clock: where a driven clock is, and how it is moved. Only `echod dev --clock` has one."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from echod.gateway.desk import Desk, answer, body_of
from echod.gateway.problems import Problem
from echod.gateway.shapes import Instant
from echod.gateway.views import instant, instant_or_none
from echofn.children import instant_ms
from echofn.units import duration_ms

CATCH_UP_S = 2.0
LOOK_S = 0.01
_Text = Annotated[str, msgspec.Meta(max_length=64)]


class Move(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /clock. `advance` takes `by` ("1d") or `to` (RFC 3339); the others neither."""

    action: Literal["advance", "next", "freeze", "resume"]
    by: _Text | None = None
    to: _Text | None = None


class ClockShape(msgspec.Struct):
    """Where the clock is. `due`: functions that the move made due, where it went to the next; `next`: when more is."""

    now: Instant
    driven: bool
    frozen: bool
    due: list[str]
    next: Instant | None


_move = msgspec.json.Decoder(Move)


async def show(desk: Desk, request: Request) -> Response:
    """GET /clock."""
    return await _view(desk)


async def move(desk: Desk, request: Request) -> Response:
    """POST /clock: answers when what is due by then has become jobs, or after two seconds."""
    wanted = await body_of(request, _move)
    bus = desk.bus
    if not bus.driven:
        raise Problem("not-driven", "expected a driven clock, got the server's own; start with `echod dev --clock`")
    due: tuple[str, ...] = ()
    match wanted.action:
        case "freeze":
            await bus.drive("freeze")
        case "resume":
            await bus.drive("thaw")
        case "advance":
            await bus.drive("to", _target(desk, wanted))
        case "next":
            await _caught_up(desk)
            event = await bus.next_event()
            if event is None:
                raise Problem("refused", "nothing is due: no schedule, and no job that waits for an instant")
            to_ms, due = event
            await bus.drive("to", to_ms)
    await _caught_up(desk)
    return await _view(desk, due)


async def _view(desk: Desk, due: tuple[str, ...] = ()) -> Response:
    bus = desk.bus
    if bus.driven:
        await bus.drive("read")
    event = await bus.next_event()
    view = {
        "now": instant(bus.clock.now_ms()),
        "driven": bus.driven,
        "frozen": bus.clock.frozen,
        "due": due,
        "next": instant_or_none(event and event[0]),
    }
    return answer(view)


def _target(desk: Desk, wanted: Move) -> int:
    """The instant that a move leads to."""
    if (wanted.by is None) == (wanted.to is None):
        raise Problem("invalid-parameter", 'expected by ("1d") or to (RFC 3339)')
    now_ms = desk.bus.clock.now_ms()
    try:
        to_ms = now_ms + duration_ms(wanted.by) if wanted.by is not None else instant_ms(wanted.to or "")
    except (ValueError, OverflowError) as error:
        raise Problem("invalid-parameter", str(error)) from None
    if to_ms < now_ms:
        raise Problem("invalid-parameter", f"expected an instant from {instant(now_ms)} on: time goes one way")
    return to_ms


async def _caught_up(desk: Desk) -> None:
    """The pump hears of a move at once, but not before its answer: whoever moves twice must not jump over a due."""
    end = asyncio.get_running_loop().time() + CATCH_UP_S
    while asyncio.get_running_loop().time() < end:
        if not await desk.bus.overdue():
            return
        await asyncio.sleep(LOOK_S)
