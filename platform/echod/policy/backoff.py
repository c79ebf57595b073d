"""How long a job waits before its next run, after a run that was charged."""

from __future__ import annotations

from typing import assert_never

from echofn.manifest import Backoff, Constant, Exponential, Linear, Waits

_MAX_DOUBLINGS = 60  # past any cap


def wait_ms(backoff: Backoff, failures: int, roll: float) -> int:
    """The wait after the `failures`-th charged run (from 1 on). `roll` is a fair number from 0 to 1.

    Exponential waits have full jitter over min(cap, base * 2^(failures - 1)): a crowd that failed together spreads out.
    """
    match backoff:
        case Exponential(base_ms, cap_ms):
            return int(min(cap_ms, base_ms << min(max(failures - 1, 0), _MAX_DOUBLINGS)) * roll)
        case Linear(base_ms, cap_ms):
            return min(cap_ms, base_ms * max(failures, 1))
        case Constant(wait):
            return wait
        case Waits(waits):
            return waits[min(max(failures, 1), len(waits)) - 1] if waits else 0
        case _:
            assert_never(backoff)
