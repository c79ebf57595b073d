"""The strip on the first page: due times as marks on a line that moves past "now"; each lights up as it becomes a job.

The script moves the same marks, once a second, by the same arithmetic.
"""

from __future__ import annotations

import msgspec

from echod.gateway.pages.given import FunctionsPage, SeenOccurrence
from echod.gateway.pages.words import ms_of

BEFORE_MS = 300_000
AFTER_MS = 120_000
LINES = 6  # functions shown; those due soonest
MARKS = 150  # on one line


class Mark(msgspec.Struct, frozen=True):
    """`left` in per cent. Without a job it is still due."""

    due: str
    left: float
    job: str | None
    state: str


class Line(msgspec.Struct, frozen=True):
    function: str
    next: str | None
    marks: tuple[Mark, ...]


def left_of(due_ms: float, now_ms: float) -> float:
    """Where a due instant lies on the strip, in per cent; outside 0…100 it is not shown."""
    return (due_ms - now_ms + BEFORE_MS) / (BEFORE_MS + AFTER_MS) * 100


def strip(page: FunctionsPage, now_ms: float) -> tuple[Line, ...]:
    """A line per function with schedules, the soonest due first."""
    seen: dict[str, list[SeenOccurrence]] = {}
    for one in page.occurrences:
        seen.setdefault(one.function, []).append(one)
    lines: list[tuple[float, Line]] = []
    for function in page.functions:
        scheduled = any(trigger.get("kind") in ("cron", "every") for trigger in function.triggers)
        if not (scheduled or function.next or function.name in seen):
            continue
        past = [_mark(one.due, one.job, one.state, now_ms) for one in seen.get(function.name, ())]
        known = {mark.due for mark in past if mark}
        ahead = [_mark(due, None, "due", now_ms) for due in function.next if due not in known]
        marks = sorted((mark for mark in past + ahead if mark), key=lambda mark: mark.left)[-MARKS:]
        due_first = ms_of(function.next[0]) if function.next else None
        lines.append(
            (
                due_first if due_first is not None else float("inf"),
                Line(function.name, next(iter(function.next), None), tuple(marks)),
            )
        )
    return tuple(line for _, line in sorted(lines, key=lambda pair: pair[0])[:LINES])


def _mark(due: str, job: str | None, state: str, now_ms: float) -> Mark | None:
    due_ms = ms_of(due)
    if due_ms is None:
        return None
    left = left_of(due_ms, now_ms)
    return Mark(due, round(left, 2), job, state) if 0 <= left <= 100 else None
