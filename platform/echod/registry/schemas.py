"""Payloads held against the JSON Schema that discovery wrote, before anything is queued."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import islice
from typing import Annotated, Any

import jsonschema_rs
import msgspec

from echod import log
from echod.errors import InvalidPayload
from echofn.manifest import Function
from echofn.masking import MASK
from echofn.models import READ_AS

MOST_FAULTS = 20
SMALL_BYTES = 4096  # of a larger payload the first fault alone is looked for: the library finds all or one
_MOST_VALIDATORS = 1000
_Kind = jsonschema_rs.ValidationErrorKind
_Unions = (_Kind.AnyOf, _Kind.OneOfNotValid)
_OneOfValues = (_Kind.Enum, _Kind.Constant)
_OtherValues = (_Kind.Type, *_OneOfValues)
_READ: dict[object, Any] = {
    "datetime": dt.datetime,
    "aware datetime": Annotated[dt.datetime, msgspec.Meta(tz=True)],
    "naive datetime": Annotated[dt.datetime, msgspec.Meta(tz=False)],
    "time": dt.time,
    "aware time": Annotated[dt.time, msgspec.Meta(tz=True)],
    "naive time": Annotated[dt.time, msgspec.Meta(tz=False)],
    "date": dt.date,
    "timedelta": dt.timedelta,
    "uuid": uuid.UUID,
    "decimal": Decimal,
    "bytes": bytes,
}
_KEYS: dict[object, Any] = {"integer key": int, "number key": float}
_BOUNDS = {
    "minimum": "ge", "exclusiveMinimum": "gt", "maximum": "le", "exclusiveMaximum": "lt", "multipleOf": "multiple_of"
}  # fmt: skip
_BYTES = {"\0bytes": True}
_FORMATS_OF_BYTES = ("binary", "base64", "base64url")  # as pydantic writes it
_NO_BYTES = "got bytes (a bin of msgpack), which fit only where the type is bytes; send text"
_log = log.get("registry")


class _ReadAs:
    """The keyword READ_AS: text is read as a worker reads it. `format` is not held against a payload: pydantic and
    authors write it, too, and a worker may take more than its RFC does.
    """

    def __init__(self, parent_schema: dict[str, Any], value: Any, schema_path: list[str | int]) -> None:
        kind: Any = _READ.get(value) if isinstance(value, str) else None
        self._read: Callable[[str], object] | None = None if kind is None else lambda text: msgspec.convert(text, kind)
        if value in _KEYS:
            bounds = {_BOUNDS[name]: bound for name, bound in parent_schema.items() if name in _BOUNDS}
            number: Any = dict[Annotated[_KEYS[value], msgspec.Meta(**bounds)], None]  # type: ignore[valid-type]
            self._read = lambda text: msgspec.convert({text: None}, number, str_keys=True)

    def validate(self, instance: Any) -> None:
        """Raise ValueError, which quotes nothing of the text."""
        if self._read is not None and isinstance(instance, str):
            try:
                self._read(instance)
            except ValueError as error:
                raise ValueError(str(error).removesuffix(" - at `key` in `$`")) from None


class Schemas:
    """Compiled validators, by version and function."""

    def __init__(self) -> None:
        self._validators: dict[tuple[str, str, bool], jsonschema_rs.Validator | None] = {}

    def check(self, version: str, function: Function, payload: object, size_bytes: int, given: object = None) -> None:
        """Raise InvalidPayload, with path and reason of the faults, when `payload` does not fit.

        In it bytes are text of base64. `given` is the same with bytes as bytes, where it may have some: they fit only
        where the type is bytes, although their text fits where it is text.
        """
        self._hold(self._validator(version, function), payload, size_bytes)
        if given is None or given is payload or (marked := _marked(given)) == payload:
            return
        self._hold(self._validator(version, function, of_bytes=True), marked, size_bytes, _NO_BYTES)

    def _hold(
        self, validator: jsonschema_rs.Validator | None, payload: object, size_bytes: int, why: str | None = None
    ) -> None:
        if validator is None or validator.is_valid(payload):
            return
        errors = validator.iter_errors(payload) if size_bytes <= SMALL_BYTES else _first_error(validator, payload)
        faults = [
            {"path": json_path(error.instance_path), "message": why or _message(error)}
            for error in islice((inner for error in errors for inner in _exact(error)), MOST_FAULTS)
        ]
        first = faults[0]
        raise InvalidPayload(f"{first['path']}: {first['message']}", faults)

    def _validator(self, version: str, function: Function, *, of_bytes: bool = False) -> jsonschema_rs.Validator | None:
        key = (version, function.name, of_bytes)
        if key not in self._validators:
            if len(self._validators) >= _MOST_VALIDATORS:
                self._validators.clear()
            schema = function.payload_schema
            self._validators[key] = _compiled(function, _with_bytes(schema) if of_bytes else schema)
        return self._validators[key]


def _marked(value: Any) -> Any:
    """A value with a mark in place of bytes, which nothing else in JSON looks like."""
    if isinstance(value, bytes):
        return _BYTES
    if isinstance(value, dict):
        return {key: _marked(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    return [_marked(item) for item in value] if isinstance(value, list) else value  # pyright: ignore[reportUnknownVariableType]


def _with_bytes(schema: Any) -> Any:
    """A schema that takes the mark where it takes bytes."""
    if isinstance(schema, list):
        return [_with_bytes(each) for each in schema]  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(schema, dict):
        return schema
    inner: dict[Any, Any] = {key: _with_bytes(each) for key, each in schema.items()}  # pyright: ignore[reportUnknownVariableType]
    is_bytes = inner.get("contentEncoding") == "base64" or inner.get("format") in _FORMATS_OF_BYTES
    if inner.get(READ_AS) == "hashable" or (is_bytes and inner.get("type") == "string"):
        return {"anyOf": [inner, {"const": _BYTES}]}
    return inner


def _first_error(validator: jsonschema_rs.Validator, payload: object) -> Iterator[jsonschema_rs.ValidationError]:
    try:
        validator.validate(payload)
    except jsonschema_rs.ValidationError as error:
        yield error


def _exact(error: jsonschema_rs.ValidationError) -> Iterator[jsonschema_rs.ValidationError]:
    """A fault, or where it is that none of several schemas fits (a nullable type, a union) what is wrong with the one
    that was meant: of those for values of this kind one whose tag fits, that is wrong in the fewest places.
    """
    kind = error.kind
    if not isinstance(kind, _Unions):
        yield error
        return
    own = len(error.instance_path)
    meant = [branch for branch in kind.context if branch and not any(_is_another(each, own) for each in branch)]
    if not meant:
        yield error
        return
    for inner in min(meant, key=lambda branch: (any(_is_tag(each, own) for each in branch), len(branch))):
        yield from _exact(inner)


def _message(error: jsonschema_rs.ValidationError) -> str:
    """What is wrong; of the name of a field, too, whose path is that of the object."""
    return ("a key of it: " if "propertyNames" in error.schema_path else "") + error.message[:500]


def _is_another(error: jsonschema_rs.ValidationError, own: int) -> bool:
    """Whether a branch is about values of another kind altogether."""
    return len(error.instance_path) == own and isinstance(error.kind, _OtherValues)


def _is_tag(error: jsonschema_rs.ValidationError, own: int) -> bool:
    return len(error.instance_path) == own + 1 and isinstance(error.kind, _OneOfValues)


def json_path(steps: list[str | int]) -> str:
    """`$.items[0].name`, the place of a fault within the payload."""
    text = "$"
    for step in steps:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step.isidentifier():
            text += f".{step}"
        else:
            text += f"[{step!r}]"
    return text


def fits(schema: object, payload: object) -> bool:
    """Whether a payload fits a schema. One at fault is fitted by nothing."""
    try:
        return _validator(schema).is_valid(payload)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError):
        return False


def _validator(schema: Any, mask: str | None = None) -> jsonschema_rs.Validator:
    return jsonschema_rs.Draft202012Validator(schema, validate_formats=False, mask=mask, keywords={READ_AS: _ReadAs})


def _compiled(function: Function, schema: Any) -> jsonschema_rs.Validator | None:
    """A validator; None where anything goes, and where the schema is at fault: then the worker's own check decides.

    What does not fit is quoted in the message, but not where something of the payload is redacted.
    """
    if schema is None:
        return None
    mask = MASK if function.policy.redact else None
    try:
        return _validator(schema, mask)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        _log.warning("schema.refused", function=function.name, error=str(error)[:300])
        return None
