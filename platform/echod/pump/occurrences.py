"""Due occurrences: what the policy decides about a backlog, carried out instant by instant, the oldest first.

Each instant gets its outcome by one `occur`, which compares (revision, due) and so takes it once, whichever pump asks
and however often. A rule that cannot be read or has no next instant is parked with its error; the others go on.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import lru_cache
from itertools import pairwise

import msgspec

from echod import log
from echod.bus import Bus
from echod.bus.answers import DueOccurrence, Outcome
from echod.errors import BusFull, Refused
from echod.model.job import NO_LANE
from echod.policy import catchup, jitter, places
from echod.policy.recurring import Rule, restored, rule_of
from echod.registry.registry import Registry
from echod.registry.schedules import GONE
from echofn.manifest import Recurring

_log = log.get("pump")
_payload = msgspec.msgpack.Decoder().decode
FULL_RETRY_MS = 1_000
UNREADABLE = "its row cannot be read; deploy or register it again"  # as lua/include/recover.lua says
OLDER_RETRY_MS = 1_000  # where the version that replaced it cannot be read, or its row not be written
MOST_KNOWN = 10_000  # recurrences
RETRY_MS = 100  # after an answer that we did not expect: no hot loop, whatever the bus holds


class Settled(msgspec.Struct, frozen=True):
    """What a turn made of one due recurrence. `next_in_ms`: until it is due again; 0 where it is already."""

    next_in_ms: int
    minted: int = 0
    missed: int = 0
    skipped: int = 0
    is_older: bool = False  # it waits to be written for the version that is active


class Occurrences:
    """Settles due occurrences; remembers the rules it has read."""

    def __init__(self, bus: Bus, registry: Registry) -> None:
        self._bus = bus
        self._registry = registry
        self._triggers: dict[tuple[str, str], tuple[int, bytes]] = {}

    def forget(self) -> None:
        """Rules may have been written anew."""
        self._triggers.clear()

    async def know(self, dues: list[DueOccurrence]) -> None:
        """Read the rows of recurrences that are due in a revision we have not seen."""
        if len(self._triggers) > MOST_KNOWN:  # schedules of run time come and go, and nobody says that one went
            self.forget()
        unknown: dict[str, list[str]] = {}
        for due in dues:
            if self._triggers.get((due.queue, due.recurrence), (-1,))[0] != due.revision:
                unknown.setdefault(due.queue, []).append(due.recurrence)
        for queue, names in unknown.items():
            for row in await self._bus.recurrences(queue, names=names):
                self._triggers[queue, row.name] = (row.revision, row.policy)

    async def settle(self, due: DueOccurrence, now_ms: int) -> Settled:
        """Give one recurrence's due instants, up to a bound, their outcomes."""
        revision, raw = self._triggers.get((due.queue, due.recurrence), (-1, b""))
        if revision != due.revision:
            return Settled(RETRY_MS)  # written or removed since the tick: the next one knows
        try:
            trigger, rule = _rule(raw)
            if await self._is_gone(due.queue):
                return await self._park(due, GONE)
            plan = catchup.plan(rule, due.due_ms, now_ms, missed=trigger.missed, cap=trigger.cap)
            lane = self._lane(due.queue, trigger)
        except (Refused, msgspec.MsgspecError, ValueError, ArithmeticError) as error:
            return await self._park(due, str(error))
        try:
            return await self._carry_out(due, trigger, plan, lane, now_ms)
        except BusFull as error:  # what is due stays due; promoting and recovering, which free memory, go on
            _log.warning("occurrence.put_off", queue=due.queue, recurrence=due.recurrence, error=str(error))
            return Settled(FULL_RETRY_MS)

    async def _carry_out(
        self, due: DueOccurrence, trigger: Recurring, plan: catchup.Plan, lane: str, now_ms: int
    ) -> Settled:
        instants = (*plan.mint, plan.next_ms)
        if plan.drop and (outcome := await self._drop(due, plan, instants[0])) != "dropped":
            return await self._older() if outcome == "older" else Settled(RETRY_MS)
        outcomes = await asyncio.gather(
            *(self._occur(due, trigger, instant_ms, next_ms, lane) for instant_ms, next_ms in pairwise(instants))
        )
        if "unreadable" in outcomes:
            return await self._park(due, UNREADABLE)
        minted, skipped = outcomes.count("minted"), outcomes.count("dropped")  # by its overlap
        if "older" in outcomes:
            return await self._older(minted, plan.drop, skipped)
        if "stale" in outcomes or not (plan.drop or plan.mint):
            return Settled(RETRY_MS, minted, plan.drop, skipped)
        return Settled(0 if plan.more else max(plan.next_ms - now_ms, 0), minted, plan.drop, skipped)

    async def _older(self, minted: int = 0, missed: int = 0, skipped: int = 0) -> Settled:
        """The news of a switch did not reach us: ask for it; its rules are written before anything more is settled."""
        with contextlib.suppress(Refused):
            await self._registry.refresh()
        return Settled(OLDER_RETRY_MS, minted, missed, skipped, is_older=True)

    async def _occur(self, due: DueOccurrence, trigger: Recurring, instant_ms: int, next_ms: int, lane: str) -> Outcome:
        occurred = await self._bus.occur(
            due.queue,
            due.recurrence,
            due.revision,
            instant_ms,
            next_ms=next_ms,
            job=self._bus.new_job_id(),
            lane=lane,
            at_ms=jitter.job_due(f"{due.queue}/{due.recurrence}", trigger, instant_ms),
        )
        return occurred.outcome

    async def _drop(self, due: DueOccurrence, plan: catchup.Plan, next_ms: int) -> Outcome:
        """The oldest instants are missed; not "dropped": another pump was here first, or another version."""
        occurred = await self._bus.occur(
            due.queue,
            due.recurrence,
            due.revision,
            due.due_ms,
            next_ms=next_ms,
            job=None,
            drop="missed",
            dropped=plan.drop,
            last_ms=plan.dropped_ms,
        )
        if occurred.outcome == "unreadable":
            await self._park(due, UNREADABLE)
        if occurred.outcome == "dropped":
            _log.warning("occurrence.missed", queue=due.queue, recurrence=due.recurrence, count=plan.drop)
        return occurred.outcome

    async def _park(self, due: DueOccurrence, error: str) -> Settled:
        _log.warning("recurrence.parked", queue=due.queue, recurrence=due.recurrence, error=error)
        await self._bus.park_recurrence(due.queue, due.recurrence, due.revision, error)
        return Settled(60_000)

    async def _is_gone(self, queue: str) -> bool:
        """Whether no function is there to run its jobs, asked of the bus before it is believed.

        What code has is removed with its function; a schedule registered at run time waits for it to come back.
        """
        if self._registry.active is None or self._registry.function(queue) is not None:
            return False
        await self._registry.refresh()
        return self._registry.function(queue) is None

    def _lane(self, queue: str, trigger: Recurring) -> str:
        """The lane that the payload names, by the function's policy of now."""
        function = self._registry.function(queue)
        return NO_LANE if function is None else places.lane_of(function.policy, _payload(trigger.payload))


@lru_cache(maxsize=MOST_KNOWN)
def _rule(raw: bytes) -> tuple[Recurring, Rule]:
    trigger = restored(raw)
    return trigger, rule_of(trigger)
