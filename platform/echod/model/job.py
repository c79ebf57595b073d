"""Jobs as values: what a caller asks for, what a claim hands out, the verdicts that end it, the record a page shows.

Instants are integer milliseconds of the bus's clock. Payloads and results are msgpack bytes, opaque to the bus.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from echod.model.ids import JobId, VersionId

State = Literal["pending", "scheduled", "active", "done", "dead", "cancelled"]
ENDED: tuple[State, ...] = ("done", "dead", "cancelled")
Reason = Literal["delay", "at", "retry", "snooze"]
Until = Literal["done", "started"] | int  # int: a fixed time in ms from the mint

NO_LANE = "-"


class Unique(msgspec.Struct, frozen=True):
    """At most one job under `key` while `until` holds. With `body`, the same key with another body is a conflict."""

    key: str
    until: Until = "done"
    body: str = ""


class Occurrence(msgspec.Struct, frozen=True):
    """The due instant of a recurrence that a job was minted for."""

    recurrence: str  # "function/name"
    due_ms: int
    manual: bool = False


class Mint(msgspec.Struct, frozen=True, kw_only=True):
    """A job to create. At most one of `in_ms` and `at_ms`; neither: now."""

    id: JobId
    payload: bytes
    lane: str = NO_LANE  # as people write it; the bus escapes it for its keys
    in_ms: int | None = None
    at_ms: int | None = None
    priority: int = 0
    unique: Unique | None = None
    once: Unique | None = None  # a second key, of a fixed time: the request's own, by which it may be sent again
    parent: JobId | None = None
    version: VersionId | None = None  # pinned by Echo-Version
    wait: str = ""  # channel to tell when the job ends


class Minted(msgspec.Struct, frozen=True, tag="minted"):
    """The job exists. `duplicate`: under this unique key it existed already, and `id` is the owner's.

    Not `is_confirmed`: it was to be on disk, and whether it is was not said in time.
    """

    id: JobId
    duplicate: bool = False
    is_confirmed: bool = True


class Conflict(msgspec.Struct, frozen=True, tag="conflict"):
    """The unique key is held by a job with another body."""

    id: JobId


class Full(msgspec.Struct, frozen=True, tag="full"):
    """The queue is at its max_pending."""

    pending: int


class Taken(msgspec.Struct, frozen=True, tag="taken"):
    """Another caller used this id: mint again under a fresh one."""

    id: JobId


class Stale(msgspec.Struct, frozen=True, tag="stale"):
    """This mint is a resend too old to be told apart from a first send."""

    id: JobId


MintAnswer = Minted | Conflict | Full | Taken | Stale


class Claimed(msgspec.Struct, frozen=True):
    """A job under our lease. (attempts, holder) is the fence. Jobs of one (holder, turn) were claimed as one batch."""

    id: JobId
    attempts: int
    holder: str
    failures: int
    payload: bytes
    lane: str
    due_ms: int
    minted_ms: int
    claimed_ms: int
    version: VersionId | None = None
    occurrence: Occurrence | None = None
    turn: int = 0  # 0: its queue has no batches


class Error(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a run ended badly, as text."""

    type: str
    message: str
    traceback: str = ""
    cause: str = "error"


class RunRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run in a job's history: who ran it, when, and what it cost."""

    worker: str
    version: str
    started_ms: int
    ended_ms: int
    cpu_us: int = 0
    peak_bytes: int = 0
    cold: bool = False


class Child(msgspec.Struct, frozen=True):
    """A job that a settle sends on its way to its own queue."""

    queue: str
    mint: Mint


class Hold(msgspec.Struct, frozen=True):
    """A claim, named by its fence."""

    id: JobId
    attempts: int
    holder: str


class Done(msgspec.Struct, frozen=True, tag="done"):
    hold: Hold
    run: RunRecord
    result: bytes = b"\xc0"
    children: tuple[Child, ...] = ()


class Retry(msgspec.Struct, frozen=True, tag="retry"):
    """Charged. Past the queue's `retries` to the morgue. `after_ms`: the author's own wait, else the backoff."""

    hold: Hold
    run: RunRecord
    error: Error
    after_ms: int


class Dead(msgspec.Struct, frozen=True, tag="dead"):
    """Charged; to the morgue at once."""

    hold: Hold
    run: RunRecord
    error: Error


class Delay(msgspec.Struct, frozen=True, tag="delay"):
    """Not charged (Snooze)."""

    hold: Hold
    run: RunRecord
    after_ms: int


class Release(msgspec.Struct, frozen=True, tag="release"):
    """Never begun: back to its lane, uncharged."""

    hold: Hold


class Cancelled(msgspec.Struct, frozen=True, tag="cancelled"):
    hold: Hold
    run: RunRecord
    reason: str = ""


Verdict = Done | Retry | Dead | Delay | Release | Cancelled


class History(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry per run. `outcome` is the verdict, or "lost"; `cause` as in Error."""

    attempt: int
    outcome: str
    worker: str = ""
    version: str = ""
    started_ms: int = 0
    ended_ms: int = 0
    cause: str = ""
    wait_ms: int = 0
    cpu_us: int = 0
    peak_bytes: int = 0
    cold: bool = False


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The whole record, as GET /jobs/{id} shows it."""

    id: JobId
    function: str
    lane: str
    state: State
    reason: Reason | None
    attempts: int
    failures: int
    payload: bytes
    result: bytes | None
    error: Error | None
    due_ms: int
    minted_ms: int
    started_ms: int | None
    ended_ms: int | None
    occurrence: Occurrence | None
    parent: JobId | None
    version: str | None
    progress: tuple[float, str] | None = None
    cancelling: bool = False
    history: tuple[History, ...] = ()
    waits_for: tuple[JobId, ...] = ()  # earlier jobs of its recurrence that must end before (scheduled, reason None)
