"""Counters and histograms of the bus as the figures that people read."""

from __future__ import annotations

from collections.abc import Mapping

from echod.bus.answers import Metrics
from echod.gateway.views import View
from echod.policy import buckets

MINUTE_MS = 60_000
_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def metrics_view(metrics: Metrics, window_s: int) -> View:
    """`metrics` of GET /functions/{name}."""
    return {
        "window_s": window_s,
        "minted": metrics.minted,
        "done": metrics.done,
        "failed": metrics.failed,
        "retried": metrics.retried,
        "dead": metrics.dead,
        "cancelled": metrics.cancelled,
        "timeouts": metrics.timeouts,
        "missed": metrics.missed,
        "skipped": metrics.skipped,
        "duration_ms": percentiles(metrics.duration),
        "wait_ms": percentiles(metrics.wait),
        "late_ms": percentiles(metrics.late),
    }


def percentiles(histogram: Mapping[int, int]) -> dict[str, float | None]:
    """p50, p95 and p99 in milliseconds; None where nothing was counted."""
    values = buckets.percentiles(histogram, tuple(_SHARES.values()))
    return {name: None if value is None else round(value, 2) for name, value in zip(_SHARES, values, strict=True)}


def series(metrics: Metrics) -> dict[str, list[int]]:
    """Ended runs per minute over the last hour, oldest first: those that did well, and those that were charged."""
    return {"done": [point.done for point in metrics.series], "failed": [point.failed for point in metrics.series]}


def rate(metrics: Metrics, now_ms: int) -> float:
    """Runs ended per second over about the last minute: this minute so far, and the rest of it from the one before."""
    if len(metrics.series) < 2:
        return 0.0
    before, current = metrics.series[-2:]
    share = 1 - now_ms % MINUTE_MS / MINUTE_MS
    ended = current.done + current.failed + share * (before.done + before.failed)
    return round(ended / 60, 3)
