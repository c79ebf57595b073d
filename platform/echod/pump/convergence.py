"""What the bus should hold for the active version, and the way there: policies of queues, recurrences from code.

Every write carries the version's generation, so a pump that still serves an older one is refused; two pumps of one
generation write the same twice. A recurrence that stands keeps its due; a changed one goes on from its last due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import assert_never

import msgspec

from echod import log
from echod.bus import Bus
from echod.bus.answers import RecurrenceRow
from echod.bus.timing import Written
from echod.errors import Refused
from echod.policy import places
from echod.policy.recurring import identified, next_due, rule_of, stored, text_of, zone_of
from echod.registry.registry import ActiveVersion
from echofn.manifest import Function, Policy, QueueTrigger, Recurring, WebhookTrigger

_log = log.get("pump")
_payload = msgspec.msgpack.Decoder().decode
CLASH = "a schedule registered at run time has this name; remove it, or give one of them another name="
FORGOTTEN_MS = 8 * 86_400_000  # the bus forgets what is gone after seven days, when it is asked to
AT_ONCE = 64  # calls under way: a folder of a thousand schedules must not make one pipeline of them


class Configure(msgspec.Struct, frozen=True):
    """Write a queue's policy."""

    queue: str
    policy: Policy


class Write(msgspec.Struct, frozen=True):
    """Write a recurrence. `next_ms`, computed from the last due `last_ms` (0: none), counts only where its rule is new
    or changed."""

    queue: str
    name: str
    trigger: Recurring
    next_ms: int
    last_ms: int
    lane: str
    priority: int


class Remove(msgspec.Struct, frozen=True):
    """Remove a recurrence that the version does not have."""

    queue: str
    name: str


class Fault(msgspec.Struct, frozen=True):
    """A recurrence that cannot be: said in the log, and nothing else is affected."""

    queue: str
    name: str
    error: str


Step = Configure | Write | Remove | Fault


def steps(
    functions: Iterable[Function], generation: int, rows: Sequence[RecurrenceRow], since_ms: int, now_ms: int
) -> tuple[Step, ...]:
    """The way from what the bus holds, also of what is gone, to what these functions say since `since_ms`. Pure."""
    held = {(row.queue, row.name): row for row in rows}
    wanted: set[tuple[str, str]] = set()
    found: list[Step] = []
    for function in functions:
        found.append(Configure(function.name, function.policy))
        for trigger in function.triggers:
            if isinstance(trigger, QueueTrigger | WebhookTrigger):
                continue
            step = _write(function, trigger, held, since_ms)
            wanted.add((step.queue, step.name))
            found.append(step)
    found += [
        Remove(row.queue, row.name)
        for key, row in held.items()
        if key not in wanted and row.generation < generation and not row.is_own
        if row.gone_ms is None or row.gone_ms < now_ms - FORGOTTEN_MS
    ]
    return tuple(found)


def _write(
    function: Function, trigger: Recurring, held: dict[tuple[str, str], RecurrenceRow], since_ms: int
) -> Write | Fault:
    try:
        named = identified(trigger)
        rule = rule_of(named)
        row = held.get((function.name, named.name))
        if row is not None and row.is_own:
            return Fault(function.name, named.name, CLASH)
        return Write(
            function.name,
            named.name,
            named,
            next_due(rule, since_ms, row.standing if row else None),
            (row.last_ms or 0) if row else 0,
            _lane(function, trigger),
            function.policy.priority,
        )
    except (Refused, msgspec.MsgspecError) as error:
        return Fault(function.name, trigger.name, str(error))


def _lane(function: Function, trigger: Recurring) -> str:
    return places.lane_of(function.policy, _payload(trigger.payload))


async def converge(bus: Bus, active: ActiveVersion) -> list[str]:
    """Bring the bus in line with the active version; the queue of each recurrence that was made, changed or removed."""
    rows, now_ms = await bus.recurrences(gone=True), bus.clock.now_ms()
    since_ms = now_ms if active.since_ms is None else active.since_ms
    way = steps(active.manifest.functions, active.generation, rows, since_ms, now_ms)
    changed: list[str] = []
    for start in range(0, len(way), AT_ONCE):
        some = way[start : start + AT_ONCE]
        took = await asyncio.gather(*(_take(bus, step, active.generation, since_ms) for step in some))
        changed += [step.queue for step, has_changed in zip(some, took, strict=True) if has_changed]
    return changed


async def _take(bus: Bus, step: Step, generation: int, since_ms: int) -> bool:
    """One step; whether it changed a recurrence. Refused writes ("older") are a newer version's business."""
    match step:
        case Configure(queue, policy):
            await bus.configure(queue, policy, generation)
            return False
        case Write():
            answer = await _written(bus, step, generation, since_ms)
            if answer == "taken":
                _log.error("recurrence.refused", queue=step.queue, recurrence=step.name, error=CLASH)
            if answer in ("created", "changed"):
                _log.info(f"recurrence.{answer}", queue=step.queue, recurrence=step.name)
            return answer in ("created", "changed")
        case Remove(queue, name):
            removed = await bus.unrecur(queue, name, generation) == "removed"
            if removed:
                _log.info("recurrence.removed", queue=queue, recurrence=name)
            return removed
        case Fault(queue, name, error):
            _log.error("recurrence.refused", queue=queue, recurrence=name, error=error)
            return False
        case _:
            assert_never(step)


async def _written(bus: Bus, step: Write, generation: int, since_ms: int) -> Written:
    while True:
        answer = await bus.recur(
            step.queue,
            step.name,
            rule=text_of(step.trigger),
            tz=zone_of(step.trigger),
            trigger=stored(step.trigger),
            payload=step.trigger.payload,
            next_ms=step.next_ms,
            last_ms=step.last_ms,
            generation=generation,
            lane=step.lane,
            priority=step.priority,
            overlap=step.trigger.overlap,
        )
        if answer != "moved":
            return answer
        # Another pump gave an instant its outcome since the rows were read.
        found = await bus.recurrences(step.queue, gone=True, names=[step.name])
        standing = found[0].standing if found else None
        next_ms = next_due(rule_of(step.trigger), since_ms, standing)
        step = msgspec.structs.replace(step, next_ms=next_ms, last_ms=(standing and standing.last_ms) or 0)
