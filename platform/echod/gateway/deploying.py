"""POST /deploy: a folder, packed, for the node to check and to serve. What it does with it is the node's part."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from echod.gateway.desk import Desk, answer
from echod.gateway.problems import Problem

MAX_ARCHIVE_BYTES = 25 * 1024 * 1024


async def deploy(desk: Desk, request: Request) -> Response:
    """Hand the archive over. Refused whole, with file and line, when anything in it is broken."""
    if isinstance(desk.deploy, str):
        raise Problem("no-deploys", desk.deploy)
    archive = await request.body()
    if not archive:
        raise Problem("invalid-body", "expected a packed folder, got an empty body; use `echod deploy FOLDER`")
    return answer(await desk.deploy(archive))
