"""What a switch from one version to another changes, told before it is made. Pure.

Of schedules it says the instants that the pumps will write: both ask `recurring`. What waits is counted by the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import msgspec

from echod.errors import Refused
from echod.model.ids import VersionId
from echod.policy.recurring import Standing, next_due, rule_of, text_of, zone_of
from echofn.manifest import CronTrigger, EveryTrigger, Function, Manifest, Policy, Recurring, WebhookTrigger
from echofn.units import duration_text

RULE_OPTIONS = ("missed", "cap", "overlap", "jitter_ms")
WALLS = frozenset({"memory_bytes", "tmp_bytes", "network", "processes", "secrets", "isolation"})


def _duration_text(ms: int) -> str:
    return duration_text(ms) if ms else "0s"


def _size_text(size: int) -> str:
    return f"{size / (1024 * 1024):g}MB"


_UNITS: Mapping[str, Callable[[int], str]] = {"_ms": _duration_text, "_bytes": _size_text}


class Changed(msgspec.Struct, frozen=True):
    """A function that both versions have. `what` differs: code, payload, schedules, walls and so on."""

    name: str
    what: tuple[str, ...]


class Gone(msgspec.Struct, frozen=True):
    """A function that the next version lacks. Its `waiting` jobs stay, orphaned, until a version has it again."""

    name: str
    waiting: int


class Schedule(msgspec.Struct, frozen=True):
    """A recurrence of code, by `function/name`. `next_ms` None: paused, or not known here."""

    id: str
    rule: str
    tz: str
    next_ms: int | None
    paused: bool = False


class Moved(msgspec.Struct, frozen=True):
    """A recurrence whose rule or zone is another."""

    was: Schedule
    now: Schedule


class Option(msgspec.Struct, frozen=True):
    """An option of a function's policy, or of a schedule, by its field's name and value; `secrets` by theirs."""

    function: str
    name: str
    was: object
    now: object


class Plan(msgspec.Struct, frozen=True):
    """The difference of two versions; each list by name."""

    new: tuple[str, ...] = ()
    changed: tuple[Changed, ...] = ()
    gone: tuple[Gone, ...] = ()
    start: tuple[Schedule, ...] = ()
    change: tuple[Moved, ...] = ()
    end: tuple[Schedule, ...] = ()
    rules: tuple[Option, ...] = ()  # options of schedules that stay, by their ids
    limits: tuple[Option, ...] = ()
    walls: tuple[Option, ...] = ()
    unknown: str | None = None  # why the version before could not be read: all of the other is new then


class Deployed(msgspec.Struct, frozen=True):
    """What a deploy or a rollback came to. `generation` None: it was only planned."""

    version: VersionId
    generation: int | None
    functions: tuple[str, ...]
    plan: Plan


def planned(
    before: Manifest | None,
    after: Manifest,
    now_ms: int,
    held: Mapping[str, Standing] | None = None,
    waiting: Mapping[str, int] | None = None,
) -> Plan:
    """The plan of a switch at `now_ms`. `held`: recurrences on the bus by `function/name`; `waiting`: jobs by queue."""
    held, waiting = held or {}, waiting or {}
    old = {function.name: function for function in before.functions} if before else {}
    new = {function.name: function for function in after.functions}
    both = sorted(old.keys() & new.keys())
    rules_before, rules_after = _schedules(old), _schedules(new)
    options = [option for name in both for option in _options(old[name], new[name])]
    return Plan(
        new=tuple(sorted(new.keys() - old.keys())),
        changed=tuple(Changed(name, what) for name in both if (what := _differs(old[name], new[name]))),
        gone=tuple(Gone(name, waiting.get(name, 0)) for name in sorted(old.keys() - new.keys())),
        start=tuple(_due(id, rules_after[id], now_ms, held) for id in sorted(rules_after.keys() - rules_before.keys())),
        change=tuple(
            Moved(_stood(id, rules_before[id], held), _due(id, rules_after[id], now_ms, held))
            for id in sorted(rules_before.keys() & rules_after.keys())
            if _rule(rules_before[id]) != _rule(rules_after[id])
        ),
        end=tuple(_stood(id, rules_before[id], held) for id in sorted(rules_before.keys() - rules_after.keys())),
        rules=tuple(
            option
            for id in sorted(rules_before.keys() & rules_after.keys())
            for option in _rule_options(id, rules_before[id], rules_after[id])
        ),
        limits=tuple(option for option in options if option.name not in WALLS),
        walls=tuple(option for option in options if option.name in WALLS),
    )


def option_text(name: str, value: object) -> tuple[str, str]:
    """An option of the policy as its author writes it: ("timeout_ms", 30000) is ("timeout", "30s")."""
    for suffix, text in _UNITS.items():
        if name.endswith(suffix):
            return name.removesuffix(suffix), _text(value, text)
    return name, _text(value, str)


def _text(value: object, text: Callable[[int], str]) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case int():
            return text(value)
        case list() | tuple():
            return ", ".join(_text(each, text) for each in cast("Sequence[object]", value)) or "none"
        case dict():
            fields = cast("Mapping[str, object]", value)
            parts = [" ".join(option_text(key, part)) for key, part in fields.items() if key != "type"]
            return " ".join([str(fields.get("type", "")), *parts]).strip()
        case _:
            return str(value)


def _schedules(functions: Mapping[str, Function]) -> dict[str, Recurring]:
    return {
        f"{function.name}/{trigger.name}": trigger
        for function in functions.values()
        for trigger in function.triggers
        if isinstance(trigger, CronTrigger | EveryTrigger)
    }


def _rule(trigger: Recurring) -> tuple[str, str]:
    return text_of(trigger), zone_of(trigger)


def _rule_options(id: str, old: Recurring, new: Recurring) -> list[Option]:
    found = [(name, getattr(old, name), getattr(new, name)) for name in RULE_OPTIONS]
    return [Option(id, name, was, now) for name, was, now in found if was != now]


def _stood(id: str, trigger: Recurring, held: Mapping[str, Standing]) -> Schedule:
    """A recurrence of the version before, as it stands."""
    paused = id in held and held[id].paused
    return Schedule(id, *_rule(trigger), held[id].due_ms if id in held and not paused else None, paused)


def _due(id: str, trigger: Recurring, now_ms: int, held: Mapping[str, Standing]) -> Schedule:
    """A recurrence of the next version, as it will stand: a pause stays, also of one that comes back."""
    if id in held and held[id].paused:
        return Schedule(id, *_rule(trigger), None, paused=True)
    try:
        next_ms = next_due(rule_of(trigger), now_ms, held.get(id))
    except Refused:
        next_ms = None
    return Schedule(id, *_rule(trigger), next_ms)


def _differs(old: Function, new: Function) -> tuple[str, ...]:
    options = {option.name for option in _options(old, new)}
    is_code = bool(old.code and new.code and old.code != new.code)
    found = {
        "code": is_code or (old.module, old.attribute, old.is_async) != (new.module, new.attribute, new.is_async),
        "payload": (old.payload_schema, old.takes_payload) != (new.payload_schema, new.takes_payload),
        "result": old.result_schema != new.result_schema,
        "schedules": _lineless(old, CronTrigger | EveryTrigger) != _lineless(new, CronTrigger | EveryTrigger),
        "webhooks": _lineless(old, WebhookTrigger) != _lineless(new, WebhookTrigger),
        "limits": bool(options - WALLS),
        "walls": bool(options & WALLS),
    }
    return tuple(word for word, differs in found.items() if differs)


def _lineless(function: Function, kinds: object) -> list[object]:
    """Its triggers of these kinds without their lines: moving an annotation changes nothing."""
    mine = [trigger for trigger in function.triggers if isinstance(trigger, kinds)]  # type: ignore[arg-type]
    return [msgspec.structs.replace(trigger, line=0) for trigger in mine]


def _options(old: Function, new: Function) -> list[Option]:
    was, now = _fields(old.policy), _fields(new.policy)
    found = [Option(new.name, name, was[name], now[name]) for name in was if was[name] != now[name]]
    if set(old.secrets) != set(new.secrets):
        found.append(Option(new.name, "secrets", sorted(old.secrets), sorted(new.secrets)))
    return found


def _fields(policy: Policy) -> dict[str, object]:
    """A policy's options in JSON's own kinds, defaults too."""
    whole = cast("dict[str, object]", msgspec.structs.asdict(policy))
    return whole | {"backoff": {"type": policy.backoff.__struct_config__.tag, **msgspec.structs.asdict(policy.backoff)}}
