"""The size of a worker's /tmp where no filesystem of its own bounds it (at `strict` one does, and lets nothing by)."""

from __future__ import annotations

import os
from pathlib import Path

from echod.supervisor.watch import Excess, Look

BYTES_A_FILE = 4096  # what an empty one costs, so that a million of them are not free


def room(folder: Path, limit_bytes: int) -> Look:
    """Looks at what a folder takes."""
    return lambda: Excess("tmp") if used_bytes(folder, limit_bytes) > limit_bytes else None


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
