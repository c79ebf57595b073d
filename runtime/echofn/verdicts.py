"""Verdicts: exceptions by which a handler says how its run ends, other than by returning or failing."""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers read this name as true; a handler pays for no import of typing
if TYPE_CHECKING:
    from datetime import timedelta


class Verdict(Exception):
    """What the four have in common: a reason a person reads, and a wait for those that run again."""

    def __init__(self, reason: str = "", *, after: str | float | timedelta | None = None) -> None:
        super().__init__(reason)
        self.reason = str(reason)
        self.after_ms: int | None = None
        if after is not None:
            from echofn.units import duration_ms  # only a handler that waits pays for it

            self.after_ms = duration_ms(after)


class Retry(Verdict):
    """Run again later; counts as a failure. `after="5m"` overrides the function's backoff.

    The first argument is the reason, not the wait: `Retry("5m")` waits by the backoff, and says "5m".
    """

    def __init__(self, reason: str = "", *, after: str | float | timedelta | None = None) -> None:
        super().__init__(reason, after=after)


class Snooze(Verdict):
    """Run again after a wait, which comes first ("10m", seconds, timedelta); not counted as a failure."""

    def __init__(self, after: str | float | timedelta, reason: str = "") -> None:
        super().__init__(reason, after=after)


class Fail(Verdict):
    """Give up now: the job goes to the morgue, however many retries are left."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)


class Cancel(Verdict):
    """End as cancelled: there is nothing to do any more, and nothing went wrong."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
