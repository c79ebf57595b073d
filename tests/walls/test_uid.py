"""As root: a worker has a uid of its own, wherever that one can read the code and the interpreter, or is shown both."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
from collections.abc import Iterator

import pytest

from echofn.walls import trial
from echofn.walls.privileges import FIRST_UID, UIDS
from unit.runtime.driving import CLEAN, Base
from walls.machine import IS_ROOT, Who, open_folder, public_python

OWN = range(FIRST_UID, FIRST_UID + UIDS)
WHERE = list(itertools.product(("open", "private"), repeat=2)) if IS_ROOT else []  # code, interpreter
SOURCE = """
import csv, os, sqlite3, tempfile
from pathlib import Path
from echofn.walls import privileges

def f():
    with tempfile.NamedTemporaryFile() as file:
        owner = os.fstat(file.fileno()).st_uid
    from xml.etree import ElementTree  # read only now
    return {
        "ids": sorted({*os.getresuid(), *os.getresgid()}), "groups": os.getgroups(), "owner": owner,
        "capabilities": [each for each in range(41) if privileges.has_capability(each)],
        "beside": Path(__file__).with_name("beside.txt").read_text(),
    }

def write():
    open(__file__, "a")
"""


@pytest.fixture(scope="module")
def pythons(public: Who) -> Iterator[dict[str, Who]]:
    with open_folder() as folder:
        folder.chmod(0o700)
        yield {"open": public, "private": public_python(folder)}


@contextlib.contextmanager
def served(where: str, who: Who) -> Iterator[Base]:
    """Code, and the folder of /tmp beside it, in a folder that other users can enter or not."""
    with open_folder() as above:
        root = above / "version"
        root.mkdir(mode=0o755)
        above.chmod(0o755 if where == "open" else 0o700)
        base = Base(root, python=who.python, libraries=who.libraries)
        (base.folder / "beside.txt").write_text("data")
        try:
            yield base
        finally:
            base.close()


@pytest.mark.parametrize("level", ["standard", "strict"])
@pytest.mark.parametrize(("code", "interpreter"), WHERE)
def test_root_lends_a_worker_no_right_wherever_things_lie(
    pythons: dict[str, Who], code: str, interpreter: str, level: str
) -> None:
    has_own = level == "strict" or (code, interpreter) == ("open", "open")
    with served(code, pythons[interpreter]) as base:
        worker = base.serve(SOURCE, level=level)
        told = worker.one().result
        assert told["capabilities"] == []
        assert told["groups"] == [] or not has_own
        assert told["beside"] == "data"
        [uid] = told["ids"]
        assert told["owner"] == uid
        assert uid in OWN if has_own else uid == 0
        other = base.spawn("write", level=level)
        assert ("uid" in other.start().walls) is has_own
        assert other.one().fault.cause == "wall:files"


@pytest.mark.parametrize("level", ["standard", "strict"])
@pytest.mark.parametrize(("code", "interpreter"), WHERE)
def test_the_self_test_names_what_is_weaker(pythons: dict[str, Who], code: str, interpreter: str, level: str) -> None:
    who = pythons[interpreter]
    with open_folder() as folder:
        folder.chmod(0o755 if code == "open" else 0o700)
        environment = {**CLEAN, "LD_LIBRARY_PATH": who.libraries or ""}
        command = [who.python, "-I", "-B", "-m", "echofn.walls.trial", level, str(folder)]
        said = json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)
    has_own = level == "strict" or (code, interpreter) == ("open", "open")
    assert said["level"] == level
    assert ("uid" in said["walls"]) is has_own
    assert said["missing"] == ([] if has_own else [trial.WEAKER])
    found = trial.Available(level, tuple(said["missing"]), tuple(said["walls"]))
    state, why = next(row[2:] for row in trial.states(found, level) if row[0] == "uid")
    assert state == ("enforced" if has_own else "unavailable")
    assert has_own or "only root may enter" in why


def test_two_workers_at_once_have_two_uids(public: Who) -> None:
    if not IS_ROOT:
        return
    with served("open", public) as base:
        first, second = (base.serve(SOURCE, level="strict").one().result["ids"] for _ in range(2))
        assert first != second
