"""The size of a worker's /tmp where no filesystem of its own bounds it (at `strict` one does, and lets nothing by)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from echod.supervisor.watch import Excess, Look
from echofn import processes
from echofn.room import used_bytes

_DELETED = " (deleted)"  # proc_pid_fd(5)


def room(folder: Path, limit_bytes: int, pid_of: Callable[[], int | None] = lambda: None) -> Look:
    """Looks at what a folder takes, and what the worker and all below it hold open of it that has no name any more."""

    def look() -> Excess | None:
        used = used_bytes(str(folder), limit_bytes)
        pid = pid_of()
        if used <= limit_bytes and pid is not None:
            used += nameless_bytes(folder, (pid, *processes.below(pid)))
        return Excess("tmp") if used > limit_bytes else None

    return look


def nameless_bytes(folder: Path, pids: tuple[int, ...]) -> int:
    """Bytes of the files below a folder that have no name any more (or never had one: O_TMPFILE) and that these
    processes hold, by descriptor or as memory. Each counts once. Nothing of a process that is not ours to look into.
    """
    above = os.path.realpath(folder) + os.sep
    found = {seen.st_ino: seen.st_blocks * 512 for pid in pids for seen in _nameless(f"/proc/{pid}/", above)}
    return sum(found.values())


def _nameless(process: str, above: str) -> Iterator[os.stat_result]:
    for place in ("fd", "map_files"):
        try:
            with os.scandir(process + place) as links:
                for link in links:
                    with contextlib.suppress(OSError):  # closed in the meantime
                        path = os.readlink(link.path)
                        if path.startswith(above) and path.endswith(_DELETED):
                            yield os.stat(link.path)
        except OSError:
            pass  # gone, or not ours
