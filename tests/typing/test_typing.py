"""The annotations and the context as type checkers see them: both find every marked mistake, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
FILES = sorted(FOLDER.glob("[!t]*.py"))

Found = dict[tuple[str, int], str]  # by file and line, what is said first


def mypy(cache: Path) -> Found:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--output=json", "--cache-dir", str(cache)]
    done = subprocess.run([*command, *map(str, FILES)], capture_output=True, text=True, cwd=FOLDER)
    assert done.returncode in (0, 1), done.stderr
    said = map(json.loads, done.stdout.splitlines())
    return {(Path(each["file"]).name, each["line"]): each["message"] for each in said if each["severity"] == "error"}


def pyright(_: Path) -> Found:
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, *map(str, FILES)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=FOLDER)
    assert done.returncode in (0, 1), done.stderr
    said = json.loads(done.stdout)["generalDiagnostics"]
    return {(Path(each["file"]).name, each["range"]["start"]["line"] + 1): each["message"] for each in said}


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_type_checkers_find_every_marked_mistake_and_no_other(checker: Callable[[Path], Found], tmp_path: Path) -> None:
    marked = {
        (file.name, number)
        for file in FILES
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if "# error" in line
    }
    assert marked
    found = checker(tmp_path)
    assert {place: told for place, told in found.items() if place not in marked} == {}
    assert marked - found.keys() == set()


@pytest.mark.parametrize("package", ["platform/echod", "runtime/echofn"])
def test_the_packages_say_that_they_are_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()
