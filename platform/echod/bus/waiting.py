"""Who waits for which job to end. The settle of a job minted with our channel tells it; one subscription serves all.

Who waits for a job that somebody else minted asks the bus to be told, too. A lost message is made good: every waiter
looks at its job after a reconnect, and now and then; more often where the bus could not be asked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from contextlib import contextmanager

from echod.bus.bus import Bus
from echod.errors import BusError
from echod.model.ids import JobId
from echod.model.job import ENDED, Job

_LOOK_S = (0.05, 1.0)  # first and longest wait between two looks at a job whose news could not be asked for
_CHECK_S = 5.0  # between looks at any other: news can be lost with a connection


class Waiting:
    """The waiters of one process, by job."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._events: dict[str, set[asyncio.Event]] = {}
        self._closing = False
        self._forget = [
            bus.on("ended", self._ended),
            bus.on("connected", self._look_all),
            bus.on("hearing", self._look_all),
        ]

    def __len__(self) -> int:
        return sum(len(events) for events in self._events.values())

    def close(self) -> None:
        """Let all who wait go with what is known now, and stop listening: the server stops."""
        self._closing = True
        self._look_all()
        for forget in self._forget:
            forget()
        self._forget.clear()

    @contextmanager
    def expected(self, job: JobId) -> Generator[asyncio.Event]:
        """An event that is set when `job` ended, or may have. Enter before the mint: a job can be that quick."""
        event = asyncio.Event()
        events = self._events.setdefault(job, set())
        events.add(event)
        try:
            yield event
        finally:
            events.discard(event)
            if not events:
                self._events.pop(job, None)

    async def ended(self, job: JobId, queue: str, event: asyncio.Event, seconds: float, *, told: bool) -> Job | None:
        """The record of `job` once it ended, or None when it did not within `seconds`, is gone, or the bus cannot say.

        `told`: its news comes to us; else that is asked for.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        if not told:
            with contextlib.suppress(BusError):  # full, or away: it is looked at instead
                told = await self._bus.listen(queue, job) == "listening"
                if not told:
                    event.set()
        pause = _CHECK_S if told else _LOOK_S[0]
        while True:
            left = deadline - loop.time()
            try:
                async with asyncio.timeout(max(0.0, min(left, pause))):
                    await event.wait()
            except TimeoutError:
                pass
            event.clear()
            with contextlib.suppress(BusError):
                record = await self._bus.job(job, queue=queue)
                if record is None or record.state in ENDED:
                    return record
            if loop.time() >= deadline or self._closing:
                return None
            if not told:
                pause = min(pause * 2, _LOOK_S[1])

    def _ended(self, job: str, *_: object) -> None:
        for event in self._events.get(job, ()):
            event.set()

    def _look_all(self, *_: object) -> None:
        for events in self._events.values():
            for event in events:
                event.set()
