"""A driven clock: the bus's time moved on, stopped, or let run again. Only `dev --clock` and `echofn.testing` have one.

The place is in the bus (`clock`), and the one include by which scripts read the time adds it. Every bus that hears the
news of a move follows with its own estimate; the beat, which hears it too, ticks at once.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from echod.bus.clock import monotonic_ms
from echod.bus.core import Core
from echod.bus.rows import NEVER_MS
from echod.bus.wire import Argument
from echod.errors import Refused

Action = Literal["read", "to", "freeze", "thaw", "start"]
FURTHEST_MS = 20 * 366 * 86_400_000  # past it ids run out of bits, and nobody means it


class Driven(msgspec.Struct, frozen=True):
    """Where the clock is, and whether it stands still."""

    now_ms: int
    frozen: bool


class Driving(Core):
    """clock."""

    async def drive(self, action: Action = "read", to_ms: int = 0) -> Driven:
        """Move the clock (`to` an instant, never back), `freeze` it or let it go on (`thaw`); where it is then.

        `start` stands still at `to_ms`, whatever was before: for an empty bus. Raises Refused on a bus whose clock is
        the server's own, and for an instant that is years ahead.
        """
        if not self.driven:
            raise Refused("expected a driven clock, got the server's own; `echod dev --clock` has one to drive")
        if action == "to" and to_ms > self.clock.now_ms() + FURTHEST_MS:
            raise Refused("expected an instant at most 20 years ahead")
        sent_ms = monotonic_ms()
        now_ms, frozen = await self.run("clock", action=action, to_ms=to_ms)
        if action != "read":
            self.steps.driven()
        self.clock.hear(now_ms, sent_ms)
        self.clock.frozen = bool(frozen)
        return Driven(now_ms, bool(frozen))

    async def next_event(self) -> tuple[int, tuple[str, ...]] | None:
        """The next instant at which something falls due, and the queues where it does; None where nothing waits.

        What is due already is not next: it is the pump's.
        """
        now_ms = self.clock.now_ms()
        queues = await self.queues()
        calls: list[tuple[Argument, ...]] = [
            ("ZRANGE", f"{self.base(queue)}{key}", f"({now_ms}", f"({NEVER_MS}", "BYSCORE", "LIMIT", 0, 1, "WITHSCORES")
            for queue in queues
            for key in ("repeat", "schedule", "later")
        ]
        found = await self.link.commands(calls)
        dues = [(int(float(first[1])), queues[index // 3]) for index, first in enumerate(found) if first]
        if not dues:
            return None
        soonest = min(at_ms for at_ms, _ in dues)
        return soonest, tuple(sorted({queue for at_ms, queue in dues if at_ms == soonest}))

    async def overdue(self) -> int:
        """How many instants have come that no pump has dealt with yet."""
        now_ms = self.clock.now_ms()
        calls: list[tuple[Argument, ...]] = [
            ("ZCOUNT", f"{self.base(queue)}{key}", "-inf", now_ms)
            for queue in await self.queues()
            for key in ("repeat", "schedule", "later")
        ]
        return sum(await self.link.commands(calls))

    def heard_clock(self, now_ms: int, frozen: int) -> None:
        """The news of a move. It may come after the answer to a later one: a clock that stands still goes by that."""
        self.steps.driven()
        if not self.clock.frozen or now_ms > self.clock.now_ms():
            self.clock.hear(now_ms, monotonic_ms())
        self.clock.frozen = bool(frozen)


def driven_ms(time: list[bytes], setting: bytes | None) -> int:
    """The bus's instant from the replies to TIME and to GET of the clock's key, as the scripts' include makes it."""
    server_ms = int(time[0]) * 1000 + int(time[1]) // 1000
    if setting is None:
        return server_ms
    return int(setting[1:]) if setting[:1] == b"=" else server_ms + int(setting)
