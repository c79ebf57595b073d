"""What answers on the gateway's port while there is no bus to serve: alive, not ready, and why.

A node that started before its bus, or with a wrong password, stays up and says so. Exiting would have it started again
and again by whoever watches over it, with the reason lost between the starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from echod.errors import EchodError
from echod.gateway import problems

_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


class _Nothing:
    """In the place of the gateway's desk: nothing is open that had to be closed, and every request is taken."""

    intake = None

    def close(self) -> None: ...


def create_standby(trouble: Callable[[], EchodError], level: str) -> Starlette:
    """An app that answers for the gateway for as long as `trouble` lasts."""

    async def alive(request: Request) -> Response:
        return _json({"ok": True}, 200)

    async def ready(request: Request) -> Response:
        reasons = [f"bus: {trouble()}"]
        view = {"ready": False, "bus": False, "version": None, "sandbox": level, "degraded": [], "reasons": reasons}
        return _json(view, 503)

    async def other(request: Request) -> Response:
        return problems.of(trouble()).response()

    app = Starlette(
        routes=[Route("/healthz", alive), Route("/readyz", ready), Route("/{path:path}", other, methods=_METHODS)]
    )
    app.state.desk = _Nothing()
    return app


def _json(view: Mapping[str, object], status: int) -> Response:
    headers = {"Retry-After": "1"} if status == 503 else None
    return Response(msgspec.json.encode(view), status, headers, "application/json")
