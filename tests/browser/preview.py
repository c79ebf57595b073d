"""The pages over fixed sample data, without a bus: `python -m browser.preview PORT` in `tests/`, to look at them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from browser import sample
from echod.gateway import pages
from echod.gateway.sse import Event, encoded


async def page(request: Request) -> Response:
    name, view = sample.PAGES.get(request.url.path, ("problem", {"status": 404, "title": "Not here"}))
    html = pages.render(name, **view, now=sample.at(0), shell=sample.SHELL)
    return HTMLResponse(html, headers={"Content-Security-Policy": pages.CSP, **pages.HEADERS})


async def silence(request: Request) -> Response:
    """A stream that stays open and says nothing."""
    closing: asyncio.Event = request.app.state.closing

    async def nothing() -> AsyncIterator[bytes]:
        yield b"retry: 1000\n\n"
        await closing.wait()

    return StreamingResponse(nothing(), media_type="text/event-stream")


async def function_log(request: Request) -> Response:
    """Lines of two jobs, then nothing more."""
    closing: asyncio.Event = request.app.state.closing

    async def lines() -> AsyncIterator[bytes]:
        for line in sample.FUNCTION_LOG:
            yield encoded(Event("log", line))
        await closing.wait()

    return StreamingResponse(lines(), media_type="text/event-stream")


async def refuse(request: Request) -> Response:
    return JSONResponse({"title": "A preview does nothing"}, 400, media_type="application/problem+json")


app = Starlette(
    routes=[
        Route("/events", silence),
        Route("/jobs/{id}/logs", silence),
        Route("/functions/{name}/logs", function_log),
        Mount("/static", StaticFiles(directory=pages.STATIC)),
        Route("/{path:path}", page, methods=["GET"]),
        Route("/{path:path}", refuse, methods=["POST"]),
    ]
)


@contextlib.asynccontextmanager
async def previewing(port: int = 0) -> AsyncIterator[str]:
    """Serve for the length of the block; gives the address."""
    listening = socket.create_server(("127.0.0.1", port))
    app.state.closing = asyncio.Event()
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1))
    task = asyncio.create_task(server.serve([listening]))
    try:
        yield "http://{}:{}".format(*listening.getsockname())
    finally:
        app.state.closing.set()
        server.should_exit = True
        await task


async def main() -> None:
    async with previewing(int(sys.argv[1])) as url:
        print(url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
