"""GET /functions and /functions/{name}; pause and resume."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

from starlette.requests import Request
from starlette.responses import Response

from echod.bus.bulk import Filter
from echod.gateway import figures
from echod.gateway.desk import Desk, answer, shown
from echod.gateway.instants import preview
from echod.gateway.lanes import lanes_of, limits_view
from echod.gateway.listing import listed
from echod.gateway.overview import NOTHING, Watch, entry
from echod.gateway.query import number, once
from echod.gateway.versions import periods
from echod.gateway.views import View, brief_view, schedule_view
from echofn.manifest import Function

HOUR_S = 3600
WINDOWS_S = (900, 3600, 86_400)
_RECENT = 20
SHORTEST_S, LONGEST_S = 60, 8 * 86_400


async def index(desk: Desk, request: Request) -> Response:
    """GET /functions, and `/`."""
    return shown(desk, request, "functions", await Watch(desk.bus, desk.registry).picture())


async def show(desk: Desk, request: Request) -> Response:
    """GET /functions/{name}?window=seconds."""
    window_s = number(request, "window", 3600, SHORTEST_S, LONGEST_S)
    function = desk.function(request.path_params["name"])
    return shown(desk, request, "function", await _view(desk, function, window_s))


async def pause(desk: Desk, request: Request) -> Response:
    """POST /functions/{name}/pause, or one lane of it with ?lane=."""
    function = desk.function(request.path_params["name"])
    lane = once(request, "lane")
    await desk.bus.pause(function.name, lane=lane)
    return answer({"name": function.name, "lane": lane, "paused": True})


async def resume(desk: Desk, request: Request) -> Response:
    """POST /functions/{name}/resume, or one lane of it with ?lane=."""
    function = desk.function(request.path_params["name"])
    lane = once(request, "lane")
    await desk.bus.resume(function.name, lane=lane)
    return answer({"name": function.name, "lane": lane, "paused": False})


async def _view(desk: Desk, function: Function, window_s: int) -> View:
    bus, name = desk.bus, function.name
    stats, rows, (recent, _), lanes, ran, measured = await asyncio.gather(
        bus.stats([name]),
        bus.recurrences(name),
        listed(bus, [name], Filter(), _RECENT, ""),
        lanes_of(bus, [function]),
        periods(desk, name),
        asyncio.gather(*(bus.metrics(name, seconds * 1000) for seconds in (window_s, HOUR_S, *WINDOWS_S))),
    )
    asked, hour, *windows = measured
    now_ms = bus.clock.now_ms()
    return {
        **entry(function, desk.active().version, stats.get(name, NOTHING), hour, rows, now_ms),
        "metrics": figures.metrics_view(asked, window_s),
        "windows": {
            str(seconds): figures.metrics_view(metrics, seconds)
            for seconds, metrics in zip(WINDOWS_S, windows, strict=True)
        },
        "recent": [brief_view(job) for job in recent],
        "schedules": [schedule_view(row) | preview(row, now_ms) for row in rows],
        "lanes": lanes,
        "versions": ran,
        "limits": limits_view(stats.get(name, NOTHING)),
        "workers": _workers(desk.status(), name),
    }


def _workers(status: Mapping[str, object], name: str) -> object:
    """This node's workers of a function, where it runs any."""
    workers = status.get("workers")
    return cast("Mapping[str, object]", workers).get(name) if isinstance(workers, Mapping) else None
