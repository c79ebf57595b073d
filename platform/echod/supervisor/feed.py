"""The feed of one queue: claims its jobs, hands them to workers, settles what became of them.

One call to the bus is out at a time. It settles everything that has ended and claims as much as the workers can hold,
and while it is out the workers run what the call before it brought. There is no task per job and no poll: a feed that
has nothing to do owns no task and no timer.

Verdicts are sent again until the bus confirms them, but never after the lease has expired by our clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from echod import log
from echod.bus.answers import ClaimAnswer
from echod.bus.clock import BEAT_S
from echod.errors import BusError, LeaseGone, Refused
from echod.model.ids import JobId
from echod.model.job import Claimed, Done, Verdict
from echod.policy import slots
from echod.supervisor import batches, outcomes
from echod.supervisor.crews import Crews
from echod.supervisor.leases import Book, Lease, granted, instant
from echod.supervisor.means import Active, Means
from echod.supervisor.pool import Pool
from echod.supervisor.runs import Runs
from echofn.manifest import Function

_log = log.get("supervisor")

SOON_S = 0.003
BACK_OFF_S = 0.1
BACK_OFF_CAP_S = 2.0


class Feed:
    """One queue on this node. `on_rung` is called when `rung` changed."""

    def __init__(self, queue: str, means: Means, on_rung: Callable[[], None]) -> None:
        self.queue = queue
        self.rung = False  # there may be jobs that we have not claimed
        self.closed = True  # nothing is claimed
        self.refused = 0  # settles that came too late
        self._means, self._on_rung = means, on_rung
        self._loop = asyncio.get_running_loop()
        self._runs = Runs(queue, means, self._poke, self._look_again)
        self._book = Book(queue, means, on_lost=self._runs.lost, on_cancelling=self._runs.cancel, on_tick=self._tick)
        self._offers = 0
        self._is_calling = False
        self._is_poked = False
        self._soon: asyncio.TimerHandle | None = None
        self._again: asyncio.TimerHandle | None = None
        self._away: asyncio.TimerHandle | None = None
        self._away_s = 0.0  # how long we wait after the last failed call
        self._pinned = 0  # jobs whose version is being fetched

    # ---- orders -------------------------------------------------------------------------------------------------

    def offer(self) -> None:
        """The bell rang, or it is time to look: there may be jobs."""
        self._offers += 1
        self._look_again()

    async def serve(self, active: Active, function: Function) -> None:
        """From the next claim on, serve this version. Raises BusError or Refused when it cannot be had."""
        await self._means.bus.configure(self.queue, function.policy, active.generation)
        await self.crews.switch(active, function)
        self.closed = False
        self._poke()

    def close(self) -> None:
        """Claim nothing more, begin nothing more; what runs may end."""
        self.closed = True
        self._set_rung(False)
        self.crews.retire()

    def kill(self) -> None:
        """End everything now and give it all back."""
        self.closed = True
        self._set_rung(False)
        self.crews.kill()

    def cancel(self, job: JobId) -> None:
        """News: somebody asked for a stop of this job."""
        lease = self._book.by_id(job)
        if lease is not None:
            self._runs.cancel(lease)

    def moved(self) -> None:
        """The base came up or went."""
        self._runs.moved()

    async def shut(self) -> None:
        """After the last worker is gone: no timer stays."""
        for timer in (self._soon, self._again, self._away):
            if timer is not None:
                timer.cancel()
        await self._book.close()
        await self._runs.shut()

    # ---- what the supervisor sees -------------------------------------------------------------------------------

    @property
    def crews(self) -> Crews:
        return self._runs.crews

    @property
    def is_full(self) -> bool:
        """Nobody here has hands for one more job."""
        return slots.wanted(self._load()) == 0

    @property
    def is_settled(self) -> bool:
        """Nothing is in our hands: every lease has gone back to the bus with a verdict."""
        return not self._book and not self._runs.verdicts and not self._is_calling and not self._pinned

    @property
    def is_idle(self) -> bool:
        """Settled, and no worker is left either."""
        return self.is_settled and self.crews.is_empty

    # ---- the call -----------------------------------------------------------------------------------------------

    def _poke(self) -> None:
        """Something changed: plan, once per turn of the loop."""
        if not self._is_poked and not self._is_calling and self._away is None:
            self._is_poked = True
            self._loop.call_soon(self._consider)

    def _consider(self, is_rested: bool = False) -> None:
        self._is_poked = False
        if self._is_calling or self._away is not None:
            return
        load = self._load()
        match slots.next_call(load, verdicts=len(self._runs.verdicts), rung=self.rung, closed=self.closed):
            case slots.Rest():
                return
            case slots.Soon() if not is_rested:
                if self._soon is None:
                    self._soon = self._loop.call_later(SOON_S, self._rested)
                return
            case slots.Soon():
                count = slots.wanted(load)
            case slots.Call(count):
                pass
        self._is_calling = True
        self._means.spawn(self._exchange(count))

    def _rested(self) -> None:
        self._soon = None
        self._consider(is_rested=True)

    def _load(self) -> slots.Load:
        return self.crews.load(self._runs.depth)

    async def _exchange(self, count: int) -> None:
        """One call: settle what ended, claim `count`."""
        sent, offers = instant(), self._offers
        going = self._next_verdicts(sent)
        bus, claimer, lease_ms = self._means.bus, self._means.claimer, self._means.lease_ms
        refused: Sequence[JobId] = ()
        answer: ClaimAnswer | None = None
        try:
            if going:
                verdicts = [verdict for _, verdict in going]
                settled = await bus.settle(self.queue, claimer, verdicts, count=count, lease_ms=lease_ms)
                refused, answer = settled.refused, settled.claim
            elif count:
                answer = await bus.claim(self.queue, claimer, count, lease_ms)
        except (BusError, LeaseGone, Refused) as error:  # what is refused was not settled: its leases end it
            self._is_calling = False
            self._runs.verdicts = going + self._runs.verdicts
            self._back_off(error)
            return
        self._is_calling = False
        self._away_s = 0.0
        self._settled(going, refused)
        if answer is not None:
            self._took(answer, count, sent, is_news_newer=self._offers != offers)
        self._poke()

    def _next_verdicts(self, now: float) -> list[tuple[Lease, Verdict]]:
        """What goes with this call, and out of the list: what is still ours to say, up to a bound."""
        self._book.expire(now)
        ours: list[tuple[Lease, Verdict]] = []
        for lease, verdict in self._runs.verdicts:
            if lease.lost:
                self._runs.drop(lease)
            else:
                ours.append((lease, verdict))
        count = outcomes.fitting([verdict for _, verdict in ours])
        self._runs.verdicts = ours[count:]
        return ours[:count]

    def _settled(self, going: list[tuple[Lease, Verdict]], refused: Sequence[JobId]) -> None:
        """The bus has these verdicts."""
        if refused:
            self.refused += len(refused)
            _log.warning("settle.refused", queue=self.queue, jobs=list(refused)[:10], count=len(refused))
        late = set(refused)
        for lease, verdict in going:
            self._book.remove(lease)
            if isinstance(verdict, Done) and verdict.children and lease.job.id not in late:
                self._means.fanout.send(self.queue, verdict.children)

    def _took(self, answer: ClaimAnswer, count: int, sent: float, *, is_news_newer: bool) -> None:
        """Jobs under our lease, or why there are none.

        There may be more than we asked for: of an answer lost before.
        """
        self._runs.limited = answer.limited
        if count:
            self._set_rung(not self.closed and (answer.turns >= count or is_news_newer))
            if answer.retry_in_ms is not None and not answer.jobs:
                self._ask_again(min(answer.retry_in_ms / 1000, BEAT_S))
        pool = self.crews.active
        assert pool is not None  # nothing is claimed before a version is served
        ours: list[Lease] = []
        for job in answer.jobs:
            since = granted(job, answer.now_ms, sent)
            if job.version is not None and job.version != pool.version:
                self._pinned += 1
                self._means.spawn(self._take_pinned(job, since, pool))
            else:
                ours.append(self._leased(job, pool, since))
        for lease in batches.joined(ours, pool.function.policy.batch):
            pool.waiting.append(lease)
        self._place()

    async def _take_pinned(self, job: Claimed, since: float, active: Pool) -> None:
        """A job that names its version runs on that version's workers; where they cannot exist it is dead."""
        assert job.version is not None
        lease = self._leased(job, active, since)
        lease.version = job.version
        try:
            pool = await self.crews.pinned(job.version)
        except Refused as error:
            self._runs.refused(lease, error)
        except BusError:
            self._runs.released([lease])
        else:
            if lease.lost:  # others may run it by now
                return
            lease.function = pool.function
            pool.waiting.append(lease)
            self._place()
        finally:
            self._pinned -= 1

    def _leased(self, job: Claimed, pool: Pool, since: float) -> Lease:
        lease = Lease(job, pool.function, pool.version, since, self._means.lease_ms / 1000)
        self._book.add(lease)
        return lease

    def _place(self) -> None:
        if self.closed:
            self.crews.retire()  # closed while the call was out: it all goes back
        self.crews.place(self._runs.depth)

    def _tick(self, now: float) -> None:
        self.crews.relieve(now)

    # ---- waits --------------------------------------------------------------------------------------------------

    def _look_again(self) -> None:
        """There may be jobs."""
        if not self.closed:
            self._set_rung(True)
            self._poke()

    def _ask_again(self, wait_s: float) -> None:
        if self._again is not None:
            self._again.cancel()
        self._again = self._loop.call_later(max(wait_s, 0.001), self.offer)

    def _back_off(self, error: Exception) -> None:
        """The bus is away. Runs go on; what they say waits, as long as their leases allow."""
        if not self._away_s:
            _log.warning("bus.away", queue=self.queue, verdicts=len(self._runs.verdicts), error=str(error))
        self._away_s = min(max(self._away_s * 2, BACK_OFF_S), BACK_OFF_CAP_S)
        self._away = self._loop.call_later(self._away_s * (0.5 + self._means.roll() / 2), self._retry)

    def _retry(self) -> None:
        self._away = None
        self._look_again()
        self._poke()

    def _set_rung(self, rung: bool) -> None:
        if rung != self.rung:
            self.rung = rung
            self._on_rung()
