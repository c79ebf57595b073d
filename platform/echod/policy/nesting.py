"""Looking through nested values level by level, in loops that C runs: a mebibyte must not hold up the gateway."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import cast

MAX_DEPTH = 100  # of a payload
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
