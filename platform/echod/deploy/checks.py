"""What only the control plane can judge of a discovered folder: rules and zones, names across modules, equal schedules.

Pure. A function that fails here is left out with an error at its own file and line; the others are not affected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from echod.errors import Refused
from echod.policy import addresses, jitter
from echod.policy.paths import steps
from echod.policy.recurring import identified, rule_of, text_of
from echofn.manifest import (
    CronTrigger,
    Function,
    LoadError,
    Manifest,
    QueueTrigger,
    Recurring,
    Trigger,
    WebhookTrigger,
)


def checked(manifest: Manifest, before: Manifest | None = None) -> Manifest:
    """`manifest` with every recurrence under its own name, without the functions that cannot be, and why not.

    Of two functions with one name the newcomer is refused: the one that is not in `before`, else the later by place.
    """
    kept: dict[str, Function] = {}
    holders = {function.name: function.file for function in before.functions} if before else {}

    def rank(function: Function) -> tuple[bool, str, int]:
        return holders.get(function.name) != function.file, function.file, function.line

    errors = list(manifest.errors)
    taken: dict[tuple[str | None, ...], tuple[Function, WebhookTrigger]] = {}
    for function in sorted(manifest.functions, key=rank):
        if (first := kept.get(function.name)) is not None:
            said = f"function {function.name!r}: expected a name of its own, got that of {first.file}:{first.line}"
            errors.append(_error(function, function.line, f"{said}; give one of them name="))
            continue
        triggers, faults = _triggers(function)
        if faults := faults + _paths(function) + _addresses(function, taken):
            errors += faults
        else:
            taken |= {addresses.shape(hook.path): (function, hook) for hook in _webhooks(function)}
            kept[function.name] = msgspec.structs.replace(function, triggers=triggers)
    functions = tuple(kept[name] for name in sorted(kept))
    return msgspec.structs.replace(manifest, functions=functions, errors=ordered(errors))


def ordered(errors: Iterable[LoadError]) -> tuple[LoadError, ...]:
    """Errors by place, each once."""
    return tuple(sorted(dict.fromkeys(errors), key=lambda each: (each.file, each.line or 0, each.column or 0)))


def _triggers(function: Function) -> tuple[tuple[Trigger, ...], list[LoadError]]:
    """The triggers, their recurrences named; and what is wrong with them."""
    good: list[Trigger] = []
    faults: list[LoadError] = []
    names: dict[str, Recurring] = {}
    for trigger in function.triggers:
        if isinstance(trigger, QueueTrigger | WebhookTrigger):
            good.append(trigger)
            continue
        try:
            named = identified(_unnamed(trigger))
            jitter.check(rule_of(named), named)
        except Refused as error:
            faults.append(_error(function, trigger.line, str(error)))
            continue
        if (same := names.get(named.name)) is not None:
            what = f"{text_of(trigger)!r}: expected a schedule of its own, got {same.name!r} of line {same.line} again"
            faults.append(_error(function, trigger.line, f"{what}; remove one, or give it another name="))
            continue
        names[named.name] = named
        good.append(named)
    return tuple(good), faults


def _unnamed(trigger: Recurring) -> Recurring:
    """The trigger without the name that discovery makes of the rule as written: equal rules can be written apart."""
    written = f"{text_of(trigger)} {trigger.tz}" if isinstance(trigger, CronTrigger) else text_of(trigger)
    return msgspec.structs.replace(trigger, name="") if trigger.name == written else trigger


def _paths(function: Function) -> list[LoadError]:
    """What is wrong with the paths into the payload, or into a webhook's request."""
    faults: list[LoadError] = []
    places = [(function.line, "lane", function.policy.lane), (function.line, "unique", function.policy.unique)]
    for hook in _webhooks(function):
        places += [(hook.line, "lane", hook.lane), (hook.line, "unique", hook.unique)]
    for line, name, path in places:
        if isinstance(path, str):
            try:
                steps(path)
            except Refused as error:
                faults.append(_error(function, line, f"{name}: {error}"))
    return faults


def _addresses(
    function: Function, taken: Mapping[tuple[str | None, ...], tuple[Function, WebhookTrigger]]
) -> list[LoadError]:
    """What is wrong with where its webhooks are: at an address of echod's own, or of another webhook."""
    faults: list[LoadError] = []
    seen = dict(taken)
    for hook in _webhooks(function):
        if addresses.is_own(hook.path):
            said = f"{hook.path}: expected a path apart from echod's own, such as /hooks{hook.path}"
            faults.append(_error(function, hook.line, said))
        other, before = seen.setdefault(addresses.shape(hook.path), (function, hook))
        if before is not hook:
            said = f"{hook.path}: expected a path of its own, got that of {other.name} ({other.file}:{before.line})"
            faults.append(_error(function, hook.line, f"{said}; give one of them another"))
    return faults


def _webhooks(function: Function) -> list[WebhookTrigger]:
    return [trigger for trigger in function.triggers if isinstance(trigger, WebhookTrigger)]


def _error(function: Function, line: int, message: str) -> LoadError:
    return LoadError(function.module, function.file, message, line or function.line, kind="refused")
