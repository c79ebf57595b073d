"""What a folder takes, by one rule: for the supervisor, which ends a run for it, and the worker, which ends before."""

from __future__ import annotations

import os

BYTES_A_FILE = 4096  # what an empty one costs, so that a million of them are not free


def used_bytes(folder: str, enough: int) -> int:
    """Bytes that the files below a folder take; counting stops beyond `enough`. Links are not followed."""
    total, ahead = 0, [folder]
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
