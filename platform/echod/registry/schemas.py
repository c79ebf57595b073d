"""Payloads held against the JSON Schema that discovery wrote, before anything is queued."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
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
_log = log.get("registry")


class _ReadAs:
    """The keyword READ_AS: text is read as a worker reads it. `format` is not held against a payload: pydantic and
    authors write it, too, and a worker may take more than its RFC does.
    """

    def __init__(self, parent_schema: dict[str, Any], value: Any, schema_path: list[str | int]) -> None:
        self._kind = _READ.get(value) if isinstance(value, str) else None

    def validate(self, instance: Any) -> None:
        """Raise ValueError, which quotes nothing of the text."""
        if self._kind is not None and isinstance(instance, str):
            msgspec.convert(instance, self._kind)


class Schemas:
    """Compiled validators, by version and function."""

    def __init__(self) -> None:
        self._validators: dict[tuple[str, str], jsonschema_rs.Validator | None] = {}

    def check(self, version: str, function: Function, payload: object, size_bytes: int) -> None:
        """Raise InvalidPayload, with path and reason of the faults, when `payload` does not fit."""
        validator = self._validator(version, function)
        if validator is None or validator.is_valid(payload):
            return
        errors = validator.iter_errors(payload) if size_bytes <= SMALL_BYTES else _first_error(validator, payload)
        faults = [
            {"path": json_path(error.instance_path), "message": error.message[:500]}
            for error in islice((inner for error in errors for inner in _exact(error)), MOST_FAULTS)
        ]
        first = faults[0]
        raise InvalidPayload(f"{first['path']}: {first['message']}", faults)

    def _validator(self, version: str, function: Function) -> jsonschema_rs.Validator | None:
        key = (version, function.name)
        if key not in self._validators:
            if len(self._validators) >= _MOST_VALIDATORS:
                self._validators.clear()
            self._validators[key] = _compiled(function)
        return self._validators[key]


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


def _compiled(function: Function) -> jsonschema_rs.Validator | None:
    """A validator; None where anything goes, and where the schema is at fault: then the worker's own check decides.

    What does not fit is quoted in the message, but not where something of the payload is redacted.
    """
    if function.payload_schema is None:
        return None
    mask = MASK if function.policy.redact else None
    try:
        return _validator(function.payload_schema, mask)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        _log.warning("schema.refused", function=function.name, error=str(error)[:300])
        return None
