"""Looking through nested values level by level, in loops that C runs: a mebibyte must not hold up the gateway.

Only what any reader can carry goes onto the bus: numbers of 64 bits, finite; text keys; no extension types; nested at
most `MAX_DEPTH` deep.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain
from typing import cast

from echod.errors import Refused

MAX_DEPTH = 100  # of a payload
TOO_DEEP = f"expected at most {MAX_DEPTH} levels of nesting, got more"
_KINDS = {str, int, float, bool, type(None), bytes, dict, list}
Container = dict[object, object] | list[object]


def levels(value: object) -> Iterator[tuple[list[object], list[Container]]]:
    """From the outside in: all items of a level, and those among them that hold the next level."""
    items: list[object] = [value]
    while items:
        containers = [cast("Container", item) for item in items if type(item) is dict or type(item) is list]
        yield items, containers
        items = list(chain.from_iterable(held.values() if isinstance(held, dict) else held for held in containers))


def is_deeper(value: object, most: int) -> bool:
    """Whether containers lie within each other more than `most` deep."""
    for depth, (_, containers) in enumerate(levels(value), 1):
        if not containers:
            return False
        if depth > most:
            return True
    return False


def is_carried(value: object) -> bool:
    """Whether `value` holds only kinds, keys and floats that can be carried; quick, and so without saying where not.

    An integer of more than 64 bits is for the encoder to refuse. Raises Refused for what is nested too deep.
    """
    for depth, (items, containers) in enumerate(levels(value)):
        if depth >= MAX_DEPTH and containers:
            raise Refused(TOO_DEEP)
        kinds = set(map(type, items))
        if not kinds <= _KINDS:
            return False
        if float in kinds and not all(math.isfinite(item) for item in items if isinstance(item, float)):
            return False
        if any(set(map(type, held)) - {str} for held in containers if isinstance(held, dict)):
            return False
    return True
