"""The filter as data: run by a BPF machine of a few lines, for both architectures, so that no machine is needed."""

from __future__ import annotations

import errno
import importlib.util
import os
import shutil
import socket
import struct
from pathlib import Path

import pytest

from echofn.walls import seccomp
from echofn.walls.bpf import ALLOW, ASK, ERRNO, KILL
from echofn.walls.syscalls import NUMBERS

MACHINES = sorted(NUMBERS)
OWN = 0x7ABBCCDD
_spec = importlib.util.spec_from_file_location("syscalls", Path(__file__).parents[3] / ".ci/syscalls.py")
assert _spec is not None
assert _spec.loader is not None
headers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(headers)
HEADERS = {"a C compiler": shutil.which("cc"), "kernel headers": Path("/usr/include/asm-generic/unistd.h").exists()}


def ends(program: bytes, machine: str, number: int, *arguments: int, arch: int | None = None) -> int:
    """What the filter answers to one call."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("IIQ6Q", number, arch or seccomp.ARCHITECTURES[machine], 0, *padded)
    steps = list(struct.iter_unpack("HBBI", program))
    at, loaded = 0, 0
    while True:
        code, then, otherwise, value = steps[at]
        at += 1
        match code:
            case 0x20:
                loaded = int.from_bytes(data[value : value + 4], "little")
            case 0x54:
                loaded &= value
            case 0x06:
                return int(value)
            case 0x15:
                at += then if loaded == value else otherwise
            case 0x35:
                at += then if loaded >= value else otherwise
            case 0x45:
                at += then if loaded & value else otherwise
            case _:
                raise AssertionError(f"an instruction that is not ours: {code:#x}")


def program(machine: str, **opened: bool) -> bytes:
    kinds = ("any_network", "ports", "processes", "private_files", "private_pids", "scoped", "asks")
    return seccomp.program(machine, *(opened.get(kind, False) for kind in kinds))


@pytest.mark.parametrize("machine", MACHINES)
def test_what_is_not_listed_is_refused(machine: str) -> None:
    closed, numbers = program(machine), NUMBERS[machine]
    for name in ("ptrace", "mount", "unshare", "setns", "bpf", "keyctl", "io_uring_setup", "userfaultfd", "execve"):
        assert ends(closed, machine, numbers[name]) == ERRNO | errno.EPERM, name
    for name in ("connect", "bind", "socket", "pidfd_open", "process_vm_readv", "memfd_create", "perf_event_open"):
        assert ends(closed, machine, numbers[name]) == ERRNO | errno.EPERM, name
    assert ends(closed, machine, numbers["read"]) == ALLOW
    assert ends(closed, machine, numbers["clone3"]) == ERRNO | errno.ENOSYS
    assert ends(closed, machine, 2_000) == ERRNO | errno.ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
def test_foreign_architectures_kill(machine: str) -> None:
    closed = program(machine)
    assert ends(closed, machine, 0, arch=0x40000003) == KILL
    if machine == "x86_64":
        assert ends(closed, machine, 0x40000000 + NUMBERS[machine]["getpid"]) == KILL


@pytest.mark.parametrize("machine", MACHINES)
def test_threads_are_allowed_and_processes_and_namespaces_are_not(machine: str) -> None:
    clone = NUMBERS[machine]["clone"]
    threads, fork, user = 0x3D0F00, 17, 0x10000000
    closed, opened = program(machine), program(machine, processes=True)
    assert [ends(closed, machine, clone, each) == ALLOW for each in (threads, fork, threads | user)] == [
        True,
        False,
        False,
    ]
    assert [ends(opened, machine, clone, each) == ALLOW for each in (threads, fork, fork | user)] == [True, True, False]


@pytest.mark.parametrize("machine", MACHINES)
def test_sockets_are_opened_by_family_kind_and_protocol(machine: str) -> None:
    number = NUMBERS[machine]["socket"]
    tcp = (socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC, 0)
    udp, raw = (socket.AF_INET6, socket.SOCK_DGRAM, 0), (socket.AF_INET, socket.SOCK_RAW, 1)
    unix, mptcp = (socket.AF_UNIX, socket.SOCK_STREAM, 0), (socket.AF_INET, socket.SOCK_STREAM, 262)
    tries = (tcp, udp, raw, unix, mptcp)
    for opened, wanted in (
        ({}, [False] * 5),
        ({"ports": True}, [True, False, False, False, False]),
        ({"any_network": True}, [True, True, False, False, False]),
    ):
        filtered = program(machine, **opened)
        assert [ends(filtered, machine, number, *each) == ALLOW for each in tries] == wanted
        assert ends(filtered, machine, NUMBERS[machine]["sendto"], 3, 0, 0, 0x20000000) != ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_signals_go_to_oneself_unless_something_else_keeps_them_inside(machine: str) -> None:
    kill = NUMBERS[machine]["kill"]
    for opened, others in (({}, False), ({"processes": True}, False), ({"processes": True, "scoped": True}, True)):
        filtered = program(machine, **opened)
        assert ends(filtered, machine, kill, OWN) == ALLOW
        assert (ends(filtered, machine, kill, 1) == ALLOW) is others


@pytest.mark.parametrize("machine", MACHINES)
def test_a_counted_worker_asks_for_each_process_and_for_no_thread(machine: str) -> None:
    numbers, thread = NUMBERS[machine], 0x003D0F00  # as pthread_create(3) has it
    counted = program(machine, processes=True, asks=True)
    for flags in (0x11, 0x01200011, 0x4111):  # SIGCHLD; as fork(3); CLONE_VM | CLONE_VFORK
        assert ends(counted, machine, numbers["clone"], flags) == ASK
        assert ends(program(machine, processes=True), machine, numbers["clone"], flags) == ALLOW
        assert ends(program(machine), machine, numbers["clone"], flags) == ERRNO | errno.EPERM
    for name in {"fork", "vfork"} & set(numbers):
        assert ends(counted, machine, numbers[name]) == ASK
    for opened in ({}, {"processes": True}, {"processes": True, "asks": True}):
        assert ends(program(machine, **opened), machine, numbers["clone"], thread) == ALLOW
        assert ends(program(machine, **opened), machine, numbers["clone"], 0x10000011) == ERRNO | errno.EPERM


def test_a_machine_without_tables_gets_no_filter() -> None:
    with pytest.raises(OSError, match="no system call filter for vax"):
        program("vax")


@pytest.mark.parametrize("machine", sorted({"aarch64", os.uname().machine}))
def test_the_numbers_are_those_of_the_kernel_headers(machine: str) -> None:
    """Headers of another version may know more calls or fewer, never others. arm64 has the generic table."""
    if missing := [each for each, has in HEADERS.items() if not has]:
        told = f"expected {' and '.join(missing)}; install gcc and linux-libc-dev"
        assert not os.environ.get("CI"), told  # nothing is skipped there
        pytest.skip(told)
    found, ours = headers.read(machine), NUMBERS[machine]
    assert {name: found[name] for name in ours if name in found} == {name: ours[name] for name in ours if name in found}
    assert len(found.keys() & ours.keys()) > 300
    assert not {number for name, number in found.items() if name not in ours} & set(ours.values())
