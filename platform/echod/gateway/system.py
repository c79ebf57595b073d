"""The system's own state: liveness, readiness, metrics, the bus, nodes, lanes."""

from __future__ import annotations

from typing import cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from echod.errors import BusError
from echod.gateway.desk import Desk, answer, shown
from echod.gateway.guard import withdrawn
from echod.gateway.lanes import lanes_of
from echod.gateway.sse import streamed
from echod.gateway.views import View, node_view, plain
from echod.policy import diagnosis


class Healthy(msgspec.Struct):
    ok: bool


class Ready(msgspec.Struct):
    ready: bool
    bus: bool
    version: str | None
    sandbox: str
    degraded: list[str]


async def healthz(desk: Desk, request: Request) -> Response:
    """GET /healthz: this process answers."""
    return answer({"ok": True})


async def readyz(desk: Desk, request: Request) -> Response:
    """GET /readyz: 200 when the bus answers, takes writes, and a version is active; else 503 with the reasons."""
    reasons: list[str] = []
    ails: list[str] = []
    try:
        server = await desk.bus.server()
        if server["role"] != "master":
            reasons.append("bus: expected a server that takes writes, got a replica; wait, or mend --bus")
        ails = diagnosis.ails(msgspec.convert(server, diagnosis.Vitals))
        ails += [f"node {row.id}: {ail}" for row in await desk.bus.nodes() for ail in row.told.ails]
    except BusError as error:
        reasons.append(f"bus: {error}")
    active, unreadable = desk.registry.active, desk.registry.unreadable
    if active is None:
        reasons.append(unreadable or "no version deployed; run `echod deploy FOLDER`")
    elif unreadable is not None:
        ails.append(f"serving the version before: {unreadable}")
    view = {
        "ready": not reasons,
        "bus": not any(reason.startswith("bus: ") for reason in reasons),
        "version": active.version if active else None,
        "sandbox": desk.level,
        "degraded": [*desk.degraded(), *ails],
        "reasons": reasons,
    }
    headers = {"Retry-After": "1"} if reasons else {}
    if active is not None:  # no secret here: it is in the body
        headers["Echo-Version"] = active.version
    return answer(view, status=503 if reasons else 200, headers=headers)


async def metrics(desk: Desk, request: Request) -> Response:
    """GET /metrics: Prometheus's text format."""
    from echod.gateway import exposition  # its library is not cheap to load, and most gateways are never scraped

    text = await exposition.text_of(desk.bus, desk.registry, desk.counts)
    return Response(text, headers={"Content-Type": exposition.MEDIA_TYPE})


async def bus(desk: Desk, request: Request) -> Response:
    """GET /bus: which server, and what it would lose in a crash."""
    address = desk.config.masked()["bus"] or f"unix://{desk.config.state.absolute() / 'valkey.sock'}"
    return shown(desk, request, "bus", {"address": address, **cast("View", plain(await desk.bus.server()))})


async def nodes(desk: Desk, request: Request) -> Response:
    """GET /nodes."""
    return shown(desk, request, "nodes", {"nodes": [node_view(row) for row in await desk.bus.nodes()]})


async def lanes(desk: Desk, request: Request) -> Response:
    """GET /lanes, or those of one function with ?function=."""
    asked = request.query_params.get("function") or None
    active = desk.registry.active
    functions = [desk.function(asked)] if asked else list(active.manifest.functions) if active else []
    return shown(desk, request, "lanes", {"lanes": await lanes_of(desk.bus, functions)})


async def events(desk: Desk, request: Request) -> Response:
    """GET /events: what open pages see change."""
    return streamed(request, desk.live.events(), lambda: withdrawn(request, desk.keyring, "read"))
