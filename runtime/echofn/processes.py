"""The process tree below one process, as /proc shows it, and its end.

Attribution is by ancestry alone: a worker is a subreaper, so whatever its handlers start (double-forked, in a session
of its own) stays below the worker while it lives, and falls to the base, which knows its workers, when it dies.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Set
from types import FrameType
from typing import NoReturn

WALL = 0x40000000  # wait(2): also for children made to end without SIGCHLD, as clone(2) can have it
_WITHIN_S = 2.0  # a fork bomb is stopped in far less; the bound only keeps a broken /proc from hanging us
_LOOKS = 5  # in a row that find no child that moves


def descendants(root: int, spare: Set[int] = frozenset()) -> list[int]:
    """Every process below `root`, zombies too, parents before children, without the trees of `spare`."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (parent := _parent_of(name)) is not None:
            children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    ahead = [root]
    while ahead:
        fresh = [pid for parent in ahead for pid in children.get(parent, ()) if pid not in spare]
        found += fresh
        ahead = fresh
    return found


def below(root: int, spare: Set[int] = frozenset()) -> list[int]:
    """As `descendants`, at a cost that grows with this tree and not with the machine. May miss processes that start or
    exit meanwhile: use it to look, not to kill.
    """
    found: list[int] = []
    ahead = [root]
    while ahead:
        try:
            ahead = [child for pid in ahead for child in _children_of(pid) if child not in spare]
        except FileNotFoundError:
            return descendants(root, spare)  # a kernel without CONFIG_PROC_CHILDREN
        found += ahead
    return found


def children_of_one_thread(pid: int) -> set[int] | None:
    """The children of a process that has one thread, for a few microseconds; None where /proc does not say. One that
    comes or goes meanwhile may hide another.
    """
    try:
        file = os.open(f"/proc/{pid}/task/{pid}/children", os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = b""
            while more := os.read(file, 1 << 16):
                data += more
        finally:
            os.close(file)
    except OSError:
        return None
    return set(map(int, data.split()))


def children_of_main_thread() -> set[int] | None:
    """This process's children by its main thread, adopted ones among them; None where /proc does not say.

    Read twice, as one that ends meanwhile can hide another.
    """
    first, second = children_of_one_thread(os.getpid()), children_of_one_thread(os.getpid())
    return None if first is None or second is None else first | second


def _children_of(pid: int) -> list[int]:
    """By thread, as /proc has them. Raises FileNotFoundError where it has no such file."""
    tasks, found = f"/proc/{pid}/task", list[int]()
    try:
        threads = os.listdir(tasks)
    except OSError:
        return []  # gone in the meantime
    for thread in threads:
        try:
            with open(f"{tasks}/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
        except FileNotFoundError:
            if os.path.exists(f"{tasks}/{thread}/stat"):
                raise
        except OSError:
            pass  # gone in the meantime
    return found


def _parent_of(pid: str) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return None  # gone in the meantime


def kill_tree(root: int) -> None:
    """SIGKILL a child of this process, which is not waited for yet, and everything below it; it is stopped first."""
    os.kill(root, signal.SIGSTOP)
    kill_below(root)
    os.kill(root, signal.SIGKILL)


def kill_below(root: int, spare: Set[int] = frozenset()) -> set[int]:
    """SIGKILL everything below `root` but the trees of `spare`; what was there, zombies too.

    All are stopped before any is killed: what is stopped cannot fork, so a fork bomb has nowhere to go. What hops, a
    process that forks and exits within a millisecond, is gone from where a look at all of /proc finds it; but as its
    parent goes it falls to `root`, a subreaper, and there it is caught by looks that take microseconds.
    """
    stopped: set[int] = set()
    until = time.monotonic() + _WITHIN_S
    while time.monotonic() < until:
        looks = 0
        while looks < _LOOKS and time.monotonic() < until:
            fallen = (children_of_one_thread(root) or set()) - stopped - spare
            looks = 0 if fallen else looks + 1
            for pid in fallen:
                _stop_child(pid, root)
            stopped |= fallen
        fresh = [pid for pid in descendants(root, spare) if pid not in stopped]
        if not fresh:
            break
        stopped.update(fresh)
        for pid in fresh:
            _signal(pid, signal.SIGSTOP, stopped, root)
    for pid in stopped:
        _signal(pid, signal.SIGKILL, stopped, root)
    return stopped


def end_below(spare: Set[int] = frozenset()) -> None:
    """Kill everything below this process but the trees of `spare`, and wait until nothing of it is left."""
    while killed := kill_below(os.getpid(), spare):
        for pid in killed:
            try:
                os.waitpid(pid, WALL)
            except ChildProcessError:
                pass  # not a child yet: it becomes one as its parent goes


def end_with_all(_number: int = 0, _frame: FrameType | None = None) -> NoReturn:
    """Take everything below this process along, and exit; for a signal's handler, too."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        _kill_all_and_reap()
    finally:
        os._exit(0)


def _kill_all_and_reap() -> None:
    """Kill everything below this process and wait until nothing is left."""
    pause_s = 0.001
    while True:
        kill_below(os.getpid())
        try:
            while os.waitpid(-1, os.WNOHANG | WALL)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.05)


def reaped_all() -> bool:
    """Reap this process's dead children; whether none is left."""
    try:
        while os.waitpid(-1, os.WNOHANG | WALL)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def has_children() -> bool:
    """Whether this process has any child, dead or alive: one system call, nothing reaped."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | WALL)
    except ChildProcessError:
        return False
    return True


def _stop_child(pid: int, root: int) -> None:
    if root != os.getpid():
        return _signal(pid, signal.SIGSTOP, frozenset(), root)
    try:
        os.kill(pid, signal.SIGSTOP)  # a child of our own keeps its number until we wait for it
    except OSError:
        pass  # not ours to signal


def _signal(pid: int, number: int, tree: Set[int], root: int) -> None:
    """Signal one that was found below `root`, in `tree`: whoever has its number by now must be a child of theirs."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return  # gone
    try:
        parent = _parent_of(str(pid))  # asked with the handle open, which no later process can take over
        if parent == root or parent in tree:
            signal.pidfd_send_signal(handle, number)
    except OSError:
        pass  # gone, or not ours to signal
    finally:
        os.close(handle)
