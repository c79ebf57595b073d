"""GET /events: what open pages see change. One reader for all of them, and none while no page is open.

Each page holds only what it has not been sent yet, at most one picture of the functions and the occurrences since: a
slow page skips pictures, it does not make the others wait and it costs no memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import cast

from echod import log
from echod.errors import EchodError
from echod.gateway.sse import PING_S, Event
from echod.gateway.views import View

TURN_S = 1.0
_MOST_NEWS = 500  # occurrences that one page may lag behind
_log = log.get("gateway")

Picture = Callable[[], Awaitable[View]]


class _Page:
    """One open page."""

    def __init__(self) -> None:
        self.news: list[Event] = []
        self.picture: Event | None = None
        self.something = asyncio.Event()

    def tell(self, event: Event, *, picture: bool = False) -> None:
        if picture:
            self.picture = event
        else:
            self.news = [*self.news[-_MOST_NEWS:], event]
        self.something.set()

    def take(self) -> list[Event]:
        self.something.clear()
        events = [*self.news, self.picture] if self.picture else list(self.news)
        self.news, self.picture = [], None
        return [event for event in events if event]


class Live:
    """The pages that are open, and the reader that feeds them. `picture` makes the functions' object, with `now`."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self._pages: set[_Page] = set()
        self._reader: asyncio.Task[None] | None = None
        self._last: View | None = None
        self._closing = asyncio.Event()

    async def events(self) -> AsyncGenerator[Event | None, None]:
        """What one page is sent: the present state, then changes and pings, until the gateway closes."""
        page = _Page()
        self._pages.add(page)
        try:
            if self._last is not None:
                page.tell(_functions(self._last), picture=True)
            if self._reader is None:
                self._reader = asyncio.create_task(self._read())
            while not self._closing.is_set():
                try:
                    async with asyncio.timeout(PING_S):
                        await page.something.wait()
                except TimeoutError:
                    yield None
                for event in page.take():
                    yield event
        finally:
            self._pages.discard(page)
            if not self._pages and self._reader is not None:
                self._reader.cancel()
                self._reader = self._last = None

    def close(self) -> None:
        """End every page's stream: the server stops."""
        self._closing.set()
        for page in self._pages:
            page.something.set()

    async def _read(self) -> None:
        """A turn a second: read, tell what is new. A bus that is away is read again at the next turn."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                self._turn(await self._picture())
            except EchodError as error:
                _log.debug("picture.failed", error=str(error))
            await asyncio.sleep(max(0.0, began + TURN_S - loop.time()))

    def _turn(self, now: View) -> None:
        before, self._last = self._last, now
        for occurrence in _news(before, now):
            for page in self._pages:
                page.tell(Event("occurrence", occurrence))
        if before is None or {**before, "now": None} != {**now, "now": None}:
            for page in self._pages:
                page.tell(_functions(now), picture=True)


def _functions(picture: View) -> Event:
    return Event("functions", picture)


def _news(before: View | None, now: View) -> list[object]:
    """Occurrences that are jobs since the last picture, and those whose state changed."""
    if before is None:
        return []
    known = _occurrences(before)
    return [occurrence for occurrence in _occurrences(now) if occurrence not in known]


def _occurrences(picture: View) -> list[object]:
    return cast("list[object]", picture.get("occurrences", []))
