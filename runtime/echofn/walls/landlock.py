"""Landlock: which files a process may open and which TCP ports it may reach, enforced by the kernel. See landlock(7).

A ruleset handles rights; what it handles is refused unless a rule allows it. It binds the calling thread and what that
starts, for good, so it must be in place before any other thread exists. It does not cover stat, chdir, readlink,
chmod, utime or extended attributes: the seccomp filter and the private root see to those. Nor does it cover UDP, and a
connect() to a unix socket by its path: the filter refuses the sockets.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable
from typing import NamedTuple

from echofn.walls import kernel

EXECUTE = 1 << 0
WRITE_FILE = 1 << 1
READ_FILE = 1 << 2
READ_DIR = 1 << 3
REMOVE_DIR = 1 << 4
REMOVE_FILE = 1 << 5
MAKE_DIR = 1 << 7
MAKE_REG = 1 << 8
MAKE_SYM = 1 << 12
REFER = 1 << 13  # ABI 2
TRUNCATE = 1 << 14  # ABI 3
IOCTL_DEV = 1 << 15  # ABI 5
_FIRST = (1 << 13) - 1  # every right of ABI 1
_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV

READ = READ_FILE | READ_DIR
WRITE = READ | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | MAKE_SYM | REFER | TRUNCATE
DEVICE = READ_FILE | WRITE_FILE | IOCTL_DEV

BIND_TCP = 1 << 0
CONNECT_TCP = 1 << 1
SCOPE_ABSTRACT_UNIX_SOCKET = 1 << 0
SCOPE_SIGNAL = 1 << 1

ABI_PORTS = 4  # the least that `standard` asks for
ABI_SCOPES = 6
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1
_RULE_NET_PORT = 2


class Rule(NamedTuple):
    """A file, or everything below a folder, and the rights there."""

    path: str
    rights: int


def abi() -> int:
    """The version that this kernel has; 0 where there is none, or it is switched off."""
    try:
        return kernel.syscall("landlock_create_ruleset", None, 0, _CREATE_RULESET_VERSION)
    except OSError:
        return 0


def restrict(rules: Iterable[Rule], ports: Iterable[int] | None) -> None:
    """Confine this thread to `rules`, and TCP to `ports` (None: any). No new privileges must be set. Raises OSError.

    A path that does not exist is left out. Signals and abstract sockets are kept inside from ABI 6 on.
    """
    version = abi()
    files = _FIRST
    for least, right in ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEV)):
        files |= right if version >= least else 0
    net = BIND_TCP | CONNECT_TCP if version >= ABI_PORTS and ports is not None else 0
    scopes = SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL if version >= ABI_SCOPES else 0
    attributes = struct.pack("QQQ", files, net, scopes)
    size = 24 if version >= ABI_SCOPES else 16 if version >= ABI_PORTS else 8
    ruleset = kernel.syscall("landlock_create_ruleset", ctypes.create_string_buffer(attributes), size, 0)
    try:
        for path, rights in rules:
            _allow(ruleset, path, rights & files)
        for port in ports or ():
            kernel.syscall("landlock_add_rule", ruleset, _RULE_NET_PORT, struct.pack("QQ", CONNECT_TCP, port), 0)
        kernel.syscall("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there, or out of this user's reach, cannot be opened anyway
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= _OF_FILES
        if rights:
            kernel.syscall("landlock_add_rule", ruleset, _RULE_PATH_BENEATH, struct.pack("=Qi", rights, place), 0)
    finally:
        os.close(place)
