"""A world of its own: namespaces, and a private root of which only what a worker may read is part.

See namespaces(7), user_namespaces(7), pid_namespaces(7), pivot_root(2), mount_setattr(2). Root makes them directly;
anyone else within a user namespace, where the machine allows one. A pid namespace begins with the next fork: the
process that asked for it stays behind outside, waits, and ends as the worker ended.

The worker is pid 1 in there, so the kernel ignores signals that it sends itself and does not handle; a fault and the
base's SIGKILL end it as ever, and its end is that of every process in there.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import select
import signal
import socket
import struct
from collections.abc import Iterable
from typing import NoReturn

from echofn.walls import kernel
from echofn.walls.process import die_with_parent
from echofn.walls.reach import DEVICES, Reach

NEWNS = 0x00020000
NEWUTS = 0x04000000
NEWIPC = 0x08000000
NEWUSER = 0x10000000
NEWPID = 0x20000000
NEWNET = 0x40000000

MS_NOSUID = 1 << 1
MS_NODEV = 1 << 2
MS_NOEXEC = 1 << 3
MS_BIND = 1 << 12
MS_REC = 1 << 14
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

_ATTR_RDONLY = 0x1
_ATTR_NOSUID = 0x2
_ATTR_NODEV = 0x4
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_ROOT_SIZE = "size=1m,mode=755"
_INODE_BYTES = 4096  # of /tmp, for each file it may hold
TMP = "/tmp"
HOSTNAME = "echod"


def isolate(parent: int, *, network: bool) -> int:
    """Go on as the first process of new namespaces. Raises OSError where the machine does not allow that.

    Gives a descriptor that ends when the process left outside does: it stands in for `parent`, whose pid nobody in
    there can see. `network`: keep the host's.
    """
    flags = NEWNS | NEWPID | NEWIPC | NEWUTS | (0 if network else NEWNET)
    uid, gid = os.geteuid(), os.getegid()
    try:
        kernel.checked(kernel.libc.unshare(flags), "unshare")
    except PermissionError:
        kernel.checked(kernel.libc.unshare(flags | NEWUSER), "unshare, with a user namespace")
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
    alive, held = os.pipe()
    pid = os.fork()
    if pid:
        _stand_by(pid, held, parent)
    os.close(held)
    socket.sethostname(HOSTNAME)
    return alive


def die_with(alive: int) -> None:
    """As `die_with_parent`, in a pid namespace. The parent's pid reads 0 there, dead or alive: its pipe tells."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if select.select([alive], [], [], 0)[0]:
        os._exit(1)
    os.close(alive)


def private_root(place: str, reach: Reach, tmp_bytes: int) -> None:
    """Make a root of what `reach` names, read-only, with an empty /tmp of its own size. `place`: any empty folder."""
    umask = os.umask(0o022)  # parents of what is mounted must be open to the uid that follows
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    _mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV, _ROOT_SIZE)
    os.mkdir(place + TMP)
    room = f"size={tmp_bytes},mode=1777,nr_inodes={max(tmp_bytes // _INODE_BYTES, 1024)}"
    _mount("tmpfs", place + TMP, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, room)
    for path in outermost(reach.whole):
        _show(path, place)
    for path in DEVICES:
        if os.path.exists(path):
            _show(path, place, device=True)
    _swap_root(place)
    kernel.syscall("mount_setattr", _AT_FDCWD, b"/", 0, _attributes(_ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV), 32)
    os.umask(umask)


def outermost(paths: Iterable[str]) -> list[str]:
    """The paths that are below no other of them."""
    found: list[str] = []
    for path in sorted(paths):
        if not any(path.startswith(outer + os.sep) for outer in found):
            found.append(path)
    return found


def _show(path: str, place: str, *, device: bool = False) -> None:
    """Bind a file or folder at its own path below `place`; a link is made again."""
    there = place + path
    os.makedirs(os.path.dirname(there), exist_ok=True)
    if os.path.islink(path):
        target = os.path.realpath(path)
        if os.path.isdir(target) or not os.path.lexists(there):
            _link(path, there, target, place)
        return
    if os.path.isdir(path):
        os.makedirs(there, exist_ok=True)
    else:
        os.close(os.open(there, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    _mount(path, there, None, MS_BIND | MS_REC)
    flags = _ATTR_NOSUID if device else _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV
    kernel.syscall("mount_setattr", _AT_FDCWD, os.fsencode(there), _AT_RECURSIVE, _attributes(flags), 32)


def _link(path: str, there: str, target: str, place: str) -> None:
    """A link as it is; a file's target (as of /etc/resolv.conf, in /run) is shown in its place."""
    if os.path.isdir(target):
        os.symlink(os.readlink(path), there)
    elif os.path.isfile(target):
        os.close(os.open(there, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        _mount(target, there, None, MS_BIND)
        attributes = _attributes(_ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV)
        kernel.syscall("mount_setattr", _AT_FDCWD, os.fsencode(there), 0, attributes, 32)


def _swap_root(place: str) -> None:
    os.chdir(place)
    os.mkdir(".host")
    kernel.syscall("pivot_root", b".", b".host")
    os.chdir("/")
    kernel.checked(kernel.libc.umount2(b"/.host", MNT_DETACH), "umount2")
    os.rmdir("/.host")


def _attributes(flags: int) -> bytes:
    return struct.pack("4Q", flags, 0, 0, 0)  # struct mount_attr: set, clear, propagation, userns_fd


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [None if each is None else os.fsencode(each) for each in (source, target, kind, data)]
    result = kernel.libc.mount(*encoded[:3], ctypes.c_ulong(flags), encoded[3])
    kernel.checked(result, f"mount {target}")


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w") as file:
            file.write(text)
    except OSError as error:
        if error.errno != errno.ENOENT:  # setgroups: older than Linux 3.19
            raise


def _stand_by(pid: int, held: int, parent: int) -> NoReturn:
    """Outside: hold the pipe's end, wait for the worker, and end as it did."""
    os.dup2(held, 0)
    os.closerange(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    die_with_parent(signal.SIGKILL, parent)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        if number not in {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
