"""No wall is idle: take one away and the attack that it stops gets through. A regression here is a wall that fell."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from walls.machine import Arena, open_folder
from walls.test_attacks import ATTACKS

LONE = Path(__file__).with_name("lone.py")


@pytest.fixture
def arena() -> Iterator[Arena]:
    with open_folder() as folder:
        arena = Arena(folder, None)
        yield arena
        arena.close()


def told(arena: Arena, folder: Path, level: str, name: str, without: str) -> str:
    root, tmp = folder / "code", folder / "tmp"
    for each in (root, tmp):
        each.mkdir(exist_ok=True)
    (root / "m.py").write_text(ATTACKS[name].replace("@ARENA@", str(arena.folder)))
    command = [sys.executable, "-B", str(LONE), level, str(root), str(tmp), "m.py", without]
    return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout


@pytest.mark.parametrize(
    ("level", "name", "wall"),
    [
        ("standard", "04_bus_unix_socket", "calls"),
        ("standard", "17_unshare_userns", "calls"),
        ("standard", "18_raw_and_odd_sockets", "calls"),
        ("standard", "40_inotify_fanotify", "calls"),
        ("standard", "44_personality_aslr", "calls"),
        ("standard", "51_udp_dns_exfil", "calls"),
        ("standard", "52_x32_and_int80_syscalls", "calls"),
        ("standard", "02_read_sibling_source", "landlock"),
        ("standard", "36_symlink_escape", "landlock"),
        ("strict", "17_unshare_userns", "calls"),
        ("strict", "44_personality_aslr", "calls"),
    ],
)
def test_without_its_wall_an_attack_gets_through(arena: Arena, folder: Path, level: str, name: str, wall: str) -> None:
    assert "ESCAPED" in told(arena, folder, level, name, wall)
    assert "ESCAPED" not in told(arena, folder, level, name, "nothing")


@pytest.mark.parametrize("name", ["01_read_etc_shadow", "02_read_sibling_source", "04_bus_unix_socket"])
@pytest.mark.parametrize("without", ["calls", "landlock"])
def test_strict_holds_files_and_the_bus_twice(arena: Arena, folder: Path, name: str, without: str) -> None:
    """The private root alone keeps what Landlock and the filter also keep."""
    assert "ESCAPED" not in told(arena, folder, "strict", name, without)
