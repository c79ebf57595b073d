"""Walls: what is put around a process before it imports user code.

Levels, best first: `strict` (namespaces, private root), `standard` (Landlock, seccomp), `minimal` (what is here),
`off`. This version has `minimal`: own session, parent-death signal, no new privileges, not dumpable, resource limits,
a replaced environment; closed descriptors are the caller's, who knows which it needs. It stops accidents, not
attacks: files, network, processes and signals of the same user stay open. The seam for the rest is `raise_walls`.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import time
from collections.abc import Mapping
from typing import Literal, NamedTuple

Level = Literal["off", "minimal", "standard", "strict"]

CHANNEL = 3  # the one descriptor past 0, 1 and 2 that a confined process holds
NOFILE = 256
FSIZE = 64 * 1024 * 1024  # `tmp=` is not an option yet: its default
PATH = "/usr/local/bin:/usr/bin:/bin"

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_libc = ctypes.CDLL(None, use_errno=True)


class Available(NamedTuple):
    """The best level on this machine, and why not better."""

    level: Level
    missing: tuple[str, ...]


class Limits(NamedTuple):
    memory_bytes: int


def available() -> Available:
    """What /readyz and the start of a node say. `minimal` is the best this version has."""
    if os.uname().sysname != "Linux":
        return Available("off", ("this is not Linux: handlers are not confined, development only",))
    missing = "not in this version of echod: handlers can read this user's files, use the network and start processes"
    return Available("minimal", (f"landlock, seccomp and namespaces: {missing}",))


def die_with_parent(number: int, parent: int) -> None:
    """Ask the kernel for a signal when the parent (to the kernel: its *thread*) ends. Exits if it has ended already."""
    prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the subreaper: orphaned descendants become our children instead of init's."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    if _libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def raise_walls(level: str, parent: int, tmp: str, limits: Limits, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Confine this process, for good; gives the names of the walls that are up. Single-threaded callers only.

    Raises ValueError for a level this version cannot give: none is shown as enforced that is not.
    """
    if level not in ("off", "minimal"):
        raise ValueError(f"expected sandbox level minimal or off, got {level!r}; this version has no better one")
    if os.getpid() != os.getsid(0):
        os.setsid()
    adopt_orphans()
    replace_environment(environment)
    os.chdir(tmp)
    os.umask(0o077)
    die_with_parent(
        signal.SIGKILL, parent
    )  # a change of uid would clear it: the drop of privileges belongs above this line
    walls = ("descriptors", "session", "environment", "parent-death")
    if level == "off":
        return walls
    _limit(limits)
    _offer_to_oom_killer()
    prctl(_PR_SET_DUMPABLE, 0)
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    # Landlock, then the seccomp filter, belong here: last, so that the steps above may still use what they close.
    return (*walls, "rlimits", "not-dumpable", "no-new-privs")


def environment_for(tmp: str, secrets: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of user code. Secrets come last but cannot replace what the walls rely on."""
    fixed = {"PATH": PATH, "HOME": tmp, "TMPDIR": tmp, "LANG": "C.UTF-8", "TZ": "UTC", "OPENBLAS_NUM_THREADS": "1"}
    return {**secrets, **fixed}


def replace_environment(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()  # the C library reads TZ once


def keep_descriptors(channel: int, output: int | None) -> None:
    """Leave 0 (null), 1 and 2 (`output`, or as they are) and the channel at `CHANNEL`; close everything else."""
    high = [
        fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, CHANNEL + 1) for source in (channel, output) if source is not None
    ]
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    if output is not None:
        os.dup2(high[1], 1)
        os.dup2(high[1], 2)
    os.dup2(high[0], CHANNEL, inheritable=False)
    os.closerange(CHANNEL + 1, min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 1 << 20))


def _limit(limits: Limits) -> None:
    # RLIMIT_AS counts what is only reserved (8 MB a thread): wide. RLIMIT_DATA is what a handler really asks for.
    for kind, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_DATA, limits.memory_bytes),
        (resource.RLIMIT_AS, 4 * limits.memory_bytes + (1 << 30)),
        (resource.RLIMIT_NOFILE, NOFILE),
        (resource.RLIMIT_FSIZE, FSIZE),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)  # nobody may raise a hard limit
        resource.setrlimit(kind, (value, value))


def _offer_to_oom_killer() -> None:
    """When the machine runs out of memory the kernel should take a worker, not the node."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")
    except OSError:
        pass  # no /proc, or a lower bound set by an administrator: a preference, not a wall
