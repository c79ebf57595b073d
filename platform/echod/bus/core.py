"""What every family of verbs stands on: the link, the scripts, the keys, the clock, and the names of queues."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import secrets
from typing import Any

from echod.bus import keys as key_names
from echod.bus.clock import BusClock, IdMaker, StepWatch
from echod.bus.link import Link
from echod.bus.scripts import PREFIX, Script, library
from echod.bus.wire import Argument
from echod.errors import BusError, BusFull

PLACES_REMEMBERED = 10_000
RELIEF_ROWS = 500  # a step
RELIEF_PAUSE_S = 0.01
RELIEF_REST_S = 1.0
ROOM = 0.95  # of the limit: else the next mint fills it again


class Core:
    """Shared state of one Bus."""

    link: Link
    wait_channel: str

    def __init__(self, app: str, *, driven: bool) -> None:
        self.keys = key_names.Keys(app)
        self.clock = BusClock()
        self.ids = IdMaker(self.clock)
        self.steps = StepWatch()
        self.driven = driven  # this process's scripts add what drives the clock to TIME
        self.scripts = library(driven=driven)
        self.token = str(secrets.randbits(47) + 1)  # tells this process's mints from another's; never '0'
        self._bases: dict[str, str] = {}
        self._names: dict[str, str] = {}  # escaped → as people write it
        self._places: collections.OrderedDict[str, str] = collections.OrderedDict()
        self._relieving: asyncio.Task[None] | None = None

    async def run(self, verb: str, queue: str | None = None, /, **arguments: Argument) -> Any:
        """A verb's reply; arguments are bound by the names in its header."""
        return await self.run_script(self.scripts[verb], queue, arguments)

    async def run_script(
        self,
        script: Script,
        queue: str | None,
        arguments: dict[str, Argument],
        resent: dict[str, Argument] | None = None,
    ) -> Any:
        again = script.bound(resent) if resent else None
        try:
            return await self.link.script(script, self.keys_of(queue), script.bound(arguments), again)
        except BusFull:
            self.relieve()
            raise

    def keys_of(self, queue: str | None) -> tuple[str, str]:
        """The two keys of every script: a queue's base, or the global one in its place, and the global one."""
        return (self.base(queue) if queue is not None else self.keys.everywhere, self.keys.everywhere)

    def relieve(self) -> None:
        """Memory is out: make room, in the background."""
        if self._relieving is None or self._relieving.done():
            self._relieving = asyncio.create_task(self._relieve(), name="bus-relief")

    async def _relieve(self) -> None:
        """Let archives give way until there is room; if the server does not answer, the next -OOM tries again."""
        with contextlib.suppress(BusError):
            used, limit, cursor, of_round = 1, 1, b"0", 0
            while limit and used >= limit * ROOM:
                trimmed, used, limit, cursor = await self.link.script(
                    self.scripts["relieve"], self.keys_of(None), [RELIEF_ROWS, cursor]
                )
                of_round += trimmed
                is_over = cursor == b"0"
                await asyncio.sleep(RELIEF_REST_S if is_over and not of_round else RELIEF_PAUSE_S)
                of_round = 0 if is_over else of_round

    async def libraries(self) -> frozenset[bytes]:
        """Verbs that the server has, of any version of this program."""
        found = await self.link.command("FUNCTION", "LIST", "LIBRARYNAME", f"{PREFIX}*")
        return frozenset(library[1] for library in found)

    async def close(self) -> None:
        """End what runs beside the calls."""
        if self._relieving is not None:
            self._relieving.cancel()
            await asyncio.gather(self._relieving, return_exceptions=True)

    def base(self, queue: str) -> str:
        base = self._bases.get(queue)
        if base is None:
            if len(self._bases) > PLACES_REMEMBERED:
                self._bases.clear()
                self._names.clear()
            base = self._bases[queue] = self.keys.queue(queue)
            if (escaped := key_names.escape(queue)) != queue:
                self._names[escaped] = queue
        return base

    async def name_of(self, escaped: str) -> str:
        """A queue's name as people write it."""
        if escaped[:1] != "~":
            return escaped
        if escaped not in self._names:
            await self.queues()
        return self._names.get(escaped, escaped)

    async def queues(self) -> list[str]:
        """Every queue that ever had a job, a rule or a policy."""
        flat: list[bytes] = await self.link.command("HGETALL", self.keys.queues)
        names = {flat[at].decode(): flat[at + 1].decode("utf-8", "surrogatepass") for at in range(0, len(flat), 2)}
        self._names.update((escaped, name) for escaped, name in names.items() if escaped != name)
        return sorted(names.values())

    def remember_place(self, job: str, queue: str) -> None:
        self._places[job] = queue
        if len(self._places) > PLACES_REMEMBERED:
            self._places.popitem(last=False)

    def place_of(self, job: str) -> str | None:
        return self._places.get(job)
