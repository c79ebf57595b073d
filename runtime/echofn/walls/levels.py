"""The walls of each level, and the one order in which they can go up.

strict: everything. standard: no namespaces, so the host's files can be seen (names, sizes, times, links), not read.
minimal: limits, no new privileges, no way to outlive the base. off: only what keeps jobs apart from each other.

Each step uses what a later one closes: the private root comes before the uid that could not build it, the uid before
the parent-death signal that a change of uid clears, Landlock before the filter that forbids asking for it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Literal, NamedTuple

from echofn.walls import gate, kernel, landlock, namespaces, privileges, process, reach, seccomp
from echofn.walls.openings import Openings

Level = Literal["off", "minimal", "standard", "strict"]
LEVELS: tuple[Level, ...] = ("off", "minimal", "standard", "strict")
DNS = 53


class Order(NamedTuple):
    """What to build around one process."""

    level: str
    root: str  # the version's folder
    tmp: str  # a private folder: cwd and HOME; where a private /tmp takes its place, only its mount point
    secrets: Mapping[str, str] = {}
    opened: Openings = Openings()
    line: int | None = None  # a socket to whoever counts the processes (gate.py); closed here


class Wall(NamedTuple):
    """A wall by name, and what it does."""

    name: str
    does: str
    level: Level  # the least that has it


WALLS = (
    Wall("descriptors", "nothing open but its own channel and output", "off"),
    Wall("session", "no controlling terminal", "off"),
    Wall("environment", "only its own secrets and a fixed PATH, HOME, LANG, TZ", "off"),
    Wall("parent-death", "dies with the node", "off"),
    Wall("rlimits", "memory, file size, open files, no core files", "minimal"),
    Wall("not-dumpable", "no core, no debugger", "minimal"),
    Wall("no-new-privs", "setuid programs give nothing", "minimal"),
    Wall("capabilities", "none, for good", "minimal"),
    Wall("uid", "an unprivileged user of its own", "standard"),
    Wall("thread-count", "256 threads (rlimit)", "standard"),
    Wall("files", "reads its version, the interpreter, system libraries; writes $TMPDIR (Landlock)", "standard"),
    Wall("ports", "TCP only to the ports it opened (Landlock)", "standard"),
    Wall("signals", "reaches no process outside (Landlock scope)", "standard"),
    Wall("calls", "an allow-list of system calls (seccomp)", "standard"),
    Wall("process-count", "no more processes at once than it opened (seccomp)", "standard"),
    Wall("private-root", "a root of its own: the host's files are not there", "strict"),
    Wall("private-tmp", "a /tmp of its own, of a fixed size", "strict"),
    Wall("private-pids", "sees no process but its own; all end with it", "strict"),
    Wall("private-ipc", "no shared memory with others, a host name of its own", "strict"),
    Wall("private-network", "no network interface at all", "strict"),
)


def raise_walls(order: Order, parent: int) -> tuple[str, ...]:
    """Confine this process, for good; gives the names of the walls that are up. Single-threaded callers only.

    `parent` is the process to die with. At `strict` the walls end the calling process's part in this: it stays behind
    as the one that waits, and its child returns. Raises OSError where the machine cannot give what the level asks.
    """
    level, opened = order.level, order.opened
    if level not in LEVELS:
        raise ValueError(f"expected a sandbox level of {', '.join(LEVELS)}, got {level!r}")
    up = ["descriptors", "session", "environment", "parent-death"]
    if os.getpid() != os.getsid(0):
        os.setsid()
    process.adopt_orphans()
    is_root, uid = os.geteuid() == 0, privileges.uid_for(os.getpid())
    if level != "off":
        process.offer_to_oom_killer()
    alive, tmp = None, order.tmp
    readable = reach.readable(order.root) if level in {"standard", "strict"} else reach.Reach((), ())
    if level == "strict":
        alive = namespaces.isolate(parent, network=bool(opened.network))
        namespaces.private_root(tmp, readable, opened.tmp_bytes)
        tmp = namespaces.TMP
        up += ["private-root", "private-tmp", "private-pids", "private-ipc"]
        up += [] if opened.network else ["private-network"]
    if level != "off":
        process.limit(opened)
        up.append("rlimits")
    if level in {"standard", "strict"}:
        up += _unprivileged(is_root, uid, order, private=level == "strict")
    os.chdir(tmp)
    os.umask(0o077)
    if level != "off":
        privileges.drop_capabilities()
        up.append("capabilities")
    if alive is None:
        process.die_with_parent(signal.SIGKILL, parent)
    else:
        namespaces.die_with(alive)
    if level != "off":
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        up += ["not-dumpable", "no-new-privs"]
    process.replace_environment(process.environment_for(tmp, order.secrets, opened))
    if level in {"standard", "strict"}:
        up += _by_landlock(readable, tmp, opened)
        private = level == "strict"
        scoped = "signals" in up
        asks = opened.processes > 0 and order.line is not None
        listener = seccomp.confine(
            opened, pid=os.getpid(), private_files=private, private_pids=private, scoped=scoped, asks=asks
        )
        up.append("calls")
        if asks and order.line is not None:
            gate.hand_over(order.line, listener)
        if asks or not opened.processes:
            up.append("process-count")
    return tuple(up)


def _unprivileged(is_root: bool, uid: int, order: Order, *, private: bool) -> list[str]:
    """Take a uid of one's own where that can still read the code; bound what the kernel counts by uid."""
    if not is_root or not privileges.has_capability(privileges.CAP_SETUID):
        if private and not is_root:  # the first and only one of this uid in its user namespace
            process.count_threads(order.opened)
            return ["thread-count"]
        return []
    above = () if private else (os.path.dirname(order.tmp),)
    try:
        if not privileges.can_read_as(uid, (*reach.needed(order.root), *above)):
            return []
    except OSError:
        return []  # root of a container that has no other uid
    if not private:
        os.chown(order.tmp, uid, uid)
    process.count_threads(order.opened)
    privileges.become(uid)
    return ["uid", "thread-count"]


def _by_landlock(readable: reach.Reach, tmp: str, opened: Openings) -> list[str]:
    version = landlock.abi()
    if version < landlock.ABI_PORTS:
        raise OSError(38, f"Landlock: expected ABI {landlock.ABI_PORTS} or later (Linux 6.7), got {version}")
    read = landlock.READ | (landlock.EXECUTE if opened.processes else 0)
    programs = {*reach.SYSTEM, *reach.interpreter()}
    rules = [landlock.Rule(path, read if path in programs else landlock.READ) for path in readable.whole]
    rules += [landlock.Rule(path, landlock.READ_DIR) for path in readable.listed]
    rules += [landlock.Rule(path, landlock.DEVICE) for path in reach.DEVICES]
    rules.append(landlock.Rule(tmp, landlock.WRITE))
    ports = opened.ports
    landlock.restrict(rules, (*ports, DNS) if ports else ports)
    walls = ["files"] if ports is None else ["files", "ports"]
    return [*walls, "signals"] if version >= landlock.ABI_SCOPES else walls
