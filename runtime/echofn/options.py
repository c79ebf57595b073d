"""What an annotation's options may be, and what they mean: marks in, manifest values out, or a list of refusals.

The sets of names are the contract: an option is enforced, or a slip of the keyboard.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any, TypeVar

import msgspec

from echofn import codec, values
from echofn.annotations import Mark, is_on, marks_of
from echofn.frames import FURTHEST_PRIORITY, MAX_BATCH
from echofn.manifest import CronTrigger, EveryTrigger, Policy, QueueTrigger
from echofn.quoting import quoted
from echofn.units import duration_text

T = TypeVar("T")
_NONE: tuple[type[BaseException], ...] = ()

ONE_ANNOTATIONS_OWN = frozenset({"payload", "env", "enabled"})  # what each of a function's annotations may carry
QUEUE = ONE_ANNOTATIONS_OWN | {
    *("name", "lane", "retries", "backoff", "fail_on", "timeout", "workers", "priority", "unique", "until"),
    *("max_pending", "memory", "tmp", "network", "processes", "recycle_jobs", "keep", "secrets", "redact"),
    *("per_worker", "batch", "batch_wait", "concurrency", "rate", "lane_concurrency", "lane_rate", "lane_weight"),
    "isolation",
}
# No default for all: code, or given by name, or what a handler was written for.
ONE_FUNCTIONS_OWN = frozenset({"name", "secrets", "fail_on", "batch", "batch_wait"})
CRON = ONE_ANNOTATIONS_OWN | {"tz", "name", "missed", "cap", "overlap", "jitter"}
EVERY = ONE_ANNOTATIONS_OWN | {"anchor", "name", "missed", "cap", "overlap", "jitter"}
WEBHOOK = (QUEUE | {"verify", "secret"}) - {"payload"}
LIFESPAN = frozenset({"startup_timeout"})
KNOWN = {"queue": QUEUE, "cron": CRON, "every": EVERY, "webhook": WEBHOOK, "lifespan": LIFESPAN}


class Reading:
    """One mark being read: takes options by name, gathers what is wrong with them."""

    def __init__(self, mark: Mark) -> None:
        self.mark = mark
        self.refusals: list[str] = [_unknown(mark.kind, name) for name in mark.options if name not in KNOWN[mark.kind]]

    def take(self, name: str, default: T, read: Callable[[Any], T]) -> T:
        """The option as `read` gives it. A ValueError of `read` is a refusal."""
        if name not in self.mark.options:
            return default
        return self.value(f"{name}=", self.mark.options[name], default, read)

    def value(self, what: str, value: Any, default: T, read: Callable[[Any], T]) -> T:
        try:
            return read(value)
        except (ValueError, TypeError, codec.Unfit) as error:
            self.refuse(f"{what}: {error}")
        except Exception as error:  # an option may be any object at all, with any repr
            self.refuse(f"{what}: a value that cannot be read ({type(error).__name__})")
        return default

    def refuse(self, text: str) -> None:
        self.refusals.append(text)


def read_policy(reading: Reading, base: Policy) -> Policy:
    """The policy of a `@queue` mark, with `base` for what it leaves open.

    That of a `@webhook` has no paths into a payload: its trigger has them.
    """
    is_queue = reading.mark.kind == "queue"
    if reading.mark.arguments and is_queue:
        reading.refuse('expected keywords, as in @queue(lane="tenant"), got a positional argument')
    if reading.mark.options.get("batch_wait") is not None and reading.mark.options.get("batch") is None:
        reading.refuse(
            "batch_wait=: expected batch= beside it, got none; a function without it never waits for more jobs"
        )
    least, most = reading.take("workers", (base.workers_min, base.workers_max), values.workers)
    return Policy(
        retries=reading.take("retries", base.retries, values.whole(0, 10_000)),
        backoff=reading.take("backoff", base.backoff, values.backoff),
        fail_on=tuple(each.__qualname__ for each in reading.take("fail_on", _NONE, values.exceptions)),
        timeout_ms=reading.take("timeout", base.timeout_ms, values.some_time),
        lane=reading.take("lane", base.lane, values.optional(values.path)) if is_queue else None,
        workers_min=least,
        workers_max=most,
        recycle_jobs=reading.take("recycle_jobs", base.recycle_jobs, values.whole(1, 1_000_000_000)),
        memory_bytes=reading.take("memory", base.memory_bytes, values.memory),
        tmp_bytes=reading.take("tmp", base.tmp_bytes, values.scratch),
        network=reading.take("network", base.network, values.network),
        processes=reading.take("processes", base.processes, values.whole(0, 1_000)),
        keep_ms=reading.take("keep", base.keep_ms, values.some_time),
        unique=reading.take("unique", base.unique, values.unique) if is_queue else None,
        until=reading.take("until", base.until, values.until) if is_queue else "done",
        max_pending=reading.take("max_pending", base.max_pending, values.optional(values.whole(1, 1_000_000_000))),
        priority=reading.take("priority", base.priority, values.whole(-FURTHEST_PRIORITY, FURTHEST_PRIORITY)),
        redact=_both(base.redact, reading.take("redact", (), values.redact if is_queue else values.request_paths)),
        per_worker=reading.take("per_worker", base.per_worker, values.whole(1, 1_000)),
        concurrency=reading.take("concurrency", base.concurrency, values.optional(values.at_once)),
        rate=reading.take("rate", base.rate, values.optional(values.rate_of)),
        lane_concurrency=reading.take("lane_concurrency", base.lane_concurrency, values.optional(values.at_once)),
        lane_rate=reading.take("lane_rate", base.lane_rate, values.optional(values.rate_of)),
        lane_weight=reading.take("lane_weight", base.lane_weight, values.lane_weight),
        isolation=reading.take("isolation", base.isolation, values.isolation),
        batch=reading.take("batch", None, values.optional(values.whole(1, MAX_BATCH))),
        batch_wait_ms=reading.take("batch_wait", 0, values.wait),
    )


def _both(defaults: tuple[str, ...], own: tuple[str, ...]) -> tuple[str, ...]:
    """What is to be hidden for all stays hidden, whatever else one function hides."""
    return tuple(dict.fromkeys((*defaults, *own)))


def read_default(name: str, value: Any, base: Policy) -> tuple[Policy, list[str]]:
    """`base` with one option as `[defaults]` sets it, and what is wrong with it."""
    if name in ONE_FUNCTIONS_OWN | ONE_ANNOTATIONS_OWN:
        return base, [f"option {name!r} is one function's own; write it in its annotation"]
    reading = Reading(Mark("queue", (), {name: value}))
    policy = read_policy(reading, base)
    return (base if reading.refusals else policy), reading.refusals


def without_paths(policy: Policy) -> Policy:
    """`policy` as functions have it that nobody calls with a payload: no `@queue`, so no paths into one."""
    return msgspec.structs.replace(policy, lane=None, unique=None, until="done")


def fail_on_of(target: Callable[..., Any], env: str) -> tuple[type[BaseException], ...]:
    """The exceptions after which a function's jobs do not run again: the classes that the manifest names."""
    speakers = [mark for mark in marks_of(target) if mark.kind in {"queue", "webhook"} and is_on(mark, env)]
    return tuple(each for mark in speakers for each in values.exceptions(mark.options.get("fail_on", ())))


def check_whether_on(reading: Reading, env: str) -> str | None:
    """Why an annotation is off in this environment; None: it is on."""
    is_enabled = reading.take("enabled", True, values.switch)
    nowhere: tuple[str, ...] = ()
    only = reading.take("env", nowhere, values.environments)
    if not is_enabled:
        return "enabled=False"
    return None if is_on(reading.mark, env) else f"env={', '.join(only)}"


def read_queue(reading: Reading) -> QueueTrigger:
    """A queue trigger."""
    return QueueTrigger(reading.take("payload", codec.NIL, values.payload))


def read_cron(reading: Reading) -> CronTrigger:
    """A cron trigger, called after its rule as written without `name=`. The control plane judges the rule itself."""
    rule = reading.value("rule", only(reading, 'a rule, as in @cron("0 6 * * mon")', ""), "", values.rule)
    tz = reading.take("tz", "UTC", values.text("a zone's name"))
    return CronTrigger(
        name=reading.take("name", f"{rule} {tz}", values.recurrence_name),
        rule=rule,
        tz=tz,
        missed=reading.take("missed", "last", values.missed),
        cap=_cap(reading),
        payload=reading.take("payload", codec.NIL, values.payload),
        line=reading.mark.line,
        overlap=reading.take("overlap", "allow", values.overlap),
        jitter_ms=reading.take("jitter", 0, values.jitter),
    )


def read_every(reading: Reading) -> EveryTrigger:
    """An every trigger. Without `name=` it is called after its period and anchor."""
    least = values.MIN_PERIOD_MS
    period_ms = reading.value("period", only(reading, 'a period, as in @every("20s")', "1s"), least, values.period)
    anchor_ms = reading.take("anchor", 0, values.anchor) % period_ms  # the same dues, whatever multiple was written
    own = f"every {duration_text(period_ms)}" + (f" from {duration_text(anchor_ms)}" if anchor_ms else "")
    return EveryTrigger(
        name=reading.take("name", own, values.recurrence_name),
        period_ms=period_ms,
        anchor_ms=anchor_ms,
        missed=reading.take("missed", "last", values.missed),
        cap=_cap(reading),
        payload=reading.take("payload", codec.NIL, values.payload),
        line=reading.mark.line,
        overlap=reading.take("overlap", "allow", values.overlap),
        jitter_ms=reading.take("jitter", 0, values.jitter),
    )


def _cap(reading: Reading) -> int:
    """How many missed instants are made good: where all are."""
    if "cap" in reading.mark.options and reading.mark.options.get("missed") != "all":
        reading.refuse(f"cap=: {values.CAP_OF_ALL}")
    return reading.take("cap", values.CAP, values.cap)


def read_secrets(reading: Reading, declared: Set[str], option: str = "secrets") -> tuple[str, ...]:
    """The secrets that an option names; `declared` are those that the source names literally."""
    nothing: tuple[str, ...] = ()
    names = reading.take(option, nothing, values.variable_names if option == "secrets" else values.some_variable_names)
    for name in names:
        if name not in declared:
            written = f'{option}=["{name}"]'
            reading.refuse(
                f"{option}=: expected names written out, as in {written}: they are read before the module runs"
            )
    return names


def _unknown(kind: str, name: str) -> str:
    if (kind, name) == ("webhook", "payload"):
        return "payload=: what a webhook's jobs carry is what is sent to it; remove it"
    import difflib  # only a slip of the keyboard pays for it

    near = difflib.get_close_matches(name, KNOWN[kind], n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(KNOWN[kind]))}"
    return f"unknown option {quoted(name)} of @{kind}; {hint}"


def only(reading: Reading, wanted: str, without: str) -> Any:
    """The one positional argument. Where there is none `without` stands in: a second refusal would only repeat ours."""
    if len(reading.mark.arguments) != 1:
        reading.refuse(f"expected {wanted}, got {len(reading.mark.arguments)} positional arguments")
        return without
    return reading.mark.arguments[0]
