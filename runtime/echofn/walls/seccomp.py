"""The seccomp filter: which system calls a worker has, as an allow-list. See seccomp(2).

Calls of a foreign architecture kill; calls that the tables do not know are answered ENOSYS, as an older kernel would;
all others EPERM. `clone3` is ENOSYS, because a filter cannot read its flags: the C library then uses `clone`.
"""

from __future__ import annotations

import errno
import functools
import socket
import struct
from collections.abc import Iterator

from echofn.walls import kernel
from echofn.walls.bpf import (
    ALLOW,
    AND,
    ARCHITECTURE,
    ASK,
    JUMP_ANY_BIT,
    JUMP_AT_LEAST,
    JUMP_EQUAL,
    KILL,
    LOAD,
    NUMBER,
    Code,
    among,
    answer,
    argument,
    load,
    not_among,
    one_of,
    refuse,
    step,
    when,
    without,
)
from echofn.walls.openings import Openings
from echofn.walls.syscalls import NUMBERS

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # linux/audit.h
_X32 = 0x40000000  # x86-64: the same calls under other numbers


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PLAIN = _words("""
    read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 open openat openat2 creat close close_range
    lseek stat fstat lstat newfstatat statx statfs fstatfs access faccessat faccessat2 readlink readlinkat getdents
    getdents64 getcwd chdir fchdir mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 link linkat symlink
    symlinkat truncate ftruncate fallocate fsync fdatasync sync_file_range flock dup dup2 dup3 pipe pipe2 poll ppoll
    select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 eventfd eventfd2
    timerfd_create timerfd_settime timerfd_gettime signalfd4 mmap munmap mremap mprotect madvise brk mincore msync mlock
    munlock membarrier futex futex_waitv set_robust_list get_robust_list rseq set_tid_address rt_sigaction
    rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend sigaltstack getpid gettid getppid getuid
    geteuid getgid getegid getresuid getresgid getgroups getpgrp getpgid getsid getrlimit setrlimit getrusage times
    sysinfo uname clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time sched_yield sched_getaffinity
    sched_getscheduler sched_getparam sched_get_priority_max sched_get_priority_min sched_getattr getpriority getrandom
    getcpu capget exit exit_group wait4 waitid restart_syscall arch_prctl setitimer getitimer alarm pause timer_create
    timer_settime timer_gettime timer_getoverrun timer_delete recvfrom recvmsg recvmmsg shutdown getsockname getpeername
    getsockopt setsockopt copy_file_range sendfile splice tee umask fadvise64 readahead pkey_alloc pkey_free
    pkey_mprotect
""")
CONNECTING = ("connect",)
SERVING = ("bind", "listen", "accept", "accept4")
FORKING = ("fork", "vfork")
RUNNING = ("execve", "execveat")
# Landlock has no say over these, and files of the same user lie outside: nothing is changed, and nobody is told.
METADATA = ("chmod", "fchmod", "fchmodat", "utimensat", "utime", "utimes", "futimesat")
# "Not supported" is what copying tools put up with; EPERM is not.
ATTRIBUTES = _words("""
    setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr
    fremovexattr
""")

_CLONE_NAMESPACES = 0x7E020080  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET; NEWTIME
_CLONE_PARENT = 0x00008000  # the new process is its parent's sibling: a child of the base, counted and ended by nobody
_CLONE_THREAD = 0x00010000
_MSG_FASTOPEN = 0x20000000  # connects without a connect(), past Landlock's ports
_SOCKET_TYPE = 0xF
_IPPROTO_MPTCP = 262  # connects like TCP, past Landlock's ports
# Signals to others by way of a descriptor, and being told of what others do to a file: F_SETOWN, F_SETSIG,
# F_SETOWN_EX, F_SETLEASE, F_NOTIFY.
_FCNTL_REFUSED = (8, 10, 15, 1024, 1026)
# FIONBIO, FIONREAD, TCGETS, TIOCGWINSZ, FIONCLEX, FIOCLEX: never TIOCSTI, which types into a terminal.
_IOCTL_ALLOWED = (0x5421, 0x541B, 0x5401, 0x5413, 0x5450, 0x5451)
# PR_GET_DUMPABLE, PR_SET_NAME, PR_GET_NAME, PR_CAPBSET_READ, PR_GET_TIMERSLACK, PR_GET_NO_NEW_PRIVS, PR_SET_VMA
_PRCTL_ALLOWED = (3, 15, 16, 23, 30, 39, 0x53564D41)
_PERSONALITY_QUERY = 0xFFFFFFFF
_OWN_PID = 0x7ABBCCDD  # stands for the worker's own, so that the program can be made before it is forked


def confine(
    opened: Openings, *, pid: int, private_files: bool, private_pids: bool, scoped: bool, asks: bool = False
) -> int:
    """Filter this process, for good. Raises OSError; ENOSYS on a machine without tables.

    private_files: no file of the host is in sight. private_pids: no process of the host is. scoped: the kernel keeps
    signals inside anyway. asks: a process that it starts waits for the word of whoever holds the listener, which is
    what this gives then (`gate` is the one who does); 0 without.
    """
    kinds = (opened.network is True, bool(opened.ports), opened.processes > 0)
    steps = program(kernel.MACHINE, *kinds, private_files, private_pids, scoped, asks)
    return load(steps.replace(struct.pack("I", _OWN_PID), struct.pack("I", pid)), asks=asks)


@functools.cache
def program(
    machine: str,
    any_network: bool,
    ports: bool,
    processes: bool,
    private_files: bool,
    private_pids: bool,
    scoped: bool,
    asks: bool,
) -> Code:
    """The filter, with a stand-in for the pid. Raises OSError on a machine without tables."""
    numbers = NUMBERS.get(machine)
    if machine not in ARCHITECTURES or numbers is None:
        raise OSError(errno.ENOSYS, f"no system call filter for {machine}")
    rules = [
        *_plain(),
        *_sockets(any_network, ports),
        *_processes(processes, private_pids, private_pids or scoped, asks),
        *((name, [answer(ALLOW) if private_files else refuse(0)]) for name in METADATA),
        *((name, [refuse(errno.ENOTSUP)]) for name in ATTRIBUTES),
    ]
    begin = [step(LOAD, ARCHITECTURE), step(JUMP_EQUAL, ARCHITECTURES[machine], 1, 0), answer(KILL), step(LOAD, NUMBER)]
    if machine == "x86_64":
        begin += [step(JUMP_AT_LEAST, _X32, 0, 1), answer(KILL)]
    known = [when(numbers[name], body) for name, body in rules if name in numbers]
    newest = max(numbers.values())
    end = [step(JUMP_AT_LEAST, newest + 1, 0, 1), refuse(errno.ENOSYS), refuse(errno.EPERM)]
    return b"".join([*begin, *known, *end])


Rule = tuple[str, list[Code]]


def _plain() -> Iterator[Rule]:
    yield from ((name, [answer(ALLOW)]) for name in PLAIN)
    yield "fcntl", not_among(1, _FCNTL_REFUSED, errno.EPERM)
    yield "ioctl", among(1, _IOCTL_ALLOWED, errno.EPERM)
    yield "prctl", among(0, _PRCTL_ALLOWED, errno.EPERM)
    yield "personality", among(0, [_PERSONALITY_QUERY], errno.EPERM)
    yield "prlimit64", among(0, [0], errno.EPERM)
    yield "sched_setaffinity", among(0, [0, _OWN_PID], errno.EPERM)


def _sockets(any_network: bool, ports: bool) -> Iterator[Rule]:
    """Internet sockets as far as opened; of unix sockets only pairs; nothing of any other family."""
    # An end of a pair of datagram sockets sends to any unix socket by its path, of which Landlock knows nothing.
    pairs = one_of([socket.SOCK_STREAM, socket.SOCK_SEQPACKET], errno.EPERM)
    unix = [argument(0), step(JUMP_EQUAL, socket.AF_UNIX, 1, 0), refuse(errno.EPERM)]
    yield "socketpair", [*unix, argument(1), step(AND, _SOCKET_TYPE), *pairs]
    yield "sendto", without(3, _MSG_FASTOPEN, errno.EPERM)
    yield "sendmsg", without(2, _MSG_FASTOPEN, errno.EPERM)
    yield "sendmmsg", without(3, _MSG_FASTOPEN, errno.EPERM)
    if not (any_network or ports):
        return
    yield from ((name, [answer(ALLOW)]) for name in CONNECTING + (SERVING if any_network else ()))
    types = [socket.SOCK_STREAM, socket.SOCK_DGRAM] if any_network else [socket.SOCK_STREAM]
    chosen = [step(JUMP_EQUAL, kind, len(types) - index, 0) for index, kind in enumerate(types)]
    protocol = (
        [step(JUMP_EQUAL, _IPPROTO_MPTCP, 0, 1), refuse(errno.EPERM), answer(ALLOW)]
        if any_network
        else one_of([0, socket.IPPROTO_TCP], errno.EPERM)
    )
    yield (
        "socket",
        [
            argument(0),
            step(JUMP_EQUAL, socket.AF_INET, 2, 0),
            step(JUMP_EQUAL, socket.AF_INET6, 1, 0),
            refuse(errno.EPERM),
            argument(1),
            step(AND, _SOCKET_TYPE),
            *chosen,
            refuse(errno.EPERM),
            argument(2),
            *protocol,
        ],
    )


def _processes(processes: bool, private_pids: bool, kept_inside: bool, asks: bool) -> Iterator[Rule]:
    """Threads always; processes as far as opened, and none that could leave its group unless no host is in sight, or
    the tree below its worker at all.
    """
    yield "clone3", [refuse(errno.ENOSYS)]
    clone = [argument(0), step(JUMP_ANY_BIT, _CLONE_NAMESPACES | _CLONE_PARENT, 0, 1), refuse(errno.EPERM)]
    started = answer(ASK if asks else ALLOW) if processes else refuse(errno.EPERM)
    yield "clone", [*clone, step(JUMP_ANY_BIT, _CLONE_THREAD, 0, 1), answer(ALLOW), started]
    if processes:
        yield from ((name, [started]) for name in FORKING)
        yield from ((name, [answer(ALLOW)]) for name in RUNNING + (("setsid", "setpgid") if private_pids else ()))
    if processes and kept_inside:
        yield from ((name, [answer(ALLOW)]) for name in ("kill", "tkill", "tgkill"))
    else:
        yield from ((name, among(0, [_OWN_PID], errno.EPERM)) for name in ("kill", "tkill", "tgkill"))
