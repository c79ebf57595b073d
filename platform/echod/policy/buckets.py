"""Sparse histograms of durations: bucket = floor(log(ms) / log 1.1), so that a value is known to a tenth, at any scale.

The scripts on the bus count into the same buckets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

GROWTH = 1.1
_LOG = math.log(GROWTH)


def index(value_ms: float) -> int:
    """The bucket of a duration; all below 1 ms share bucket 0."""
    return math.floor(math.log(value_ms) / _LOG) if value_ms > 1 else 0


def bounds(bucket: int) -> tuple[float, float]:
    """From (inclusive) and to (exclusive), in milliseconds. Bucket 0 begins at 0."""
    return (0.0 if bucket <= 0 else GROWTH**bucket, GROWTH ** (bucket + 1))


def percentiles(histogram: Mapping[int, int], shares: Sequence[float]) -> list[float | None]:
    """The value below which each share (0.5, 0.95, …) of the counted durations lies; None where nothing was counted.

    Within a bucket values are taken as evenly spread, so an answer is off by a tenth at most.
    """
    total = sum(histogram.values())
    return [_percentile(histogram, total, share) if total > 0 else None for share in shares]


def _percentile(histogram: Mapping[int, int], total: int, share: float) -> float:
    rank = min(max(share, 0.0), 1.0) * total
    below = 0
    value = 0.0
    for bucket in sorted(histogram):
        count = histogram[bucket]
        if count <= 0:
            continue
        low, high = bounds(bucket)
        if below + count >= rank:
            return low + (high - low) * (rank - below) / count
        below += count
        value = high
    return value
