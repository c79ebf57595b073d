"""Due occurrences: what the policy decides about a backlog, carried out instant by instant, the oldest first.

Each instant gets its outcome by one `occur`, which compares (revision, due) and so takes it once, whichever pump asks
and however often. A rule that cannot be read or has no next instant is parked with its error; the others go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from functools import lru_cache
from itertools import pairwise

import msgspec

from echod import log
from echod.bus import Bus
from echod.bus.answers import DueOccurrence, Outcome
from echod.bus.occurring import CALL_OCCURRENCES
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
TOO_FAR = "an instant of it lies past all counting: its period or its jitter is too long; deploy or register it again"
OLDER_RETRY_MS = 1_000  # where the version that replaced it cannot be read, or its row not be written
MOST_KNOWN = 10_000  # recurrences
PARKED_MS = 60_000
FEW = 8  # instants that many backlogs may mint at once without holding up the loop
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
        self._stretches: dict[tuple[str, str], tuple[int, int, int]] = {}  # missed and not told: count, first, last
        self._backlogs = asyncio.Lock()

    def forget(self) -> None:
        """Rules may have been written anew."""
        self._triggers.clear()

    def tell_missed(self) -> None:
        """What was missed and not told yet, of backlogs that take longer, or that another pump goes on with."""
        for key in tuple(self._stretches):
            self._tell(key)

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

    async def settle(self, due: DueOccurrence, now_ms: int, until_s: float = math.inf) -> Settled:
        """Give one recurrence's due instants, up to a bound, their outcomes.

        Of backlogs one is planned at a time, beside the loop, and none from `until_s` of the loop's time on.
        """
        revision, raw = self._triggers.get((due.queue, due.recurrence), (-1, b""))
        if revision != due.revision:
            return Settled(RETRY_MS)  # written or removed since the tick: the next one knows
        try:
            if due.due_ms >= now_ms - catchup.GRACE_MS:
                return await self._carry_out(due, *_plan(raw, due.due_ms, now_ms), now_ms)
            return await self._catch_up(due, raw, now_ms, until_s)
        except (Refused, msgspec.MsgspecError, ValueError, ArithmeticError, RecursionError) as error:
            return await self._park(due, str(error))
        except BusFull as error:  # what is due stays due; promoting and recovering, which free memory, go on
            _log.warning("occurrence.put_off", queue=due.queue, recurrence=due.recurrence, error=str(error))
            return Settled(FULL_RETRY_MS)

    async def _catch_up(self, due: DueOccurrence, raw: bytes, now_ms: int, until_s: float) -> Settled:
        """What waits for the lock may wait no longer than a turn lasts: it is due still, and comes with the next."""
        is_first = not self._backlogs.locked()
        async with self._backlogs:
            if not is_first and asyncio.get_running_loop().time() >= until_s:
                return Settled(0)
            trigger, plan = await asyncio.to_thread(_plan, raw, due.due_ms, now_ms)
            if len(plan.mint) > FEW:
                return await self._carry_out(due, trigger, plan, now_ms)
        return await self._carry_out(due, trigger, plan, now_ms)

    async def _carry_out(self, due: DueOccurrence, trigger: Recurring, plan: catchup.Plan, now_ms: int) -> Settled:
        if await self._is_gone(due.queue):
            return await self._park(due, GONE)
        lane = self._lane(due.queue, trigger)
        instants = (*plan.mint, plan.next_ms)
        if plan.drop and (outcome := await self._drop(due, plan, instants[0])) != "dropped":
            return await self._unsettled(due, outcome)
        pairs, outcomes = list(pairwise(instants)), list[Outcome]()
        for start in range(0, len(pairs), CALL_OCCURRENCES):
            some = pairs[start : start + CALL_OCCURRENCES]
            outcomes += await asyncio.gather(*(self._occur(due, trigger, *pair, lane) for pair in some))
        minted, skipped = outcomes.count("minted"), outcomes.count("dropped")  # by its overlap
        for outcome in outcomes:
            if outcome not in ("minted", "already", "dropped"):
                return await self._unsettled(due, outcome, minted, plan.drop, skipped)
        if not (plan.drop or plan.mint):
            return Settled(RETRY_MS)
        return Settled(0 if plan.more else max(plan.next_ms - now_ms, 0), minted, plan.drop, skipped)

    async def _unsettled(
        self, due: DueOccurrence, outcome: Outcome, minted: int = 0, missed: int = 0, skipped: int = 0
    ) -> Settled:
        """Its rest is due still: it is damaged, or another version's, or another pump was here."""
        match outcome:
            case "unreadable" | "malformed":
                await self._park(due, UNREADABLE if outcome == "unreadable" else TOO_FAR)
                return Settled(PARKED_MS, minted, missed, skipped)
            case "older":
                return await self._older(minted, missed, skipped)
            case _:
                return Settled(RETRY_MS, minted, missed, skipped)

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
        if occurred.outcome == "dropped":
            self._missed(due, plan)
        return occurred.outcome

    def _missed(self, due: DueOccurrence, plan: catchup.Plan) -> None:
        """One line in the log for all that one backlog missed, however many pieces it came in."""
        key = due.queue, due.recurrence
        count, first_ms, _ = self._stretches.get(key, (0, due.due_ms, 0))
        self._stretches[key] = count + plan.drop, first_ms, plan.dropped_ms or due.due_ms
        if plan.mint or not plan.more:
            self._tell(key)

    def _tell(self, key: tuple[str, str]) -> None:
        count, first_ms, last_ms = self._stretches.pop(key)
        queue, recurrence = key
        told = {"count": count, "first": _utc(first_ms), "last": _utc(last_ms)}
        _log.warning("occurrence.missed", queue=queue, recurrence=recurrence, **told)

    async def _park(self, due: DueOccurrence, error: str) -> Settled:
        _log.warning("recurrence.parked", queue=due.queue, recurrence=due.recurrence, error=error)
        await self._bus.park_recurrence(due.queue, due.recurrence, due.revision, error)
        return Settled(PARKED_MS)

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


def _utc(at_ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_ms // 1000))


def _plan(raw: bytes, due_ms: int, now_ms: int) -> tuple[Recurring, catchup.Plan]:
    trigger, rule = _rule(raw)
    return trigger, catchup.plan(rule, due_ms, now_ms, missed=trigger.missed, cap=trigger.cap)


@lru_cache(maxsize=MOST_KNOWN)
def _rule(raw: bytes) -> tuple[Recurring, Rule]:
    trigger = restored(raw)
    return trigger, rule_of(trigger)
