"""What the benchmarks run."""

import os
import time

from echofn import Context, every, queue


@queue(workers=(2, 2))
def noop(payload: object) -> None:
    """The least a job can be."""


@queue(workers=(2, 2), batch=50)
def noops(payloads: list[object]) -> None:
    """The least a batch can be."""


@queue(workers=(1, 1))
def stamp(payload: object) -> int:
    """When the handler's first line ran: CLOCK_MONOTONIC, which all processes of a machine share."""
    return time.monotonic_ns()


@queue(workers=(2, 2), isolation="job")
def noop_alone(payload: object) -> None:
    """The least a job can be that has a process of its own."""


@queue(workers=(1, 1), isolation="job")
def stamp_alone(payload: object) -> int:
    """`stamp` in a process of its own."""
    return time.monotonic_ns()


@queue(workers=(1, 1))
def wall(payload: object) -> int:
    """The same on the wall clock, to compare with due instants."""
    return time.time_ns()


@every("1s")
def tick(payload: None, ctx: Context) -> int:
    """How many microseconds after its due instant a recurring job began."""
    return time.time_ns() // 1000 - int(ctx.due.timestamp() * 1_000_000)


@queue(retries=1, backoff=["0ms"], workers=(1, 2))
def crash(payload: object, ctx: Context) -> int:
    """Dies on its first attempt."""
    if ctx.attempt == 1:
        os.abort()
    return time.monotonic_ns()
