"""A job's life as spans to draw: until its time, waiting for a worker, each run, each pause before the next try."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from echod.gateway.pages.given import JobPage, Run
from echod.gateway.pages.words import OUTCOMES, ms_of, span

Kind = Literal["delay", "wait", "run", "backoff"]
LeadUp = Callable[[float, float], None]
LEAST = 0.8  # per cent of the width: a run of 2 ms beside a pause of ten minutes must still be seen
NAMES: dict[Kind, str] = {
    "delay": "until its time",
    "wait": "waiting for a worker",
    "run": "running",
    "backoff": "pause before the next try",
}


class Span(msgspec.Struct, frozen=True):
    """`left` and `width` in per cent of the whole."""

    kind: Kind
    outcome: str
    left: float
    width: float
    title: str


class Row(msgspec.Struct, frozen=True):
    """One attempt, with what led up to it."""

    number: int
    outcome: str
    label: str
    took: str
    spans: tuple[Span, ...]


class Timeline(msgspec.Struct, frozen=True):
    rows: tuple[Row, ...]
    total: str
    to_scale: bool
    live: bool


class _Piece(msgspec.Struct, frozen=True):
    row: int
    kind: Kind
    outcome: str
    ms: float


def timeline(job: JobPage, now_ms: float) -> Timeline:
    """Every attempt of `job`, the one that runs or waits now included."""
    pieces, rows = _pieces(job, now_ms)
    total = sum(piece.ms for piece in pieces)
    widths, to_scale = _widths([piece.ms for piece in pieces])
    spans: list[list[Span]] = [[] for _ in rows]
    left = 0.0
    for piece, width in zip(pieces, widths, strict=True):
        title = f"{NAMES[piece.kind]}: {span(piece.ms)}"
        spans[piece.row].append(Span(piece.kind, piece.outcome, round(left, 3), round(width, 3), title))
        left += width
    drawn = [
        Row(number, outcome, label, took, tuple(parts))
        for (number, outcome, label, took), parts in zip(rows, spans, strict=True)
    ]
    return Timeline(tuple(drawn), span(total), to_scale, job.ended is None)


def _pieces(job: JobPage, now_ms: float) -> tuple[list[_Piece], list[tuple[int, str, str, str]]]:
    pieces: list[_Piece] = []
    rows: list[tuple[int, str, str, str]] = []
    cursor = ms_of(job.minted) or now_ms

    def lead_up(until_ms: float, wait_ms: float) -> None:
        """From the cursor to a start: first what had to pass, then the wait for a worker."""
        nonlocal cursor
        pending_at = min(max(cursor, until_ms - wait_ms), until_ms)
        if pending_at > cursor:
            pieces.append(_Piece(len(rows), "backoff" if rows else "delay", "", pending_at - cursor))
        if until_ms > pending_at:
            pieces.append(_Piece(len(rows), "wait", "", until_ms - pending_at))
        cursor = max(cursor, until_ms)

    for number, run in enumerate(job.history, 1):
        started = ms_of(run.started)
        if started is None:  # never begun, or lost before it said so
            rows.append((run.attempt or number, run.outcome, _label(run), span(None)))
            continue
        lead_up(started, run.wait_ms or 0)
        ended = ms_of(run.ended)
        live = ended is None
        ended = now_ms if ended is None else ended
        pieces.append(_Piece(len(rows), "run", "active" if live else run.outcome, max(0.0, ended - started)))
        rows.append(
            (run.attempt or number, "active" if live else run.outcome, _label(run), span(max(0.0, ended - started)))
        )
        cursor = max(cursor, ended)
    if not (job.history and job.history[-1].ended is None):
        _append_now(job, now_ms, pieces, rows, cursor, lead_up)
    return pieces, rows


def _append_now(
    job: JobPage,
    now_ms: float,
    pieces: list[_Piece],
    rows: list[tuple[int, str, str, str]],
    cursor: float,
    lead_up: LeadUp,
) -> None:
    """The attempt that has not ended: running, waiting for a worker, or waiting for its time."""
    number = max(len(rows) + 1, job.attempts if job.state == "active" else 0)
    due = ms_of(job.due) or cursor
    match job.state:
        case "active":
            started = max(cursor, ms_of(job.started) or now_ms)
            lead_up(started, started - max(cursor, min(due, started)))
            pieces.append(_Piece(len(rows), "run", "active", max(0.0, now_ms - started)))
            rows.append((number, "active", "Running", span(max(0.0, now_ms - started))))
        case "pending":
            lead_up(max(now_ms, cursor), now_ms - max(cursor, min(due, now_ms)))
            rows.append((number, "pending", "Waiting for a worker", span(max(0.0, now_ms - max(cursor, due)))))
        case "scheduled":
            lead_up(max(due, cursor), 0)
            rows.append((number, "scheduled", "Waiting for its time", span(max(0.0, due - cursor))))
        case _:
            pass


def _label(run: Run) -> str:
    return OUTCOMES.get(run.outcome, run.outcome or "Running")


def _widths(lengths: list[float]) -> tuple[list[float], bool]:
    """Shares of 100, none under LEAST; and whether all are in proportion."""
    if not lengths:
        return [], True
    total = sum(lengths) or 1.0
    wanted = [max(length / total * 100, LEAST) for length in lengths]
    over = sum(wanted) - 100
    if over <= 0:
        return wanted, True
    spare = sum(width - LEAST for width in wanted)
    if spare <= over:  # more spans than fit: all alike
        return [100 / len(lengths)] * len(lengths), False
    return [width - (width - LEAST) / spare * over for width in wanted], over < 1
