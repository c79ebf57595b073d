"""What the gateway hands to the pages, as values: the JSON of design §11 and our extras.

Everything has a default but the ids; unknown keys are ignored, so that routes can grow first.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from echofn.manifest import Policy

Json = Any  # a payload, a result, a schema: whatever JSON can hold


class Shell(msgspec.Struct, frozen=True):
    version: str | None = None
    sandbox: str = ""
    mode: str = ""
    degraded: tuple[str, ...] = ()
    clock: str | None = None
    signed_in: bool = False


class Percentiles(msgspec.Struct, frozen=True):
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class Metrics(msgspec.Struct, frozen=True):
    window_s: int = 3600
    minted: int = 0
    done: int = 0
    failed: int = 0
    retried: int = 0
    dead: int = 0
    timeouts: int = 0
    cancelled: int = 0
    missed: int = 0
    skipped: int = 0
    duration_ms: Percentiles = Percentiles()
    wait_ms: Percentiles = Percentiles()
    late_ms: Percentiles = Percentiles()


class Series(msgspec.Struct, frozen=True):
    """Ended runs per minute, oldest first; the last is the minute that runs now."""

    done: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()


class Schedule(msgspec.Struct, frozen=True):
    id: str
    function: str = ""
    rule: str = ""
    tz: str = "UTC"
    next: str | None = None
    last: str | None = None
    missed: int = 0
    skipped: int = 0
    paused: bool = False
    error: str | None = None
    origin: str = "code"
    overlap: str = "allow"
    jitter: str | None = None
    upcoming: tuple[str, ...] = ()
    starts: tuple[str, ...] = ()  # of the jobs of `upcoming`: later by the jitter


class Workers(msgspec.Struct, frozen=True):
    count: int = 0
    busy: int = 0
    rss_bytes: int | None = None
    cpu_s: float | None = None
    cold_starts: int | None = None


class Lane(msgspec.Struct, frozen=True):
    function: str
    lane: str = "-"
    pending: int = 0
    active: int | None = None
    weight: int = 1
    share: float | None = None
    paused: bool = False
    why: str | None = None  # it is not served now: paused, concurrency, rate, batch
    until_ms: float | None = None
    concurrency: int | None = None
    rate: str | None = None
    by_hand: tuple[str, ...] = ()
    path: str | None = None


class Limits(msgspec.Struct, frozen=True):
    """What counts now. `by_hand`: what of it an operator set."""

    concurrency: int | None = None
    rate: str | None = None
    lane_concurrency: int | None = None
    lane_rate: str | None = None
    lane_weight: int = 1
    by_hand: tuple[str, ...] = ()
    capped: str | None = None
    capped_ms: float | None = None


class RunError(msgspec.Struct, frozen=True):
    type: str = ""
    message: str = ""
    traceback: str | None = None
    cause: str | None = None


class Occurrence(msgspec.Struct, frozen=True):
    recurrence: str = ""
    due: str | None = None
    manual: bool = False


class Run(msgspec.Struct, frozen=True):
    """One entry of a job's history."""

    attempt: int = 0
    worker: str | None = None
    started: str | None = None
    ended: str | None = None
    outcome: str = ""
    cause: str | None = None
    wait_ms: float | None = None
    cpu_s: float | None = None
    peak_bytes: int | None = None
    cold: bool = False
    version: str | None = None


class Job(msgspec.Struct, frozen=True):
    id: str
    function: str = ""
    lane: str = "-"
    state: str = "pending"
    reason: str | None = None
    waits_for: tuple[str, ...] = ()  # earlier jobs of its schedule that must end before
    attempts: int = 0
    failures: int = 0
    payload: Json = None
    result: Json = None
    error: RunError | None = None
    due: str | None = None
    minted: str | None = None
    started: str | None = None
    ended: str | None = None
    occurrence: Occurrence | None = None
    parent: str | None = None
    version: str | None = None
    progress: tuple[float, str] | None = None
    cancelling: bool = False
    orphaned: bool = False
    history: tuple[Run, ...] = ()


class LogLine(msgspec.Struct, frozen=True):
    at: str | None = None
    attempt: int = 0
    stream: str = ""
    level: str = ""
    logger: str = ""
    text: str = ""


class JobPage(Job, frozen=True, kw_only=True):
    retries: int | None = None
    log: tuple[LogLine, ...] = ()
    log_goes_on: bool = False


class Function(msgspec.Struct, frozen=True):
    name: str
    module: str = ""
    queue: str = ""
    triggers: tuple[dict[str, Json], ...] = ()
    policy: Policy = Policy()
    pending: int = 0
    active: int = 0
    scheduled: int = 0
    dead: int = 0
    version: str | None = None
    paused: bool = False
    doc: str = ""
    file: str = ""
    line: int | None = None
    takes_payload: bool = True
    payload_schema: Json = None
    series: Series = Series()
    rate: float = 0.0
    p50: float | None = None
    p95: float | None = None
    oldest_ms: float | None = None
    next: tuple[str, ...] = ()


class Period(msgspec.Struct, frozen=True, rename={"since": "from"}):
    """When a version of the function was served."""

    version: str
    since: str = ""
    until: str | None = None
    changed: bool | None = None


class FunctionPage(Function, frozen=True, kw_only=True):
    metrics: Metrics = Metrics()
    windows: dict[str, Metrics] = {}
    recent: tuple[Job, ...] = ()
    schedules: tuple[Schedule, ...] = ()
    workers: Workers | None = None
    lanes: tuple[Lane, ...] = ()
    versions: tuple[Period, ...] = ()
    limits: Limits = Limits()


class LoadError(msgspec.Struct, frozen=True):
    module: str = ""
    file: str = ""
    line: int | None = None
    column: int | None = None
    message: str = ""
    kind: str = "error"


class Off(msgspec.Struct, frozen=True):
    """An annotation that does not count here."""

    function: str = ""
    kind: str = ""
    file: str = ""
    line: int | None = None
    why: str = ""


class SeenOccurrence(msgspec.Struct, frozen=True):
    """One due time that became a job."""

    function: str
    recurrence: str = ""
    due: str = ""
    job: str | None = None
    state: str = ""
    manual: bool = False


class FunctionsPage(msgspec.Struct, frozen=True):
    functions: tuple[Function, ...] = ()
    errors: tuple[LoadError, ...] = ()
    off: tuple[Off, ...] = ()
    occurrences: tuple[SeenOccurrence, ...] = ()


class Filter(msgspec.Struct, frozen=True):
    function: str | None = None
    state: str | None = None
    lane: str | None = None
    cause: str | None = None
    match: str | None = None
    older: str | None = None
    newer: str | None = None


class JobsPage(msgspec.Struct, frozen=True):
    jobs: tuple[Job, ...] = ()
    cursor: str | None = None
    filter: Filter = Filter()
    names: tuple[str, ...] = ()


class SchedulesPage(msgspec.Struct, frozen=True):
    schedules: tuple[Schedule, ...] = ()


class LanesPage(msgspec.Struct, frozen=True):
    lanes: tuple[Lane, ...] = ()


class Change(msgspec.Struct, frozen=True):
    mark: Literal["+", "~", "-"]
    text: str


class Changes(msgspec.Struct, frozen=True):
    lines: tuple[Change, ...] = ()


class Version(msgspec.Struct, frozen=True):
    id: str
    activated: str | None = None
    active: bool = False
    functions: tuple[str, ...] = ()
    changes: Changes | None = None


class VersionsPage(msgspec.Struct, frozen=True):
    versions: tuple[Version, ...] = ()
    takes_deploys: bool = False


class Node(msgspec.Struct, frozen=True):
    id: str
    number: int | None = None
    roles: tuple[str, ...] = ()
    host: str | None = None
    pid: int | None = None
    seen: str | None = None
    sandbox: str | None = None
    workers: int | None = None
    degraded: tuple[str, ...] = ()


class NodesPage(msgspec.Struct, frozen=True):
    nodes: tuple[Node, ...] = ()


class Problem(msgspec.Struct, frozen=True):
    status: int = 500
    title: str = "Something went wrong"
    detail: str = ""


class Login(msgspec.Struct, frozen=True):
    next: str = "/"
    error: str = ""
