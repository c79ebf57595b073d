"""A real node in a process of its own, on a private state folder, and a bus connection beside it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from echod.bus import Bus
from echod.errors import BusAway
from echod.model.ids import NodeId, branded

READY_S = 30.0
PATIENCE_S = 30.0  # of a call of the bench's own: a machine that is busy with other things must not end a measurement
TOKEN = "bench-0123456789abcdef0123456789abcdef"  # of a node on loopback that lives as long as its bench


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Node:
    """A running `echod dev` and a `Bus` that mints into it."""

    def __init__(self, process: subprocess.Popen[bytes], bus: Bus, url: str, place: Path) -> None:
        self.process = process
        self.bus = bus
        self.url = url
        self.place = place  # for what a benchmark writes

    @property
    def socket(self) -> Path:
        """Of the embedded server."""
        return self.place / "state" / "valkey.sock"

    def cpu_s(self) -> float:
        """CPU seconds of the node and every process below it, embedded server included."""
        total = 0.0
        for process in (root := psutil.Process(self.process.pid), *root.children(recursive=True)):
            times = process.cpu_times()
            total += times.user + times.system
        return total


@asynccontextmanager
async def running(*, deploys: bool = False) -> AsyncIterator[Node]:
    """Serve bench/functions.py until the block ends; with `deploys` nothing, until it is deployed."""
    place = Path(tempfile.mkdtemp(prefix="echod-bench-"))
    folder = place / "work"
    folder.mkdir()
    shutil.copy(Path(__file__).with_name("functions.py"), folder / "load.py")
    state = place / "state"
    echod = Path(sys.executable).with_name("echod")
    port = free_port()
    serving = ["start"] if deploys else ["dev", str(folder), "--no-reload"]
    command = [str(echod), *serving, "--port", str(port), "--state", str(state)]
    log = (place / "log").open("wb")
    process = subprocess.Popen(  # noqa: ASYNC220  # nothing else runs on this loop yet
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env={**os.environ, "ECHOD_TOKEN": TOKEN},
    )
    bus: Bus | None = None
    try:
        bus = await _connected(place / "state" / "valkey.sock", process, place / "log", port, needs_version=not deploys)
        yield Node(process, bus, f"http://127.0.0.1:{port}", place)
    finally:
        if bus:
            await bus.leave()
            await bus.close()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
        log.close()
        shutil.rmtree(place, ignore_errors=True)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def _connected(path: Path, process: subprocess.Popen[bytes], log: Path, port: int, *, needs_version: bool) -> Bus:
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        try:
            bus = await Bus.open(f"unix://{path}")
            active, _ = await bus.active()
            if _listens(port) and (active or not needs_version):
                bus.link.patience_s = PATIENCE_S
                await bus.join(NodeId(branded("NOD", os.getpid())))
                return bus
            await bus.close()
        except (BusAway, OSError):
            pass
        await asyncio.sleep(0.05)
    said = log.read_text(errors="replace")  # noqa: ASYNC240
    raise SystemExit(f"the node did not come up:\n{said[-2000:]}")
