"""Lanes, limits, and what an operator sets of both: GET /lanes, POST /functions/{name}/set."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from echod.bus import Bus
from echod.bus.answers import LaneRow, QueueStats
from echod.bus.operating import LANE_SETTINGS, NO_LIMIT, QUEUE_SETTINGS, Setting
from echod.gateway.desk import Desk, answer, body_of
from echod.gateway.problems import Problem
from echod.gateway.shapes import Count
from echod.gateway.views import View
from echofn.manifest import Function
from echofn.units import rate, rate_text
from echofn.values import MAX_JOBS

MOST_LANES = 200
_LIMITS = ("weight", "concurrency", "rate", "lane_concurrency", "lane_rate")
_Number = Annotated[int, msgspec.Meta(ge=1, le=MAX_JOBS)]
_RATE = r"^\s*0*[1-9][0-9]*\s*/\s*[0-9.]*\s*(ms|s|m|h|d|w)\s*$|^none$"  # more is said by echofn.units.rate
_Rate = Annotated[str, msgspec.Meta(max_length=32, pattern=_RATE)]


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /functions/{name}/set: of the queue, or of one lane. null sets back to what code says.

    "none" lifts a limit. `reset` sets all that is not given back.
    """

    lane: Annotated[str, msgspec.Meta(min_length=1, max_length=65_536)] | None = None
    weight: Annotated[int, msgspec.Meta(ge=1, le=100)] | msgspec.UnsetType | None = msgspec.UNSET
    concurrency: _Number | Literal["none"] | msgspec.UnsetType | None = msgspec.UNSET
    rate: _Rate | msgspec.UnsetType | None = msgspec.UNSET
    lane_concurrency: _Number | Literal["none"] | msgspec.UnsetType | None = msgspec.UNSET
    lane_rate: _Rate | msgspec.UnsetType | None = msgspec.UNSET
    reset: bool = False


class SetByHand(msgspec.Struct):
    """`lane` null: of the queue. `set` by name; null: back to what code says."""

    name: str
    lane: str | None
    set: dict[str, int | str | None]


class LaneShape(msgspec.Struct):
    """A lane with work, or idle with an operator's settings. `until_ms`: for how long it is not served, where known."""

    function: str
    lane: str
    pending: Count
    active: Count | None
    weight: Count
    share: float | None
    place: Literal["ring", "later", "held", "idle"]
    why: Literal["paused", "concurrency", "rate", "batch"] | None
    paused: bool
    until_ms: Count | None
    concurrency: Count | None
    rate: str | None
    started: Count | None
    by_hand: list[str]
    path: str | None


class Lanes(msgspec.Struct):
    lanes: list[LaneShape]


_change = msgspec.json.Decoder(Change)


async def set_by_hand(desk: Desk, request: Request) -> Response:
    """POST /functions/{name}/set: weight and limits; what is set holds over deploys until it is set back."""
    function = desk.function(request.path_params["name"])
    wanted = await body_of(request, _change)
    settings = QUEUE_SETTINGS if wanted.lane is None else LANE_SETTINGS
    changes: dict[str, Setting] = {name: None for name in _LIMITS if wanted.reset and name in settings}
    for name in _LIMITS:
        value = getattr(wanted, name)
        if value is not msgspec.UNSET:
            changes[name] = _setting(name, value)
    if not changes:
        raise Problem("invalid-parameter", f"expected some of {', '.join(_LIMITS)}, or reset, got none")
    if unknown := changes.keys() - set(settings):
        name = min(unknown)
        raise Problem(
            "invalid-parameter",
            f"{name}: expected a setting of one lane, got one of all lanes; "
            f"leave out the lane, or set {name.removeprefix('lane_')}",
        )
    await desk.bus.set(function.name, changes, lane=wanted.lane)
    told = {name: "none" if value == NO_LIMIT else _written(value) for name, value in changes.items()}
    return answer({"name": function.name, "lane": wanted.lane, "set": told})


def _setting(name: str, value: int | str | None) -> Setting:
    if value is None or isinstance(value, int):
        return value
    if value == "none":
        return NO_LIMIT
    try:
        count, period_ms = rate(value)
    except ValueError as error:
        raise Problem("invalid-parameter", f'{name}: {error}, or "none"') from None
    if count > MAX_JOBS:
        raise Problem("invalid-parameter", f"{name}: expected at most {MAX_JOBS:,} in a window, got {count:,}")
    return count, period_ms


def _written(value: Setting) -> object:
    return rate_text(*value) if isinstance(value, tuple) else value


async def lanes_of(bus: Bus, functions: Sequence[Function]) -> list[View]:
    """Function by function, the lane that is served next first, then those that wait."""
    found = await asyncio.gather(*(bus.lanes(function.name, limit=MOST_LANES) for function in functions))
    return [
        {
            "function": function.name,
            "lane": row.lane,
            "pending": row.pending,
            "active": row.active,
            "weight": row.weight,
            "share": share,
            "place": row.place,
            "why": row.why,
            "paused": "paused" in row.by_hand,
            "until_ms": row.until_ms,
            "concurrency": row.concurrency,
            "rate": rate_text(*row.rate) if row.rate else None,
            "started": row.started if row.rate else None,
            "by_hand": row.by_hand,
            "path": function.policy.lane,
        }
        for function, rows in zip(functions, found, strict=True)
        for row, share in zip(rows, _shares(rows), strict=True)
    ]


def _shares(rows: Sequence[LaneRow]) -> list[float | None]:
    """What part of the turns each lane gets that can be served now; not known where not all of them are listed."""
    ready = [row.weight for row in rows if row.place == "ring"]
    is_whole = len(ready) < MOST_LANES
    return [round(row.weight / sum(ready), 4) if is_whole and row.place == "ring" else None for row in rows]


def limits_view(stats: QueueStats) -> Mapping[str, object]:
    """What limits a queue now, what of it an operator set, and whether it stands against a start."""
    limits = stats.limits
    return {
        "concurrency": limits.concurrency,
        "rate": rate_text(*limits.rate) if limits.rate else None,
        "lane_concurrency": limits.lane_concurrency,
        "lane_rate": rate_text(*limits.lane_rate) if limits.lane_rate else None,
        "lane_weight": limits.lane_weight,
        "by_hand": stats.by_hand,
        "capped": stats.capped,
        "capped_ms": stats.capped_ms,
    }
