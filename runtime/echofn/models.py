"""pydantic models as payloads and results, known by what they can do: echofn never imports pydantic.

To msgspec they are types of somebody else's, asked about one by one; so they can be a payload, and lie in lists, in
`Optional`, in the fields of Structs and dataclasses. In a union they can stand beside None alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
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
            if isinstance(t, inspect.DictType) and (names := self.keys(t.key_type)):
                schema["propertyNames"] = names
            if isinstance(t, inspect.SetType | inspect.FrozenSetType):
                _check_hashable(t.item_type)
                if isinstance(t.item_type, inspect.AnyType):
                    schema["items"] = {"type": ["null", "boolean", "number", "string"], READ_AS: "hashable"}
            if read := _READ.get(type(t).__name__):
                tz = getattr(t, "tz", None)
                mark = read if tz is None else f"{'aware' if tz else 'naive'} {read}"
                if read != "decimal" or mode == "serialization":
                    schema[READ_AS] = mark
                elif "anyOf" not in schema:  # it is asked about again with what an author wrote beside it
                    text = {"type": schema.pop("type"), "format": schema.pop("format"), READ_AS: mark}
                    schema["anyOf"] = [text, {"type": "number"}]
            return schema

        def keys(self, t: Any) -> dict[str, Any]:
            """The schema of an object's names, which are text whatever they stand for; empty where any do."""
            inner = t
            while isinstance(inner, inspect.Metadata):
                inner = inner.type
            if isinstance(inner, inspect.AnyType) or getattr(inner, "cls", None) is object:
                return {}
            if isinstance(inner, inspect.LiteralType | inspect.EnumType):
                values = inner.values if isinstance(inner, inspect.LiteralType) else [each.value for each in inner.cls]
                return {"enum": [str(each) for each in values]}
            if isinstance(inner, inspect.UnionType):
                kinds = [self.keys(each) for each in inner.types if not isinstance(each, inspect.NoneType)]
                return ({"anyOf": kinds} if len(kinds) > 1 else kinds[0]) if all(kinds) else {}
            if isinstance(inner, inspect.IntType | inspect.FloatType):
                schema = self.to_schema(t)
                return {READ_AS: f"{schema.pop('type')} key", **schema}
            if not isinstance(inner, inspect.StrType) and type(inner).__name__ not in _READ:
                raise TypeError(f"in JSON the keys of a dict are text, which no {_name(inner)} is made of")
            schema = self.to_schema(t)
            schema = schema.get("anyOf", [schema])[0]  # of a Decimal as text and as a number
            return {name: part for name, part in schema.items() if name != "type"}

    info = inspect.type_info(kind)
    parts = _json_schema._collect_component_types([info])  # pyright: ignore[reportPrivateUsage]
    names = _json_schema._build_name_map(parts)  # pyright: ignore[reportPrivateUsage]
    generator = Marking(names, of_model)
    schema = generator.to_schema(info)
    if parts:
        schema["$defs"] = {names[each]: generator.to_schema(part, False) for each, part in parts.items()}
    return schema


def astray(schema: dict[str, Any], steps: Sequence[str]) -> tuple[str, list[str]] | None:
    """The first step of a path that leads nowhere in any value of a type, and the fields that are there; None where it
    may lead somewhere: where fields are not all known, anything may."""
    nodes: list[Any] = [schema]
    for step in steps:
        inner: list[Any] = []
        fields: list[str] = []
        for node in _kinds(nodes, schema):
            known = node.get("properties")
            if not node or "enum" in node or (node.get("type", "object") == "object" and known is None):
                return None
            if known is not None:
                if step not in known and (node.get("additionalProperties") or node.get("patternProperties")):
                    return None
                fields += known
                inner += [known[step]] if step in known else []
            elif node["type"] == "array" and step.isdigit():
                inner += [each for each in (*node.get("prefixItems", ()), node.get("items", {})) if each is not False]
        if not inner:
            return step, fields
        nodes = inner
    return None


def _kinds(nodes: Sequence[Any], root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schemas of the kinds of value that these take: through references and unions."""
    waiting, seen = list(nodes), set[str]()
    while waiting:
        node = waiting.pop()
        ref = node.get("$ref", "")
        if ref and ref not in seen:
            seen.add(ref)
            waiting.append(root.get("$defs", {}).get(ref.removeprefix("#/$defs/"), {}))
        for union in ("anyOf", "oneOf", "allOf"):
            waiting += node.get(union, ())
        if not ref and not {"anyOf", "oneOf", "allOf"} & node.keys():
            yield node


def _check_hashable(info: Any) -> None:
    """Raise TypeError for what no set can hold: the first one would end its job."""
    from msgspec import inspect

    while isinstance(info, inspect.Metadata):
        info = info.type
    for each in getattr(info, "types", ()) or getattr(info, "item_types", ()):
        _check_hashable(each)
    kind = getattr(info, "cls", None)
    if isinstance(info, inspect.VarTupleType):
        _check_hashable(info.item_type)
    if isinstance(info, inspect.StructType):
        is_hashable = info.cls.__struct_config__.frozen or not info.cls.__struct_config__.eq
    else:
        kinds = inspect.ListType | inspect.DictType | inspect.SetType | inspect.TypedDictType | inspect.ByteArrayType
        is_hashable = not isinstance(info, kinds) and getattr(kind, "__hash__", True) is not None
    if not is_hashable:
        raise TypeError(f"a set holds what can be hashed, got {_name(info)}; make that frozen, or take a list")


def _name(info: Any) -> str:
    kind = getattr(info, "cls", None)
    return kind.__name__ if isinstance(kind, type) else type(info).__name__.removesuffix("Type").lower()


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
