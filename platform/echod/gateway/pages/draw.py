"""Shapes as text for SVG attributes, as the strict policy wants them. `static/echod.js` draws `bars` the same way."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

MINUTES = 60
HEADROOM = 0.9  # a steady load is not a wall


class Bars(msgspec.Struct, frozen=True):
    """Two paths, the failed stacked on the done, and what the tallest bar stands for."""

    done: str
    failed: str
    peak: int


def bars(done: Sequence[int], failed: Sequence[int], *, width: int, height: int, gap: float, count: int = 60) -> Bars:
    """`count` bars for the last hour, oldest left, at least 1.5 high where anything ended. `count` divides 60."""
    well, ill = _binned(done, count), _binned(failed, count)
    peak = max((a + b for a, b in zip(well, ill, strict=True)), default=0)
    step = width / count
    good: list[str] = []
    bad: list[str] = []
    for index, (low, high) in enumerate(zip(well, ill, strict=True)):
        left, foot, top = index * step, _high(low, peak, height), _high(high, peak, height)
        if low:
            good.append(_bar(left, height - foot, step - gap, foot))
        if high:
            bad.append(_bar(left, max(0.0, height - foot - top), step - gap, top))
    return Bars("".join(good), "".join(bad), peak)


def _binned(values: Sequence[int], count: int) -> list[int]:
    recent = [max(0, value) for value in values[-MINUTES:]]
    minutes = [0] * (MINUTES - len(recent)) + recent
    size = MINUTES // count
    return [sum(minutes[start : start + size]) for start in range(0, MINUTES, size)]


def _high(value: int, peak: int, height: int) -> float:
    return max(1.5, value / peak * height * HEADROOM) if value else 0.0


def _bar(left: float, top: float, width: float, height: float) -> str:
    return f"M{_n(left)} {_n(top)}h{_n(width)}v{_n(height)}h-{_n(width)}z"


def _n(value: float) -> str:
    """At most two decimals, none where none are needed."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
