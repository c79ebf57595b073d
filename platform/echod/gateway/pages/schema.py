"""From a payload's JSON Schema, as msgspec and pydantic write it: a sample to run with, and the fields of a form.

Whatever is offered was held against the schema. Where nothing was found that fits it (a pattern, a type that cannot but
hold itself), nothing is offered.
"""

from __future__ import annotations

import functools
import math
import re
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from echod.registry.schemas import fits
from echofn.models import READ_AS

Kind = Literal["text", "integer", "number", "checkbox", "select", "json"]
MAX_DEPTH = 6
MOST_ITEMS = 20

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
BY_FORMAT = {  # and by what it is read as
    "datetime": "2026-01-01T09:00:00Z",
    "aware datetime": "2026-01-01T09:00:00Z",
    "naive datetime": "2026-01-01T09:00:00",
    "aware time": "09:00:00Z",
    "naive time": "09:00:00",
    "timedelta": "PT5M",
    "decimal": "1.50",
    "bytes": "aGVsbG8=",
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
    read_as: str = msgspec.field(default="", name=READ_AS)
    multiple_of: int | float = 0
    minimum: int | float | UnsetType = UNSET
    maximum: int | float | UnsetType = UNSET
    exclusive_minimum: int | float | UnsetType = UNSET
    exclusive_maximum: int | float | UnsetType = UNSET
    min_length: int = 0
    max_length: int = 1000
    min_items: int = 0
    max_items: int = MOST_ITEMS
    unique_items: bool = False
    min_properties: int = 0
    property_names: dict[str, Any] = {}
    additional_properties: Any = None


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


def sample(schema: object, *, is_short: bool = False) -> Any:
    """A payload that fits the schema; UNSET where none was found, None for no schema. `is_short`: no more than it must
    have."""
    return None if schema is None else _sample(msgspec.json.encode(schema), is_short)


@functools.lru_cache(maxsize=512)
def _sample(encoded: bytes, is_short: bool) -> Any:
    schema = msgspec.json.decode(encoded)
    return _Reader(schema, is_short).sample()


def fields(schema: object) -> tuple[Field, ...]:
    """The form of an object with properties; empty where only raw JSON will do, as for one of several objects."""
    return _Reader(schema).fields()


def _read(part: object) -> Schema:
    try:
        return msgspec.convert(part, Schema)
    except msgspec.ValidationError:
        return Schema()


class _Reader:
    """One schema, with the definitions that its parts refer to."""

    def __init__(self, schema: object, is_short: bool = False) -> None:
        self._root = _read(schema)
        self._schema = schema
        self._is_short = is_short

    def sample(self) -> Any:
        found = self._sample(self._root, "", ())
        return found if found is UNSET or fits(self._schema, found) else UNSET

    def fields(self) -> tuple[Field, ...]:
        top = self._resolved(self._root)
        if self._is_one_of_several(self._root):
            return ()
        return tuple(self._field(name, part, name in top.required) for name, part in top.properties.items())

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

    def _is_one_of_several(self, part: Schema) -> bool:
        """Whether it is a choice (a tagged union, say), but for null."""
        for _ in range(MAX_DEPTH):
            if isinstance(part.reference, str):
                part = _read(self._root.definitions.get(part.reference.removeprefix("#/$defs/"), {}))
            else:
                others = [one for one in map(_read, part.any_of or part.one_of) if one.type != "null"]
                if len(others) != 1:
                    return bool(others)
                [part] = others
        return False

    def _field(self, name: str, raw: Any, required: bool) -> Field:
        part = _read(raw)
        inner = self._resolved(part)
        kind = _kind(inner)
        value = self._sample(part, name, ())
        if value is UNSET or not fits({"allOf": [raw], "$defs": self._root.definitions}, value):
            shown = ""
        elif kind == "text":
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

    def _sample(self, part: Schema, name: str, within: tuple[str, ...], nth: int = 0) -> Any:
        """The `nth` of several different ones, or UNSET. `within`: the definitions that it lies in.

        One of those that comes again is a type that holds itself, which has to end some other way.
        """
        for given in (part.default, part.const):
            if given is not UNSET and not nth:
                return given
        if given := part.examples or part.enum:
            return given[nth] if nth < len(given) else UNSET
        if isinstance(part.reference, str):
            name_of_it = part.reference.removeprefix("#/$defs/")
            if name_of_it in within or len(within) > MAX_DEPTH:
                return UNSET
            return self._sample(_read(self._root.definitions.get(name_of_it, {})), name, (*within, name_of_it), nth)
        if choice := part.any_of or part.one_of or part.all_of[:1]:
            parts = sorted(map(_read, choice), key=lambda one: one.type == "null")
            found = (self._sample(one, name, within, nth) for one in parts)
            return next((one for one in found if one is not UNSET), UNSET)
        match part.type:
            case "string":
                return _string(part, name, nth)
            case "integer":
                return _whole(part, nth)
            case "number":
                return _within(part, 1.5, nth)
            case "boolean":
                return bool(nth)
            case "array":
                return self._array(part, name, within, nth)
            case "object":
                return self._object(part, name, within, nth)
            case _:
                return None

    def _object(self, part: Schema, name: str, within: tuple[str, ...], nth: int) -> Any:
        found: dict[str, Any] = {}
        for key, raw in part.properties.items():
            if key in part.required or not self._is_short:
                value = self._sample(_read(raw), key, within, nth)
                if value is not UNSET:
                    found[key] = value
                elif key in part.required:
                    return UNSET
        names = _read({"type": "string", **part.property_names})
        for number in range(min(part.min_properties, MOST_ITEMS) - len(found)):
            key = self._sample(names, "key", within, number)
            value = self._sample(_read(part.additional_properties), name, within)
            if key is UNSET or value is UNSET:
                return UNSET
            found[key] = value
        return found

    def _array(self, part: Schema, name: str, within: tuple[str, ...], nth: int) -> Any:
        found = [self._sample(_read(one), name, within, nth) for one in part.prefix_items]
        if part.items is not None and part.items is not False:
            most = min(part.min_items if self._is_short else max(1, part.min_items), part.max_items, MOST_ITEMS)
            item, its_name = _read(part.items), name.removesuffix("s")
            step = 1 if part.unique_items else 0
            more = range(most - len(found))
            found += [self._sample(item, its_name, within, nth + number * step) for number in more]
        elif part.items is None:
            found += [None] * (min(part.min_items, MOST_ITEMS) - len(found))
        if UNSET not in found:
            return found
        return UNSET if part.min_items or part.prefix_items else []


def _choices(inner: Schema, part: Schema) -> tuple[Any, ...]:
    """The values to choose from, null with them where it is one."""
    choices = inner.enum if inner.const is UNSET else (inner.const,)
    is_nullable = any(_read(one).type == "null" for one in part.any_of)
    return (*choices, None) if choices and is_nullable and None not in choices else choices


def _whole(part: Schema, nth: int) -> Any:
    """A whole number; of those from the first that fits on, the `nth`."""
    first = _within(part, 1, nth)
    return first if first is UNSET else math.floor(first)


def _within(part: Schema, usual: float, nth: int) -> Any:
    """A number in the bounds of a schema: the least, else the usual one, else one between. UNSET for none."""
    step = abs(part.multiple_of)
    above, below = part.exclusive_minimum, part.exclusive_maximum
    low = [bound for bound in (part.minimum, above) if bound is not UNSET]
    high = [bound for bound in (part.maximum, below) if bound is not UNSET]
    found: list[float] = [*low[:1], usual, *high[:1], *(bound + 1 for bound in low), *(bound - 1 for bound in high)]
    if step:
        found = [step * (math.ceil(one / step) + more) for one in (*low, usual) for more in (0, 1)]
        found += [step * (math.floor(one / step) - less) for one in high for less in (0, 1)]
    elif part.type == "number":
        found += [(least + most) / 2 for least in low for most in high]
    first = next((one for one in found if _is_within(part, one)), UNSET)
    if first is UNSET or not nth:
        return first
    other = (first + sign * nth * (step or 1) for sign in (1, -1))
    return next((one for one in other if _is_within(part, one)), UNSET)


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


def _string(part: Schema, name: str, nth: int) -> Any:
    known = BY_FORMAT.get(part.read_as) or BY_FORMAT.get(part.format)
    if known:
        return re.sub(r"\d+", lambda digits: str(int(digits[0]) + nth).zfill(len(digits[0])), known, count=1)
    text = BY_NAME.get(name.lower()) or name or "text"
    return f"{text}{nth + 1 if nth else ''}".ljust(part.min_length, "x")[: part.max_length]


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
