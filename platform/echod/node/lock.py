"""One owner per state folder: a lock that the kernel drops with its process, and in it where the owner listens."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from echod.errors import Refused


class StateLock:
    """Held from construction to `release` or the end of the process, SIGKILL included.

    Raises Refused when another process holds it, naming that one's address; and when the folder cannot be used.
    """

    def __init__(self, state: Path) -> None:
        try:
            state.mkdir(mode=0o700, parents=True, exist_ok=True)
            state.chmod(0o700)  # the embedded server's socket takes commands without a password
            self._file = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Refused(f"state folder {state}: {error.strerror or error}; give another with --state") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._file, 4096, 0).decode(errors="replace").strip()
            os.close(self._file)
            where = owner or "which is just starting"
            raise Refused(
                f"state folder {state} is in use by an echod {where}; use that one, or give another with --state"
            ) from None
        self._write(f"with process id {os.getpid()}")

    def announce(self, url: str) -> None:
        """Say where the owner listens, for whoever comes second."""
        self._write(f"at {url} (process id {os.getpid()})")

    def release(self) -> None:
        """Let the next one in."""
        self._write("")
        os.close(self._file)

    def _write(self, text: str) -> None:
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, text.encode(), 0)
