"""The shapes of requests and answers (design §11), as types: /openapi.json is generated from them, tests hold to them.

An answer may have more members than are named here; it never lacks one of these.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from echod.model.job import State
from echod.model.token import Scope

Instant = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")]
Count = Annotated[int, msgspec.Meta(ge=0)]
JobText = Annotated[str, msgspec.Meta(pattern="^JOB[0-9A-Za-z]{11}$")]


class ProblemShape(msgspec.Struct, rename={"kind": "type"}):
    """RFC 9457."""

    kind: Annotated[str, msgspec.Meta(pattern="^urn:echod:problem:[a-z-]+$")]
    title: str
    status: int
    detail: str


class Accepted(msgspec.Struct):
    """A job that was minted, or was there already."""

    id: JobText
    function: str
    state: State
    url: str


class OrderTold(msgspec.Struct):
    """What became of one order: a job as in Accepted, or a problem alone."""

    id: JobText | msgspec.UnsetType = msgspec.UNSET
    function: str | msgspec.UnsetType = msgspec.UNSET
    state: State | msgspec.UnsetType = msgspec.UNSET
    url: str | msgspec.UnsetType = msgspec.UNSET
    problem: ProblemShape | msgspec.UnsetType = msgspec.UNSET


class OrdersTaken(msgspec.Struct):
    """For each order, in their order, its job or its problem."""

    jobs: list[OrderTold]
    minted: Count
    refused: Count


class ErrorShape(msgspec.Struct, rename={"kind": "type"}):
    """Why a run ended badly."""

    kind: str
    message: str
    traceback: str
    cause: str


class OccurrenceShape(msgspec.Struct):
    """The due instant that a job came of."""

    recurrence: str
    due: Instant
    manual: bool


class Brief(msgspec.Struct):
    """A job in a list."""

    id: JobText
    function: str
    lane: str
    state: State
    reason: str | None
    attempts: Count
    failures: Count
    error: ErrorShape | None
    due: Instant
    minted: Instant
    started: Instant | None
    ended: Instant | None
    occurrence: OccurrenceShape | None
    parent: str | None
    version: str | None
    waits_for: list[JobText]


class RunShape(msgspec.Struct):
    """One run of a job."""

    attempt: Count
    worker: str
    started: Instant | None
    ended: Instant | None
    outcome: str
    cause: str | None
    wait_ms: int
    cpu_s: float
    peak_bytes: Count
    cold: bool


class Whole(Brief):
    """A job."""

    payload: Any
    result: Any
    history: list[RunShape]


class Jobs(msgspec.Struct):
    """A part of a list of jobs, newest first; `cursor` leads on."""

    jobs: list[Brief]
    cursor: str | None


class LogShape(msgspec.Struct):
    """A line that a job wrote."""

    id: str
    at: Instant
    attempt: int
    stream: str
    level: str
    logger: str
    text: str
    version: str | None


class FunctionLogShape(LogShape):
    """A line that a job of a function wrote."""

    job: JobText


class FunctionLogs(msgspec.Struct):
    """The newest lines of a function, oldest first. `truncated`: there are more that fit the question."""

    lines: list[FunctionLogShape]
    truncated: bool


class TriggerShape(msgspec.Struct):
    """What starts a function."""

    kind: Literal["cron", "every", "webhook", "queue"]


class FunctionShape(msgspec.Struct):
    """A function and what waits for it."""

    name: str
    module: str
    queue: str
    triggers: list[TriggerShape]
    policy: dict[str, Any]
    pending: Count
    active: Count
    scheduled: Count
    dead: Count
    version: str


class LoadErrorShape(msgspec.Struct):
    """Why a module is left out."""

    module: str
    line: int | None
    column: int | None
    message: str


class Functions(msgspec.Struct):
    functions: list[FunctionShape]
    errors: list[LoadErrorShape]


class Percentiles(msgspec.Struct):
    p50: float | None
    p95: float | None
    p99: float | None


class MetricsShape(msgspec.Struct):
    """Counted over a window."""

    window_s: Count
    minted: Count
    done: Count
    failed: Count
    retried: Count
    dead: Count
    timeouts: Count
    duration_ms: Percentiles
    wait_ms: Percentiles
    late_ms: Percentiles
    missed: Count
    skipped: Count


class PeriodShape(msgspec.Struct, rename={"since": "from"}):
    """When a stored version of a function was served; `changed`: its code, since the one before; null: unknown."""

    version: str
    since: str
    until: str | None
    changed: bool | None


class FunctionWhole(FunctionShape):
    metrics: MetricsShape
    next: list[Any]
    recent: list[Brief]
    versions: list[PeriodShape]


class Paused(msgspec.Struct):
    name: str
    lane: str | None
    paused: bool


class SetByHand(msgspec.Struct):
    """`lane` null: of the queue. `set` by name; null: back to what code says."""

    name: str
    lane: str | None
    set: dict[str, int | str | None]


class LaneShape(msgspec.Struct):
    """A lane with work, or idle with an operator's settings. `until_ms`: for how long it is not served, where known."""

    function: str
    lane: str
    pending: Count
    active: Count | None
    weight: Count
    share: float | None
    place: Literal["ring", "later", "held", "idle"]
    why: Literal["paused", "concurrency", "rate", "batch"] | None
    paused: bool
    until_ms: Count | None
    concurrency: Count | None
    rate: str | None
    started: Count | None
    by_hand: list[str]
    path: str | None


class Lanes(msgspec.Struct):
    lanes: list[LaneShape]


class ScheduleShape(msgspec.Struct):
    """A recurrence."""

    id: str
    function: str
    rule: str
    tz: str
    next: Instant | None
    last: Instant | None
    missed: Count
    skipped: Count
    paused: bool
    error: str | None
    origin: Literal["code", "runtime"]
    overlap: Literal["allow", "skip", "queue", "replace"]
    jitter: str | None


class ScheduleFilled(msgspec.Struct):
    """What a backfill came to: how many instants the window has, and the jobs that were made for them now."""

    id: str
    plan: bool
    instants: Count
    first: Instant | None
    last: Instant | None
    minted: Count
    already: Count
    jobs: list[JobText]


class ScheduleRemoved(msgspec.Struct):
    id: str
    removed: bool


class Schedules(msgspec.Struct):
    schedules: list[ScheduleShape]


class SchedulePaused(msgspec.Struct):
    id: str
    paused: bool
    next: Instant | None


class VersionShape(msgspec.Struct):
    """A stored version; `changes`: what it changed of the one before it in the list."""

    id: str
    activated: Instant
    active: bool
    functions: list[str]
    changes: dict[str, Any] | None


class Versions(msgspec.Struct):
    """Newest first."""

    versions: list[VersionShape]


class DeployedShape(msgspec.Struct):
    """What a switch came to, and what it changed; without a generation it was only planned."""

    version: str
    generation: int | None
    functions: list[str]
    plan: dict[str, Any]


class TokenShape(msgspec.Struct):
    """A token, but for itself."""

    name: str
    scopes: list[Scope]
    made: Instant
    expires: Instant | None
    expired: bool
    used: Instant | None
    sessions: Count


class Tokens(msgspec.Struct):
    tokens: list[TokenShape]


class TokenMade(msgspec.Struct):
    """The one answer that holds the token."""

    name: str
    token: str
    scopes: list[Scope]
    expires: Instant | None


class TokenRevoked(msgspec.Struct):
    name: str
    revoked: bool


class LinkMade(msgspec.Struct):
    """A path to open once in a browser."""

    path: str
    scopes: list[Scope]
    expires: Instant | None


class ClockShape(msgspec.Struct):
    """Where the clock is. `due`: functions that the move made due, where it went to the next; `next`: when more is."""

    now: Instant
    driven: bool
    frozen: bool
    due: list[str]
    next: Instant | None


class Healthy(msgspec.Struct):
    ok: bool


class Ready(msgspec.Struct):
    ready: bool
    bus: bool
    version: str | None
    sandbox: str
    degraded: list[str]
