"""What the bus's verbs answer, as values."""

from __future__ import annotations

from typing import Literal

import msgspec

from echod.model.ids import JobId, VersionId
from echod.model.job import Claimed

Blocked = Literal["empty", "paused", "capped"]


class ClaimAnswer(msgspec.Struct, frozen=True):
    """Jobs under our lease; where there are none, why, and when to ask again at the latest (None: the bell will ring)."""

    now_ms: int
    jobs: tuple[Claimed, ...]
    blocked: Blocked | None = None
    retry_in_ms: int | None = None


class SettleAnswer(msgspec.Struct, frozen=True):
    """`refused`: whose fence was stale, nothing changed for them. `out`: children that wait to be minted."""

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


class Active(msgspec.Struct, frozen=True):
    """What is being served. Generation grows by one with each switch."""

    version: VersionId
    generation: int


class BeatAnswer(msgspec.Struct, frozen=True):
    """`rank`: this pump among the live ones, 0 ticks first. `tick`: over all queues, their dues and the earliest next event."""

    now_ms: int
    rank: int
    nodes: int
    active: Active | None
    tick: TickAnswer
    queues: tuple[str, ...]


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


class QueueStats(msgspec.Struct, frozen=True):
    pending: int
    active: int
    scheduled: int
    dead: int
    done: int
    paused: bool
    oldest_ms: int | None = None  # since when the longest-waiting pending job waits
