"""The self-test: a level counts only when every escape failed, so one whose wall lets something through is not used."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from echofn.walls import trial
from echofn.walls.levels import LEVELS, WALLS

BROKEN = """
import sys
from echofn.walls import landlock, namespaces, process, seccomp, trial
def nothing(*_, **__): return 0
def only_tmp(place, reach, size): namespaces.TMP = place
{broken}
trial.main(sys.argv[1], sys.argv[2])
"""


def tried(folder: Path, most: str, broken: str) -> dict[str, Any]:
    command = [sys.executable, "-I", "-B", "-c", BROKEN.format(broken=broken), most, str(folder)]
    said: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return said


@pytest.mark.parametrize(
    ("most", "broken", "told"),
    [
        ("minimal", "process.limit = nothing", "have more memory than it may"),
        ("standard", "landlock.restrict = nothing", "read a file of the host"),
        ("standard", "seccomp.confine = nothing", "open a unix socket"),
        ("strict", "seccomp.confine = nothing", "open a unix socket"),
        ("strict", "namespaces.private_root = only_tmp", "see a file of the host"),
    ],
)
def test_a_wall_that_lets_an_escape_through_takes_its_level_away(
    folder: Path, most: str, broken: str, told: str
) -> None:
    said = tried(folder, most, broken)
    assert said["missing"][0] == f"{most}: a self-test escaped: {told}"
    assert LEVELS.index(said["level"]) < LEVELS.index(most)


@pytest.mark.parametrize("level", LEVELS)
def test_on_this_machine_each_level_holds_and_names_its_walls(folder: Path, level: str) -> None:
    found = trial.available(str(folder), level)
    assert found.level == level
    assert set(found.missing) <= {trial.WEAKER}
    may_stand = {wall.name for wall in WALLS if LEVELS.index(wall.level) <= LEVELS.index(found.level)}
    assert set(found.walls) <= may_stand
    assert may_stand - set(found.walls) <= {"uid", "thread-count"}
    assert not list(folder.iterdir())  # nothing of the trial is left


def test_a_worker_that_dies_at_the_walls_takes_its_level_away(folder: Path) -> None:
    said = tried(folder, "minimal", "import os; process.limit = lambda _: os.kill(os.getpid(), 11)")
    assert said["level"] == "off"
    assert said["missing"] == ["minimal: its worker ended with SIGSEGV"]
