"""No wall is idle: take one away, and only that one, and an attack that it stops gets through.

A regression here is a wall that fell, or one that never stood. `private-network` alone is not shown so: what it stops
the filter stops, too.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from echofn.walls.levels import WALLS
from walls.conftest import WHO
from walls.machine import IS_ROOT, TERMINAL, Arena, Who, alone, open_folder
from walls.test_attacks import ATTACKS

MINE: dict[str, str] = {
    "inherited": """
def handler():
    try: return "ESCAPED" if os.read(50, 1) else "blocked"
    except OSError as e: return f"blocked {e}"
""",
    "planted": """
def handler(): return "ESCAPED" if "PLANTED" in os.environ else "blocked"
""",
    "outlive": """
def handler():
    parent = os.getppid()
    os.kill(parent, 9)
    while os.getppid() == parent: time.sleep(0.001)
    time.sleep(0.05)
    return "ESCAPED"
""",
    "read_fellow": """
def handler():
    parent, (reading, writing) = os.getpid(), os.pipe()
    if os.fork() == 0:  # of the same user, with no more rights: as the next worker is
        try: open(f"/proc/{parent}/mem", "rb"); os.write(writing, b"ESCAPED")
        except OSError as e: os.write(writing, b"blocked " + str(e).encode())
        os._exit(0)
    return os.read(reading, 100).decode()
""",
    "setuid": """
def handler():
    import subprocess
    user = subprocess.run(["@ARENA@/setuid", "-u"], capture_output=True, text=True).stdout.strip()
    return "ESCAPED" if int(user) != os.getuid() else "blocked"
""",
    "see_roots": """
def handler():
    try: os.stat("@ARENA@/roots/file"); return "ESCAPED"
    except OSError as e: return f"blocked {e}"
""",
    "threads": """
def handler():
    import threading
    threading.stack_size(65536)
    try:
        for _ in range(300): threading.Thread(target=time.sleep, args=(5,), daemon=True).start()
    except RuntimeError as e: return f"blocked {e}"
    return "ESCAPED"
""",
    "processes": """
def handler():
    started = 0
    try:
        while started < 9:
            if os.fork() == 0: os.closerange(0, 64); time.sleep(5); os._exit(0)  # nobody waits for what it could say
            started += 1
    except OSError as e: pass
    return "ESCAPED" if started > 4 else "blocked"
""",
    "port": """
def handler():
    import socket
    try: socket.create_connection(("127.0.0.1", 16399), 2); return "ESCAPED"
    except OSError as e: return f"blocked {e}"
""",
    "signal": """
def handler():
    try: os.kill(os.getppid(), 0); return "ESCAPED"
    except OSError as e: return f"blocked {e}"
""",
    "fill_tmp": """
def handler():
    try:
        for each in range(8): open(os.environ["TMPDIR"] + f"/{each}", "wb").write(bytes(1 << 20))
    except OSError as e: return f"blocked {e}"
    return "ESCAPED"
""",
    "see_processes": """
def handler():
    try: return "ESCAPED" if os.getppid() and os.getpgid(os.getppid()) else "blocked"
    except OSError as e: return f"blocked {e}"
""",
    "host_name": f"""
def handler(): return "ESCAPED" if os.uname().nodename == {os.uname().nodename!r} else "blocked"
""",
}


class Case(NamedTuple):
    wall: str
    level: str
    attack: str
    who: str = "any"  # any | root | user
    opened: Mapping[str, Any] = MappingProxyType({})
    before: tuple[str, ...] = ()


CASES = [
    Case("descriptors", "off", "inherited"),
    Case("session", "off", "53_tiocsti", before=TERMINAL),
    Case("environment", "off", "planted"),
    Case("parent-death", "off", "outlive"),
    Case("rlimits", "standard", "45_core_dump"),
    Case("rlimits", "strict", "46_raise_rlimits"),
    Case("not-dumpable", "minimal", "read_fellow"),
    Case("no-new-privs", "minimal", "setuid", "user"),
    Case("capabilities", "minimal", "16_mount", "root", before=("unshare", "--mount")),
    Case("uid", "standard", "see_roots", "root"),
    Case("thread-count", "standard", "threads", "root"),
    Case("thread-count", "strict", "threads"),
    Case("process-count", "standard", "processes", opened={"processes": 4}),
    Case("process-count", "strict", "processes", opened={"processes": 4}),
    Case("files", "standard", "02_read_sibling_source"),
    Case("files", "standard", "36_symlink_escape"),
    Case("files", "standard", "38_unlink_or_edit_own_code", "user"),
    Case("ports", "standard", "port", opened={"network": [9]}),
    Case("ports", "strict", "port", opened={"network": [9]}),
    Case("signals", "standard", "signal", "user", opened={"processes": 1}),
    *(
        Case("calls", "standard", attack)
        for attack in (
            *("04_bus_unix_socket", "17_unshare_userns", "18_raw_and_odd_sockets", "37_dev_shm_and_sysv_leftovers"),
            *("40_inotify_fanotify", "41_keyctl", "44_personality_aslr", "51_udp_dns_exfil"),
            "52_x32_and_int80_syscalls",
        )
    ),
    Case("calls", "strict", "17_unshare_userns"),
    Case("calls", "strict", "44_personality_aslr"),
    Case("private-root", "strict", "49_stat_and_metadata_outside"),
    Case("private-tmp", "strict", "fill_tmp", opened={"tmp_bytes": 4 << 20}),
    Case("private-pids", "strict", "see_processes"),
    Case("private-ipc", "strict", "host_name"),
]


@pytest.fixture
def arena(who: Who) -> Iterator[Arena]:
    with open_folder() as folder:
        arena = Arena(folder, who.user)
        (folder / "roots").mkdir(mode=0o700)
        (folder / "roots/file").touch()
        shutil.copy("/usr/bin/id", folder / "setuid")
        (folder / "setuid").chmod(0o4755)
        yield arena
        arena.close()


def source_of(attack: str, arena: Arena) -> str:
    return arena.aimed(ATTACKS[attack] if attack in ATTACKS else "import os, time\n" + MINE[attack])


@pytest.mark.parametrize("who", [each for each in WHO if each != "root"], indirect=True)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.wall}-{case.level}-{case.attack}")
def test_without_its_wall_an_attack_gets_through(arena: Arena, folder: Path, who: Who, case: Case) -> None:
    is_root = IS_ROOT and who.user is None
    if case.who != "any" and is_root != (case.who == "root"):
        return  # not this user's to lose
    source = source_of(case.attack, arena)
    args = (who, folder, source, case.level)
    assert "ESCAPED" in alone(*args, case.wall, opened=case.opened, before=case.before)
    assert "ESCAPED" not in alone(*args, opened=case.opened, before=case.before)


def test_every_wall_is_among_them() -> None:
    assert {case.wall for case in CASES} == {wall.name for wall in WALLS} - {"private-network"}


@pytest.mark.parametrize("who", [each for each in WHO if each != "root"], indirect=True)
@pytest.mark.parametrize("attack", ["05_bus_tcp_loopback", "51_udp_dns_exfil"])
def test_at_strict_the_network_is_closed_twice(arena: Arena, folder: Path, who: Who, attack: str) -> None:
    """By the filter and by a namespace without it. (TCP is Landlock's as well.)"""
    args = (who, folder, source_of(attack, arena), "strict")
    for single in ("calls", "private-network"):
        assert "ESCAPED" not in alone(*args, single, "landlock") or (single, attack[:2]) == ("calls", "51")
    assert "ESCAPED" in alone(*args, "calls", "private-network", "landlock")


@pytest.mark.parametrize("who", [each for each in WHO if each != "root"], indirect=True)
@pytest.mark.parametrize("name", ["01_read_etc_shadow", "02_read_sibling_source", "04_bus_unix_socket"])
@pytest.mark.parametrize("without", ["calls", "landlock"])
def test_strict_holds_files_and_the_bus_twice(arena: Arena, folder: Path, who: Who, name: str, without: str) -> None:
    """The private root alone keeps what Landlock and the filter also keep."""
    assert "ESCAPED" not in alone(who, folder, source_of(name, arena), "strict", without)
