"""The size of a worker's /tmp where no filesystem of its own bounds it: looked at while it works, ended past its size.

A look every fifth of a second lets what is written in between through; a private /tmp (level `strict`) lets nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

EVERY_S = 0.2
BYTES_A_FILE = 4096  # what an empty one costs, so that a million of them are not free


class Quota:
    """Watches one folder from `wake` until it is seen that nothing runs. `over` is called once, past the limit."""

    def __init__(self, folder: Path, limit_bytes: int, *, over: Callable[[], None], busy: Callable[[], bool]) -> None:
        self._folder, self._limit_bytes = folder, limit_bytes
        self._over, self._busy = over, busy
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._look: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """Something runs. One look follows even when it is over by then: what it left counts."""
        if self._timer is None and self._look is None:
            self._timer = self._loop.call_later(EVERY_S, self._begin)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._look is not None:
            self._look.cancel()

    def _begin(self) -> None:
        self._timer = None
        self._look = self._loop.create_task(self._see())

    async def _see(self) -> None:
        used = await asyncio.to_thread(used_bytes, self._folder, self._limit_bytes)
        self._look = None
        if used > self._limit_bytes:
            self._over()
        elif self._busy():
            self.wake()


def used_bytes(folder: Path, enough: int) -> int:
    """Bytes that the files below a folder take; counting stops beyond `enough`. Links are not followed."""
    total, ahead = 0, [str(folder)]
    while ahead and total <= enough:
        try:
            with os.scandir(ahead.pop()) as entries:
                for entry in entries:
                    total += _size_of(entry)
                    if total > enough:
                        break
                    if entry.is_dir(follow_symlinks=False):
                        ahead.append(entry.path)
        except OSError:
            pass  # gone in the meantime
    return total


def _size_of(entry: os.DirEntry[str]) -> int:
    try:
        return max(entry.stat(follow_symlinks=False).st_blocks * 512, BYTES_A_FILE)
    except OSError:
        return 0
