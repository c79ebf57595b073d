"""What a run takes that no wall of the kernel bounds by itself: looked at while it works, ended past its limit.

The size of /tmp where it has no filesystem of its own, the memory of a worker and all its processes together (the
kernel bounds each one's heap, and no shared mapping), and its threads where the kernel would count those of others too.
A look every fifth of a second lets what comes in between through. While nothing runs, one thing is looked at, of a
worker that can start processes: whether there are any. A run may have left a thread, a task or a timer that starts one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from echod import log
from echod.supervisor.life import Why
from echofn import processes
from echofn.blocked import FEWER_THREADS
from echofn.manifest import Policy
from echofn.walls.process import THREADS

_log = log.get("supervisor")

EVERY_S = 0.2
AGAIN_S = 0.05


class Excess(NamedTuple):
    """What was seen past its limit, in a sentence where the cause's own does not say it."""

    why: Why
    detail: str = ""


Look = Callable[[], Excess | None]
LEFT = Excess("released")  # of a worker that has nothing to do


class Watch:
    """Takes the looks from `wake` until it is seen that nothing runs, then goes on with the `idle` one alone. `over` is
    called once: past a limit, or when an idle look saw something and nothing runs yet.
    """

    def __init__(
        self,
        looks: Sequence[Look],
        *,
        over: Callable[[Excess], None],
        busy: Callable[[], bool],
        idle: Look | None = None,
    ) -> None:
        self._looks, self._over, self._busy, self._idle = looks, over, busy, idle
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._has_run = False  # since the last look

    def wake(self) -> None:
        """Something runs. One look follows even when it is over by then: what it left counts."""
        self._has_run = True
        self._again()

    def _again(self) -> None:
        if (self._looks or self._idle) and self._timer is None and self._task is None:
            self._timer = self._loop.call_later(EVERY_S, self._begin)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        self._timer = None
        self._task = self._loop.create_task(self._see())

    async def _see(self) -> None:
        was_busy = self._idle is None or self._busy()
        looks = [*self._looks] if was_busy or self._has_run else []
        if self._idle is not None and not was_busy:
            looks.append(self._idle)
        self._has_run = False
        excess: Excess | None = None
        try:
            excess = await asyncio.to_thread(_first, looks)
        except Exception as error:  # a wall does not stay down because one look failed
            _log.error("look.failed", error=f"{type(error).__name__}: {error}")
        finally:
            self._task = None
        is_busy = self._busy()
        if excess is not None and not (excess is LEFT and is_busy):  # else it may be the new run's
            self._over(excess)
        elif is_busy or self._idle is not None:
            self._again()


def _first(looks: Sequence[Look]) -> Excess | None:
    return next(filter(None, (look() for look in looks)), None)


class Strays:
    """Looks for processes below a worker that has nothing to do."""

    def __init__(self, pid_of: Callable[[], int | None], level: str) -> None:
        self._pid_of = pid_of
        self._spares = level in {"off", "minimal"}
        self._own = int(level == "strict")  # there the worker itself is below the process that waits for it
        self._spared: frozenset[int] = frozenset()

    def spare(self) -> None:
        """The worker is ready: what its import started is part of its module where runs do not end that either."""
        pid = self._pid_of()
        if self._spares and pid is not None:
            self._spared = frozenset(processes.below(pid))

    def look(self) -> Excess | None:
        pid = self._pid_of()
        return LEFT if pid is not None and len(processes.below(pid, self._spared)) > self._own else None


class Looks(NamedTuple):
    """What is looked at of a worker while it runs something, and while it does not."""

    busy: Sequence[Look] = ()
    strays: Strays | None = None


class Usage(NamedTuple):
    """Of a worker and everything below it."""

    memory_bytes: int  # what is theirs alone, or shared without a file
    threads: int


def usage_of(pid: int) -> Usage:
    """Nothing for a process that is gone. What a child shares with its parent between vfork and exec counts once."""
    found = {each: fields for each in (pid, *processes.below(pid)) if (fields := _status(each)) is not None}
    memory = threads = 0
    for fields in found.values():
        parent = found.get(fields["PPid"])
        is_parents = parent is not None and all(fields[key] == parent[key] for key in ("VmSize", "RssAnon"))
        memory += 0 if is_parents else fields["RssAnon"] + fields["RssShmem"]
        threads += fields["Threads"]
    return Usage(memory * 1024, threads)


def body(pid_of: Callable[[], int | None], policy: Policy, place: str) -> Look:
    """Looks at memory and threads. `place`: the function's file and line."""

    def look() -> Excess | None:
        pid = pid_of()
        if pid is None or _excess(usage_of(pid), policy, place) is None:
            return None
        time.sleep(AGAIN_S)  # in a thread of its own. What a fork and its exec share must not count as twice as much
        return _excess(usage_of(pid), policy, place)

    return look


def _excess(usage: Usage, policy: Policy, place: str) -> Excess | None:
    if usage.memory_bytes > policy.memory_bytes:
        size = policy.memory_bytes // 1024**2
        used = f"ended with {usage.memory_bytes // 1024**2} MB in use, all its processes together"
        return Excess("memory", f'{used}, of {size} MB. Add memory="{2 * size}MB" to @queue ({place})')
    if usage.threads > (most := THREADS + policy.processes):
        seen = f"blocked by echod: {usage.threads} threads, more than {most} ({place})"
        return Excess("threads", f"{seen}. {FEWER_THREADS}. It was ended")
    return None


def _status(pid: int) -> dict[str, int] | None:
    """Numbers of /proc/PID/status, sizes in KiB; None for one that is gone, or has no memory any more."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    pairs = (line.split()[:2] for line in lines)
    fields = {pair[0][:-1]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
    return fields if "RssAnon" in fields else None
