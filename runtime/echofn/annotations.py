"""Annotations: `queue`, `cron`, `every`, `webhook`, `lifespan` record what a handler's author wrote, and judge nothing.

An annotation hands the function back unchanged and leaves a `Mark` on it (kind, file, line, options). Discovery reads
the marks after the import and does all the refusing, so that a mistake is reported with its place and hurts no other
function. Every mark is also kept here, because an annotated method, lambda or nested function cannot be found from
its module.
"""

from __future__ import annotations

import sys

from echofn.quoting import quoted

TYPE_CHECKING = False  # type checkers read this name as true; a handler pays for no import of typing
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
    from datetime import datetime, timedelta
    from typing import Any, Literal, TypeVar, overload

    from echofn.backoff import Backoff
    from echofn.verifiers import Hmac

    F = TypeVar("F", bound=Callable[..., Any])
    L = TypeVar("L", bound=Callable[[], AsyncIterator[Any] | Iterator[Any]])
    Duration = str | int | float | timedelta
    Environments = str | Sequence[str]
    Failures = type[BaseException] | Sequence[type[BaseException]]
    Waits = Literal["exponential", "linear", "fixed"] | Backoff | Duration | Sequence[Duration]
    Missed = Literal["skip", "last", "all"]
    Overlap = Literal["allow", "skip", "queue", "replace"]
    Verify = Literal["github", "stripe", "slack", "standard-webhooks", "bearer", "basic"] | Hmac | None

ATTRIBUTE = "__echofn__"


class Mark:
    """One annotation as written: what kind, where, with which options."""

    __slots__ = ("arguments", "file", "kind", "line", "options", "scope", "target")

    def __init__(self, kind: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        frame = sys._getframe(2)  # the line of the annotation: whoever called queue(), cron(), …
        self.kind = kind
        self.arguments = arguments
        self.options = options
        self.file = frame.f_code.co_filename
        self.line = frame.f_lineno
        self.scope: dict[str, Any] = frame.f_globals  # the annotating module's; its identity tells a re-import apart
        self.target: Any = None

    def on(self, target: Any) -> Any:
        """Leave the mark on `target`, which is handed back as it is."""
        self.target = target
        recorded.append(self)
        try:
            setattr(target, ATTRIBUTE, (*getattr(target, ATTRIBUTE, ()), self))
        except (AttributeError, TypeError):
            pass  # a bound method, a slotted object: discovery finds the mark in `recorded` and refuses it
        return target


recorded: list[Mark] = []


def marks_of(target: object) -> tuple[Mark, ...]:
    """The marks on a function, innermost annotation first."""
    marks: Any = getattr(target, ATTRIBUTE, ())
    if type(marks) is not tuple:
        return ()  # any object may carry an attribute of this name
    found: list[Any] = [*marks]
    return tuple(mark for mark in found if isinstance(mark, Mark))


def is_on(mark: Mark, env: str) -> bool:
    """Whether an annotation counts in an environment: `enabled=False` and another `env=` take it out."""
    only: Any = mark.options.get("env")
    return mark.options.get("enabled") is not False and (only is None or only == env or _lists(only, env))


def _lists(names: Any, name: str) -> bool:
    return isinstance(names, list | tuple) and name in names


def own_name(mark: Mark) -> str | None:
    """The function's name where an annotation gives it. (That of a schedule is the schedule's own.)"""
    name = mark.options.get("name")
    return name if mark.kind in ("queue", "webhook") and isinstance(name, str) else None


def is_batched(target: object) -> bool:
    """Whether a function takes the payloads of several jobs as one list."""
    return any(mark.options.get("batch") is not None for mark in marks_of(target))


def name_of(target: Callable[..., Any], package: str) -> str:
    """The function's name in echod: `module.function`; `handler` takes its module's name; `name=` overrides.

    Raises LookupError when `target` carries no annotation.
    """
    marks = marks_of(target)
    if not marks:
        raise LookupError(f"expected an annotated function, got {quoted(target, 200)}")
    for mark in marks:
        if (given := own_name(mark)) is not None:
            return given
    module = str(marks[0].scope.get("__name__", "")).removeprefix(package + ".")
    attribute = attribute_of(target, marks[0].scope)
    return module if attribute == "handler" else f"{module}.{attribute}"


def attribute_of(target: Callable[..., Any], scope: dict[str, Any]) -> str:
    """The name by which a module's namespace holds `target`: its own name where that is one of them."""
    own = getattr(target, "__name__", "")
    if scope.get(own) is target:
        return own
    return next((name for name, value in scope.items() if value is target), own)


if TYPE_CHECKING:

    class Annotation:
        """Applied to a function, gives the same function back."""

        def __call__(self, function: F, /) -> F: ...

    @overload
    def queue(function: F, /) -> F: ...
    @overload
    def queue(
        *,
        name: str = ...,
        lane: str | None = None,
        retries: int = 3,
        backoff: Waits = "exponential",
        fail_on: Failures = (),
        timeout: Duration = "60s",
        workers: tuple[int, int] = ...,
        priority: int = 0,
        unique: str | bool | None = None,
        until: Literal["done", "started"] | Duration = "done",
        max_pending: int | None = None,
        concurrency: int | None = None,
        rate: str | None = None,
        lane_concurrency: int | None = None,
        lane_rate: str | None = None,
        lane_weight: int | Mapping[str, int] = 1,
        batch: int | None = None,
        batch_wait: Duration = "0s",
        memory: str | int = "512MB",
        per_worker: int = 10,
        tmp: str | int = "64MB",
        network: bool | Sequence[int] = False,
        processes: int = 0,
        isolation: Literal["worker", "job"] = "worker",
        recycle_jobs: int = 500,
        keep: Duration = "7d",
        secrets: Sequence[str] = (),
        redact: Sequence[str] = (),
        payload: object = None,
        env: Environments = ...,
        enabled: bool = True,
    ) -> Annotation: ...
    def queue(function: Any = None, /, **options: Any) -> Any:
        """Jobs of this function come from callers: HTTP, `ctx.enqueue`, other programs. `@queue` bare works, too.

        name: the function's name, in place of `module.function`
        lane: path into the payload whose value names a fair share: "tenant", "order.customer"
        retries: charged runs after the first before the job is dead
        backoff: waits between runs: full jitter, doubling from 500 ms to 10 min; or "linear", "fixed", a `Backoff`,
            one wait, or a list of them, of which the last one stays
        fail_on: exceptions that another run would only repeat: the job is dead at once
        timeout: after it the run and every process it started are killed
        workers: fewest and most processes on each node; as many as it has CPUs
        priority: lower runs first within its lane
        unique: at most one job per value of this path, or per payload (True), for as long as `until` says; a schedule's
            jobs have no value, and go by its `overlap`
        until: how long a unique key holds, this one's or a caller's own: until "done", until "started", which is when a
            worker takes the job, or for a time from the mint on
        max_pending: callers beyond it get 429
        concurrency: jobs that run at once, on all nodes together; the others wait
        rate: how many start in a window that begins with the first of them: "100/s", "5/m"; the others wait
        lane_concurrency: the same as `concurrency` of each lane; others are served meanwhile
        lane_rate: the same as `rate` of each lane
        lane_weight: a lane's share, 1 to 100; or by lane: {"acme": 5}
        batch: a run takes up to so many jobs of one lane, their payloads as a list; it answers None or a list of ends
        batch_wait: how long a lane with fewer jobs than a batch waits for more
        memory: above it an allocation fails with MemoryError
        per_worker: runs of an async function side by side in one worker; of a sync one it is always one
        tmp: what may be written to /tmp
        network: what a handler may reach: nothing, these TCP ports ([443]), or everything (True)
        processes: how many processes a run may start
        isolation: "job": each run, of a job or a batch, has a process of its own, made ready before where that can be,
            and leaves nothing to the next
        recycle_jobs: a worker is replaced after about so many jobs; so it never runs more of them at once either
        keep: how long ended jobs are kept
        secrets: variables of the node's environment that the functions of the module get; they get no others
        redact: paths into the payload that are masked for people, on pages, in lists, logs and errors
        payload: what a job carries that is minted without one; the parameter's default unless it is given
        env: where the annotation counts: "prod", "dev", or a list; anywhere unless it is given
        enabled: False: nowhere
        """

    def cron(
        rule: str,
        /,
        *,
        tz: str = "UTC",
        name: str = ...,
        missed: Missed = "last",
        cap: int = 100,
        overlap: Overlap = "allow",
        jitter: Duration = "0s",
        payload: object = None,
        env: Environments = ...,
        enabled: bool = True,
    ) -> Annotation:
        """A job at every instant of a cron rule, in the rule's own zone: `@cron("0 6 * * mon", tz="Europe/Berlin")`.

        tz: the rule's zone; never the machine's
        name: the schedule's own name; its rule and zone unless it is given
        missed: which instants that passed while nothing ran are made good: none, the last, or all up to `cap`
        cap: with missed="all": how many, the newest
        overlap: what becomes of an instant at which an earlier job of this schedule has not ended: "allow" a job beside
            it; "skip" it; "queue" one job behind it; "replace": the earlier job is cancelled, the new one starts once
            that one has stopped
        jitter: jobs start up to so much after their instant, each by a part of it that is always the same
        payload: what its jobs carry; the parameter's default unless it is given
        """
        ...

    def every(
        period: Duration,
        /,
        *,
        anchor: Duration | datetime = 0,
        name: str = ...,
        missed: Missed = "last",
        cap: int = 100,
        overlap: Overlap = "allow",
        jitter: Duration = "0s",
        payload: object = None,
        env: Environments = ...,
        enabled: bool = True,
    ) -> Annotation:
        """A job every period: `@every("20s")`. Restarts and deploys do not shift it.

        anchor: count from here; from the epoch unless it is given
        name: the schedule's own name; its period unless it is given
        missed: which instants that passed while nothing ran are made good: none, the last, or all up to `cap`
        cap: with missed="all": how many, the newest
        overlap: what becomes of an instant at which an earlier job of this schedule has not ended: "allow" a job beside
            it; "skip" it; "queue" one job behind it; "replace": the earlier job is cancelled, the new one starts once
            that one has stopped
        jitter: jobs start up to so much after their instant, each by a part of it that is always the same
        payload: what its jobs carry; the parameter's default unless it is given
        """
        ...

    def webhook(
        path: str,
        /,
        *,
        verify: Verify,
        secret: str | Sequence[str] = ...,
        secrets: Sequence[str] = (),
        lane: str | None = None,
        unique: str | bool | None = None,
        until: Literal["done", "started"] | Duration = "24h",
        name: str = ...,
        retries: int = 3,
        backoff: Waits = "exponential",
        fail_on: Failures = (),
        timeout: Duration = "60s",
        workers: tuple[int, int] = ...,
        priority: int = 0,
        max_pending: int | None = None,
        concurrency: int | None = None,
        rate: str | None = None,
        lane_concurrency: int | None = None,
        lane_rate: str | None = None,
        lane_weight: int | Mapping[str, int] = 1,
        batch: int | None = None,
        batch_wait: Duration = "0s",
        memory: str | int = "512MB",
        per_worker: int = 10,
        tmp: str | int = "64MB",
        network: bool | Sequence[int] = False,
        processes: int = 0,
        isolation: Literal["worker", "job"] = "worker",
        recycle_jobs: int = 500,
        keep: Duration = "7d",
        redact: Sequence[str] = (),
        env: Environments = ...,
        enabled: bool = True,
    ) -> Annotation:
        """A job for every verified request to `path`: `@webhook("/hooks/github", verify="github", secret="NAME")`.

        verify: how; None: whoever reaches the path is believed
        secret: the name of the variable that holds the secret, or several, each of which is tried
        lane: path into the request whose value names a fair share: "json.repository.full_name", "headers.x-shop"
        unique: path into the request that says what is the same delivery, where the sender's own id does not
        until: for how long it is the same: with unique=; a sender's own ids hold for 24 hours
        redact: paths into the request that are masked for people
        """
        ...

    @overload
    def lifespan(function: L, /) -> L: ...
    @overload
    def lifespan(*, startup_timeout: Duration = "30s") -> Callable[[L], L]: ...
    def lifespan(function: Any = None, /, **options: Any) -> Any:
        """What a module's workers have from before their first job until after their last: `ctx.state`.

        On a generator that yields once, sync or async; a mapping's values are attributes of `ctx.state`.

        startup_timeout: how long a worker may take up to the yield
        """

else:

    def _is_bare(arguments, options):
        """Whether the annotation was written without parentheses: a function is there, or what hides one."""
        if len(arguments) != 1 or options:
            return False
        return callable(arguments[0]) or isinstance(arguments[0], classmethod | staticmethod)

    def queue(*arguments, **options):
        """Jobs of this function come from callers: HTTP, `ctx.enqueue`, others. `@queue` and `@queue(…)` both work."""
        if _is_bare(arguments, options):
            return Mark("queue", (), {}).on(arguments[0])
        return Mark("queue", arguments, options).on

    def cron(*arguments, **options):
        """A job at every instant of a cron rule, in the rule's own zone: `@cron("0 6 * * mon", tz="Europe/Berlin")`."""
        if _is_bare(arguments, options):
            return Mark("cron", (), {}).on(arguments[0])  # `@cron` bare: refused at load, with its line
        return Mark("cron", arguments, options).on

    def every(*arguments, **options):
        """A job every period: `@every("20s")`, counted from the epoch or from `anchor=`."""
        if _is_bare(arguments, options):
            return Mark("every", (), {}).on(arguments[0])
        return Mark("every", arguments, options).on

    def webhook(*arguments, **options):
        """A job for every verified request to a path: `@webhook("/hooks/github", verify="github", secret="NAME")`."""
        if _is_bare(arguments, options):
            return Mark("webhook", (), {}).on(arguments[0])
        return Mark("webhook", arguments, options).on

    def lifespan(*arguments, **options):
        """A generator whose first part runs in each worker before its jobs, and whose rest after them: it yields once,
        and what it yields is `ctx.state`. `@lifespan` and `@lifespan(startup_timeout="1m")` both work."""
        if _is_bare(arguments, options):
            return Mark("lifespan", (), {}).on(arguments[0])
        return Mark("lifespan", arguments, options).on
