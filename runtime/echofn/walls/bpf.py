"""Classic BPF as seccomp(2) runs it: single instructions, and the few shapes of rule that a filter is made of.

Every rule looks at the call's number, which stays in the accumulator until the rule is the one that decides; a rule
that has loaded an argument always ends in an answer.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable

from echofn.walls import kernel

# linux/bpf_common.h: class, size, mode and operation put together
LOAD = 0x20
JUMP_EQUAL = 0x15
JUMP_AT_LEAST = 0x35
JUMP_ANY_BIT = 0x45
AND = 0x54
RETURN = 0x06

# linux/seccomp.h
ALLOW = 0x7FFF0000
KILL = 0x80000000
ASK = 0x7FC00000  # wait for the word of whoever holds the listener: seccomp_unotify(2)
ERRNO = 0x00050000
SET_MODE_FILTER = 1
_NEW_LISTENER = 1 << 3

# struct seccomp_data
NUMBER = 0
ARCHITECTURE = 4
_ARGUMENTS = 16

Code = bytes


def step(code: int, value: int, then: int = 0, otherwise: int = 0) -> Code:
    """One instruction; `then` and `otherwise` are how many to skip."""
    return struct.pack("HBBI", code, then, otherwise, value & 0xFFFFFFFF)


def argument(index: int) -> Code:
    """Load the low half of an argument, which is where flags, families and ports of an int are."""
    return step(LOAD, _ARGUMENTS + 8 * index)


def answer(value: int) -> Code:
    return step(RETURN, value)


def refuse(error: int) -> Code:
    return answer(ERRNO | error)


def when(number: int, body: Iterable[Code]) -> Code:
    """`body` decides about this call."""
    steps = b"".join(body)
    return step(JUMP_EQUAL, number, 0, len(steps) // 8) + steps


def one_of(values: Iterable[int], error: int) -> list[Code]:
    """Allowed when what was loaded is one of `values`."""
    return [*(step(JUMP_EQUAL, each, 0, 1) + answer(ALLOW) for each in values), refuse(error)]


def among(index: int, values: Iterable[int], error: int) -> list[Code]:
    """Allowed when an argument is one of `values`."""
    return [argument(index), *one_of(values, error)]


def not_among(index: int, values: Iterable[int], error: int) -> list[Code]:
    """Refused when an argument is one of `values`."""
    return [argument(index), *(step(JUMP_EQUAL, each, 0, 1) + refuse(error) for each in values), answer(ALLOW)]


def without(index: int, bits: int, error: int) -> list[Code]:
    """Refused when an argument has any of `bits`."""
    return [argument(index), step(JUMP_ANY_BIT, bits, 0, 1), refuse(error), answer(ALLOW)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_void_p)]  # ctypes wants it so


def load(program: Code, *, asks: bool = False) -> int:
    """Filter this thread's calls, and those of all it starts, for good. Needs no-new-privs. Raises OSError.

    `asks`: gives the listener, a descriptor, to which calls go that the program answers with `ASK`. Else gives 0.
    """
    steps = ctypes.create_string_buffer(program, len(program))
    head = _Program(len(program) // 8, ctypes.addressof(steps))
    flags = ctypes.c_uint(_NEW_LISTENER if asks else 0)
    number = ctypes.c_long(kernel.NR["seccomp"])
    called = kernel.libc.syscall(number, ctypes.c_uint(SET_MODE_FILTER), flags, ctypes.byref(head))
    return kernel.checked(called, "seccomp")
