"""The driver of discovery: every module gets one answer, whatever becomes of the process that imports it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from echod.deploy.discovery import Discovery
from echod.deploy.importer import Importer
from echod.deploy.snapshot import taken
from echod.registry import folders
from echofn.manifest import Manifest

Write = Callable[[str, str], None]
GOOD = "from echofn import queue\n@queue()\ndef f(): pass\n"


async def described(discovery: Discovery, folder: Path, tmp_path: Path) -> Manifest:
    snapshot = taken(folder)
    root = folders.write(tmp_path / "versions", snapshot.version, snapshot.archive)
    return await discovery.describe(root, snapshot)


def below(pid: int) -> set[int]:
    """Processes whose parent is `pid`."""
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            if parent == pid:
                found.add(int(entry.name))
    return found


@pytest.mark.parametrize(
    ("source", "kind", "line"),
    [
        ("def oops(:\n", "syntax", 1),
        ("x = 1\ny = 1 / 0\n", "error", 2),
        ("while True: pass\n", "hang", None),
        ("import sys; sys.exit(0)\n", "exit", None),
        ("import os; os._exit(3)\n", "exit", None),
        ("import ctypes; ctypes.string_at(0)\n", "crash", None),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n", "crash", None),
        ("import os, signal; os.kill(os.getppid(), signal.SIGKILL)\n", "crash", None),
    ],
)
async def test_a_module_that_cannot_be_imported_is_named_and_the_others_are_there(
    discovery: Discovery, write: Write, folder: Path, tmp_path: Path, source: str, kind: str, line: int | None
) -> None:
    write("good.py", GOOD)
    write("bad.py", source)
    found = await described(discovery, folder, tmp_path)
    errors = {error.module: error for error in found.errors}
    assert (errors["bad"].kind, errors["bad"].line) == (kind, line)
    if "getppid" not in source:  # who kills the process that sees to it leaves all the rest unanswered, which is said
        assert [function.name for function in found.functions] == ["good.f"]
    assert {*errors} | {function.module for function in found.functions} == {"bad", "good"}


async def test_no_process_is_left_whatever_a_module_starts(
    discovery: Discovery, write: Write, folder: Path, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    daemon = f"import os\nif os.fork() == 0:\n    os.setsid()\n    open({str(pids)!r}, 'w').write(str(os.getpid()))\n"
    write("bad.py", daemon + "    import time\n    time.sleep(600)\nimport time\nwhile True: time.sleep(1)\n")
    before = below(os.getpid())
    await described(discovery, folder, tmp_path)
    assert below(os.getpid()) == before
    with pytest.raises(OSError):
        os.kill(int(pids.read_text()), 0)


async def test_a_process_that_waits_is_used_once_and_replaced_when_it_died(
    discovery: Discovery, write: Write, folder: Path, tmp_path: Path
) -> None:
    write("good.py", GOOD)
    before = below(os.getpid())
    await discovery.prepare()
    [spare] = below(os.getpid()) - before
    await discovery.prepare()
    assert below(os.getpid()) - before == {spare}
    assert len((await described(discovery, folder, tmp_path)).functions) == 1
    assert below(os.getpid()) == before
    await discovery.prepare()
    [spare] = below(os.getpid()) - before
    os.kill(spare, signal.SIGKILL)
    assert len((await described(discovery, folder, tmp_path)).functions) == 1


async def test_a_question_that_is_given_up_ends_its_process(
    discovery: Discovery, write: Write, folder: Path, tmp_path: Path
) -> None:
    write("slow.py", "while True: pass\n")
    before = below(os.getpid())
    asking = asyncio.create_task(described(discovery, folder, tmp_path))
    while below(os.getpid()) == before:
        await asyncio.sleep(0.01)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert below(os.getpid()) == before


async def test_an_importer_that_is_not_asked_ends_when_closed() -> None:
    importer = await Importer.started()
    assert importer.is_alive
    await importer.close()
    assert not importer.is_alive


async def test_modules_that_share_libraries_leave_the_loop_free(
    discovery: Discovery, write: Write, folder: Path, tmp_path: Path
) -> None:
    for number in range(10):
        write(
            f"_lib{number}.py", "".join(f"def f{line}(a, b=[1, 2]): return (a + {line}) * 2\n" for line in range(300))
        )
    for number in range(15):
        write(f"m{number}.py", "".join(f"from . import _lib{each}\n" for each in range(10)) + GOOD)
    describing = asyncio.create_task(described(discovery, folder, tmp_path))
    loop, late = asyncio.get_running_loop(), list[float]()
    while not describing.done():
        before = loop.time()
        await asyncio.sleep(0.005)
        late.append(loop.time() - before)
    assert len((await describing).functions) == 15
    assert max(late) < 0.5
