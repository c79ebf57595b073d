"""Who may run what until when: the leases of one queue, extended from outside the handlers.

Every lease in our hands is extended at a third of its length, whether its job has begun or not, until its verdict is
with the bus. Whatever has run for a moment is marked begun, so that the bus can tell a lost run from a job that
nobody touched. Our own clock only ever takes a lease away early: it counts from before the call that granted it and
goes on through a suspended machine, so that a node which was frozen gives up what others may already run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

from echod import log
from echod.errors import BusError
from echod.model.ids import JobId, VersionId
from echod.model.job import Claimed, Hold
from echod.supervisor.channel import Fault
from echod.supervisor.children import MAX_BYTES
from echofn import frames
from echofn.manifest import Function

if TYPE_CHECKING:
    from echod.supervisor.means import Means
    from echod.supervisor.worker import Worker

_log = log.get("supervisor")
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
TICK_S = 0.4
MARK_AFTER_S = 0.2  # a run shorter than this is told by its verdict alone
MOST_PER_CALL = 500


def instant() -> float:
    """Seconds on a clock of this machine that never steps and does not stop in a suspend."""
    return time.clock_gettime(_CLOCK)


def granted(job: Claimed, now_ms: int, sent: float) -> float:
    """The latest instant at which the lease can have begun: when the call was sent, less the age that the bus reports.

    An answer that was lost and asked for again tells of a claim that is older than the call.
    """
    return sent - max(now_ms - job.claimed_ms, 0) / 1000


class Lease:
    """A claimed job in our hands. `settling`: its verdict is known, nothing may change it any more.

    `index`, `deadline`, `extensions`, `told`, `listens` and `withdrawn` are its worker's: where it stands there, when
    to do something about it (on the loop's clock), how often it asked for more time, why it was asked to end, whether
    it hears that, whether it was asked back before it began. In a batch these are its `lead`'s, which carries the
    `others` and gathers the parts of the answer.
    """

    __slots__ = (
        "began_ms", "begun", "cancelling", "deadline", "extensions", "first_child", "function", "granted", "hold",
        "index", "job", "lead", "listens", "lost", "marked", "others", "output_bytes", "parts", "parts_bytes",
        "progress_count",
        "settling", "told", "until", "version", "withdrawn", "worker",
    )  # fmt: skip

    def __init__(self, job: Claimed, function: Function, version: VersionId, granted: float, lease_s: float) -> None:
        self.job = job
        self.hold = Hold(job.id, job.attempts, job.holder)
        self.function = function
        self.version = version
        self.granted = granted
        self.until = granted + lease_s
        self.begun: float | None = None
        self.began_ms = 0  # the same on the bus's clock, which may be driven on meanwhile; for people
        self.first_child = 0
        self.progress_count = 0
        self.output_bytes = 0  # written so far, what was dropped included
        self.marked = False
        self.settling = False
        self.cancelling = False
        self.lost = False
        self.worker: Worker | None = None  # who has it in hand
        self.index = 0
        self.deadline = 0.0
        self.extensions = 0
        self.told: Literal["timeout", "cancelled"] | None = None
        self.listens = False
        self.withdrawn = False
        self.lead = self
        self.others: tuple[Lease, ...] = ()
        self.parts: dict[int, frames.Part] = {}
        self.parts_bytes = 0

    @property
    def members(self) -> tuple[Lease, ...]:
        """All that run as one, itself first."""
        return (self, *self.others)

    @property
    def is_lost(self) -> bool:
        """Nobody of those that run as one is ours any more."""
        return all(member.lost for member in self.members)

    @property
    def is_cancelling(self) -> bool:
        """A stop was asked for, of each of those that run as one."""
        return all(member.cancelling or member.lost for member in self.members) and not self.is_lost

    def hear(self, part: frames.Part) -> None:
        """How one job of this batch ends. Raises Fault for what no honest worker sends."""
        if not 0 <= part.member < len(self.members) or self.function.policy.batch is None:
            raise Fault(f"expected the end of one of {len(self.members)} jobs of a batch, got of {part.member}")
        if part.member in self.parts:
            raise Fault(f"expected one end of a job, got two of {part.member}")
        self.parts_bytes += len(part.result) + sum(len(child.payload) for child in part.children)
        if self.parts_bytes > frames.MAX_RESULTS_BYTES + MAX_BYTES:
            raise Fault(f"expected at most {frames.MAX_RESULTS_BYTES} bytes of results of a batch, got more")
        self.parts[part.member] = part


class Book:
    """The leases of one queue. One timer while there are any, none otherwise; one extend call at a time.

    However many are due, one call follows the other until all are extended: what a node can hold is not for the timer
    to say.
    """

    def __init__(
        self,
        queue: str,
        means: Means,
        *,
        on_lost: Callable[[Lease], None],
        on_cancelling: Callable[[Lease], None],
        on_tick: Callable[[float], None],
    ) -> None:
        self._queue, self._bus, self._lease_ms = queue, means.bus, means.lease_ms
        self._spawn = means.spawn
        self._on_lost, self._on_cancelling, self._on_tick = on_lost, on_cancelling, on_tick
        self._leases: set[Lease] = set()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._extending: asyncio.Task[None] | None = None
        self._tick_s = min(TICK_S, means.lease_ms / 6000)

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[Lease]:
        return iter(tuple(self._leases))

    def add(self, lease: Lease) -> None:
        """From now on it is extended."""
        self._leases.add(lease)
        if self._timer is None:
            self._timer = self._loop.call_later(self._tick_s, self._tick)

    def remove(self, lease: Lease) -> None:
        """Its verdict is with the bus, or it is not ours any more."""
        self._leases.discard(lease)

    def by_id(self, job: JobId) -> Lease | None:
        """The lease of a job, if we hold one."""
        return next((lease for lease in self._leases if lease.job.id == job), None)

    async def close(self) -> None:
        """Extend nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._extending is not None:
            self._extending.cancel()
            await asyncio.gather(self._extending, return_exceptions=True)

    def expire(self, now: float) -> None:
        """Give up what others may run by now. What was settled meanwhile but is not with the bus yet goes too."""
        for lease in [lease for lease in self._leases if lease.until <= now]:
            _log.warning("lease.expired", queue=self._queue, job=lease.job.id, begun=lease.begun is not None)
            self._lose(lease)

    def _tick(self) -> None:
        self._timer = None
        if not self._leases:
            return
        now = instant()
        self.expire(now)
        self._on_tick(now)
        if self._extending is None:
            due = self._due(now)
            if due:
                self._extending = self._spawn(self._extend_all(due))
        if self._leases:
            self._timer = self._loop.call_later(self._tick_s, self._tick)

    def _due(self, now: float) -> list[Lease]:
        """What to extend or to mark as begun; the oldest first, for a mark can wait and a lease cannot."""
        third = self._lease_ms / 3000
        aged = sorted(
            (lease for lease in self._leases if now - lease.granted >= third), key=lambda lease: lease.granted
        )
        seen = set(aged)
        return aged + [lease for lease in self._leases if lease not in seen and _to_mark(lease, now)]

    async def _extend_all(self, due: list[Lease]) -> None:
        """Some at a time. A call that fails ends it: the next tick begins with what is oldest by then."""
        sent = 0
        try:
            while sent < len(due):
                # Those that have not ended meanwhile.
                still = [lease for lease in due[sent : sent + MOST_PER_CALL] if lease in self._leases]
                if still:
                    await self._extend(still)
                sent += MOST_PER_CALL
        except BusError as error:
            _log.warning("lease.not_extended", queue=self._queue, leases=len(due) - sent, error=str(error))
        finally:
            self._extending = None

    async def _extend(self, leases: list[Lease]) -> None:
        sent = instant()
        begun = [lease for lease in leases if _to_mark(lease, sent)]
        answer = await self._bus.extend(
            self._queue,
            [lease.hold for lease in leases],
            self._lease_ms,
            begun=[lease.hold for lease in begun],
            began_ms=[lease.began_ms for lease in begun],
        )
        for lease in begun:
            lease.marked = True
        lost, cancelling = set(answer.lost), set(answer.cancelling)
        for lease in leases:
            if lease not in self._leases:
                continue
            if lease.job.id not in lost:
                lease.granted, lease.until = sent, sent + self._lease_ms / 1000
            elif not lease.settling:  # a verdict on its way ended the claim before this call: no loss
                _log.warning("lease.lost", queue=self._queue, job=lease.job.id)
                self._lose(lease)
            if lease.job.id in cancelling and not lease.settling:
                self._on_cancelling(lease)

    def _lose(self, lease: Lease) -> None:
        self._leases.discard(lease)
        lease.lost = True
        self._on_lost(lease)


def _to_mark(lease: Lease, now: float) -> bool:
    """Whether the bus does not know yet that this runs, and no verdict is about to tell it."""
    if lease.marked or lease.settling or lease.begun is None:
        return False
    return now - lease.begun >= MARK_AFTER_S
