"""Giving up what root has: the uid, every capability, and every way to get them back. See capabilities(7).

Started as root, a worker takes an unprivileged uid of its own, unless that uid could not read the code or the
interpreter (both in folders that only root may enter): then it stays uid 0 without any capability. That is weaker:
files that belong to root keep only the walls between them and the handler, and the kernel counts no processes of uid 0.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

from echofn.walls import kernel

CAP_SETUID = 7
FIRST_UID = 61184  # systemd's range for uids that exist only while a service runs, and that no file belongs to
UIDS = 4336
_CAPABILITY_VERSION_3 = 0x20080522
_MOST_CAPABILITIES = 64


def uid_for(pid: int) -> int:
    """A uid that no other worker alive has (nearly: pids are unique, and spread over the range)."""
    return FIRST_UID + pid % UIDS


def can_read_as(uid: int, paths: Iterable[str]) -> bool:
    """Whether `uid` could read all of `paths` and write nothing else of ours. Root only; changes nothing."""
    os.setegid(uid)
    groups = os.getgroups()
    try:
        os.setgroups([])
        os.seteuid(uid)
        try:
            return all(os.access(path, _wanted(path), effective_ids=True) for path in paths)
        finally:
            os.seteuid(0)
    finally:
        os.setgroups(groups)
        os.setegid(0)


def _wanted(path: str) -> int:
    return os.R_OK | os.X_OK if os.path.isdir(path) else os.R_OK


def become(uid: int) -> None:
    """Take this uid, and the gid of the same number, for good."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def drop_capabilities() -> None:
    """Give up every capability, and with them the right to any later. Harmless without."""
    for capability in range(_MOST_CAPABILITIES):
        try:
            kernel.prctl(kernel.PR_CAPBSET_DROP, capability)
        except OSError:
            break  # past the last one, or not ours to drop: with no new privileges none is regained by exec
    try:
        kernel.prctl(kernel.PR_CAP_AMBIENT, kernel.PR_CAP_AMBIENT_CLEAR_ALL)
    except OSError:
        pass  # older than Linux 4.3: there are none
    head = ctypes.create_string_buffer(struct.pack("Ii", _CAPABILITY_VERSION_3, 0))
    kernel.syscall("capset", head, ctypes.create_string_buffer(bytes(24)))


def has_capability(number: int) -> bool:
    """Whether this process has a capability in effect."""
    head = ctypes.create_string_buffer(struct.pack("Ii", _CAPABILITY_VERSION_3, 0))
    data = ctypes.create_string_buffer(24)
    kernel.syscall("capget", head, data)
    return bool(int(struct.unpack("6I", data.raw)[3 * (number // 32)]) >> (number % 32) & 1)
