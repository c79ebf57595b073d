"""Secrets on their way to the one process that is to have them, past those that only fork it.

What a process has read stays in its memory after it is freed, and each of its forks inherits that memory. So whoever
forks others gets a file without a name (memfd_create(2)), and does not read it; a fork takes its own part before any
user code runs, and closes the file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from io import FileIO

import msgspec

Part = tuple[int, int]  # of the file: where it begins, bytes

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, str]).decode


def new() -> FileIO:
    """An empty file. Raises OSError."""
    return FileIO(os.memfd_create("echod-secrets"), "r+")


def put(file: FileIO, secrets: Mapping[str, str]) -> Part:
    """Add the variables of one process; where they are. Raises OSError."""
    body, at = _encode(dict(secrets)), file.seek(0, os.SEEK_END)
    file.write(body)
    return at, len(body)


def take(descriptor: int, part: Part | None = None) -> dict[str, str]:
    """The variables in a part, or in a file that holds those of one process."""
    at, size = (0, os.fstat(descriptor).st_size) if part is None else part
    return _decode(os.pread(descriptor, size, at))
