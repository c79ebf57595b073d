"""Private writable folders of user code: made before it runs, wiped when it is gone.

STATE/tmp/<node>/<worker> for workers, STATE/tmp/imports-<random>/<n> for what a deploy or a save imports. A node holds
a lock on its folder for as long as it lives. Folders that nobody holds any more were left by a killed node and are
wiped by the next one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from types import TracebackType

from echod import log

_log = log.get("scratch")

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType]


class Scratch:
    """This node's folder of folders."""

    def __init__(self, root: Path, node: str) -> None:
        self._root = root
        self._own = root / node
        self._lock = -1

    def open(self) -> None:
        """Make it, once, and wipe what killed nodes left beside it. Raises OSError where it cannot be written."""
        if self._lock >= 0:
            return
        self._root.mkdir(parents=True, exist_ok=True)
        with _alone_in(self._root):  # one that is made and not locked yet looks as if it were left
            self._own.mkdir(mode=0o700, exist_ok=True)
            self._lock = os.open(self._own, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left = [Path(entry.path) for entry in os.scandir(self._root) if _is_left(entry)]
        for folder in left:
            wipe(folder)

    def fresh(self, name: str) -> Path:
        """An empty folder that only we and the worker may enter. Raises OSError."""
        folder = self._own / name
        folder.mkdir(mode=0o700)
        return folder

    def close(self) -> None:
        """Remove it."""
        if self._lock >= 0:
            wipe(self._own)
            os.close(self._lock)
            self._lock = -1


def wipe(folder: Path) -> None:
    """Remove a folder that user code has written to: links are not followed, closed folders are opened first."""
    try:
        shutil.rmtree(folder, onerror=_insist)
    except FileNotFoundError:
        return
    except (OSError, RecursionError) as error:
        # Nested deeper than we can recurse, or a name that only its own tool gets rid of.
        done = subprocess.run(["rm", "-rf", "--", str(folder)], capture_output=True, check=False)
        if done.returncode:
            _log.warning("scratch.not_wiped", folder=str(folder), error=f"{type(error).__name__}: {error}")


@contextlib.contextmanager
def _alone_in(root: Path) -> Generator[None]:
    """Nobody else opens a folder there meanwhile."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _is_left(entry: os.DirEntry[str]) -> bool:
    """Whether the node that owned it is gone: the kernel drops the lock with its process."""
    try:
        descriptor = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)


def _insist(function: Callable[..., object], path: str, info: _ExcInfo) -> None:
    """A folder without permissions is opened, and what is in it tried once more."""
    error = info[1]
    if isinstance(error, FileNotFoundError):
        return
    if not isinstance(error, PermissionError):
        raise error
    for each in (os.path.dirname(path), path):
        if os.path.isdir(each) and not os.path.islink(each):
            os.chmod(each, stat.S_IRWXU)
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)
