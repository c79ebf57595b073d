"""What this machine can give, found out by trying: `python -I -B -m echofn.walls.trial LEVEL FOLDER`, JSON on stdout.

A throw-away worker takes the walls, on the filesystem where they will be used, then tries a handful of escapes and a
handful of things that handlers do. A level counts only when every escape failed and everything else worked; else the
next one down is tried.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, cast

from echofn.walls import kernel, reach
from echofn.walls.levels import LEVELS, WALLS, Level, Order, raise_walls
from echofn.walls.namespaces import NEWUSER
from echofn.walls.openings import Openings

LIMIT_S = 30.0
_ESCAPED = "a self-test escaped"
_TOO_MUCH = Openings().memory_bytes + mmap.PAGESIZE  # asked for, never touched
WEAKER = "uid: the code or the interpreter lies where only root may enter: workers stay uid 0, without capabilities"


class Available(NamedTuple):
    """The best level of those asked for, the walls that were up in its trial, and why not better."""

    level: Level
    missing: tuple[str, ...]
    walls: tuple[str, ...] = ()


def available(folder: str | None = None, most: str = "strict") -> Available:
    """What this machine gives at `most`, tried in `folder`. Raises RuntimeError when not even the trial can run."""
    if os.uname().sysname != "Linux":
        return Available("off", ("this is not Linux: handlers are NOT confined, development only",))
    command = [
        sys.executable,
        "-I",
        "-B",
        "-m",
        "echofn.walls.trial",
        most,
        os.path.abspath(folder or tempfile.gettempdir()),
    ]
    try:
        ran = subprocess.run(command, capture_output=True, env={"PATH": "/usr/bin:/bin"}, timeout=LIMIT_S, check=True)
        said: dict[str, Any] = json.loads(ran.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        told = getattr(error, "stderr", None) or b""
        why = told.decode(errors="replace").strip().rpartition("\n")[2] or error
        where = f"with {sys.executable} in an empty environment"
        raise RuntimeError(f"the walls could not be tried {where}: {why}") from None
    if said["python"] != sys.version:
        raise RuntimeError(f"expected workers to run Python {sys.version!r}, got {said['python']!r}")
    return Available(cast("Level", said["level"]), tuple(said["missing"]), tuple(said["walls"]))


def main(most: str, folder: str) -> None:
    missing: list[str] = []
    for level in reversed(LEVELS[: LEVELS.index(cast("Level", most)) + 1]):
        walls, why = _tried(level, folder)
        if why is None:
            if level in {"standard", "strict"} and os.geteuid() == 0 and "uid" not in walls:
                missing.append(WEAKER)
            if level in {"standard", "strict"} and (why := reach.exposed((folder, os.getcwd()))):
                missing.append(f"files: {why}")
                walls.remove("files")
            told = {"level": level, "walls": walls, "missing": missing, "python": sys.version}
            print(json.dumps(told))
            return
        missing.append(f"{level}: {why}")


def _tried(level: Level, folder: str) -> tuple[list[str], str | None]:
    """The walls of a throw-away worker, and why this level will not do (None: it does)."""
    place = tempfile.mkdtemp(prefix=".trial-", dir=folder)
    umask = os.umask(0o022)  # as code is written
    try:
        os.chmod(place, 0o755)
        root, tmp = os.path.join(place, "code"), os.path.join(place, "tmp")
        for each in (root, tmp):
            os.mkdir(each)
        with open(os.path.join(root, "own.py"), "w") as file:
            file.write("own = 1\n")
        reading, writing = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            _stand(level, root, tmp, writing, parent)
        os.close(writing)
        with open(reading, "rb") as answers:
            said = answers.read()
        status = os.waitpid(pid, 0)[1]
        if not said:
            return [], f"its worker ended with {_end(status)}"
        walls, why = json.loads(said)
        return walls, why
    finally:
        os.umask(umask)
        shutil.rmtree(place, ignore_errors=True)


def _end(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def _stand(level: Level, root: str, tmp: str, writing: int, parent: int) -> NoReturn:
    """The throw-away worker."""
    walls: tuple[str, ...] = ()
    try:
        os.dup2(writing, 3)
        os.closerange(4, 256)
        walls = raise_walls(Order(level, root, tmp), parent)
        why = _why_not(level, root, parent)
    except BaseException as error:
        why = str(error) or type(error).__name__
    os.write(3, json.dumps([walls, why]).encode())
    os._exit(0)


def _why_not(level: Level, root: str, parent: int) -> str | None:
    """What broke, or escaped."""
    for name, attempt in _escapes(level, root, parent).items():
        try:
            attempt()
        except (OSError, ValueError):
            continue
        return f"{_ESCAPED}: {name}"
    with tempfile.TemporaryFile() as file:
        file.write(b"1")
    with open(os.path.join(root, "own.py")) as file:
        file.read()
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    for module in ("sqlite3", "ssl", "zoneinfo", "csv"):
        __import__(module)
    return None


def _escapes(level: Level, root: str, parent: int) -> dict[str, Callable[[], object]]:
    own = os.path.join(root, "own.py")
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    found: dict[str, Callable[[], object]] = {}
    if level != "off":
        found["raise a limit"] = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files + 1, files + 1))
        found["have more memory than it may"] = lambda: mmap.mmap(-1, _TOO_MUCH, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        found["mount"] = lambda: kernel.checked(kernel.libc.mount(b"none", b"/tmp", b"tmpfs", 0, None), "mount")
    if level in {"standard", "strict"}:
        found |= {
            "read a file of the host": lambda: open("/etc/passwd").close(),
            "read another process": lambda: open(f"/proc/{parent}/environ").close(),
            "change its own code": lambda: open(own, "a").close(),
            "open a unix socket": lambda: socket.socket(socket.AF_UNIX),
            "open the network": lambda: socket.socket(socket.AF_INET),
            "start a process": lambda: os.fork() or os._exit(0),
            "signal its parent": lambda: os.kill(parent, 0),
            "make a user namespace": lambda: kernel.checked(kernel.libc.unshare(NEWUSER), "unshare"),
        }
    if level == "strict":
        found["see a file of the host"] = lambda: os.stat("/etc/passwd")
    return found


def states(found: Available, level: str) -> list[tuple[str, str, str, str]]:
    """Each wall at `level`: name, what it does, enforced | unavailable | off, and why it is not enforced."""
    rows: list[tuple[str, str, str, str]] = []
    for wall in WALLS:
        if wall.name in found.walls:
            rows.append((wall.name, wall.does, "enforced", ""))
        elif LEVELS.index(wall.level) > LEVELS.index(cast("Level", level)):
            rows.append((wall.name, wall.does, "off", f"needs level {wall.level}"))
        else:
            rows.append((wall.name, wall.does, "unavailable", _reason(wall.name, found.missing)))
    return rows


def _reason(name: str, missing: tuple[str, ...]) -> str:
    told = next((why.partition(": ")[2] for why in missing if why.startswith(name + ": ")), "")
    return told or _UNCOUNTED.get(name, "; ".join(missing) or "this machine does not offer it")


_UNCOUNTED = {
    "uid": "echod runs as an ordinary user: workers have its uid",
    "thread-count": "the kernel counts by uid, and this one is shared (or is root's): the node looks every 0.2 s",
    "signals": "Landlock ABI 6 (Linux 6.12) keeps signals inside",
}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
