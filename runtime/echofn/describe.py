"""From an imported module to what the manifest says about it: its functions, and what had to be left out.

All judging of annotations is here and in `options`. A refusal names the file and line of the annotation and hurts no
other function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence, Set
from types import ModuleType
from typing import Any, NamedTuple, assert_never

import msgspec

from echofn import codec, delivery, masking, models, values
from echofn.annotations import Mark, attribute_of, marks_of, name_of, own_name, recorded
from echofn.discovery_protocol import Described, Module
from echofn.lifespans import NOBODYS, read_lifespan
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
from echofn.options import (
    Reading,
    check_whether_on,
    read_cron,
    read_every,
    read_policy,
    read_queue,
    read_secrets,
    without_paths,
)
from echofn.package import Folder
from echofn.quoting import hidden, quoted
from echofn.signature import Refused, Shape, shape_of, why_no_function
from echofn.values import function_name
from echofn.webhooks import POLICY, policy_refusals, read_webhook


class Given(NamedTuple):
    """What the annotations of a module are read with."""

    folder: Folder
    declared: Set[str]  # the secrets that its source names; each of its functions gets all
    defaults: Policy  # what an annotation leaves open
    env: str  # an annotation for another one is off


def describe(loaded: ModuleType, module: Module, given: Given) -> Described:
    """The functions of a module, refusals, and the annotations that are off."""
    scope = vars(loaded)
    marks = [mark for mark in recorded if mark.scope is scope and mark.kind != "lifespan"]
    lifespans = [mark for mark in recorded if mark.scope is scope and mark.kind == "lifespan"]
    startup_ms, misfits = read_lifespan(lifespans)
    found: set[int] = set()
    judged: list[Described] = []
    for target in _annotated(scope):
        mine = [mark for mark in marks_of(target) if mark.scope is scope and mark.kind != "lifespan"]
        if not mine:
            continue
        found.update(map(id, mine))
        judged.append(_judge(target, mine, module, given))
    errors = [_refusal(module, mark.line, _why_unreachable(mark)) for mark in marks if id(mark) not in found]
    errors += [error for each in judged for error in each.errors]
    functions = [msgspec.structs.replace(each, startup_ms=startup_ms) for one in judged for each in one.functions]
    if lifespans and not marks:
        misfits.append((lifespans[0].line, NOBODYS))
    if misfits:
        functions.clear()  # they would run without what they rely on
        errors += [_refusal(module, line, text) for line, text in misfits]
    return Described(
        module.name,
        tuple(sorted(functions, key=lambda function: function.line)),
        tuple(sorted(errors, key=lambda error: error.line or 0)),
        tuple(sorted((off for each in judged for off in each.off), key=lambda off: off.line)),
    )


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


def _judge(target: Callable[..., Any], marks: list[Mark], module: Module, given: Given) -> Described:
    """One function: itself, or what is wrong with it; and its annotations that are off, which are judged as well."""
    errors: list[LoadError] = []
    first = min(mark.line for mark in marks)

    def refuse(line: int, text: str) -> None:
        errors.append(_refusal(module, line, text))

    if (why := why_no_function(target)) is not None:
        refuse(first, why)
        return Described(module.name, errors=tuple(errors))
    shape: Shape | None = None
    try:
        shape = shape_of(target)
    except Refused as refused:
        refuse(first, str(refused))
    options = _options(marks, shape, refuse, given)
    is_async = inspect.iscoroutinefunction(target)
    if not is_async and (mark := next((mark for mark in marks if mark.options.get("per_worker", 1) != 1), None)):
        refuse(
            mark.line, "per_worker=: a worker runs one job of a sync function at a time; write async def, or remove it"
        )
    if len({mark.options.get("batch") is None for mark in marks if mark.kind == "queue"}) > 1:
        refuse(
            first, "batch=: expected it on each @queue of the function, or on none: its payload is a list, or is not"
        )
    name = name_of(target, given.folder.package)
    try:
        function_name(name)
    except ValueError as error:
        refuse(first, f"name: {error}")
    if len(names := {each for mark in marks if (each := own_name(mark)) is not None}) > 1:
        refuse(first, f"name=: expected one name for a function, got {', '.join(sorted(names))}")
    payload_schema = _payload_schema(shape, marks, lambda text: refuse(first, text)) if shape else None
    for mark in marks if payload_schema is not None else ():
        for option in ("lane", "unique"):
            if mark.kind == "queue" and (why := _astray(payload_schema or {}, mark.options.get(option))):
                refuse(mark.line, f"{option}=: {why}")
    if errors or shape is None:
        return Described(module.name, errors=tuple(errors))
    off = tuple(Off(name, mark.kind, module.file, mark.line, why, module.name) for mark, why in options.off)
    if not options.triggers:
        return Described(module.name, off=off)
    function = Function(
        name=name,
        module=module.name,
        attribute=attribute_of(target, marks[0].scope),
        file=module.file,
        line=first,
        policy=options.policy,
        triggers=options.triggers,
        takes_payload=shape.takes_payload,
        takes_context=shape.takes_context,
        is_async=is_async,
        payload_schema=payload_schema,
        result_schema=_schema(shape.result_type, "result", lambda _text: None),
        doc=_first_line(target),
        secrets=tuple(sorted(given.declared)),
        default=codec.NIL if _has(QueueTrigger, options.triggers) else _default(shape),
    )
    return Described(module.name, (function,), off=off)


class Options(NamedTuple):
    """What the annotations of a function that are on say, and which are off, and why."""

    policy: Policy
    triggers: tuple[Trigger, ...]
    off: tuple[tuple[Mark, str], ...]


def _options(marks: list[Mark], shape: Shape | None, refuse: Callable[[int, str], None], given: Given) -> Options:
    policy = without_paths(given.defaults)
    triggers: list[Trigger] = []
    off: list[tuple[Mark, str]] = []
    refused = policy_refusals(marks, given.env)
    for mark in reversed(marks):  # outermost first: as they read on the page
        reading = Reading(mark)
        why_off = check_whether_on(reading, given.env)
        trigger, own_policy = _read(reading, given)
        trigger = _with_default(trigger, shape, reading)
        if id(mark) in refused:
            reading.refuse(refused[id(mark)])
        if not reading.refusals and (why := _misfit(trigger, shape, mark)):
            reading.refuse(why)
        if own_policy is not None and own_policy.isolation == "job" and mark.options.get("recycle_jobs", 1) != 1:
            reading.refuse(
                'recycle_jobs=: with isolation="job" a worker is for one run; remove it, or write isolation="worker"'
            )
        if why_off is not None:
            off.append((mark, why_off))
        else:
            if not reading.refusals and (why := _clash(trigger, triggers)):
                reading.refuse(why)
            triggers.append(trigger)
            policy = own_policy or policy
        for text in reading.refusals:
            refuse(mark.line, text)
    lanes = [policy.lane, *(trigger.lane for trigger in triggers if isinstance(trigger, WebhookTrigger))]
    for lane in filter(None, lanes):
        if _is_redacted(policy.redact, lane):
            text = f"lane=: expected a path that redact= does not cover, got {lane!r}: lanes are shown"
            refuse(marks[-1].line, text)
    return Options(policy, tuple(triggers), tuple(off))


def _is_redacted(redact: tuple[str, ...], path: str) -> bool:
    try:
        return masking.covers(redact, path)
    except ValueError:
        return False  # no path at all: the control plane says so


def _read(reading: Reading, given: Given) -> tuple[Trigger, Policy | None]:
    """What one annotation says: the trigger, and the function's policy where it has that."""
    match reading.mark.kind:
        case "queue":
            read_secrets(reading, given.declared)
            return read_queue(reading), read_policy(reading, given.defaults)
        case "cron":
            return read_cron(reading), None
        case "every":
            return read_every(reading), None
        case "webhook":
            has_policy = bool(POLICY & reading.mark.options.keys())
            trigger = read_webhook(reading, given.declared)
            return trigger, read_policy(reading, given.defaults) if has_policy else None
        case _:
            raise AssertionError(reading.mark.kind)


def _clash(trigger: Trigger, others: list[Trigger]) -> str | None:
    """Why an annotation cannot stand beside those that were read before it."""
    match trigger:
        case QueueTrigger():
            return "expected one @queue on a function, got two" if _has(QueueTrigger, others) else None
        case WebhookTrigger():
            return None  # two on one path: the control plane sees all of them
        case CronTrigger() | EveryTrigger():
            if trigger.name in {each.name for each in others if isinstance(each, CronTrigger | EveryTrigger)}:
                return f"two recurrences of this function are called {trigger.name!r}; give one another name="
        case _:
            assert_never(trigger)
    return None


def _has(kind: type[Trigger], triggers: Sequence[Trigger]) -> bool:
    return any(isinstance(trigger, kind) for trigger in triggers)


def _with_default(trigger: Trigger, shape: Shape | None, reading: Reading) -> Trigger:
    """An annotation without `payload=` takes the default of the function's parameter, as a call without it would."""
    if isinstance(trigger, WebhookTrigger) or shape is None or "payload" in reading.mark.options:
        return trigger
    if not shape.has_default or delivery.names_request(shape.payload_type):
        return trigger
    try:
        payload = values.payload(shape.default)
        codec.convert(codec.decode(payload), shape.payload_type)
    except (ValueError, codec.Unfit) as error:
        reading.refuse(f"expected a default of the payload that a job can carry, got {quoted(shape.default)}: {error}")
        return trigger
    return msgspec.structs.replace(trigger, payload=payload)


def _default(shape: Shape) -> bytes:
    """The default of the function's parameter, where a job can carry it."""
    if not shape.has_default or delivery.names_request(shape.payload_type):
        return codec.NIL
    try:
        return values.payload(shape.default)
    except codec.Unfit:
        return codec.NIL


def _misfit(trigger: Trigger, shape: Shape | None, mark: Mark) -> str | None:
    """Whether the payload of jobs that get none from a caller fits the handler."""
    if shape is None or isinstance(trigger, WebhookTrigger):
        return None
    is_given = "payload" in mark.options
    if not shape.takes_payload:
        return "payload=: the function takes no payload; remove it" if is_given else None
    if isinstance(trigger, QueueTrigger) and not is_given:
        return None  # its callers have to give one
    try:
        codec.convert(codec.decode(trigger.payload), shape.payload_type)
    except codec.Unfit as error:
        if is_given:
            return f"payload=: {error}"
        wanted = getattr(shape.payload_type, "__name__", str(shape.payload_type))
        hint = "expected payload=…, or a default of its parameter,"
        return f"{hint} as the function takes {hidden(wanted, 100)} and gets None without one"
    return None


def _payload_schema(shape: Shape, marks: list[Mark], refuse: Callable[[str], None]) -> dict[str, Any] | None:
    if not delivery.names_request(shape.payload_type):
        return _schema(shape.payload_type, "payload", refuse)
    if not any(mark.kind == "webhook" for mark in marks):
        refuse("expected another type for the payload than Request: only a @webhook gets one")
    return None


def _astray(schema: dict[str, Any], path: Any) -> str | None:
    """Why a path leads nowhere in the payload, by its type: all its jobs would share a lane, or have no key."""
    try:
        found = models.astray(schema, masking.steps(path)) if isinstance(path, str) else None
    except ValueError:
        return None  # no path at all: the control plane says so
    if found is None:
        return None
    import difflib  # only a slip of the keyboard pays for it

    step, fields = found
    near = difflib.get_close_matches(step, fields, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(fields) or 'none'}"
    return f"expected a path to a field of the payload, got {quoted(path)}: it has no {step!r}; {hint}"


def _schema(kind: Any, what: str, refuse: Callable[[str], None]) -> dict[str, Any] | None:
    """The JSON Schema of a type; None for anything."""
    if kind is Any or kind is object:
        return None
    try:
        return models.json_schema(kind, "validation" if what == "payload" else "serialization")
    except Exception as error:
        reason = str(error).partition("\n")[0]
        if "custom types" in reason:
            reason = "a type unknown to msgspec"
        elif "custom type" in reason:
            reason = "in a union a model can stand beside None alone; make the union a RootModel"
        expected = f"expected a Struct, dataclass, TypedDict, pydantic model or builtin type for the {what}"
        refuse(f"{expected}, got {quoted(kind, 200)} ({hidden(reason, 300)})")
        return None


def _why_unreachable(mark: Mark) -> str:
    """An annotation whose function the module's namespace does not hold."""
    why = why_no_function(mark.target)
    if why is None and inspect.ismethod(mark.target):
        why = "expected a plain function, got a method; move it out of its class"
    return why or (
        "expected the annotated function under its name in the module, but another object is there; "
        "put the annotation above other decorators, or rename the later function"
    )


def _refusal(module: Module, line: int, text: str) -> LoadError:
    text = hidden(text, 2_000).encode("utf-8", "backslashreplace").decode()
    return LoadError(module=module.name, file=module.file, message=text, line=line, kind="refused")


def _first_line(target: Callable[..., Any]) -> str:
    doc = target.__doc__
    if not isinstance(doc, str):
        return ""
    first = next((line.strip() for line in doc.splitlines() if line.strip()), "")
    return hidden(first, 300).encode("utf-8", "replace").decode()
