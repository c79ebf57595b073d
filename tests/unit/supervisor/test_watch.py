"""What a run takes, looked at while it runs: /tmp, memory, threads."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from echod.supervisor.life import cause_of
from echod.supervisor.quota import nameless_bytes, room
from echod.supervisor.watch import LEFT, Excess, Strays, Watch, usage_of
from echofn.processes import below
from echofn.room import BYTES_A_FILE, used_bytes
from server import PATIENCE_S

ENOUGH = 1 << 30


def test_files_count_by_the_room_they_take_and_links_are_not_followed(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "big").write_bytes(b"x" * 100_000)
    (deep / "empty").touch()
    os.symlink("/", tmp_path / "everything")
    os.link(deep / "empty", deep / "again")
    assert 100_000 <= used_bytes(str(tmp_path), ENOUGH) <= 100_000 + 12 * BYTES_A_FILE


def test_counting_stops_when_it_is_enough(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / str(number)).touch()
    assert used_bytes(str(tmp_path), 10 * BYTES_A_FILE) == 11 * BYTES_A_FILE
    assert used_bytes(str(tmp_path / "gone"), ENOUGH) == 0


def test_a_file_without_a_name_counts_while_somebody_holds_it_once(tmp_path: Path) -> None:
    size = 1 << 20
    source = f"""
import mmap, os, sys, tempfile
def fresh(folder):
    file = tempfile.TemporaryFile(dir=folder)
    file.write(b"x" * {size}); file.flush()
    return file
held, mapped, elsewhere = fresh(sys.argv[1]), fresh(sys.argv[1]), fresh(sys.argv[2])
again, seen = os.dup(held.fileno()), mmap.mmap(mapped.fileno(), 0)
mapped.close()
if os.fork() == 0:
    input(); os._exit(0)
print(flush=True); os.wait()
"""
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir(), outside.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", source, str(inside), str(outside)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        assert used_bytes(str(inside), ENOUGH) == 0
        assert 2 * size <= nameless_bytes(inside, (process.pid, *below(process.pid))) < 3 * size
        assert room(inside, size, lambda: process.pid)() == Excess("tmp")
        assert room(inside, 3 * size, lambda: process.pid)() is None
        process.stdin.write("\n")
    assert room(inside, size, lambda: process.pid)() is None


async def test_past_the_limit_the_worker_is_ended_once_and_one_look_follows_a_short_run(tmp_path: Path) -> None:
    ended: asyncio.Queue[Excess] = asyncio.Queue()
    watch = Watch([room(tmp_path, 50_000)], over=ended.put_nowait, busy=lambda: False)
    (tmp_path / "big").write_bytes(b"x" * 100_000)
    watch.wake()
    watch.wake()
    assert await asyncio.wait_for(ended.get(), PATIENCE_S) == Excess("tmp")
    assert ended.empty()
    watch.close()


async def test_while_something_runs_it_looks_again_and_after_that_no_more(tmp_path: Path) -> None:
    asked: list[int] = []
    still = [True, True, False]
    quiet = asyncio.Event()

    def busy() -> bool:
        asked.append(1)
        if not still[len(asked) - 1]:
            quiet.set()
        return still[len(asked) - 1]

    looks: list[int] = []
    watch = Watch([lambda: looks.append(1)], over=lambda _: None, busy=busy)
    watch.wake()
    await asyncio.wait_for(quiet.wait(), PATIENCE_S)
    assert len(asked) == len(looks) == 3
    watch.close()


async def test_what_an_idle_look_sees_ends_the_worker_only_while_nothing_runs(tmp_path: Path) -> None:
    """A job that was handed over during the look may be whose process that is."""
    ended: asyncio.Queue[Excess] = asyncio.Queue()
    busy = iter([True, True, False, True, False, False])
    over: list[bool] = []
    watch = Watch([lambda: over.append(False)], over=ended.put_nowait, busy=lambda: next(busy), idle=lambda: LEFT)  # type: ignore[func-returns-value]
    watch.wake()
    assert await asyncio.wait_for(ended.get(), PATIENCE_S) is LEFT
    assert next(busy, None) is None  # busy, idle and then busy, idle
    assert len(over) == 1  # a look at what takes room and memory follows a run, and no more
    watch.close()


def test_what_an_import_started_is_no_stray_where_runs_spare_it() -> None:
    source = """
import subprocess
first = subprocess.Popen(["/bin/sleep", "100"]); print(flush=True); input()
second = subprocess.Popen(["/bin/sleep", "100"]); print(flush=True); input()
first.kill(); second.kill()
"""
    with subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        looks = {level: Strays(lambda: process.pid, level) for level in ("minimal", "standard", "strict")}
        process.stdout.readline()
        for each in looks.values():
            each.spare()
        assert {level: each.look() for level, each in looks.items()} == {
            "minimal": None, "standard": LEFT, "strict": None,
        }  # fmt: skip
        process.stdin.write("\n")
        process.stdout.readline()
        assert {each.look() for each in looks.values()} == {LEFT}
        process.stdin.write("\n")


def test_the_cause_is_the_wall() -> None:
    assert cause_of(9, why="tmp") == "wall:tmp"
    assert cause_of(9, why="threads") == "wall:threads"
    assert cause_of(9, why="memory") == "memory"


def test_memory_is_that_of_the_tree_and_what_a_vfork_shares_counts_once() -> None:
    size = 64 << 20
    hold = f"held = b'x' * {size}; print(len(held), flush=True); input()"
    middle = f"import subprocess, sys; own = b'y' * {size}; subprocess.run([sys.executable, '-c', {hold!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", middle], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline()
        seen = usage_of(process.pid)
        process.stdin.write("\n")
    assert 2 * size < seen.memory_bytes < 3 * size
    assert seen.threads == 2
    assert usage_of(process.pid) == (0, 0)


def test_a_child_that_still_has_its_parents_memory_counts_nothing() -> None:
    """As between vfork and exec: held there by a program that does not open before it is written to."""
    size = 64 << 20
    source = f"""
import os, sys
held = b'x' * {size}
libc = __import__('ctypes').CDLL(None)
reading, writing = os.pipe()
if libc.syscall(56, 0x4100 | 17, 0, 0, 0, 0) == 0:  # CLONE_VM | CLONE_VFORK: the parent waits, in the same memory
    os.write(1, b'in')
    os.read(0, 1)
    os._exit(0)
"""
    if os.uname().machine != "x86_64":
        source = source.replace("syscall(56", "syscall(220")
    with subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.read(2) == "in"
        seen = usage_of(process.pid)
        process.stdin.write("\n")
        process.stdin.close()
        process.wait()
    assert size < seen.memory_bytes < 2 * size
    assert seen.threads == 2


async def test_a_look_that_fails_is_told_and_the_wall_stands_on(capfd: pytest.CaptureFixture[str]) -> None:
    ended: asyncio.Queue[Excess] = asyncio.Queue()
    looks = 0

    def look() -> Excess:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise PermissionError("not now")
        return Excess("tmp")

    watch = Watch([look], over=ended.put_nowait, busy=lambda: True)
    watch.wake()
    assert await asyncio.wait_for(ended.get(), PATIENCE_S) == Excess("tmp")
    assert "not now" in capfd.readouterr().err
    watch.close()
