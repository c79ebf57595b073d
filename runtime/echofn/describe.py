"""From an imported module to what the manifest says about it: its functions, and what had to be left out.

All judging of annotations is here and in `options`. A refusal names the file and line of the annotation and hurts no
other function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Set
from types import ModuleType
from typing import Any, assert_never

import msgspec

from echofn import codec, delivery, masking
from echofn.annotations import Mark, attribute_of, marks_of, name_of, recorded
from echofn.lifespans import NOBODYS, read_lifespan
from echofn.manifest import (
    CronTrigger,
    EveryTrigger,
    Function,
    LoadError,
    Policy,
    QueueTrigger,
    Trigger,
    WebhookTrigger,
)
from echofn.options import Reading, read_cron, read_every, read_policy, read_secrets, without_paths
from echofn.package import Folder
from echofn.signature import Refused, Shape, shape_of
from echofn.values import function_name
from echofn.webhooks import POLICY, policy_refusals, read_webhook


def describe(
    module: ModuleType, name: str, file: str, folder: Folder, declared: Set[str], defaults: Policy
) -> tuple[tuple[Function, ...], tuple[LoadError, ...]]:
    """The functions of `module` ("sub.shop", "sub/shop.py"), and refusals.

    `declared`: the secrets its source names; each of its functions gets all. `defaults`: what annotations leave open.
    """
    functions: list[Function] = []
    errors: list[LoadError] = []
    scope = vars(module)
    marks = [mark for mark in recorded if mark.scope is scope and mark.kind != "lifespan"]
    lifespans = [mark for mark in recorded if mark.scope is scope and mark.kind == "lifespan"]
    startup_ms, misfits = read_lifespan(lifespans)
    found: set[int] = set()
    for target in _annotated(scope):
        mine = [mark for mark in marks_of(target) if mark.scope is scope and mark.kind != "lifespan"]
        if not mine:
            continue
        found.update(map(id, mine))
        judged = _judge(target, mine, name, file, folder.package, declared, defaults)
        if isinstance(judged, Function):
            functions.append(msgspec.structs.replace(judged, startup_ms=startup_ms))
        else:
            errors.extend(judged)
    errors.extend(_refusal(name, file, mark.line, _why_unreachable(mark)) for mark in marks if id(mark) not in found)
    if lifespans and not marks:
        misfits.append((lifespans[0].line, NOBODYS))
    if misfits:
        functions.clear()  # they would run without what they rely on
        errors.extend(_refusal(name, file, line, text) for line, text in misfits)
    functions.sort(key=lambda function: function.line)
    errors.sort(key=lambda error: error.line or 0)
    return tuple(functions), tuple(errors)


def _annotated(scope: dict[str, Any]) -> list[Callable[..., Any]]:
    """What the module's namespace holds and annotations of this module are on, each once."""
    seen: dict[int, Callable[..., Any]] = {}
    for value in list(scope.values()):
        try:
            if any(mark.scope is scope for mark in marks_of(value)):
                seen[id(value)] = value
        except Exception:
            pass  # an object whose attributes cannot be read carries no annotation of ours
    return list(seen.values())


def _judge(
    target: Callable[..., Any],
    marks: list[Mark],
    module: str,
    file: str,
    package: str,
    declared: Set[str],
    defaults: Policy,
) -> Function | list[LoadError]:
    errors: list[LoadError] = []
    first = min(mark.line for mark in marks)

    def refuse(line: int, text: str) -> None:
        errors.append(_refusal(module, file, line, text))

    if (why := _not_a_function(target)) is not None:
        refuse(first, why)
        return errors
    shape: Shape | None = None
    try:
        shape = shape_of(target)
    except Refused as refused:
        refuse(first, str(refused))
    policy, triggers = _options(marks, shape, refuse, declared, defaults)
    is_async = inspect.iscoroutinefunction(target)
    if not is_async and (mark := next((mark for mark in marks if mark.options.get("per_worker", 1) != 1), None)):
        refuse(
            mark.line, "per_worker=: a worker runs one job of a sync function at a time; write async def, or remove it"
        )
    name = name_of(target, package)
    try:
        function_name(name)
    except ValueError as error:
        refuse(first, f"name: {error}")
    payload_schema = _payload_schema(shape, triggers, lambda text: refuse(first, text)) if shape else None
    if errors or shape is None:
        return errors
    return Function(
        name=name,
        module=module,
        attribute=attribute_of(target, marks[0].scope),
        file=file,
        line=first,
        policy=policy,
        triggers=tuple(triggers),
        takes_payload=shape.takes_payload,
        takes_context=shape.takes_context,
        is_async=is_async,
        payload_schema=payload_schema,
        result_schema=_schema(shape.result_type, "result", lambda _text: None),
        doc=_first_line(target),
        secrets=tuple(sorted(declared)),
    )


def _options(
    marks: list[Mark],
    shape: Shape | None,
    refuse: Callable[[int, str], None],
    declared: Set[str],
    defaults: Policy,
) -> tuple[Policy, list[Trigger]]:
    policy = without_paths(defaults)
    triggers: list[Trigger] = []
    names: set[str] = set()
    refused = policy_refusals(marks)
    for mark in reversed(marks):  # outermost first: as they read on the page
        reading = Reading(mark)
        trigger: Trigger
        match mark.kind:
            case "queue":
                policy, trigger = read_policy(reading, defaults), QueueTrigger()
                read_secrets(reading, declared)
            case "cron":
                trigger = read_cron(reading)
            case "every":
                trigger = read_every(reading)
            case "webhook":
                trigger = read_webhook(reading, declared)
                if id(mark) in refused:
                    reading.refuse(refused[id(mark)])
                elif POLICY & mark.options.keys():
                    policy = read_policy(reading, defaults)
            case _:
                raise AssertionError(mark.kind)
        if not reading.refusals and (why := _clash(trigger, triggers, names) or _misfit(trigger, shape, mark)):
            reading.refuse(why)
        triggers.append(trigger)
        for text in reading.refusals:
            refuse(mark.line, text)
    lanes = [policy.lane, *(trigger.lane for trigger in triggers if isinstance(trigger, WebhookTrigger))]
    for lane in filter(None, lanes):
        if _is_redacted(policy.redact, lane):
            text = f"lane=: expected a path that redact= does not cover, got {lane!r}: lanes are shown"
            refuse(marks[-1].line, text)
    return policy, triggers


def _is_redacted(redact: tuple[str, ...], path: str) -> bool:
    try:
        return masking.covers(redact, path)
    except ValueError:
        return False  # no path at all: the control plane says so


def _clash(trigger: Trigger, others: list[Trigger], names: set[str]) -> str | None:
    if isinstance(trigger, QueueTrigger):
        return "expected one @queue on a function, got two" if trigger in others else None
    if isinstance(trigger, WebhookTrigger):
        return None  # two on one path: the control plane sees all of them
    if trigger.name in names:
        return f"two recurrences of this function are called {trigger.name!r}; give one another name="
    names.add(trigger.name)
    return None


def _misfit(trigger: Trigger, shape: Shape | None, mark: Mark) -> str | None:
    """Whether the payload that a recurrence's jobs would carry fits the handler."""
    match trigger:
        case QueueTrigger() | WebhookTrigger():
            return None
        case CronTrigger() | EveryTrigger():
            if shape is None:
                return None
            if not shape.takes_payload:
                return "payload=: the function takes no payload; remove it" if "payload" in mark.options else None
            try:
                codec.convert(codec.decode(trigger.payload), shape.payload_type)
            except codec.Unfit as error:
                if "payload" in mark.options:
                    return f"payload=: {error}"
                wanted = getattr(shape.payload_type, "__name__", str(shape.payload_type))
                return f"expected payload=…, as the function takes {wanted:.100} and gets None without it"
        case _:
            assert_never(trigger)
    return None


def _payload_schema(shape: Shape, triggers: list[Trigger], refuse: Callable[[str], None]) -> dict[str, Any] | None:
    if not delivery.names_request(shape.payload_type):
        return _schema(shape.payload_type, "payload", refuse)
    if not any(isinstance(trigger, WebhookTrigger) for trigger in triggers):
        refuse("expected another type for the payload than Request: only a @webhook gets one")
    return None


def _schema(kind: Any, what: str, refuse: Callable[[str], None]) -> dict[str, Any] | None:
    """The JSON Schema of a type; None for anything."""
    if kind is Any or kind is object:
        return None
    try:
        return msgspec.json.schema(kind)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        if "custom types" in reason:
            reason = "a type unknown to msgspec"
        refuse(
            f"expected a Struct, dataclass, TypedDict or builtin type for the {what}, got {kind!r:.200} ({reason:.300})"
        )
        return None


def _not_a_function(target: Any) -> str | None:
    """Why something annotated is no plain function, or None."""
    if inspect.isclass(target):
        return "expected a plain function, got a class; annotate a function of the module"
    if not inspect.isfunction(target):
        return f"expected a plain function, got {type(target).__name__:.100}; annotate a function of the module"
    inner = inspect.unwrap(target)
    for function in (target, inner):
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            return "expected a plain function, got a generator; return a value instead of yielding"
    if target.__name__ == "<lambda>":
        return "expected a plain function, got a lambda; write it with def"
    if "<locals>" in target.__qualname__:
        return (
            "expected a function of the module, got a nested one; move it out, or use functools.wraps in its decorator"
        )
    if "." in target.__qualname__:
        return "expected a function of the module, got a method; move it out of its class"
    return None


def _why_unreachable(mark: Mark) -> str:
    """An annotation whose function the module's namespace does not hold."""
    why = _not_a_function(mark.target)
    if why is None and inspect.ismethod(mark.target):
        why = "expected a plain function, got a method; move it out of its class"
    return why or (
        "expected the annotated function under its name in the module, but another object is there; "
        "put the annotation above other decorators, or rename the later function"
    )


def _refusal(module: str, file: str, line: int, text: str) -> LoadError:
    text = text.encode("utf-8", "backslashreplace").decode()
    return LoadError(module=module, file=file, message=text[:2_000], line=line, kind="refused")


def _first_line(target: Callable[..., Any]) -> str:
    doc = target.__doc__
    if not isinstance(doc, str):
        return ""
    return (
        next((line.strip() for line in doc.splitlines() if line.strip()), "")[:300].encode("utf-8", "replace").decode()
    )
