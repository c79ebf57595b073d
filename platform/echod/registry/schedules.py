"""Schedules registered at run time: they are of nobody's code, survive deploys, and wait for a function that is gone.

What an annotation is refused for is refused here, with the path of each fault; nothing is written then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import msgspec

from echod.bus import Bus
from echod.bus.answers import RecurrenceRow
from echod.bus.timing import Written
from echod.errors import InvalidPayload, InvalidSchedule, NameTaken, Refused
from echod.policy import calls, jitter, nesting, places
from echod.policy.recurring import identified, next_due, rule_of, stored, text_of, zone_of
from echod.policy.zones import zone
from echod.registry.registry import Registry
from echod.registry.schemas import Schemas
from echofn import codec, values
from echofn.frames import MAX_PAYLOAD_BYTES
from echofn.manifest import CronTrigger, EveryTrigger, Function, Overlap, Recurring

T = TypeVar("T")
MOST = 1000  # of one function
GONE = "its function is not in the version being served; deploy one that has it, or remove the schedule"


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schedule to register, with exactly one of `cron` and `every`.

    It is called by its `name`; without one as an annotation would be, by its rule and zone.
    """

    function: str
    cron: str | None = None
    every: str | int | float | None = None
    name: str | None = None
    tz: str | None = None
    anchor: str | None = None
    payload: Any = None
    missed: Literal["skip", "last", "all"] = "last"
    cap: int | None = None
    overlap: Overlap = "allow"
    jitter: str | int | float | None = None


async def register(bus: Bus, registry: Registry, schemas: Schemas, wanted: Wanted) -> tuple[RecurrenceRow, bool]:
    """Write a schedule, or change the one of its name; as it stands then, and whether it is new.

    Raises UnknownFunction, NotCallable, InvalidSchedule, NameTaken, BusError.
    """
    function = registry.function(wanted.function)
    if function is None or registry.active is None:
        raise registry.unknown(wanted.function)
    calls.check_callable(function)
    faults: list[dict[str, str]] = []
    trigger = _trigger(wanted, faults)
    if trigger.payload == codec.NIL:
        trigger = msgspec.structs.replace(trigger, payload=function.default_payload)
    lane = _payload_checked(wanted, function, trigger.payload, schemas, registry.active.version, faults)
    if faults:
        raise InvalidSchedule(faults)
    rows = {row.name: row for row in await bus.recurrences(function.name)}
    if trigger.name not in rows and sum(row.is_own for row in rows.values()) >= MOST:
        raise Refused(f"expected at most {MOST} schedules of a function, got one more; remove some of {function.name}")
    said = await _written(bus, trigger, rows.get(trigger.name), function, lane)
    while said == "moved":  # an instant had its outcome since the row was read
        rows = {row.name: row for row in await bus.recurrences(function.name, names=[trigger.name])}
        said = await _written(bus, trigger, rows.get(trigger.name), function, lane)
    if said == "taken":
        told = f"{function.name}/{trigger.name} is in the function's own code"
        raise NameTaken(f"{told}; choose another name, or change its annotation")
    for found in await bus.recurrences(function.name):
        if found.name == trigger.name:
            return found, said == "created"
    raise Refused(f"{function.name}/{trigger.name} was removed meanwhile; register it again")


async def remove(bus: Bus, row: RecurrenceRow) -> bool:
    """Remove a schedule registered at run time; False where it is gone already. Raises NameTaken for one of code."""
    said = await bus.unrecur(row.queue, row.name, None)
    if said == "taken":
        told = f"{row.queue}/{row.name} is in the function's own code"
        raise NameTaken(f"{told}; remove its annotation, or pause it")
    return said == "removed"


async def _written(bus: Bus, trigger: Recurring, row: RecurrenceRow | None, function: Function, lane: str) -> Written:
    return await bus.recur(
        function.name,
        trigger.name,
        rule=text_of(trigger),
        tz=zone_of(trigger),
        trigger=stored(trigger),
        payload=trigger.payload,
        next_ms=next_due(rule_of(trigger), bus.clock.now_ms(), row.standing if row else None),
        last_ms=(row.last_ms or 0) if row else 0,
        generation=None,
        lane=lane,
        priority=function.policy.priority,
        overlap=trigger.overlap,
    )


def _trigger(wanted: Wanted, faults: list[dict[str, str]]) -> Recurring:
    """The trigger that an annotation with these options would be; what it would be refused for goes to `faults`."""

    def read(name: str, value: Any, reader: Callable[[Any], T], otherwise: T) -> T:
        try:
            return reader(value)
        except (ValueError, TypeError, Refused, codec.Unfit) as error:
            faults.append(_fault(name, str(error)))
            return otherwise

    trigger: Recurring
    name = "" if wanted.name is None else read("name", wanted.name, values.recurrence_name, "")
    cap = values.CAP if wanted.cap is None else read("cap", wanted.cap, values.cap, 1)
    if wanted.cap is not None and wanted.missed != "all":
        faults.append(_fault("cap", values.CAP_OF_ALL))
    payload = read("payload", wanted.payload, values.payload, codec.NIL)
    jitter_ms = 0 if wanted.jitter is None else read("jitter", wanted.jitter, values.jitter, 0)
    more: dict[str, Any] = {"overlap": wanted.overlap, "jitter_ms": jitter_ms}
    if (wanted.cron is None) == (wanted.every is None):
        faults.append(
            _fault("cron", "expected one of cron and every, got " + ("none" if wanted.cron is None else "both"))
        )
        return CronTrigger(name, "@daily", payload=payload)
    if wanted.cron is not None:
        if wanted.anchor is not None:
            faults.append(_fault("anchor", "expected it with every alone, got cron; remove it"))
        rule = read("cron", wanted.cron, values.rule, "@daily")
        tz = "UTC" if wanted.tz is None else read("tz", wanted.tz, _zone, "UTC")
        trigger = CronTrigger(name, rule, tz, wanted.missed, cap, payload, **more)
    else:
        if wanted.tz is not None:
            faults.append(_fault("tz", "expected it with cron alone, got every, which has no zone; remove it"))
        period_ms = read("every", wanted.every, values.period, 1000)
        anchor_ms = (0 if wanted.anchor is None else read("anchor", wanted.anchor, values.anchor, 0)) % period_ms
        trigger = EveryTrigger(name, period_ms, anchor_ms, wanted.missed, cap, payload, **more)
    named = read("every" if wanted.cron is None else "cron", trigger, identified, trigger)
    if not any(fault["path"] in ("$.every", "$.cron") for fault in faults):
        read("jitter", named, lambda each: jitter.check(rule_of(each), each), None)
    return named


def _zone(value: Any) -> str:
    name = values.text("a zone's name")(value)
    zone(name)
    return name


def _payload_checked(
    wanted: Wanted,
    function: Function,
    packed: bytes,
    schemas: Schemas,
    version: str,
    faults: list[dict[str, str]],
) -> str:
    """The lane of its jobs; what the function cannot take of the payload goes to `faults`."""
    value = codec.decode(packed)
    if not function.takes_payload and wanted.payload is not None:
        faults.append(_fault("payload", "the function takes no payload; remove it"))
    elif len(packed) > MAX_PAYLOAD_BYTES or nesting.is_deeper(value, nesting.MAX_DEPTH):
        most = f"at most {MAX_PAYLOAD_BYTES} bytes and {nesting.MAX_DEPTH} levels"
        faults.append(_fault("payload", f"expected {most}, got more"))
    elif function.takes_payload:
        try:
            schemas.check(version, function, msgspec.to_builtins(value), len(packed), value)
            return places.lane_of(function.policy, value)
        except InvalidPayload as error:
            faults += [{**fault, "path": f"$.payload{fault['path'][1:]}"} for fault in error.faults]
        except Refused as error:
            faults.append(_fault("payload", f"lane {error}"))
    return "-"


def _fault(name: str, message: str) -> dict[str, str]:
    return {"path": f"$.{name}", "message": message}
