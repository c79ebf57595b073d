"""Strays: what a process adopts is ended, and nothing else that is its child."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from echod.kin import Kin
from nodes import alive, until

TESTS = str(Path(__file__).parents[1])

# Becomes the process that adopts, with a child that it had before (argv) and one of each kind; says what is left.
LIFE = r"""
import asyncio, json, os, signal, subprocess, sys, threading
from typing import Any, cast
import uvloop
from echod import kin
from echod.node.console import Console

SLEEP = ["sleep", "100"]
DAEMON = "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.fork() and os._exit(0); os.setsid(); " \
    "os.fork(); os.write(1, b'%d ' % os.getpid()); os.execvp('sleep', ['sleep', '100'])"

async def main():
    kin.adopt()
    own = await kin.started(asyncio.create_subprocess_exec(*SLEEP))
    threads = await asyncio.to_thread(subprocess.Popen, SLEEP)
    console = Console(cast(Any, None), cast(Any, None), "http://127.0.0.1", None, lambda: None)
    assert await asyncio.to_thread(console._browse)
    browser = int(open(sys.argv[2]).read())
    read, write = os.pipe()
    pid = os.posix_spawn(sys.executable, [sys.executable, "-S", "-c", DAEMON], os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, write, 1)])
    os.close(write)
    os.waitpid(pid, 0)
    said = b""
    while len(said.split()) < 2 or said[-1:] != b" ":
        said += os.read(read, 20)
    daemons = [int(each) for each in said.split()]
    try:
        await kin.started(asyncio.create_subprocess_exec("/nowhere"))
        raise AssertionError("started")
    except FileNotFoundError:
        pass  # and nobody waits for it
    starting = asyncio.ensure_future(kin.started(asyncio.create_subprocess_exec(*SLEEP)))
    await asyncio.sleep(0)  # forked, and not told to us yet
    ended = await kin.end_strays()
    again = await kin.end_strays()
    late = (await starting).pid
    print(json.dumps({"daemons": daemons, "ended": ended, "again": again,
        "spared": [int(sys.argv[1]), own.pid, late, threads.pid, console._browsers[0].pid, browser]}), flush=True)
    sys.stdin.read()

with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main())
"""


def test_strays_are_ended_and_nothing_else(tmp_path: Path) -> None:
    """Spared: its own, one just being started, one of a thread, a browser, and what was its child before its time."""
    opened, browser = tmp_path / "pid", tmp_path / "browser"
    browser.write_text(f"#!/bin/sh\n(sleep 100 & echo $! > {opened}) & wait $!\n")
    browser.chmod(0o755)
    life = tmp_path / "life.py"
    life.write_text(LIFE)
    script = f"sleep 100 & exec {sys.executable} {life} $! {opened}"
    environment = {**os.environ, "BROWSER": str(browser), "PYTHONPATH": TESTS}
    with subprocess.Popen(
        ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
    ) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        try:
            assert len(told["daemons"]) == 2
            assert set(told["daemons"]) <= set(told["ended"])
            assert not any(map(alive, told["daemons"]))
            assert told["again"] == []
            assert all(map(alive, told["spared"])), told
        finally:
            process.kill()
            for pid in told["spared"]:
                os.kill(pid, signal.SIGKILL)
            until(lambda: not any(map(alive, told["spared"])))


def test_who_does_not_adopt_ends_nothing() -> None:
    with subprocess.Popen(["sleep", "100"]) as child:
        assert asyncio.run(Kin().end_strays()) == ()
        assert child.poll() is None
        child.kill()
