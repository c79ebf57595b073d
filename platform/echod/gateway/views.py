"""Records as the JSON objects of the contract (design §11): instants RFC 3339 UTC with milliseconds, bytes as base64.

Payloads and results are opaque msgpack on the bus. Here they become values that JSON can carry, whatever a handler put
in; nothing is rebuilt into an object of user code.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import cast

import msgspec

from echod.bus.answers import LogLine, NodeRow, QueueStats, RecurrenceRow
from echod.bus.clock import NODE_LEASE_MS
from echod.model.job import Error, History, Job
from echod.policy.nesting import is_deeper
from echod.policy.recurring import text_of, zone_of
from echofn import masking
from echofn.codec import NIL
from echofn.manifest import (
    CronTrigger,
    EveryTrigger,
    Function,
    LoadError,
    Off,
    Policy,
    QueueTrigger,
    Trigger,
    WebhookTrigger,
)
from echofn.units import duration_text

_DEEPEST = 200  # containers within containers; a handler's result may be deeper, a page need not show it
_LAST_MS = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z

View = dict[str, object]


def instant(ms: int) -> str:
    """An instant of the bus as RFC 3339: `2026-03-29T01:00:00.000Z`."""
    bounded = min(max(ms, 0), _LAST_MS)
    return f"{datetime.fromtimestamp(bounded // 1000, UTC):%Y-%m-%dT%H:%M:%S}.{bounded % 1000:03d}Z"


def instant_or_none(ms: int | None) -> str | None:
    """The same, where there may be none."""
    return None if ms is None else instant(ms)


def value_of(packed: bytes) -> object:
    """A msgpack value as one that JSON can carry: bytes are base64, keys are text, non-finite numbers null."""
    try:
        value = msgspec.msgpack.decode(packed)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return {"$msgpack": base64.b64encode(packed).decode()}  # not text, or deeper than can be read: as it is
    return _carried(value)


def masked_value_of(packed: bytes, payload: bytes, redact: Sequence[str]) -> object:
    """The same of a payload or of its job's result, without what `redact` names in the payload."""
    if not redact:
        return value_of(packed)
    try:
        value, given = msgspec.msgpack.decode(packed), msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return masking.MASK
    return _carried(masking.shown(value, given, redact))


def _carried(value: object) -> object:
    if is_deeper(value, _DEEPEST):
        return plain(value)
    try:
        return msgspec.json.decode(msgspec.json.encode(value))  # a mebibyte in milliseconds
    except (TypeError, msgspec.MsgspecError):  # kinds or keys that only we have a spelling for
        return plain(value)


def plain(value: object, depth: int = 0) -> object:
    """`value` in JSON's own kinds."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case bytes():
            return base64.b64encode(value).decode()
        case datetime():
            return value.isoformat()
        case msgspec.msgpack.Ext():
            return {"$ext": value.code, "data": base64.b64encode(bytes(value.data)).decode()}
        case dict() | list() | tuple() if depth >= _DEEPEST:
            return "…"
        case dict():
            entries = cast("dict[object, object]", value)
            return {_key(key): plain(item, depth + 1) for key, item in entries.items()}
        case list() | tuple():
            return [plain(item, depth + 1) for item in cast("Sequence[object]", value)]
        case _:
            return str(value)


def _key(key: object) -> str:
    match key:
        case str():
            return key
        case bytes():
            return base64.b64encode(key).decode()
        case None | bool() | int() | float():
            return msgspec.json.encode(key).decode()
        case _:
            return str(key)


def job_view(job: Job, redact: Sequence[str]) -> View:
    """A job, as GET /jobs/{id} answers it, without what `redact` names."""
    brief = brief_view(job)
    return {
        **brief,
        "payload": masked_value_of(job.payload, job.payload, redact),
        "result": None if job.result is None else masked_value_of(job.result, job.payload, redact),
        "error": None if job.error is None else error_view(job.error),
        "history": [history_view(entry) for entry in job.history],
    }


def placed_view(id: str, function: str, state: str | None) -> View:
    """A job, in the answer to what made or changed it."""
    return {"id": id, "function": function, "state": state, "url": f"/jobs/{id}"}


def brief_view(job: Job) -> View:
    """A job in a list: without payload, result, traceback and history."""
    return {
        "id": job.id,
        "function": job.function,
        "lane": job.lane,
        "state": job.state,
        "reason": job.reason,
        "attempts": job.attempts,
        "failures": job.failures,
        "error": None if job.error is None else {**error_view(job.error), "traceback": ""},
        "due": instant(job.due_ms),
        "minted": instant(job.minted_ms),
        "started": instant_or_none(job.started_ms),
        "ended": instant_or_none(job.ended_ms),
        "occurrence": None
        if job.occurrence is None
        else {
            "recurrence": job.occurrence.recurrence,
            "due": instant(job.occurrence.due_ms),
            "manual": job.occurrence.manual,
        },
        "parent": job.parent,
        "version": job.version,
        "progress": None if job.progress is None else [plain(job.progress[0]), job.progress[1]],
        "cancelling": job.cancelling,
        "waits_for": list(job.waits_for),
    }


def error_view(error: Error) -> View:
    """Why a run ended badly."""
    return {"type": error.type, "message": error.message, "traceback": error.traceback, "cause": error.cause}


def history_view(entry: History) -> View:
    """One run. A run that was lost has no end of its own."""
    return {
        "attempt": entry.attempt,
        "worker": entry.worker,
        "version": entry.version or None,
        "started": instant_or_none(entry.started_ms or None),
        "ended": instant_or_none(entry.ended_ms or None),
        "outcome": entry.outcome,
        "cause": entry.cause or None,
        "wait_ms": entry.wait_ms,
        "cpu_s": entry.cpu_us / 1e6,
        "peak_bytes": entry.peak_bytes,
        "cold": entry.cold,
    }


def log_view(entry: str, line: LogLine) -> View:
    """A line of a job's output; `id` is where to resume after it."""
    return {
        "id": entry,
        "at": instant(line.at_ms),
        "attempt": line.attempt,
        "stream": line.stream,
        "level": line.level,
        "logger": line.logger,
        "version": line.version or None,
        "text": line.text,
    }


def function_view(function: Function, version: str, stats: QueueStats) -> View:
    """A function in GET /functions."""
    return {
        "name": function.name,
        "module": function.module,
        "queue": function.name,
        "file": function.file,
        "line": function.line,
        "doc": function.doc,
        "triggers": [trigger_view(function, trigger) for trigger in function.triggers],
        "policy": policy_view(function.policy),
        "takes_payload": function.takes_payload,
        "payload_schema": function.payload_schema,
        "pending": stats.pending,
        "active": stats.active,
        "scheduled": stats.scheduled,
        "dead": stats.dead,
        "paused": stats.paused,
        "oldest": instant_or_none(stats.oldest_ms),
        "version": version,
    }


def policy_view(policy: Policy) -> View:
    """A policy with all its fields, defaults too."""
    backoff = policy.backoff
    kind = backoff.__struct_config__.tag
    return {**msgspec.structs.asdict(policy), "backoff": {"type": kind, **msgspec.structs.asdict(backoff)}}


def trigger_view(function: Function, trigger: Trigger) -> View:
    """What starts a function."""
    if isinstance(trigger, QueueTrigger):
        shown = masked_value_of(trigger.payload, trigger.payload, function.policy.redact)
        return {"kind": "queue"} | ({} if trigger.payload == NIL else {"payload": shown})
    if isinstance(trigger, WebhookTrigger):
        how = trigger.verify
        return {
            "kind": "webhook",
            "path": trigger.path,
            "verify": how if how is None or isinstance(how, str) else msgspec.to_builtins(how),
            "secrets": list(trigger.secrets),
            "lane": trigger.lane,
            "unique": trigger.unique,
        }
    period = {"period_ms": trigger.period_ms} if isinstance(trigger, EveryTrigger) else {}
    return {
        "kind": "cron" if isinstance(trigger, CronTrigger) else "every",
        "id": f"{function.name}/{trigger.name}",
        "name": trigger.name,
        "rule": text_of(trigger),
        "tz": zone_of(trigger),
        **period,
        "missed": trigger.missed,
        "cap": trigger.cap,
        "overlap": trigger.overlap,
        "jitter": duration_text(trigger.jitter_ms) if trigger.jitter_ms else None,
        "payload": masked_value_of(trigger.payload, trigger.payload, function.policy.redact),
    }


def load_error_view(error: LoadError) -> View:
    """Why a module is left out."""
    return {
        "module": error.module,
        "file": error.file,
        "line": error.line,
        "column": error.column,
        "message": error.message,
        "kind": error.kind,
    }


def off_view(off: Off) -> View:
    """An annotation that does not count here."""
    return msgspec.structs.asdict(off)


def schedule_view(row: RecurrenceRow) -> View:
    """A recurrence in GET /schedules."""
    trigger = row.trigger
    return {
        "id": f"{row.queue}/{row.name}",
        "function": row.queue,
        "name": row.name,
        "rule": row.rule,
        "tz": row.tz or "UTC",
        "next": instant_or_none(row.next_ms),
        "last": instant_or_none(row.last_ms),
        "missed": row.missed,
        "skipped": row.skipped,
        "paused": row.paused,
        "error": row.error or None,
        "origin": "runtime" if row.is_own else "code",
        "overlap": trigger.overlap if trigger else "allow",
        "jitter": duration_text(trigger.jitter_ms) if trigger and trigger.jitter_ms else None,
    }


def node_view(row: NodeRow) -> View:
    """A node in GET /nodes: its lease, and what it told of itself when it joined."""
    told = value_of(row.info) if row.info else None
    info = cast("View", told) if isinstance(told, dict) else {}
    return {
        **info,
        "id": row.id,
        "number": row.number,
        "seen": instant(row.lease_ends_ms - NODE_LEASE_MS),
        "joined": instant(row.joined_ms),
        "pump": row.pump,
        "degraded": list(row.told.ails),
    }
