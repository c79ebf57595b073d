"""The pipe behind a worker's stdout and stderr: what is written past Python, by C code and by crashes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

READ_BYTES = 64 * 1024
DRAIN_READS = 16  # what a pipe holds, and a little


class Pipe:
    """The reading end, which it owns. Read as it comes, whatever is kept of it: a full pipe would stop the worker."""

    def __init__(self, descriptor: int, on_data: Callable[[bytes], None]) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._on_data = on_data
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(descriptor, self._read)

    def drain(self) -> None:
        """Read what is there now."""
        for _ in range(DRAIN_READS):
            if not self._read():
                return

    def close(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _read(self) -> bool:
        if self._descriptor < 0:
            return False
        try:
            data = os.read(self._descriptor, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        self._on_data(data)
        return True
