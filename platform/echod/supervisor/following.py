"""Following the registry: each function of the active version has a feed that serves it, again after each switch.

What cannot be had is said once for as long as it stays so, and tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from echod import log
from echod.errors import BusError, Refused
from echod.supervisor.feed import Feed
from echod.supervisor.means import Active, Means

_log = log.get("supervisor")

RETRY_S, RETRY_CAP_S = 1.0, 5.0  # until the next try to have a version that could not be had


class Following:
    """Fills `feeds`. `on_room` is called when it may have changed what can be claimed, `on_told` when `ails` did."""

    def __init__(
        self,
        means: Means,
        feeds: dict[str, Feed],
        *,
        is_draining: Callable[[], bool],
        on_room: Callable[[], None],
        on_told: Callable[[], None],
    ) -> None:
        self.ails: tuple[str, ...] = ()  # why the active version is not run here, or not whole
        self.wanted: set[str] = set()  # functions of the active version
        self._means, self._feeds = means, feeds
        self._is_draining, self._on_room, self._on_told = is_draining, on_room, on_told
        self._loop = asyncio.get_running_loop()
        self._switched = asyncio.Event()
        self._misses = 0  # tries in a row to serve the active version
        self._retry: asyncio.TimerHandle | None = None

    def look(self) -> None:
        """There may be another version."""
        self._switched.set()

    async def run(self) -> None:
        """Serve what is active, until cancelled."""
        registry = self._means.registry
        while True:
            await self._switched.wait()
            self._switched.clear()
            active = registry.active
            if active is None or self._is_draining():
                continue
            self.wanted = {function.name for function in active.manifest.functions}
            for name, feed in self._feeds.items():
                if name not in self.wanted:
                    feed.close()
            try:
                if self.wanted:
                    await registry.folder(active.version)  # once for all: without it none of them can run
            except (BusError, Refused) as error:
                for feed in self._feeds.values():
                    feed.close()
                failed = {str(error)}
            else:
                served = await asyncio.gather(*(self._serve(name, active) for name in sorted(self.wanted)))
                failed = {error for error in served if error}
            self._on_room()
            self._served(active, failed)

    def close(self) -> None:
        """Try nothing again."""
        if self._retry is not None:
            self._retry.cancel()

    async def _serve(self, name: str, active: Active) -> str | None:
        """Have a function's feed serve the active version. Why it cannot: then it claims nothing until it can."""
        function = next(each for each in active.manifest.functions if each.name == name)
        feed = self._feeds.get(name)
        if feed is None:
            feed = self._feeds[name] = Feed(name, self._means, self._on_room)
        was_closed = feed.closed
        try:
            await feed.serve(active, function)
        except (BusError, Refused) as error:
            feed.close()  # it would go on with the version before
            return str(error)
        if self._is_draining():
            feed.close()
        elif was_closed:
            feed.offer()  # what was rung before we listened
        return None

    def _served(self, active: Active, failed: set[str]) -> None:
        """Say what became of a switch here, once for as long as it stays so; try again where it failed."""
        self.close()
        self._misses = self._misses + 1 if failed else 0
        if failed:
            self._retry = self._loop.call_later(min(RETRY_S * self._misses, RETRY_CAP_S), self.look)
        ails = tuple(f"version {active.version} is not run here: {error}" for error in sorted(failed))
        if ails == self.ails:
            return
        for error in sorted(failed):
            _log.error("version.not_served", version=active.version, error=error)
        if not failed:
            _log.info("version.served", version=active.version)
        self.ails = ails
        self._on_told()
