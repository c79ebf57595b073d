"""The machine as the walls' tests need it: who runs handlers, by which interpreter, and what they try to reach."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from unit.runtime.driving import Base

NOBODY = 65534
IS_ROOT = os.geteuid() == 0
RUNTIME = Path(__file__).resolve().parents[2] / "runtime"
LONE = Path(__file__).with_name("lone.py").read_text()
# Started from a terminal, with its output elsewhere.
TERMINAL = (
    *("python3", "-c"),
    """
import os, pty, sys
out = os.dup(1)
pid, _ = pty.fork()
if pid == 0:
    os.dup2(out, 1), os.dup2(out, 2)
    os.execvp(sys.argv[1], sys.argv[1:])
os.waitpid(pid, 0)
""",
)
# Throw-away namespaces: what an unconfined attack breaks in there is nobody's.
BOX = (
    *("unshare", "--mount", "--pid", "--ipc", "--net", "--uts", "--fork", "--kill-child", "--mount-proc"),
    *(("--propagation", "private") if IS_ROOT else ()),
)


class Who(NamedTuple):
    """Whose handlers: the interpreter, and the uid that echod runs as (None: the tests' own)."""

    python: str
    libraries: str | None
    user: int | None


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter: walls shall hold handlers back, not file modes."""
    folder = Path(tempfile.mkdtemp(prefix="echod-walls-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def public_python(place: Path) -> Who:
    """A copy of the running interpreter that any user can read, with what a worker imports."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base = Path(sys.base_prefix)
    home = place / "python"
    (home / "bin").mkdir(parents=True)
    shutil.copy2(base / "bin" / version, home / "bin" / version)
    skipped = shutil.ignore_patterns(
        "site-packages", "test", "__pycache__", "idlelib", "tkinter", "ensurepip", "config-*"
    )
    shutil.copytree(base / "lib" / version, home / "lib" / version, ignore=skipped)
    for library in (base / "lib").glob("libpython*"):
        shutil.copy2(library, home / "lib", follow_symlinks=False)
    packages = home / "lib" / version / "site-packages"
    packages.mkdir()
    shutil.copytree(RUNTIME / "echofn", packages / "echofn", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(Path(sysconfig.get_path("platlib")) / "msgspec", packages / "msgspec")
    return Who(str(home / "bin" / version), str(home / "lib"), None)


@contextlib.contextmanager
def base_of(who: Who) -> Iterator[Base]:
    """A base over a folder of its own."""
    with open_folder() as root:
        base = Base(root, python=who.python, libraries=who.libraries, user=who.user)
        if who.user is not None:
            os.chown(base.folder, who.user, who.user)  # its own code, as an ordinary user's is
        try:
            yield base
        finally:
            base.close()


class Arena:
    """What hostile handlers try to reach: another function's source, a file of their own user, a listening bus."""

    def __init__(self, folder: Path, owner: int | None) -> None:
        self.folder = folder
        (folder / "sibling").mkdir()
        (folder / "sibling/handler.py").write_text("SECRET = 1\n")
        self.canary = folder / "canary_own"
        self.canary.write_text("x")
        self._bus = socket.socket(socket.AF_UNIX)
        self._bus.bind(str(folder / "bus.sock"))
        self._abstract = socket.socket(socket.AF_UNIX)
        self._abstract.bind(f"\0echod-test-{os.getpid()}")
        self._tcp = quiet_port()
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o666)
            if owner is not None:
                os.chown(path, owner, owner)
        os.utime(self.canary, (0, 0))
        self.left = Path(f"/dev/shm/echod-left-{os.getpid()}")
        self._listeners = (self._bus, self._abstract, self._tcp)
        for listener in self._listeners:
            listener.listen()
            listener.setblocking(False)

    def aimed(self, source: str) -> str:
        """A handler's source with what it tries to reach put in."""
        port = str(self._tcp.getsockname()[1])
        named = source.replace("@ARENA@", str(self.folder)).replace("16399", port)
        return named.replace("echod-test-bus", f"echod-test-{os.getpid()}").replace("/dev/shm/left", str(self.left))

    def was_reached(self) -> bool:
        """Whether anybody has connected to the bus since the last time."""
        reached = False
        for listener in self._listeners:
            with contextlib.suppress(BlockingIOError):
                listener.accept()[0].close()
                reached = True
        return reached

    def is_untouched(self) -> bool:
        seen = self.canary.stat()
        return (seen.st_mode & 0o777, seen.st_mtime) == (0o666, 0) and self.canary.read_text() == "x"

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        self.left.unlink(missing_ok=True)


def quiet_port() -> socket.socket:
    """A listener below the ports that systems and tests hand out: one of those somebody may have had, and still knock
    at.
    """
    while True:
        with contextlib.suppress(OSError):
            return socket.create_server(("127.0.0.1", random.randrange(10_000, 20_000)))


def alone(
    who: Who,
    folder: Path,
    source: str,
    level: str,
    *without: str,
    opened: Mapping[str, Any] | None = None,
    before: tuple[str, ...] = (),
) -> str:
    """What one handler says behind the walls of a level but those left out; `before`: how its process is started."""
    root, tmp = folder / "code", folder / "tmp"
    for each in (root, tmp):
        each.mkdir(exist_ok=True)
        if who.user is not None:
            os.chown(each, who.user, who.user)
    (root / "m.py").write_text(source)
    told = {"level": level, "root": str(root), "tmp": str(tmp), "file": "m.py", "without": without}
    spec = json.dumps({**told, "opened": dict(opened or {})})
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PLANTED": "x", "TMPDIR": str(tmp)}
    environment |= {"LD_LIBRARY_PATH": who.libraries} if who.libraries else {}
    identity: dict[str, Any] = {} if who.user is None else {"user": who.user, "group": who.user, "extra_groups": []}
    ran = subprocess.run(
        [*before, who.python, "-B", "-c", LONE, spec],
        **identity,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=180,
        check=False,
    )
    return ran.stdout
