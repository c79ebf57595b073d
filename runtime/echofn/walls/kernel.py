"""System calls that the standard library does not offer, through the C library. Linux only; importing needs no call."""

from __future__ import annotations

import ctypes
import os

from echofn.walls.syscalls import NUMBERS

MACHINE = os.uname().machine
NR = NUMBERS.get(MACHINE, {})  # empty elsewhere: every wall that needs a number is then unavailable

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

Argument = int | bytes | ctypes.Array[ctypes.c_char] | None


def checked(answer: int, what: str) -> int:
    """`answer`, or the OSError it stands for."""
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return answer


def syscall(name: str, *arguments: Argument) -> int:
    """One call by its name. Raises OSError; ENOSYS for a name that this machine's table does not have."""
    if name not in NR:
        raise OSError(38, f"{name}: no system call of this name for {MACHINE}")
    passed = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return checked(libc.syscall(ctypes.c_long(NR[name]), *passed), name)


def prctl(option: int, value: int, *more: int) -> None:
    """prctl(2). Raises OSError."""
    rest = [ctypes.c_ulong(each) for each in (*more, 0, 0, 0)[:3]]
    checked(libc.prctl(option, ctypes.c_ulong(value), *rest), f"prctl({option})")
