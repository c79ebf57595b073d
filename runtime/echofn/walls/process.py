"""What every worker has: its own session, descriptors and environment, limits, a parent to die with."""

from __future__ import annotations

import fcntl
import os
import resource
import time
from collections.abc import Mapping

from echofn.walls import kernel
from echofn.walls.openings import MEBIBYTE, Openings

CHANNEL = 3  # the one descriptor past 0, 1 and 2 that a confined process holds
LINE = 4  # to the base while the walls go up, where they have something to hand to it
NOFILE = 256
PATH = "/usr/local/bin:/usr/bin:/bin"
CPU_S = 7 * 86_400  # of a whole worker's life: its jobs have timeouts; this ends what escaped every one of them
NPROC = 32_768  # by uid, which others may share: no bound that an honest user meets
THREADS = 256


def die_with_parent(number: int, parent: int) -> None:
    """Ask the kernel for a signal when the parent (to the kernel: its *thread*) ends. Exits if it has ended already.

    A change of uid clears it: to be asked for after that. See PR_SET_PDEATHSIG(2const).
    """
    kernel.prctl(kernel.PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the subreaper: orphaned descendants become our children instead of init's."""
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)


def environment_for(tmp: str, secrets: Mapping[str, str], opened: Openings) -> dict[str, str]:
    """The whole environment of user code. Secrets come last but cannot replace what the walls rely on."""
    fixed = {"PATH": PATH, "HOME": tmp, "TMPDIR": tmp, "LANG": "C.UTF-8", "TZ": "UTC", "OPENBLAS_NUM_THREADS": "1"}
    if opened.ports:
        fixed["RES_OPTIONS"] = "use-vc"  # resolv.conf(5): names are asked for over TCP, which ports can be opened to
    return {**secrets, **fixed}


def replace_environment(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()  # the C library reads TZ once


def keep_descriptors(channel: int, outputs: tuple[int, int] | None, line: int | None = None) -> None:
    """Leave 0 (null), 1 and 2 (`outputs`, or as they are), the channel at `CHANNEL` and, for the walls to close, `line`
    at `LINE`; close everything else.
    """
    kept = [channel, *(outputs or ()), *(() if line is None else (line,))]
    high = [fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, LINE + 1) for source in kept]
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    if outputs is not None:
        os.dup2(high[1], 1)
        os.dup2(high[2], 2)
    os.dup2(high[0], CHANNEL, inheritable=False)
    if line is not None:
        os.dup2(high[-1], LINE, inheritable=False)
    first = CHANNEL + 1 if line is None else LINE + 1
    os.closerange(first, min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 1 << 20))


def limit(opened: Openings) -> None:
    """Resource limits, see getrlimit(2). The heap is what a handler really asks for; RLIMIT_AS counts what is only
    reserved (8 MB a thread), so it is wide. RLIMIT_FSIZE holds for one file, /tmp's size for all.
    """
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_DATA, opened.memory_bytes)
    _limit(resource.RLIMIT_AS, 4 * opened.memory_bytes + 1024 * MEBIBYTE)
    _limit(resource.RLIMIT_NOFILE, NOFILE)
    _limit(resource.RLIMIT_FSIZE, opened.tmp_bytes)
    _limit(resource.RLIMIT_MEMLOCK, 0)
    _limit(resource.RLIMIT_MSGQUEUE, 0)
    _limit(resource.RLIMIT_CPU, CPU_S)
    _limit(resource.RLIMIT_NPROC, NPROC)


def count_threads(opened: Openings) -> None:
    """Bound threads, and with them processes: the kernel counts them as one, by uid. Only for a uid of one's own."""
    _limit(resource.RLIMIT_NPROC, THREADS + opened.processes)


def offer_to_oom_killer() -> None:
    """When the machine runs out of memory the kernel should take a worker, not the node."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")
    except OSError:
        pass  # no /proc, or a lower bound set by an administrator: a preference, not a wall


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)  # nobody may raise a hard limit
    resource.setrlimit(kind, (value, value))
