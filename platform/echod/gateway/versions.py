"""Versions: the list with what each changed, POST /deploy, and the way back to one that is stored.

What is done with an archive, and the switch, are the node's part; where one serves a folder as it is, none on its bus
takes either: it would no longer serve what lies there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from echod.errors import Refused
from echod.gateway.desk import Deploys, Desk, answer, shortened, shown
from echod.gateway.invoke import disconnected, unless_gone
from echod.gateway.limits import busy
from echod.gateway.plans import plan_view
from echod.gateway.problems import Problem
from echod.gateway.shapes import Instant
from echod.gateway.views import View, instant, node_view
from echod.model.ids import VersionId
from echod.policy.plan import Deployed, planned
from echofn.manifest import Manifest

MAX_ARCHIVE_BYTES = 25 * 1024 * 1024
_SWITCHES, _PERIODS = 50, 10  # looked at, and shown, for one function


class VersionShape(msgspec.Struct):
    """A stored version; `changes`: what it changed of the one before it in the list."""

    id: str
    activated: Instant
    active: bool
    functions: list[str]
    changes: dict[str, Any] | None


class Versions(msgspec.Struct):
    """Newest first."""

    versions: list[VersionShape]


class DeployedShape(msgspec.Struct):
    """What a switch came to, and what it changed; without a generation it was only planned."""

    version: str
    generation: int | None
    functions: list[str]
    plan: dict[str, Any]


async def index(desk: Desk, request: Request) -> Response:
    """GET /versions, newest first, each with what it changed of the one before."""
    active = desk.registry.active.version if desk.registry.active else None
    known = await desk.bus.versions()
    manifests = [await _manifest(desk, version) for version, _ in known]
    now_ms = desk.bus.clock.now_ms()
    changes = await asyncio.to_thread(_changes, manifests, now_ms)  # half a second's work for a thousand functions
    rows: list[View] = [
        {
            "id": version,
            "activated": instant(ms),
            "active": version == active,
            "functions": [each.name for each in manifest.functions] if manifest else [],
            "changes": changed,
        }
        for (version, ms), manifest, changed in zip(known, manifests, changes, strict=True)
    ]
    takes_deploys = not isinstance(await _deploys(desk), str)
    return shown(desk, request, "versions", {"versions": rows, "takes_deploys": takes_deploys})


def _changes(manifests: Sequence[Manifest | None], now_ms: int) -> list[View | None]:
    """What each, newest first, changed of the one before; None where either is not known."""
    before = [*manifests, None][1:]
    return [
        plan_view(planned(last, manifest, now_ms)) if manifest and last else None
        for manifest, last in zip(manifests, before, strict=True)
    ]


async def deploy(desk: Desk, request: Request) -> Response:
    """POST /deploy: hand the archive over as it comes. Refused whole, with file and line, if anything is broken."""
    deploys = await _taking(desk)
    only_plan = _only_plan(request)
    if desk.intake.archives.locked():
        raise busy("expected fewer deploys at once")
    async with desk.intake.archives:
        return answer(_view(await _deployed(deploys, request, only_plan=only_plan)))


async def _deployed(deploys: Deploys, request: Request, *, only_plan: bool) -> Deployed:
    """What became of it. Given up when its caller hangs up: raises ClientDisconnect."""
    whole = asyncio.Event()
    return await unless_gone(deploys.deployed(_parts(request, whole), only_plan=only_plan), _gone(request, whole))


async def _gone(request: Request, whole: asyncio.Event) -> None:
    await whole.wait()
    await disconnected(request)


async def _parts(request: Request, whole: asyncio.Event) -> AsyncIterator[bytes]:
    """The body as it comes, `whole` at its end; a problem where there is none."""
    is_empty = True
    async for part in request.stream():
        is_empty = is_empty and not part
        yield part
    whole.set()
    if is_empty:
        raise Problem("invalid-body", "expected a packed folder, got an empty body; use `echod deploy FOLDER`")


async def activate(desk: Desk, request: Request) -> Response:
    """POST /versions/{id}/activate: switch to a version that is stored."""
    version = VersionId(request.path_params["id"])
    return answer(_view(await (await _taking(desk)).activated(version, only_plan=_only_plan(request))))


async def periods(desk: Desk, name: str) -> list[View]:
    """Which stored version of a function was served when, newest first; `changed`: its code, since the one before."""
    known = {version for version, _ in await desk.bus.versions()}
    found: list[View] = []
    codes: list[str] = []
    until: str | None = None
    for version, at_ms in await desk.bus.switches(_SWITCHES):
        manifest = await _manifest(desk, version) if version in known else None
        function = next((each for each in manifest.functions if each.name == name), None) if manifest else None
        if function is not None:
            found.append({"version": version, "from": instant(at_ms), "until": until, "changed": None})
            codes.append(function.code)
        until = instant(at_ms)
    for newer, (code, before) in zip(found, pairwise(codes), strict=False):
        newer["changed"] = code != before
    return found[:_PERIODS]


async def _taking(desk: Desk) -> Deploys:
    deploys = await _deploys(desk)
    if isinstance(deploys, str):
        raise Problem("no-deploys", deploys)
    return deploys


async def _deploys(desk: Desk) -> Deploys | str:
    """Who takes them, or why nobody does: this node serves a folder, or another one of the bus that is alive."""
    if isinstance(desk.deploys, str):
        return desk.deploys
    for row in await desk.bus.nodes():
        node = node_view(row)
        if node.get("folder"):
            where = f"node {row.id} (`echod {node['verb']}` on {node['host']})"
            return (
                f"{where} serves the folder {node['folder']} as it is; "
                "change it there, or stop that node (one that was killed counts for up to a minute) and deploy again"
            )
    return desk.deploys


def _only_plan(request: Request) -> bool:
    if others := sorted(request.query_params.keys() - {"plan"}):  # a slip would switch what was only to be looked at
        raise Problem("invalid-parameter", f"expected plan=0 or plan=1 alone, got {shortened(others[0])!r}, too")
    asked = request.query_params.get("plan", "0")
    if asked not in {"0", "1"}:
        raise Problem("invalid-parameter", f"plan: expected 0 or 1, got {asked[:20]!r}")
    return asked == "1"


def _view(done: Deployed) -> View:
    return {
        "version": done.version,
        "generation": done.generation,
        "functions": list(done.functions),
        "errors": [],
        "plan": plan_view(done.plan),
    }


async def _manifest(desk: Desk, version: VersionId) -> Manifest | None:
    """What a stored version has; None where it is stored no more, or cannot be read."""
    try:
        return await desk.registry.manifest(version)
    except Refused:
        return None
