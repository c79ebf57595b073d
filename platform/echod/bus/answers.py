"""What the bus's verbs answer, as values."""

from __future__ import annotations

from typing import Literal

import msgspec

from echod.model.ids import JobId, VersionId
from echod.model.job import Claimed
from echod.policy.recurring import Standing, restored
from echofn.manifest import Recurring

Blocked = Literal["empty", "paused", "capped", "full"]
Outcome = Literal["minted", "already", "dropped", "stale", "unreadable", "older", "malformed"]


class ClaimAnswer(msgspec.Struct, frozen=True):
    """Jobs under our lease; where there are none, why, and when to ask again at the latest (None: the bell rings)."""

    now_ms: int
    jobs: tuple[Claimed, ...]
    blocked: Blocked | None = None
    retry_in_ms: int | None = None
    limited: bool = False  # limits are set: take no more than starts at once

    @property
    def turns(self) -> int:
        """How many of the turns that were asked for these jobs are."""
        return len({(job.holder, job.turn or job.id) for job in self.jobs})


class SettleAnswer(msgspec.Struct, frozen=True):
    """`refused`: whose fence was stale, nothing changed for them."""

    refused: tuple[JobId, ...]
    claim: ClaimAnswer


class ExtendAnswer(msgspec.Struct, frozen=True):
    now_ms: int
    lost: tuple[JobId, ...]  # no longer ours: stop them, settle nothing
    cancelling: tuple[JobId, ...]  # somebody asked for a stop


class DueOccurrence(msgspec.Struct, frozen=True):
    """A recurrence whose next due instant has come."""

    queue: str
    recurrence: str  # the name within the queue
    revision: int
    due_ms: int


class TickAnswer(msgspec.Struct, frozen=True):
    """`next_in_ms`: until the next event of this queue, None without one. `more`: call again at once."""

    now_ms: int
    due: tuple[DueOccurrence, ...]
    next_in_ms: int | None
    more: bool
    promoted: int = 0
    recovered: int = 0
    stepped_ms: int = 0  # how far the server's clock ran ahead of this pump's since its last tick; -1 after an outage

    def and_more(self, later: TickAnswer) -> TickAnswer:
        """Both, of other queues each, as of the later."""
        soon = [each for each in (self.next_in_ms, later.next_in_ms) if each is not None]
        return TickAnswer(
            later.now_ms,
            self.due + later.due,
            min(soon, default=None),
            self.more or later.more,
            self.promoted + later.promoted,
            self.recovered + later.recovered,
            self.stepped_ms or later.stepped_ms,
        )


class Occurred(msgspec.Struct, frozen=True):
    """What became of one due instant.

    `already`: it had its outcome; `id` is its job where it has one and is remembered. `dropped`: counted as what the
    caller said, or, where it brought a job, as skipped by the rule's overlap. `unreadable`: the stored row is damaged.
    `malformed`: an instant of it lies past all counting.
    """

    outcome: Outcome
    id: JobId | None = None


class Filled(msgspec.Struct, frozen=True):
    """The job of one past instant. `is_new`: minted now, not by a backfill before."""

    due_ms: int
    id: JobId
    is_new: bool


class Active(msgspec.Struct, frozen=True):
    """What is being served. Generation grows by one with each switch."""

    version: VersionId
    generation: int
    since_ms: int | None = None  # when it was switched to, where that was asked


class BeatAnswer(msgspec.Struct, frozen=True):
    """`rank`: this pump among the live ones, 0 ticks first.

    `tick`: over all queues, their dues and the earliest next event.
    """

    now_ms: int
    rank: int
    nodes: int
    active: Active | None
    tick: TickAnswer
    queues: tuple[str, ...]
    next_in_ms: dict[str, int] = {}  # by queue, where there is a next event (with `pump`)
    unsent: tuple[str, ...] = ()  # queues with children in `out`: sweep them

    def and_more(self, later: BeatAnswer) -> BeatAnswer:
        """Both, of other queues each (one may be in both), as of the later."""
        return msgspec.structs.replace(
            later,
            tick=self.tick.and_more(later.tick),
            queues=tuple(sorted({*self.queues, *later.queues})),
            next_in_ms=self.next_in_ms | later.next_in_ms,
            unsent=tuple(dict.fromkeys((*self.unsent, *later.unsent))),
        )


class RecurrenceRow(msgspec.Struct, frozen=True):
    """A stored recurrence, as pages and the pump see it."""

    queue: str
    name: str
    rule: str  # "cron …" text, or "every <ms>"
    tz: str
    revision: int
    generation: int
    next_ms: int | None  # None: paused or parked
    last_ms: int | None  # the last due that had an outcome
    paused: bool
    missed: int
    skipped: int
    policy: bytes = b""  # msgpack of the trigger
    error: str = ""
    is_own: bool = False  # registered at run time: of no version's code
    due_ms: int | None = None  # the due that has no outcome yet, of a paused or parked one too
    gone_ms: int | None = None  # the switch to a version without it; kept for when one has it again

    @property
    def trigger(self) -> Recurring | None:
        """The stored rule; None where it cannot be read."""
        try:
            return restored(self.policy)
        except msgspec.MsgspecError:
            return None

    @property
    def standing(self) -> Standing:
        """What the next due of a changed rule is computed from."""
        return Standing(self.due_ms, self.last_ms, self.gone_ms, self.paused)


class Limits(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    rename={
        "concurrency": "c", "rate": "r", "lane_concurrency": "lc", "lane_rate": "lr", "lane_weight": "w",
        "lane_weights": "ws", "own": "own",
    },
):  # fmt: skip
    """What limits a queue, as its scripts read it. Rates are (count, window in ms)."""

    concurrency: int | None = None
    rate: tuple[int, int] | None = None
    lane_concurrency: int | None = None
    lane_rate: tuple[int, int] | None = None
    lane_weight: int = 1
    lane_weights: dict[str, int] = {}  # by escaped name
    own: int = 0  # lanes with limits of their own


class QueueStats(msgspec.Struct, frozen=True):
    pending: int
    active: int
    scheduled: int
    dead: int
    done: int
    paused: bool
    oldest_ms: int | None = None  # since when the longest-waiting pending job waits
    limits: Limits = Limits()
    by_hand: tuple[str, ...] = ()  # of the limits: those that an operator set
    capped: Literal["concurrency", "rate"] | None = None  # by which limit nothing may start now
    capped_ms: int | None = None  # for how long, where that is known


class LogLine(msgspec.Struct, frozen=True, array_like=True):
    """One line of a job's output. `stream`: stdout, stderr or log."""

    at_ms: int
    attempt: int
    stream: str
    level: str
    logger: str
    text: str
    version: str = ""  # that the run was of


class Writer(msgspec.Struct, frozen=True):
    """A job that wrote, when it did so last by its stream, and how it stands. `failed`: a run of it was charged."""

    id: JobId
    at_ms: int
    failed: bool
    ended: bool


class Entry(msgspec.Struct, frozen=True):
    """A line in a function's output: its place in its job's stream, and the line."""

    job: JobId
    id: str
    line: LogLine

    @property
    def place(self) -> tuple[int, int, str]:
        """The order of all lines of a function: by the server's time, ties by job."""
        ms, _, number = self.id.partition("-")
        return int(ms), int(number), self.job


class LaneRow(msgspec.Struct, frozen=True):
    """A lane with work, or (idle) with settings of an operator.

    Limits are those that count for it; what it has active is known where its concurrency is limited.
    """

    lane: str  # as people write it
    pending: int
    weight: int = 1
    place: Literal["ring", "later", "held", "idle"] = "ring"
    why: Literal["paused", "concurrency", "rate", "batch"] | None = None  # it is not served now
    until_ms: int | None = None  # how long not, where that is known
    active: int | None = None
    concurrency: int | None = None
    rate: tuple[int, int] | None = None
    started: int = 0  # in the window that is open
    by_hand: tuple[str, ...] = ()  # what an operator set: weight, paused, concurrency, rate


class Told(msgspec.Struct, frozen=True, array_like=True):
    """What a node says of itself with each beat: what it cannot do as it should, a sentence each; and which
    calls to make workers ready ahead of a switch it has heard, and which of them it has answered."""

    ails: tuple[str, ...] = ()
    warming: tuple[str, ...] = ()
    warm: tuple[str, ...] = ()


class NodeRow(msgspec.Struct, frozen=True):
    """A node with a leased number. `info` is what it told at its join (msgpack), `told` with its last beat."""

    id: str
    number: int
    lease_ends_ms: int
    joined_ms: int
    pump: bool
    info: bytes = b""
    told: Told = Told()


class MinutePoint(msgspec.Struct, frozen=True):
    """One minute of a sparkline."""

    at_ms: int
    minted: int = 0
    done: int = 0
    failed: int = 0


class Metrics(msgspec.Struct, frozen=True):
    """Counters summed over a window, histograms as bucket → count, bucket = floor(log(ms) / log 1.1)."""

    window_ms: int
    minted: int = 0
    done: int = 0
    failed: int = 0  # charged runs
    retried: int = 0
    dead: int = 0
    cancelled: int = 0
    timeouts: int = 0
    lost: int = 0
    missed: int = 0
    skipped: int = 0
    refused: int = 0  # settles of a stale holder
    duration: dict[int, int] = {}
    wait: dict[int, int] = {}
    late: dict[int, int] = {}
    series: tuple[MinutePoint, ...] = ()  # the last 60 minutes, oldest first
