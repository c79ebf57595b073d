"""What no wall bounds by itself is seen by the node while a run works, and ends it."""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path
from typing import Any

import pytest

import rig as rigs
from echofn.blocked import FEWER_THREADS
from echofn.manifest import Policy
from rig import Rig, function
from server import Server
from unit.runtime.driving import alive

MB = 1 << 20
SOURCE = """
import asyncio, mmap, os, subprocess, sys, tempfile, threading, time

def shared(payload, ctx):
    '''Memory that the limit of the heap does not count.'''
    held = mmap.mmap(-1, payload["bytes"])
    for at in range(0, payload["bytes"], 4096): held[at] = 1
    time.sleep(payload["s"])
    return len(held)

def many(payload, ctx):
    hold = "import sys, time; held = b'x' * int(sys.argv[1]); time.sleep(float(sys.argv[2]))"
    words = [sys.executable, "-I", "-S", "-c", hold, str(payload["bytes"]), str(payload["s"])]
    started = [subprocess.Popen(words) for _ in range(payload["count"])]
    if payload["file"]: open(payload["file"], "w").write(" ".join(str(each.pid) for each in started))
    return [each.wait() for each in started]

def threads(payload, ctx):
    threading.stack_size(65536)
    for _ in range(payload["count"]): threading.Thread(target=time.sleep, args=(payload["s"],), daemon=True).start()
    time.sleep(payload["s"])
    return threading.active_count()

def nameless(payload, ctx):
    held = [tempfile.TemporaryFile() for _ in range(4)]
    for each in held: each.write(b"x" * payload["bytes"]), each.flush()
    time.sleep(payload["s"])
    return len(held)

def is_open(gate): return os.path.exists(os.path.join(os.path.dirname(__file__), gate))

def thread(payload, ctx):
    def start():
        while not is_open(payload["gate"]): time.sleep(0.01)
        subprocess.Popen(payload["words"])
    threading.Thread(target=start, daemon=True).start()  # else its worker would end with the run

async def timer(payload, ctx):
    loop = asyncio.get_running_loop()
    def start():
        if is_open(payload["gate"]): subprocess.Popen(payload["words"])
        else: loop.call_later(0.01, start)
    start()
"""


@pytest.fixture
def served(server: Server, tmp_path: Path) -> Any:
    def serve(name: str, level: str, **policy: Any) -> Any:
        return rigs.rig(server.address, tmp_path, SOURCE, [function(name, **policy)], level=level)

    return serve


async def end_of(node: Rig, name: str, **payload: Any) -> Any:
    return await node.ended(name, await node.mint(name, payload))


@pytest.mark.parametrize("level", ["minimal", "standard", "strict"])
async def test_shared_memory_past_the_limit_ends_the_run(served: Any, level: str) -> None:
    async with served("shared", level, memory_bytes=100 * MB, retries=0) as node:
        job = await end_of(node, "shared", bytes=150 * MB, s=1000)
        assert (job.state, job.history[0].cause) == ("dead", "memory")
        assert 'of 100 MB. Add memory="200MB" to @queue (jobs.py:1)' in job.error.message
        assert (await end_of(node, "shared", bytes=50 * MB, s=0.5)).state == "done"


@pytest.mark.parametrize("level", ["standard", "strict"])
async def test_the_memory_of_all_processes_of_a_run_is_bounded_together(
    served: Any, level: str, tmp_path: Path
) -> None:
    """Each has less than the limit. After the kill none of them is left."""
    async with served("many", level, memory_bytes=200 * MB, processes=4, retries=0) as node:
        job = await end_of(node, "many", bytes=90 * MB, s=1000, count=3, file="")
        assert (job.state, job.history[0].cause) == ("dead", "memory")
        job = await end_of(node, "many", bytes=90 * MB, s=0.5, count=1, file="")
        assert job.state == "done"


async def test_none_of_a_tree_that_took_too_much_is_left(served: Any, tmp_path: Path) -> None:
    async with served("many", "minimal", memory_bytes=200 * MB, retries=0) as node:
        pids = tmp_path / "pids"
        job = await end_of(node, "many", bytes=90 * MB, s=1000, count=3, file=str(pids))
        assert (job.state, job.history[0].cause) == ("dead", "memory")
        assert [pid for pid in pids.read_text().split() if alive(int(pid))] == []


@pytest.mark.parametrize("level", ["minimal", "standard", "strict"])
async def test_more_threads_than_allowed_end_the_run(served: Any, level: str) -> None:
    """Where the kernel counts threads (a uid of its own), the 257th does not start; elsewhere they are seen."""
    async with served("threads", level, memory_bytes=Policy().memory_bytes) as node:
        assert (await end_of(node, "threads", count=200, s=0.5)).state == "done"
        job = await end_of(node, "threads", count=400, s=1000)
        assert (job.state, job.attempts, job.error.cause) == ("dead", 1, "wall:threads")
        kernels = "more than 256 threads (jobs.py:"
        assert kernels in job.error.message or "threads, more than 256 (jobs.py:1)" in job.error.message
        assert f". {FEWER_THREADS}. It " in job.error.message
        assert level != "strict" or kernels in job.error.message


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's node may not look into its workers")
@pytest.mark.parametrize("level", ["minimal", "standard"])
async def test_files_without_a_name_fill_tmp_too(served: Any, level: str) -> None:
    async with served("nameless", level, tmp_bytes=8 * MB, retries=0) as node:
        job = await end_of(node, "nameless", bytes=6 * MB, s=1000)
        assert (job.state, job.history[0].cause) == ("dead", "wall:tmp")
        assert (await end_of(node, "nameless", bytes=MB, s=0.5)).state == "done"


def started(words: list[str]) -> list[int]:
    """The processes that run this command."""
    line = "\0".join(words).encode() + b"\0"
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "cmdline").read_bytes() == line:
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize("level", ["minimal", "standard", "strict"])
@pytest.mark.parametrize("how", ["thread", "timer"])
async def test_a_process_that_comes_after_its_run_ends_with_its_worker(
    served: Any, tmp_path: Path, how: str, level: str
) -> None:
    """And not a minute later, when the idle worker is let go. What has nothing to start it keeps its worker."""
    words = ["/bin/sleep", f"{100 + random.random()}"]
    async with served(how, level, processes=4, is_async=how == "timer") as node:
        assert (await end_of(node, how, gate="never", words=words)).state == "done"
        [pid] = node.workers(how)["pids"]
        assert (await end_of(node, how, gate="go", words=words)).state == "done"
        assert node.workers(how)["pids"] == [pid]
        (await node.shelf.folder(rigs.VERSION) / rigs.PACKAGE / "go").touch()
        await node.until(lambda: started(words) or not alive(pid))
        await node.until(lambda: not started(words) and not alive(pid), within_s=1000)  # idle it would go after 60 s
        assert (await end_of(node, how, gate="never", words=words)).state == "done"
