"""`backoff=Backoff(…)`: how long a job waits between its runs. Recorded here, judged in discovery."""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers read this name as true; a handler pays for no import of typing
if TYPE_CHECKING:
    from datetime import timedelta
    from typing import Literal


class Backoff:
    """Waits after the first, second, … charged run: `Backoff("linear", base="10s", cap="5m")`.

    `exponential`: anything up to base * 2^(n - 1), at random, so that a crowd which failed together spreads out;
    `linear`: base * n; `fixed`: base, each time. `cap` bounds the first two: 10 minutes unless it is given.
    """

    __slots__ = ("base", "cap", "kind")

    def __init__(
        self,
        kind: Literal["exponential", "linear", "fixed"] = "exponential",
        *,
        base: str | float | timedelta = "500ms",
        cap: str | float | timedelta | None = None,
    ) -> None:
        self.kind = kind
        self.base = base
        self.cap = cap

    def __repr__(self) -> str:
        return f"Backoff({self.kind!r}, base={self.base!r}, cap={self.cap!r})"
