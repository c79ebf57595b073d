"""The driver of discovery: every module gets one answer, whatever becomes of the process that imports it."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path

import pytest

from echod.deploy import imports
from echod.deploy.discovery import Discovery
from echod.deploy.importer import Importer
from echod.deploy.snapshot import taken
from echod.registry import folders
from echofn.discovery_protocol import Import, Said
from echofn.manifest import Manifest

from .conftest import HANG_MS

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
        ("import time\ntime.sleep(3600)\n", "hang", None),
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
    if kind == "hang":
        discovery._limit_ms = HANG_MS
    write("good.py", GOOD)
    write("bad.py", source)
    found = await described(discovery, folder, tmp_path)
    errors = {error.module: error for error in found.errors}
    assert (errors["bad"].kind, errors["bad"].line) == (kind, line)
    if "getppid" not in source:  # who kills the process that sees to it leaves all the rest unanswered, which is said
        assert [function.name for function in found.functions] == ["good.f"]
    assert {*errors} | {function.module for function in found.functions} == {"bad", "good"}


@pytest.mark.usefixtures("hangs")
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
    _, busy = await busy_for(described(discovery, folder, tmp_path))
    assert busy < 1  # ten times what it takes


async def busy_for(describing: Coroutine[object, object, Manifest]) -> tuple[Manifest, float]:
    """What is described, and for how long the loop's thread computed in one go, at the most: seconds of its CPU."""
    task = asyncio.create_task(describing)
    busy = list[float]()
    while not task.done():
        before = time.thread_time()
        await asyncio.sleep(0.005)
        busy.append(time.thread_time() - before)
    return await task, max(busy)


async def test_a_module_that_is_mostly_data_is_parsed_elsewhere(write: Write, folder: Path, tmp_path: Path) -> None:
    discovery = Discovery("minimal", "dev", {}, limit_ms=60_000)
    write("good.py", GOOD)
    write("dense.py", GOOD + "X = [\n" + "1,2,3,4,5,6,7,8,9,0,\n" * 25_000 + "]\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found, busy = await busy_for(described(discovery, folder, tmp_path))
    assert [function.name for function in found.functions] == ["dense.f", "good.f"]
    assert busy < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB; its tree has 250 MB


async def test_a_larger_module_is_refused_and_so_is_what_a_module_imports(
    discovery: Discovery, write: Write, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "MAX_SOURCE_BYTES", 200_000)
    write("good.py", GOOD)
    write("_data.py", "#" * 290_000 + "\n")
    write("large.py", GOOD + "#" * 290_000 + "\n")
    write("uses.py", "from . import _data\n" + GOOD)
    found = await described(discovery, folder, tmp_path)
    assert {(error.file, error.kind) for error in found.errors} == {("_data.py", "refused"), ("large.py", "refused")}
    assert all("expected at most 0.2 MB of Python, got 0.3 MB" in error.message for error in found.errors)
    assert [function.name for function in found.functions] == ["good.f", "uses.f"]


async def test_what_cannot_be_parsed_in_time_is_named_and_the_others_are_there(
    discovery: Discovery, write: Write, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("a.py", GOOD)
    write("m.py", GOOD + "#\n")
    write("z.py", GOOD + "# z\n")
    parse = Importer.parse

    async def stuck(self: Importer, sources: Sequence[bytes], limit_ms: int) -> list[Said]:
        at = next((number for number, source in enumerate(sources) if source.endswith(b"#\n")), len(sources))
        return await parse(self, sources[:at], limit_ms)

    monkeypatch.setattr(Importer, "parse", stuck)
    found = await described(discovery, folder, tmp_path)
    assert [(error.file, error.message[:37]) for error in found.errors] == [
        ("m.py", "expected Python that can be parsed in")
    ]
    assert [function.name for function in found.functions] == ["a.f", "z.f"]


async def test_the_process_says_what_it_parses_as_far_as_it_gets() -> None:
    importer = await Importer.started()
    try:
        sources = [b"import os\n", b"def broken(:\n", b"x = [" + b"1," * 4_000_000 + b"]", b"import sys\n"]
        assert [said.imports for said in await importer.parse(sources[:2])] == [(Import(None, "os"),), ()]
        assert len(await importer.parse(sources[1:], limit_ms=200)) == 1
        assert len(await importer.parse(sources[3:])) == 1  # whatever became of the child, the next is served
    finally:
        await importer.close()


async def test_a_whole_folder_has_its_time_and_the_modules_it_was_not_enough_for_are_named(
    write: Write, folder: Path, tmp_path: Path
) -> None:
    discovery = Discovery("minimal", "dev", {}, limit_ms=60_000, all_ms=1_500)
    write("m.py", "while True: pass\n")
    write("n.py", GOOD)
    found = await described(discovery, folder, tmp_path)
    assert [error.file for error in found.errors] == ["m.py", "n.py"]
    told = "expected all modules to be imported within 1.5 s together, got no further than 0 of 2"
    assert all(error.message.startswith(told) for error in found.errors)


async def test_what_imports_write_lies_in_the_state_folder_and_what_a_killed_node_left_is_wiped(
    write: Write, folder: Path, tmp_path: Path
) -> None:
    left = tmp_path / "tmp" / "imports-killed" / "1"
    left.mkdir(parents=True)
    (left / "big").write_text("x")
    seen = tmp_path / "seen"
    write("m.py", f"import os\nopen({str(seen)!r}, 'w').write(os.getcwd())\nopen('big', 'w').write('x')\n" + GOOD)
    discovery = Discovery("minimal", "dev", {}, scratch=tmp_path / "tmp")
    for number in ("1", "2"):
        assert (await described(discovery, folder, tmp_path)).errors == ()
        [own] = (tmp_path / "tmp").iterdir()  # what was left is not there any more
        assert seen.read_text() == str(own / number)
        assert [*own.iterdir()] == []
    await discovery.close()
    assert [*(tmp_path / "tmp").iterdir()] == []


async def test_a_module_that_fills_the_disk_at_import_is_ended(
    discovery: Discovery, write: Write, folder: Path, tmp_path: Path
) -> None:
    write("good.py", GOOD)
    writes = "for each in range(2):\n    open(f'x{each}', 'wb').write(bytes(40 << 20))\n"
    write("fills.py", writes + "while True: pass\n")
    found = await described(discovery, folder, tmp_path)
    assert [(error.file, error.kind, error.message) for error in found.errors] == [
        ("fills.py", "crash", "the module wrote more than 64 MB at import")
    ]
    assert [function.name for function in found.functions] == ["good.f"]
