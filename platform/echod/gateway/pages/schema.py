"""From a payload's JSON Schema, as msgspec and pydantic write it: a sample to run with, and the fields of a form."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

Kind = Literal["text", "integer", "number", "checkbox", "select", "json"]
MAX_DEPTH = 6

# What a person would type first, by what the field is called.
BY_NAME = {
    "name": "Ada",
    "email": "ada@example.com",
    "url": "https://example.com/",
    "tenant": "acme",
    "customer": "acme",
    "path": "data.csv",
    "file": "data.csv",
    "text": "hello",
    "message": "hello",
    "currency": "EUR",
    "id": "a1",
}
BY_FORMAT = {
    "date-time": "2026-01-01T09:00:00Z",
    "date": "2026-01-01",
    "time": "09:00:00",
    "duration": "PT5M",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "email": "ada@example.com",
    "uri": "https://example.com/",
    "byte": "aGVsbG8=",
}


class Schema(msgspec.Struct, frozen=True, rename="camel"):
    """The keywords that matter here; parts stay raw until they are looked at, so that one odd part spoils no other."""

    reference: Any = msgspec.field(default=None, name="$ref")
    definitions: dict[str, Any] = msgspec.field(default_factory=dict[str, Any], name="$defs")
    type: Any = None
    properties: dict[str, Any] = {}
    required: tuple[str, ...] = ()
    items: Any = None
    prefix_items: tuple[Any, ...] = ()
    any_of: tuple[Any, ...] = ()
    one_of: tuple[Any, ...] = ()
    all_of: tuple[Any, ...] = ()
    enum: tuple[Any, ...] = ()
    examples: tuple[Any, ...] = ()
    const: Any = UNSET
    default: Any = UNSET
    description: str = ""
    format: str = ""
    minimum: int | float | UnsetType = UNSET
    maximum: int | float | UnsetType = UNSET
    exclusive_minimum: int | float | UnsetType = UNSET
    exclusive_maximum: int | float | UnsetType = UNSET
    min_length: int = 0
    max_length: int = 1000
    min_items: int = 1


class Field(msgspec.Struct, frozen=True):
    """One top-level property. `value` is what the form starts with: the text of a "text", else JSON."""

    name: str
    kind: Kind
    required: bool
    value: str
    hint: str
    options: tuple[tuple[str, str], ...] = ()  # as shown, as JSON
    minimum: str = ""
    maximum: str = ""


def sample(schema: object) -> Any:
    """A payload that fits the schema as far as the schema is understood; None for no schema."""
    return _Reader(schema).sample()


def fields(schema: object) -> tuple[Field, ...]:
    """The form of an object with properties; empty where only raw JSON will do."""
    return _Reader(schema).fields()


def _read(part: object) -> Schema:
    try:
        return msgspec.convert(part, Schema)
    except msgspec.ValidationError:
        return Schema()


class _Reader:
    """One schema, with the definitions that its parts refer to."""

    def __init__(self, schema: object) -> None:
        self._root = _read(schema)

    def sample(self) -> Any:
        return self._sample(self._root, "", 0)

    def fields(self) -> tuple[Field, ...]:
        top = self._resolved(self._root)
        return tuple(self._field(name, _read(part), name in top.required) for name, part in top.properties.items())

    def _resolved(self, part: Schema) -> Schema:
        """`part` behind its references, and the first that is not null of a choice."""
        for _ in range(MAX_DEPTH):
            if isinstance(part.reference, str):
                part = _read(self._root.definitions.get(part.reference.removeprefix("#/$defs/"), {}))
            elif choice := part.any_of or part.one_of or part.all_of[:1]:
                part = next((one for one in map(_read, choice) if one.type != "null"), Schema())
            else:
                break
        return part

    def _field(self, name: str, part: Schema, required: bool) -> Field:
        inner = self._resolved(part)
        kind = _kind(inner)
        value = self._sample(part, name, 1)
        if kind == "text":
            shown = value if isinstance(value, str) else ""
        else:
            shown = "" if value is None and not required else _json(value)
        return Field(
            name,
            kind,
            required,
            shown,
            part.description or inner.description or inner.format,
            tuple((one if isinstance(one, str) else _json(one), _json(one)) for one in _choices(inner, part)),
            "" if inner.minimum is UNSET else _json(inner.minimum),
            "" if inner.maximum is UNSET else _json(inner.maximum),
        )

    def _sample(self, part: Schema, name: str, depth: int) -> Any:
        for one in (part, self._resolved(part)):
            for given in (one.default, one.const, *one.examples[:1], *one.enum[:1]):
                if given is not UNSET:
                    return given
        part = self._resolved(part)
        if depth > MAX_DEPTH:  # a type that holds itself
            return None
        match part.type:
            case "string":
                return _string(part, name)
            case "integer":
                return math.floor(_within(part, 1))
            case "number":
                return _within(part, 1.5)
            case "boolean":
                return False
            case "array":
                return self._array(part, name, depth)
            case "object":
                return {key: self._sample(_read(one), key, depth + 1) for key, one in part.properties.items()}
            case _:
                return None

    def _array(self, part: Schema, name: str, depth: int) -> list[Any]:
        if part.prefix_items:
            return [self._sample(_read(one), name, depth + 1) for one in part.prefix_items]
        if part.items is None:
            return []
        return [self._sample(_read(part.items), name.removesuffix("s"), depth + 1)] * max(1, min(part.min_items, 10))


def _choices(inner: Schema, part: Schema) -> tuple[Any, ...]:
    """The values to choose from, null with them where it is one."""
    choices = inner.enum if inner.const is UNSET else (inner.const,)
    is_nullable = any(_read(one).type == "null" for one in part.any_of)
    return (*choices, None) if choices and is_nullable and None not in choices else choices


def _within(part: Schema, usual: float) -> float:
    """A number in the bounds of a schema: the least, else the usual one, else one between."""
    above, below = part.exclusive_minimum, part.exclusive_maximum
    low = [bound for bound in (part.minimum, above) if bound is not UNSET]
    high = [bound for bound in (part.maximum, below) if bound is not UNSET]
    found = [*low[:1], usual, *high[:1], *(bound + 1 for bound in low), *(bound - 1 for bound in high)]
    found += [(least + most) / 2 for least in low for most in high]
    return next((one for one in found if _is_within(part, one)), usual)


def _is_within(part: Schema, number: float) -> bool:
    return (
        (part.minimum is UNSET or number >= part.minimum)
        and (part.maximum is UNSET or number <= part.maximum)
        and (part.exclusive_minimum is UNSET or number > part.exclusive_minimum)
        and (part.exclusive_maximum is UNSET or number < part.exclusive_maximum)
    )


def _kind(part: Schema) -> Kind:
    if part.enum or part.const is not UNSET:
        return "select"
    match part.type:
        case "string":
            return "text"
        case "integer":
            return "integer"
        case "number":
            return "number"
        case "boolean":
            return "checkbox"
        case _:
            return "json"


def _string(part: Schema, name: str) -> str:
    text = BY_FORMAT.get(part.format) or BY_NAME.get(name.lower()) or name or "text"
    return text.ljust(part.min_length, "x")[: part.max_length]


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
