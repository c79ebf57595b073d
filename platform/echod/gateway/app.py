"""The application: the table of routes, each with its method, its right and its handler; and what faults become."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import quote, unquote

from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from echod import log
from echod.bus import Bus
from echod.bus.waiting import Waiting
from echod.config import Config
from echod.errors import EchodError
from echod.gateway import (
    bulk,
    clock,
    functions,
    invoke,
    jobs,
    lanes,
    login,
    logs,
    openapi,
    orders,
    pages,
    problems,
    schedules,
    system,
    tokens,
    versions,
    webhooks,
)
from echod.gateway.desk import Deploys, Desk, caller_of, shown, wants_page
from echod.gateway.guard import SECURITY_HEADERS, Guard, Needed, demand
from echod.gateway.keyring import Keyring
from echod.gateway.limits import Intake
from echod.gateway.live import Live
from echod.gateway.overview import Watch
from echod.gateway.problems import Problem
from echod.gateway.query import check_known
from echod.registry.registry import Registry

Handler = Callable[[Desk, Request], Awaitable[Response]]
_log = log.get("gateway")


class Entry(NamedTuple):
    """A row of the table. `right` None: open to everybody. `{…:name}` is one name, `{…:names}` may hold slashes."""

    method: str
    path: str
    right: Needed
    handler: Handler


TABLE: tuple[Entry, ...] = (
    Entry("GET", "/", "read", functions.index),
    Entry("GET", "/functions", "read", functions.index),
    Entry("GET", "/functions/{name:name}", "read", functions.show),
    Entry("GET", "/functions/{name:name}/logs", "read", logs.logs),
    Entry("POST", "/functions/{name:name}", "invoke", invoke.invoke),
    Entry("POST", "/functions/{name:name}/pause", "operate", functions.pause),
    Entry("POST", "/functions/{name:name}/resume", "operate", functions.resume),
    Entry("POST", "/functions/{name:name}/drain", "operate", bulk.drain),
    Entry("POST", "/functions/{name:name}/move", "operate", bulk.move),
    Entry("POST", "/functions/{name:name}/purge", "operate", bulk.purge),
    Entry("POST", "/functions/{name:name}/set", "operate", lanes.set_by_hand),
    Entry("GET", "/jobs", "read", jobs.index),
    Entry("POST", "/jobs", "invoke", orders.enqueue),
    Entry("GET", "/jobs/{id:name}", "read", jobs.show),
    Entry("GET", "/jobs/{id:name}/logs", "read", jobs.logs),
    Entry("POST", "/jobs/{id:name}/cancel", "operate", jobs.cancel),
    Entry("POST", "/jobs/{id:name}/redrive", "operate", bulk.redrive_one),
    Entry("POST", "/jobs/{id:name}/move", "operate", bulk.move_one),
    Entry("GET", "/schedules", "read", schedules.index),
    Entry("POST", "/schedules", "operate", schedules.add),
    Entry("POST", "/schedules/{id:names}/run", "operate", schedules.run),
    Entry("POST", "/schedules/{id:names}/backfill", "operate", schedules.backfill),
    Entry("POST", "/schedules/{id:names}/pause", "operate", schedules.pause),
    Entry("POST", "/schedules/{id:names}/resume", "operate", schedules.resume),
    Entry("DELETE", "/schedules/{id:names}", "operate", schedules.remove),  # last: an id may hold slashes
    Entry("GET", "/lanes", "read", system.lanes),
    Entry("GET", "/morgue", "read", jobs.morgue),
    Entry("POST", "/morgue/redrive", "operate", bulk.redrive),
    Entry("POST", "/morgue/purge", "operate", bulk.purge_morgue),
    Entry("GET", "/versions", ("read", "deploy"), versions.index),
    Entry("GET", "/nodes", "read", system.nodes),
    Entry("GET", "/bus", "read", system.bus),
    Entry("GET", "/clock", "read", clock.show),
    Entry("POST", "/clock", "operate", clock.move),
    Entry("POST", "/deploy", "deploy", versions.deploy),
    Entry("POST", "/versions/{id:name}/activate", "deploy", versions.activate),
    Entry("GET", "/tokens", "operate", tokens.index),
    Entry("POST", "/tokens", "operate", tokens.make),
    Entry("DELETE", "/tokens/{name:name}", "operate", tokens.revoke),
    Entry("POST", "/login/links", "operate", tokens.link),
    Entry("GET", "/events", "read", system.events),
    Entry("GET", "/metrics", "read", system.metrics),
    Entry("GET", "/openapi.json", "read", openapi.document),
    Entry("GET", "/healthz", None, system.healthz),
    Entry("GET", "/readyz", None, system.readyz),
    Entry("GET", "/login", None, login.form),
    Entry("POST", "/login", None, login.enter),
    Entry("POST", "/logout", None, login.leave),
)


def create_app(
    bus: Bus,
    registry: Registry,
    config: Config,
    *,
    status: Callable[[], Mapping[str, object]],
    level: str,
    deploys: Deploys | str = "this node takes no deploys",
    environ: Mapping[str, str] = os.environ,
) -> Starlette:
    """The gateway as an ASGI application.

    `status` is asked when a page or /readyz is: "mode" ("dev", "start", …), "degraded" (sentences) and "workers" (by
    function: count, busy, rss_bytes, cpu_s, cold_starts) are shown where given. `level` is the sandbox's. `deploys`
    does what is asked about versions; a text is the sentence to refuse with. `environ` has the secrets of webhooks.
    """
    live = Live(Watch(bus, registry).picture)
    keyring = Keyring(config, bus, now_ms=bus.clock.now_ms, is_dev=lambda: status().get("mode") == "dev")
    desk = Desk(bus, registry, config, status, level, deploys, Waiting(bus), live, keyring, Intake(config), environ)
    forget = [bus.on("tokens", keyring.heard), bus.on("connected", keyring.reconnected)]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        await keyring.prime()
        yield
        desk.close()
        for each in forget:
            each()
        desk.intake.lag.close()
        await keyring.close()

    async def fault(request: Request, error: Exception) -> Response:
        return _fault(desk, request, error)

    handlers = dict.fromkeys((EchodError, HTTPException, ClientDisconnect, Exception), fault)
    app = Starlette(
        routes=_routes(desk),
        middleware=[
            Middleware(
                Guard,
                config=config,
                keyring=keyring,
                intake=desk.intake,
                larger={"/deploy": versions.MAX_ARCHIVE_BYTES, "/jobs": orders.MAX_ORDERS_BYTES},
            )
        ],
        exception_handlers=handlers,
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.desk = desk
    return app


class _Place:
    """One path: answers the methods that the table has for it, HEAD and OPTIONS by themselves."""

    def __init__(self, desk: Desk, entries: Mapping[str, Entry]) -> None:
        self._desk = desk
        self._entries = entries
        heads = ["HEAD"] if "GET" in entries else []
        self._allow = ", ".join(sorted([*entries, *heads, "OPTIONS"]))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        answer = await self._answer(request)
        await _telling(self._desk, request, answer)(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if request.method == "OPTIONS":
            return Response(status_code=204, headers={"Allow": self._allow})
        entry = self._entries.get("GET" if request.method == "HEAD" else request.method)
        if entry is None:
            said = f"expected {self._allow}, got {request.method[:20]}"
            raise Problem("wrong-method", said, headers={"Allow": self._allow})
        demand(request, entry.right)
        if entry.method == "POST" and entry.right == "operate":
            await check_known(request, openapi.query_of(entry.method, entry.path))
        return await entry.handler(self._desk, request)


class _Nowhere:
    """Every other path: a webhook's, else unknown to those who may read and closed to those who may not."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if (found := webhooks.found_at(self._desk, request)) is not None:
            answer = await webhooks.take(self._desk, request, found)
            await _telling(self._desk, request, answer)(scope, receive, send)
            return
        demand(request, "read")
        raise Problem("not-found", f"nothing is at {request.url.path[:100]!r}; GET /functions lists what there is")


class _Static(StaticFiles):
    """Pages name files with a digest of their content: those may be kept for good."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        answer.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return answer


class _Name(Convertor[str]):
    """One segment of the path as it was sent, decoded: `a%2Fb` is the name `a/b`."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        try:
            return unquote(value, errors="strict")
        except UnicodeDecodeError:
            raise Problem("bad-request", "expected a path in percent-encoded UTF-8") from None

    def to_string(self, value: str) -> str:
        return quote(value, safe="")


class _Names(_Name):
    """The same over any number of segments."""

    regex = ".+"


register_url_convertor("name", _Name())
register_url_convertor("names", _Names())


def _routes(desk: Desk) -> list[BaseRoute]:
    paths: dict[str, dict[str, Entry]] = {}
    for entry in TABLE:
        paths.setdefault(entry.path, {})[entry.method] = entry
    places: list[BaseRoute] = [Route(path, _Place(desk, entries)) for path, entries in paths.items()]
    return [*places, Mount("/static", _Static(directory=pages.STATIC)), Mount("/", _Nowhere(desk))]


def _fault(desk: Desk, request: Request, error: Exception) -> Response:
    """A problem as a page for a browser, as problem+json for everybody else."""
    problem = problems.of(error)
    if problem.slug == "internal":
        _log.error("request.failed", method=request.method, path=request.url.path[:200], exc_info=error)
    if not wants_page(request):
        answer = problem.response()
    elif problem.slug == "unauthenticated" and request.method == "GET":
        place = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        answer = shown(desk, request, "login", {"next": place, "error": ""}, status=problem.status)
    else:
        answer = shown(desk, request, "problem", problem.view(), status=problem.status)
    answer.headers.update({**problem.headers, **SECURITY_HEADERS})
    return _telling(desk, request, answer)


def _telling(desk: Desk, request: Request, answer: Response) -> Response:
    """The answer with what serves, unless it names the version of its job, and what is broken in it.

    A broken save shows where its author looks: in every answer, too. Strangers learn no names of files.
    """
    active = desk.registry.active
    if active is None or not caller_of(request).rights:
        return answer
    answer.headers.setdefault("Echo-Version", active.version)
    if active.errors:
        first = active.errors[0]
        where = quote(f"{first.file}:{first.line or '?'}:{first.column or '?'}", safe="/:? ")
        answer.headers["Echo-Load-Errors"] = f"{len(active.errors)}; {where}"
    return answer
