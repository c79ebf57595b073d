"""pydantic models as payloads and results, known by what they can do: echofn never imports pydantic.

To msgspec they are types of somebody else's, asked about one by one; so they can be a payload, and lie in lists, in
`Optional`, in the fields of Structs and dataclasses. In a union they can stand beside None alone.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import msgspec

READ_AS = "x-read-as"  # a keyword of ours: the text is read as what JSON has no kind for, as a worker will read it
_METHODS = ("model_validate", "model_validate_json", "model_dump", "model_json_schema")
_MAX_FAULTS = 20
_READ = {  # kinds of msgspec.inspect
    "DateTimeType": "datetime",
    "TimeType": "time",
    "DateType": "date",
    "TimeDeltaType": "timedelta",
    "UUIDType": "uuid",
    "DecimalType": "decimal",
    "BytesType": "bytes",
    "ByteArrayType": "bytes",
    "MemoryViewType": "bytes",
}

Mode = Literal["validation", "serialization"]  # of what comes in, of what goes out


def is_model(kind: Any) -> bool:
    """Whether a type is a pydantic model, or does as one does."""
    return isinstance(kind, type) and all(callable(getattr(kind, name, None)) for name in _METHODS)


def validated(kind: Any, value: Any) -> Any:
    """Builtins as a model. Raises ValueError saying which fields do not fit; what the model's own checks raise.

    A strict model takes text for a date from JSON alone, and JSON is what a payload was: so it is asked both ways.
    """
    try:
        return kind.model_validate(value)
    except ValueError as error:
        try:
            text = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):  # it has bytes: that is no JSON
            raise ValueError(_told(error)) from None
    try:
        return kind.model_validate_json(text)
    except ValueError as error:
        raise ValueError(_told(error)) from None


def dumped(value: Any, *, round_trip: bool) -> Any:
    """A model in JSON's kinds, under the names that its schema has. `round_trip`: such that it can be validated again,
    without what is only computed."""
    return value.model_dump(mode="json", by_alias=True, round_trip=round_trip)


def json_schema(kind: Any, mode: Mode) -> dict[str, Any]:
    """The JSON Schema of a type of any sort. Raises whatever the types in it raise."""
    definitions: dict[str, Any] = {}
    known: dict[type, dict[str, Any]] = {}

    def of_model(each: Any) -> dict[str, Any]:
        if not is_model(each):
            raise NotImplementedError
        if each not in known:
            own = _space(each, len(known))  # models of two modules may share a name
            known[each] = body = each.model_json_schema(mode=mode, ref_template=f"#/$defs/{own}.{{model}}")
            definitions.update({f"{own}.{name}": part for name, part in body.pop("$defs", {}).items()})
        return known[each]

    schema = _marked(kind, of_model, mode)
    if definitions:
        schema["$defs"] = {**schema.get("$defs", {}), **definitions}
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(schema))  # what an author put in may be no JSON
    return plain


def _marked(kind: Any, of_model: Any, mode: Mode) -> dict[str, Any]:
    """`msgspec.json.schema`, with READ_AS beside what msgspec reads out of text. `format` alone does not do: a datetime
    that may be without a zone has none, and one that an author wrote beside a plain `str` binds nobody. A Decimal
    comes in as a number, too, which msgspec and pydantic both read.

    There is no hook for msgspec's own kinds: this overrides what its generator calls for each. (A test holds it.)
    """
    from msgspec import _json_schema, inspect

    class Marking(_json_schema._SchemaGenerator):  # pyright: ignore[reportPrivateUsage]
        def to_schema(self, t: Any, check_ref: bool = True) -> dict[str, Any]:
            schema: dict[str, Any] = super().to_schema(t, check_ref)
            while isinstance(t, inspect.Metadata):
                t = t.type
            if read := _READ.get(type(t).__name__):
                tz = getattr(t, "tz", None)
                mark = read if tz is None else f"{'aware' if tz else 'naive'} {read}"
                if read != "decimal" or mode == "serialization":
                    schema[READ_AS] = mark
                elif "anyOf" not in schema:  # it is asked about again with what an author wrote beside it
                    text = {"type": schema.pop("type"), "format": schema.pop("format"), READ_AS: mark}
                    schema["anyOf"] = [text, {"type": "number"}]
            return schema

    info = inspect.type_info(kind)
    parts = _json_schema._collect_component_types([info])  # pyright: ignore[reportPrivateUsage]
    names = _json_schema._build_name_map(parts)  # pyright: ignore[reportPrivateUsage]
    generator = Marking(names, of_model)
    schema = generator.to_schema(info)
    if parts:
        schema["$defs"] = {names[each]: generator.to_schema(part, False) for each, part in parts.items()}
    return schema


def _space(kind: type, number: int) -> str:
    return re.sub(r"\W", "_", kind.__name__, flags=re.ASCII) + (str(number) if number else "")


def _told(error: Any) -> str:
    """What a validation error says, a fault after the other: "lines.0.sku: Field required"."""
    try:
        faults: list[dict[str, Any]] = error.errors(include_url=False, include_context=False, include_input=False)
        return "; ".join(
            ": ".join(filter(None, (".".join(map(str, fault["loc"])), fault["msg"]))) for fault in faults[:_MAX_FAULTS]
        )
    except (AttributeError, TypeError, KeyError):
        return str(error)
