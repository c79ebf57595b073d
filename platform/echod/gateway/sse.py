"""Server-sent events by hand: a screenful, and unlike a library's watcher it costs an idle process nothing.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

MEDIA_TYPE = "text/event-stream"
PING_S = 15.0  # a comment line, so that proxies and dead connections show


class Event(msgspec.Struct, frozen=True):
    """One event. `data` becomes JSON on one line; `id` is what a client sends back as Last-Event-ID."""

    name: str
    data: object
    id: str = ""


def encoded(event: Event) -> bytes:
    """An event as it goes over the wire."""
    lines = [f"id: {event.id}"] if event.id else []
    lines += [f"event: {event.name}", f"data: {msgspec.json.encode(event.data).decode()}", "", ""]
    return "\n".join(lines).encode()


Until = Callable[[], Coroutine[object, object, None]]


def streamed(request: Request, events: AsyncGenerator[Event | None, None], until: Until) -> Response:
    """The answer that sends `events` until they end, `until` returns, the client goes or the server stops.

    None among them is a ping.
    """
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    if request.method == "HEAD":
        return Response(headers=headers, media_type=MEDIA_TYPE)
    return StreamingResponse(_lines(events, until), headers=headers, media_type=MEDIA_TYPE)


async def _lines(events: AsyncGenerator[Event | None, None], until: Until) -> AsyncIterator[bytes]:
    yield b"retry: 1000\n\n"
    over = asyncio.create_task(until())
    step: asyncio.Future[Event | None] | None = None
    async with aclosing(events):
        try:
            while True:
                step = asyncio.ensure_future(anext(events))
                await asyncio.wait({step, over}, return_when=asyncio.FIRST_COMPLETED)
                if over.done():
                    return
                event = step.result()
                yield encoded(event) if event is not None else b": ping\n\n"
        except StopAsyncIteration:
            return
        finally:  # a generator can only be closed when no step of it is under way
            under_way = [task for task in (over, step) if task is not None and not task.done()]
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)


async def pausing(closing: asyncio.Event, seconds: float) -> None:
    """Wait, but no longer than until the server stops."""
    try:
        async with asyncio.timeout(seconds):
            await closing.wait()
    except TimeoutError:
        pass
