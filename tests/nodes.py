"""A real `echod` as a subprocess, on a folder, a port and a state of its own; all it started is gone at the end."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
ECHOD = [sys.executable, "-m", "echod"]
TOKEN = "system-test-0123456789abcdef"

# What is started in a shell's background, as by `make test &`, ignores ctrl-c, and so would all that tests start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def environment(**extra: str) -> dict[str, str]:
    """Ours, without the settings of another echod."""
    return {"NO_COLOR": "1", **{k: v for k, v in os.environ.items() if not k.startswith("ECHOD_")}, **extra}


def free_port() -> int:
    """A port of our own to listen on. None of those that the kernel hands out: between the look and the use it would
    give such a one to whoever connects or asks for any, and other tests run beside us.
    """
    while True:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port := next(_ports)))
            return port


def _own_ports() -> Iterator[int]:
    """Round and round those of a block that no other process of tests has; the name of a socket says whose it is."""
    with socket.socket(socket.AF_UNIX) as claim:
        for block in itertools.cycle(range(20_000, 32_000, 100)):
            with contextlib.suppress(OSError):
                claim.bind(f"\0echod-test-ports-{block}")
                break
        yield from itertools.cycle(range(block, block + 100))


_ports = _own_ports()


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    return False


def until(check: Callable[[], T], within_s: float = 60.0) -> T:
    """What `check` answers once that is true; another process is being waited for, on a machine that may be slow."""
    end = time.monotonic() + within_s
    while not (answer := check()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {within_s} s: {check}")
        time.sleep(0.01)
    return answer


class Node:
    """One `echod dev` (or another verb) and the folder it serves."""

    def __init__(self, place: Path, files: dict[str, str] | None = None, state: Path | None = None) -> None:
        self.folder = place / "functions"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.state = state or place / "state"
        self.port = free_port()
        self.log = place / "log"
        self.token: str | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.program: Sequence[str] = ECHOD
        for path, text in (files or {}).items():
            self.save(path, text)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def save(self, path: str, text: str) -> None:
        """As an editor does: beside the file, then renamed into its place."""
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(target.name + ".tmp")
        fresh.write_text(text)
        fresh.rename(target)

    def start(self, verb: str = "dev", *flags: str, folder: bool = True, ready: bool = True, **env: str) -> Node:
        """Start it, and wait until it is ready, or with `ready=False` until it answers at all."""
        self.launch(verb, *([str(self.folder)] if folder else []), "--state", str(self.state), *flags, **env)
        until(lambda: self.is_up(ready), 120)
        return self

    def launch(self, verb: str, *flags: str, cwd: Path | None = None, **env: str) -> Node:
        """Start it on its port, and wait for nothing."""
        self.token = env.get("ECHOD_TOKEN")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.program, verb, *flags, "--port", str(self.port)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                cwd=cwd, env=environment(**env),
            )  # fmt: skip
        return self

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        """Status and decoded body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=90)
        sent = {"Accept": "application/json", "Content-Type": "application/json"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token:
            sent["Authorization"] = f"Bearer {self.token}"
        try:
            connection.request(method, path, None if body is None else json.dumps(body).encode(), sent)
            answer = connection.getresponse()
            raw = answer.read()
        finally:
            connection.close()
        return answer.status, json.loads(raw) if raw else None

    def get(self, path: str) -> Any:
        status, body = until(lambda: answer if (answer := self.ask("GET", path))[0] != 503 else None)  # come back soon
        assert status == 200, (path, status, body)
        return body

    def call(self, name: str, payload: object = None) -> Any:
        """The result of a call that ends well."""
        status, body = self.ask("POST", f"/functions/{name}", payload, Prefer="wait=60")
        assert status == 200, (name, status, body)
        return body

    def mint(self, name: str, payload: object = None) -> str:
        status, body = self.ask("POST", f"/functions/{name}", payload)
        assert status == 202, (name, status, body)
        return str(body["id"])

    def job(self, job_id: str) -> Any:
        return self.get(f"/jobs/{job_id}")

    def names(self) -> list[str]:
        return [function["name"] for function in self.get("/functions")["functions"]]

    def errors(self) -> list[Any]:
        return list(self.get("/functions")["errors"])

    def cli(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """A verb against this node."""
        known = {"ECHOD_URL": self.url, **({"ECHOD_TOKEN": self.token} if self.token else {}), **env}
        return run(*arguments, **known)

    def descendants(self) -> list[int]:
        """Every process below it, itself included."""
        below: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                    below.setdefault(parent, []).append(int(entry.name))
        found = [self.pid]
        for pid in found:
            found += below.get(pid, [])
        return found

    def server_pid(self) -> int:
        """The embedded server's process; waited for."""

        def found() -> int | None:
            for pid in self.descendants():
                with contextlib.suppress(OSError):
                    if b"valkey-server" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
                        return pid
            return None

        return until(found) or 0

    def kill(self) -> None:
        """SIGKILL of the node alone, as the kernel does it."""
        os.kill(self.pid, signal.SIGKILL)
        assert self.process is not None
        self.process.wait()

    def end(self, number: int = signal.SIGTERM) -> int:
        """Signal it and wait; its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(120)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            pids = self.descendants()
            self.process.kill()
            self.process.wait()
            until(lambda: not any(map(alive, pids)))

    def is_up(self, ready: bool) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"echod ended with {self.process.returncode}: {self.said()}")
        with contextlib.suppress(OSError):
            return self.ask("GET", "/readyz" if ready else "/healthz")[0] == 200
        return False


def run(*arguments: str, stdin: str = "", cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """One verb to its end."""
    return subprocess.run(
        [*ECHOD, *arguments], input=stdin, capture_output=True, text=True, env=environment(**env), timeout=180, cwd=cwd
    )


class Terminal:
    """A verb, or another program, on a terminal of its own."""

    def __init__(
        self, *arguments: str, program: Sequence[str] = tuple(ECHOD), cwd: Path | None = None, **env: str
    ) -> None:
        self.said = ""
        self._master, slave = os.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _ON_TERMINAL, *program, *arguments],
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            env=environment(TERM="xterm", **env), cwd=cwd,
        )  # fmt: skip
        os.close(slave)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def read_until(self, text: str, within_s: float = 60.0) -> str:
        """Everything said, once `text` is in what was said since the last call."""
        start, end = len(self.said), time.monotonic() + within_s
        while text not in self.said[start:]:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._master], [], [], left)[0]:
                raise AssertionError(f"{text!r} was not said within {within_s} s, but: {self.said[start:]}")
            try:
                chunk = os.read(self._master, 65536)
            except OSError:
                chunk = b""
            if not chunk:
                raise AssertionError(f"{text!r} was not said to the end: {self.said[start:]}")
            self.said += chunk.decode(errors="replace")
        return self.said[start:]

    def wait(self) -> int:
        """The exit code; what is said meanwhile is read, so that nothing blocks."""
        end = time.monotonic() + 60
        with contextlib.suppress(OSError):  # which is how a terminal tells that nobody has it any more
            while select.select([self._master], [], [], max(0.0, end - time.monotonic()))[0] and (
                chunk := os.read(self._master, 65536)
            ):
                self.said += chunk.decode(errors="replace")
        return self.process.wait(max(0.1, end - time.monotonic()))

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        with contextlib.suppress(OSError):
            os.close(self._master)


# Makes the new session's terminal the controlling one: ctrl-c then reaches the foreground group, as for people.
_ON_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
