"""Workers of a version made ready before it is switched to: what the deployer asks for, and what it is told.

A call is answered when all that could be started has, or failed to; `Crews` lets the workers go again where no switch
comes. Nothing depends on an answer: a deployer waits for a while, and switches (decision 0040).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from echod import log
from echod.errors import BusError, Refused
from echod.model.ids import VersionId
from echod.supervisor.feed import Feed
from echod.supervisor.means import Versions

_log = log.get("supervisor")

LOOK_S = 0.02
WITHIN_S = 10.0
REMEMBERED = 8  # calls


class Warming:
    """What was asked for lately, and how far it is. `on_told` is called when that changed."""

    def __init__(self, registry: Versions, feeds: Mapping[str, Feed], on_told: Callable[[], None]) -> None:
        self._registry, self._feeds, self._on_told = registry, feeds, on_told
        self._under_way: list[str] = []
        self._answered: list[str] = []

    @property
    def told(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The calls under way, and the last that were answered."""
        return tuple(self._under_way[-REMEMBERED:]), tuple(self._answered)

    async def make(self, version: VersionId, call: str) -> None:
        """Have as many workers of `version` ready as there are of what is served now, function by function."""
        self._under_way.append(call)
        self._on_told()
        try:
            async with asyncio.timeout(WITHIN_S):
                await self._made(version)
        except (BusError, Refused) as error:
            _log.warning("version.not_warmed", version=version, error=str(error))
        except TimeoutError:
            _log.info("version.not_warmed", version=version, error=f"its workers take longer than {WITHIN_S:g} s")
        self._under_way.remove(call)
        self._answered = [*self._answered, call][-REMEMBERED:]
        self._on_told()

    async def _made(self, version: VersionId) -> None:
        manifest = await self._registry.manifest(version)
        if manifest is None:
            return
        for function in manifest.functions:
            feed = self._feeds.get(function.name)
            if feed is not None and not feed.closed:
                await feed.crews.warm(version, function, manifest.package)
        while True:
            if not any(feed.crews.is_warming(version) for feed in self._feeds.values()):
                return
            await asyncio.sleep(LOOK_S)
