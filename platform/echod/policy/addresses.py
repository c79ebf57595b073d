"""Addresses of webhooks: which request path one matches, which of several goes first, which are ours.

A pattern is plain segments and `{name}`s that stand for one segment each. Segments are compared as they read, after
percent-decoding, so that a name may hold a slash that was sent as `%2F`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

OWN = frozenset(
    {"functions", "jobs", "schedules", "lanes", "morgue", "versions", "nodes", "bus", "deploy", "events", "metrics"}
    | {"healthz", "readyz", "login", "logout", "static", "tokens", "token", "openapi.json", "webhooks", "clock"}
    | {"favicon.ico", "robots.txt"}
)  # first segments of what echod itself answers, or will


class Match(msgspec.Struct, frozen=True):
    """Which pattern it was, by its place in what was given, and what its names stand for."""

    index: int
    params: dict[str, str]


def segments(path: str) -> tuple[str, ...]:
    """The segments of a path that begins with a slash."""
    return tuple(path[1:].split("/"))


def shape(pattern: str) -> tuple[str | None, ...]:
    """A pattern without its names: two of one shape match the same paths. None stands for a name."""
    return tuple(None if _is_name(segment) else segment for segment in segments(pattern))


def is_own(pattern: str) -> bool:
    """Whether a pattern can match what echod itself answers."""
    first = segments(pattern)[0]
    return first in OWN or _is_name(first)


def match(patterns: Iterable[str], asked: Sequence[str]) -> Match | None:
    """The pattern that matches these decoded segments; of several the one whose plain segments come first."""
    found: list[tuple[tuple[bool, ...], Match]] = []
    for index, pattern in enumerate(patterns):
        parts = segments(pattern)
        if len(parts) != len(asked):
            continue
        if all(got != "" if _is_name(part) else got == part for part, got in zip(parts, asked, strict=True)):
            params = {part[1:-1]: got for part, got in zip(parts, asked, strict=True) if _is_name(part)}
            found.append((tuple(map(_is_name, parts)), Match(index, params)))
    return min(found, key=lambda each: each[0])[1] if found else None


def _is_name(segment: str) -> bool:
    return segment.startswith("{")
