"""How a function's workers are doing, read from the system when a page asks."""

from __future__ import annotations

import os
from pathlib import Path

from echod.supervisor.crews import Crews
from echod.supervisor.life import Phase

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def of(crews: Crews, *, stands_by: bool) -> dict[str, object]:
    """Workers of one function: how many, how many busy, memory and CPU of those alive, starts so far.

    `stands_by`: the process that the base knows of only waits for the one that runs the handlers (level strict).
    """
    workers = [worker for pool in crews.pools for worker in pool.workers]
    rss_bytes, cpu_s = 0, 0.0
    for worker in workers:
        if worker.pid is not None:
            rss, cpu = _usage(_inner(worker.pid) if stands_by else worker.pid)
            rss_bytes, cpu_s = rss_bytes + rss, cpu_s + cpu
    return {
        "count": len(workers),
        "ready": sum(worker.life.phase is Phase.READY for worker in workers),
        "busy": sum(bool(worker.life.running) for worker in workers),
        "runs": sum(len(worker.life.running) for worker in workers),
        "rss_bytes": rss_bytes,
        "cpu_s": round(cpu_s, 2),
        "cold_starts": crews.cold_starts,
        "pids": [worker.pid for worker in workers if worker.pid is not None],
    }


def _inner(pid: int) -> int:
    """The one child of a process that stands by; the process itself while its child is not there, or not to be seen."""
    try:
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return pid


def _usage(pid: int) -> tuple[int, float]:
    """Resident bytes and CPU seconds of a process; nothing for one that is gone, or where there is no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[21]) * _PAGE, (int(fields[11]) + int(fields[12])) / _TICKS
    except (OSError, ValueError, IndexError):
        return 0, 0.0
