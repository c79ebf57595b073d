"""When an `every` rule is due: anchor + n * period, for whole n of either sign. Restarts and deploys do not move it."""

from __future__ import annotations

from echod.errors import Refused
from echofn.units import duration_text

MIN_PERIOD_MS = 1_000


def next_after(period_ms: int, anchor_ms: int, after_ms: int) -> int:
    """The first due instant strictly after `after_ms`."""
    return anchor_ms + ((after_ms - anchor_ms) // period_ms + 1) * period_ms


def previous(period_ms: int, anchor_ms: int, before_ms: int) -> int:
    """The last due instant strictly before `before_ms`."""
    return anchor_ms + -((anchor_ms - before_ms) // period_ms + 1) * period_ms


class EveryRule:
    """A period and its anchor, with the questions a cron rule answers. Raises Refused for a period below a second."""

    def __init__(self, period_ms: int, anchor_ms: int = 0) -> None:
        if period_ms < MIN_PERIOD_MS:
            raise Refused(f"every: expected a period of at least 1s, got {duration_text(period_ms)}")
        self.period_ms = period_ms
        self.anchor_ms = anchor_ms % period_ms  # whole periods in it make no difference
        self.tz = "UTC"

    @property
    def canonical(self) -> str:
        suffix = f" from {duration_text(self.anchor_ms)}" if self.anchor_ms else ""
        return f"every {duration_text(self.period_ms)}{suffix}"

    def next_after(self, after_ms: int) -> int:
        """The first due instant strictly after `after_ms`."""
        return next_after(self.period_ms, self.anchor_ms, after_ms)

    def previous(self, before_ms: int) -> int:
        """The last due instant strictly before `before_ms`."""
        return previous(self.period_ms, self.anchor_ms, before_ms)
