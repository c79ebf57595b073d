"""From a payload's JSON Schema: a sample to run with, and the fields of a form. Made for what msgspec writes."""

from __future__ import annotations

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
    enum: tuple[Any, ...] = ()
    examples: tuple[Any, ...] = ()
    const: Any = UNSET
    default: Any = UNSET
    description: str = ""
    format: str = ""
    minimum: int | float | UnsetType = UNSET
    maximum: int | float | UnsetType = UNSET
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
            elif choice := part.any_of or part.one_of:
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
            tuple((one if isinstance(one, str) else _json(one), _json(one)) for one in inner.enum),
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
                return 1 if part.minimum is UNSET else int(part.minimum)
            case "number":
                return 1.5 if part.minimum is UNSET else part.minimum
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


def _kind(part: Schema) -> Kind:
    if part.enum:
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
