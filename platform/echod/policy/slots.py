"""How many jobs to claim, and which worker gets how many of them. Pure.

Jobs are handed over ahead of their turn, so that a worker never waits for the bus, but never more than 50 ms of work:
what waits behind a running job cannot be served by anybody else. A slow function therefore gets what it runs at once
(one job, of an async function `per_worker`), and a job that nobody has timed yet does too.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

BUDGET_US = 50_000  # of work per worker, handed over and not ended
MOST_JOBS = 128  # a longer line gains nothing: the cost of a call is spread thin by then
MOST_CLAIMED = 1000  # in one call: the bus serves no more turns in one
MOST_BYTES = 1024 * 1024  # of payload per worker
WEIGHT = 0.05  # of the newest run: one preempted run hardly counts, one slow run ends fetch-ahead at once


class Pace(msgspec.Struct, frozen=True):
    """What a job of this function costs, as a moving average. `wall_us` is None until a first run was timed."""

    wall_us: float | None = None
    payload_bytes: float = 0.0


def observed(pace: Pace, wall_us: int, payload_bytes: int) -> Pace:
    """The pace after one more run."""
    if pace.wall_us is None:
        return Pace(float(wall_us), float(payload_bytes))
    return Pace(
        pace.wall_us + WEIGHT * (wall_us - pace.wall_us),
        pace.payload_bytes + WEIGHT * (payload_bytes - pace.payload_bytes),
    )


def depth(pace: Pace, *, at_once: int = 1, ordered: bool = False, most: int = MOST_JOBS) -> int:
    """How many jobs one worker may hold that runs `at_once`. `ordered`: the queue has priorities or limits,
    or a worker is for one run, so only what runs at once.
    """
    if ordered or pace.wall_us is None:
        return at_once
    by_time = at_once * BUDGET_US / max(pace.wall_us, 1.0)
    by_bytes = MOST_BYTES / max(pace.payload_bytes, 1.0)
    return max(at_once, min(most, int(by_time), int(by_bytes)))


class Load(msgspec.Struct, frozen=True):
    """A queue's workers on this node, as planning sees them."""

    held: tuple[int, ...]  # per ready worker: jobs handed over and not ended
    starting: int  # workers on their way
    waiting: int  # jobs claimed that no worker holds yet
    startable: int  # workers that may still be started now
    depth: int  # as `depth` says
    at_once: int = 1  # jobs that one worker runs side by side


def wanted(load: Load) -> int:
    """How many to claim: room on ready workers, one round for those starting, plus enough to justify starting more.

    Workers are added by doubling: a flood brings them quickly, a trickle starts one.
    """
    free = sum(load.depth - held for held in load.held if held < load.depth)
    more = min(load.startable, max(1, len(load.held) + load.starting))
    return min(max(free + load.starting * load.at_once + more - load.waiting, 0), MOST_CLAIMED)


def hungry(load: Load) -> bool:
    """Whether some worker has less than half of what it may hold, so that a claim cannot wait."""
    low = load.depth // 2
    return any(held <= low for held in load.held)


class Call(msgspec.Struct, frozen=True):
    """Settle what has ended and claim `count` more, now. 0: settle alone, as nobody has room or nothing is claimed."""

    count: int


class Soon(msgspec.Struct, frozen=True):
    """The workers have work: let a few more runs end first, so that one call carries them all."""


class Rest(msgspec.Struct, frozen=True):
    """Nothing to do until something happens."""


def next_call(load: Load, *, verdicts: int, rung: bool, closed: bool) -> Call | Soon | Rest:
    """What a queue's feed does next. `rung`: there may be jobs to claim. `closed`: nothing is claimed any more."""
    count = 0 if closed else wanted(load)
    if not verdicts:
        return Call(count) if rung and count else Rest()
    if rung and count and load.held and not hungry(load):
        return Soon()
    return Call(count)


def shares(count: int, held: Sequence[int], depth: int) -> tuple[int, ...]:
    """How many of `count` jobs each worker gets: the emptiest first, level, none over `depth`. They may be fewer."""
    level = list(held)
    given = [0] * len(level)
    order = sorted(range(len(level)), key=level.__getitem__)
    left = count
    while left > 0:
        open_slots = [index for index in order if level[index] < depth]
        if not open_slots:
            break
        lowest = min(level[index] for index in open_slots)
        lows = [index for index in open_slots if level[index] == lowest]
        above = min((level[index] for index in open_slots if level[index] > lowest), default=depth)
        step = max(1, min(above - lowest, left // len(lows)))
        for index in lows:
            if left == 0:
                break
            take = min(step, left)
            level[index] += take
            given[index] += take
            left -= take
    return tuple(given)
