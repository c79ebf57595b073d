"""The pump of a node: at each instant that the bus named it ticks, and gives what is due its outcome.

Owns no clock and no state that matters: what is due, and until when to sleep, the bus answers; a pump killed between
any two calls leaves nothing that another one, or the next tick, does not find. Any number of pumps may run: the first
by rank ticks at the due instant, the others a little later and mostly find nothing to do. There is no leader.

It hears of an earlier instant by the news ("due"), of a new version by the registry, and of whatever news was lost by
the beat, which is the node's and is told to `heard`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from echod import log
from echod.bus import Bus
from echod.bus.answers import BeatAnswer, DueOccurrence, TickAnswer
from echod.bus.timing import TICK_LIMIT
from echod.errors import BusAway, BusError, BusUnfit, Refused
from echod.pump.agenda import Agenda, rank_delay_s
from echod.pump.convergence import converge
from echod.pump.occurrences import Occurrences, Settled
from echod.pump.outbox import Outbox
from echod.pump.setbacks import Setbacks
from echod.registry.duty import LONGEST_SLEEP_S, Loop, Report
from echod.registry.registry import Registry

_log = log.get("pump")
T = TypeVar("T")

TICKS_AT_ONCE = 16
OCCURRENCES_AT_ONCE = 256
CATCHING_UP_S = 0.25  # of a turn; then others are ticked, and promoted, before it goes on
PUT_OFF_S = 1.0  # a queue that has a fault of its own
CONVERGENCE_PAUSE_S = 5.0


class Pump:
    """Made inside the running loop. `run` until `stop`; tell `heard` each answer of the node's beat."""

    name = "pump"

    def __init__(self, bus: Bus, registry: Registry) -> None:
        self._bus = bus
        self._registry = registry
        self._occurrences = Occurrences(bus, registry)
        self._setbacks = Setbacks()
        self._outbox = Outbox(bus, self._setbacks)
        self._agenda = Agenda()
        self._delay_s = 0.0
        self._beat: TickAnswer | None = None  # the latest that no turn has seen yet
        self._converged: tuple[str, int] | None = None  # version and generation
        self._older: set[str] = set()  # queues with dues that wait for that
        self._converge_at_s = 0.0  # not before, after it was refused
        self._loop = Loop(self)

    def heard(self, answer: BeatAnswer) -> None:
        """What the beat found: our rank, dues, when each queue is next to be ticked, children left behind."""
        self._delay_s = rank_delay_s(answer.rank)
        for queue, next_in_ms in answer.next_in_ms.items():
            self._tick_in(queue, next_in_ms)
        self._tell(answer.tick)
        self._beat = answer.tick
        self._outbox.heard(answer.unsent)
        if answer.tick.more:
            for queue in answer.queues:
                self._agenda.bring_forward(queue, self._now_s())
        self._loop.wake()

    def stop(self) -> None:
        """End after the turn that runs now."""
        self._loop.stop()

    async def run(self) -> None:
        """Pump until `stop` or cancelled."""
        forget: list[Callable[[], None]] = [
            self._bus.on("due", self._due),
            self._bus.on("connected", self._reconnected),
            self._registry.on_change(self._loop.wake),
        ]
        try:
            await self._loop.run()
        finally:
            for each in forget:
                each()
            self._occurrences.tell_missed()

    async def turn(self) -> Report:
        """Tick what has come, converge where the version is new, settle what is due, sweep what was left.

        What one queue or one rule fails of is put off alone. Raises what would fail for all: the bus is away.
        """
        ticks = await self._ticks()
        try:
            changed = await self._converge()
            settled = await self._settle(ticks)
        except BaseException:
            self._ask_again(ticks)
            raise
        swept = await self._outbox.sweep()
        did = {
            "changed": changed,
            "promoted": sum(tick.promoted for tick in ticks),
            "recovered": sum(tick.recovered for tick in ticks),
            **settled,
            "swept": swept,
        }
        return self._report(did)

    async def _ticks(self) -> Sequence[TickAnswer]:
        """What the beat told, or else what queues answer whose time has come; both would name the same dues twice."""
        if self._beat is not None:
            told, self._beat = self._beat, None
            self._setbacks.beaten()
            self._occurrences.tell_missed()
            return (told,)
        queues = self._agenda.take(self._now_s(), TICKS_AT_ONCE)
        try:
            # They reach the server in one read, which nobody else comes between: together they do what one does.
            answers = await asyncio.gather(
                *(self._alone(each, self._tick(each, TICK_LIMIT // len(queues))) for each in queues)
            )
            return [tick for answer in answers for tick in answer]
        except BaseException:
            for queue in queues:
                self._agenda.bring_forward(queue, self._now_s())
            raise

    async def _converge(self) -> int:
        active = self._registry.active
        if active is None or self._converged == (active.version, active.generation):
            return 0
        if self._now_s() < self._converge_at_s:
            return 0
        try:
            changed = await converge(self._bus, active)
        except (BusAway, BusUnfit):
            raise
        except (BusError, Refused) as error:  # a full server, or one queue: the others' dues have come all the same
            _log.warning("convergence.put_off", error=str(error))
            self._converge_at_s = self._now_s() + CONVERGENCE_PAUSE_S
            return 0
        self._occurrences.forget()
        self._converged = (active.version, active.generation)
        older, self._older = self._older, set()
        for queue in {*changed, *older}:  # the scripts tell of an earlier instant, but news can be lost
            self._agenda.bring_forward(queue, self._now_s())
        return len(changed)

    async def _tick(self, queue: str, limit: int) -> TickAnswer:
        answer = await self._bus.tick(queue, limit)
        self._tell(answer)
        if answer.more:
            self._agenda.bring_forward(queue, self._now_s())
        elif answer.next_in_ms is not None:
            self._tick_in(queue, answer.next_in_ms)
        return answer

    async def _alone(self, queue: str, work: Awaitable[T]) -> list[T]:
        """What work on a queue answers; where it has a fault of its own nothing, and it is ticked a second later."""
        answer = await self._setbacks.alone(queue, work)
        if not answer:
            self._agenda.bring_forward(queue, self._now_s() + PUT_OFF_S)
        return answer

    async def _settle(self, ticks: Sequence[TickAnswer]) -> dict[str, int]:
        """Outcomes for all that is due; how many were minted, how many missed, how many skipped."""
        did = {"minted": 0, "missed": 0, "skipped": 0}
        due = [(each, tick.now_ms) for tick in ticks for each in tick.due]
        by_queue: dict[str, list[DueOccurrence]] = {}
        for each, _ in due:
            by_queue.setdefault(each.queue, []).append(each)
        known = {queue for queue, dues in by_queue.items() if await self._alone(queue, self._occurrences.know(dues))}
        due = [(each, now_ms) for each, now_ms in due if each.queue in known]
        until_s = self._now_s() + CATCHING_UP_S
        for start in range(0, len(due), OCCURRENCES_AT_ONCE):
            some = due[start : start + OCCURRENCES_AT_ONCE]
            answers = await asyncio.gather(
                *(self._alone(each.queue, self._settle_one(each, now_ms, until_s)) for each, now_ms in some)
            )
            for settled in (settled for answer in answers for settled in answer):
                did["minted"] += settled.minted
                did["missed"] += settled.missed
                did["skipped"] += settled.skipped
        return did

    async def _settle_one(self, due: DueOccurrence, now_ms: int, until_s: float) -> Settled:
        settled = await self._occurrences.settle(due, now_ms, until_s)
        if settled.is_older:
            self._older.add(due.queue)
        self._tick_in(due.queue, settled.next_in_ms)
        return settled

    def _tell(self, tick: TickAnswer) -> None:
        if tick.stepped_ms:
            _log.warning(
                "clock.stepped", by_ms=tick.stepped_ms if tick.stepped_ms > 0 else None, outage=tick.stepped_ms < 0
            )
        if tick.recovered:
            _log.warning("leases.recovered", count=tick.recovered)

    def _report(self, did: dict[str, int]) -> Report:
        if self._beat is not None or self._outbox:
            return Report(more=True, did=did)
        now_s, soonest_s = self._now_s(), self._agenda.soonest()
        sleep_s = LONGEST_SLEEP_S if soonest_s is None else soonest_s - now_s
        if self._converge_at_s > now_s:
            sleep_s = min(sleep_s, self._converge_at_s - now_s)
        return Report(more=sleep_s <= 0, sleep_s=sleep_s, did=did)

    def _ask_again(self, ticks: Sequence[TickAnswer]) -> None:
        """What these ticks answered as due is due still."""
        for tick in ticks:
            for due in tick.due:
                self._agenda.bring_forward(due.queue, self._now_s())

    def _due(self, queue: str, in_ms: int) -> None:
        """The news of an earlier instant."""
        if self._tick_in(queue, in_ms):
            self._loop.wake()

    def _reconnected(self, *_: object) -> None:
        """A server that was away may have come back with less: what belongs there is written again."""
        self._converged = None
        self._loop.wake()

    def _tick_in(self, queue: str, in_ms: int) -> bool:
        if in_ms > 0 and self._bus.clock.frozen:
            return False  # the clock stands still: nothing comes before somebody moves it, and the beat is told then
        return self._agenda.bring_forward(queue, self._now_s() + in_ms / 1000 + self._delay_s)

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()
