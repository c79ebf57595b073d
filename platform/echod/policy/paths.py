"""Paths into a payload, for lanes and unique keys: `tenant`, `order.customer.id`, `items.0.sku` or `items[0].sku`.

They walk objects and list indexes and nothing else, so that the control plane never runs user code to find a lane.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from echod.errors import Refused
from echofn import masking


def steps(path: str) -> tuple[str, ...]:
    """A path's steps. Raises Refused for a path that names nothing."""
    try:
        return masking.steps(path)
    except ValueError as error:
        raise Refused(str(error)) from None


def walk(payload: object, path: str) -> str | None:
    """The text at `path` in a decoded payload; None where it is missing or null.

    Text, numbers and booleans are spelled as in JSON, whole floats as integers (to JSON 1.0 and 1 are one number).
    Raises Refused where an object or a list lies there: a lane is one value.
    """
    value = payload
    for step in steps(path):
        value = _step(value, step)
        if value is None:
            return None
    return _text(value, path)


def _step(value: object, step: str) -> object:
    if isinstance(value, Mapping):
        return cast("Mapping[object, object]", value).get(step)
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview)):
        items = cast("Sequence[object]", value)
        is_index = step.isascii() and step.isdigit() and len(step) <= 9
        return items[int(step)] if is_index and int(step) < len(items) else None
    return None


def _text(value: object, path: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return str(int(value))
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    kind = (
        "an object"
        if isinstance(value, Mapping)
        else "a list"
        if isinstance(value, (list, tuple))
        else type(value).__name__
    )
    raise Refused(f"{path}: expected text, a number or a boolean, got {kind}")
