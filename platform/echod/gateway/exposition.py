"""GET /metrics in Prometheus's text format, by its conventions: base units, `_total` counters, histograms, no averages.

Imported by the first scrape: its library is not cheap to load.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from echod.bus import Bus
from echod.bus.answers import Metrics, QueueStats
from echod.errors import BusError
from echod.gateway.counting import Counts
from echod.gateway.overview import NOTHING
from echod.policy import buckets
from echod.registry.registry import Registry

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
COUNTERS = {
    "minted": ("echod_jobs_minted", "Jobs created."),
    "done": ("echod_jobs_done", "Jobs that ended well."),
    "dead": ("echod_jobs_dead", "Jobs that failed for good."),
    "cancelled": ("echod_jobs_cancelled", "Jobs that were cancelled."),
    "failed": ("echod_runs_failed", "Runs that were charged."),
    "retried": ("echod_runs_retried", "Runs after which the job was tried again."),
    "timeouts": ("echod_runs_timed_out", "Runs that were killed at their timeout."),
    "lost": ("echod_runs_lost", "Runs whose lease ended unrenewed."),
    "refused": ("echod_settles_refused", "Settles of a stale holder; nothing changed for them."),
    "missed": ("echod_occurrences_missed", "Due instants that no pump was there for."),
    "skipped": ("echod_occurrences_skipped", "Due instants that fell into a pause or an overlap."),
}
HISTOGRAMS = {
    "duration": ("echod_run_duration_seconds", "How long runs took."),
    "wait": ("echod_job_wait_seconds", "How long jobs waited from when they could run to their start."),
    "late": ("echod_job_late_seconds", "How long after their due instant scheduled jobs started."),
}
STATES = ("pending", "active", "scheduled", "dead")
EDGES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600)


async def text_of(bus: Bus, registry: Registry, counts: Counts) -> bytes:
    """Everything, as of now. A bus that is away shows as `echod_bus_up 0`."""
    names = registry.names()
    try:
        stats, totals = await asyncio.gather(bus.stats(names), bus.totals(names))
        metrics = await asyncio.gather(*(counts.read(bus, name) for name in names))
    except BusError:
        return _text([_gauge("echod_bus_up", "Whether the bus answers.", 0)])
    version = registry.active.version if registry.active else ""
    up = _gauge("echod_bus_up", "Whether the bus answers.", 1)
    info = GaugeMetricFamily("echod_version_info", "The version that is served.", labels=["version"])
    info.add_metric([version], 1)
    now_ms = bus.clock.now_ms()
    return _text(
        [
            up,
            info,
            *_states(stats, names, now_ms),
            *_counted(totals),
            *_measured(dict(zip(names, metrics, strict=True))),
            *_webhooks(counts),
        ]
    )


def histogram(counts: Mapping[int, int]) -> tuple[list[tuple[str, float]], float]:
    """Buckets of fixed edges, cumulative, and the sum in seconds, from a sparse histogram of milliseconds.

    A sparse bucket counts under the first edge that its upper end does not pass by more than its own width of a tenth.
    """
    tally = [0] * (len(EDGES_S) + 1)
    total_s = 0.0
    for bucket, count in counts.items():
        low, high = buckets.bounds(bucket)
        middle_s = (low + high) / 2000
        tally[next((index for index, edge in enumerate(EDGES_S) if middle_s <= edge), len(EDGES_S))] += count
        total_s += middle_s * count
    edges = [*(str(float(edge)) for edge in EDGES_S), "+Inf"]
    return list(zip(edges, map(float, accumulate(tally)), strict=True)), total_s


def _states(stats: Mapping[str, QueueStats], names: Sequence[str], now_ms: int) -> Iterable[Metric]:
    jobs = GaugeMetricFamily("echod_jobs", "Jobs that have not ended well, by state.", labels=["function", "state"])
    paused = GaugeMetricFamily("echod_queue_paused", "Whether a queue is paused.", labels=["function"])
    oldest = GaugeMetricFamily(
        "echod_queue_oldest_seconds", "For how long the longest-waiting pending job waits.", labels=["function"]
    )
    for name in names:
        queue = stats.get(name, NOTHING)
        for state in STATES:
            jobs.add_metric([name, state], getattr(queue, state))
        paused.add_metric([name], queue.paused)
        oldest.add_metric([name], 0 if queue.oldest_ms is None else max(0, now_ms - queue.oldest_ms) / 1000)
    return jobs, paused, oldest


def _counted(totals: Mapping[str, Mapping[str, int]]) -> Iterable[Metric]:
    for field, (title, said) in COUNTERS.items():
        counter = CounterMetricFamily(title, said, labels=["function"])
        for name, counted in totals.items():
            counter.add_metric([name], counted.get(field, 0))
        yield counter


def _measured(metrics: Mapping[str, Metrics]) -> Iterable[Metric]:
    for field, (title, said) in HISTOGRAMS.items():
        family = HistogramMetricFamily(title, said, labels=["function"])
        for name, measured in metrics.items():
            cumulative, total_s = histogram(getattr(measured, field))
            family.add_metric([name], cumulative, total_s)
        yield family


def _webhooks(counts: Counts) -> Iterable[Metric]:
    for title, said, label, counted in (
        ("echod_webhook_requests", "Requests to webhooks, by what became of them.", "outcome", counts.deliveries),
        ("echod_webhook_values_unfit", "Lanes and keys of webhooks that were objects.", "option", counts.unfit),
    ):
        family = CounterMetricFamily(title, said, labels=["function", label])
        for labels, count in counted.items():
            family.add_metric(labels, count)
        yield family


def _gauge(name: str, said: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, said, value=value)


def _text(families: Sequence[Metric]) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Given(families))
    return generate_latest(registry)


class _Given(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
