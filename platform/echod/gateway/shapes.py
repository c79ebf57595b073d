"""The shapes that several requests and answers share, as types; the others stand beside their handlers.

/openapi.json is generated from all of them, and tests hold answers to them.

An answer may have more members than are named here; it never lacks one of these.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from echod.model.job import State

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
    """A job that was minted, or was there already. `state` null: it has ended, and retention has deleted it since."""

    id: JobText
    function: str
    state: State | None
    url: str


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
