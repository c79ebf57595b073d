"""The one beat of a process: every 20 s it renews the node's lease and hears the news; at once after a reconnect, and
when a driven clock was moved, or a version is put to use that the last one did not name.

The answer goes to everybody who asked for it: the pump ticks by it, the registry learns of a switch that it missed. A
node whose lease ran out, because it was frozen for a minute, is leased another number by the bus and goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from echod.bus import Bus
from echod.bus.answers import BeatAnswer, Told
from echod.model.ids import VersionId
from echod.registry.duty import LONGEST_SLEEP_S, Loop, Report


class Beat:
    """Beats until cancelled, and tells `hear` each answer."""

    name = "beat"

    def __init__(
        self,
        bus: Bus,
        *,
        pump: bool,
        hear: Sequence[Callable[[BeatAnswer], object]],
        running: Callable[[], Sequence[VersionId]] = tuple,
        told: Callable[[], Told] = Told,
    ) -> None:
        self._bus = bus
        self._pump = pump
        self._hear = hear
        self._running = running
        self._told = told
        self._loop = Loop(self)

    def wake(self) -> None:
        """Beat at once: what this node needs has grown, and the bus keeps what it was told of; or it has news."""
        self._loop.wake()

    async def run(self) -> None:
        """Beat until cancelled."""
        forget = [self._bus.on(kind, lambda *_: self._loop.wake()) for kind in ("connected", "clock")]
        try:
            await self._loop.run()
        finally:
            for each in forget:
                each()

    async def turn(self) -> Report:
        """One beat."""
        answer = await self._bus.beat(pump=self._pump, running=self._running(), told=self._told())
        for hear in self._hear:
            hear(answer)
        return Report(sleep_s=LONGEST_SLEEP_S)
