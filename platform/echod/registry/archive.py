"""A version's files as one value: how they are packed for the bus, named by their content, and unpacked again.

Two equal folders give one id: the id is the first 63 bits of the SHA-256 of the sorted files and the package's name.
Times, owners and modes of files are not in it.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from echod.errors import Refused
from echod.model.ids import VersionId, branded

PIECE_BYTES = 512 * 1000
MAX_BYTES = 20 * 1000 * 1000
MAX_FILES = 10_000
MAX_PATH_BYTES = 1024
MAX_DEPTH = 32
_OVERHEAD_BYTES = 4 * 1000 * 1000  # of paths and framing


class File(msgspec.Struct, frozen=True, array_like=True):
    """One file: its path from the served folder ("sub/shop.py") and its bytes."""

    path: str
    data: bytes


class Archive(msgspec.Struct, frozen=True, array_like=True):
    """The files of a version, sorted by path, and the name of the package they form."""

    package: str
    files: Annotated[tuple[File, ...], msgspec.Meta(max_length=MAX_FILES)]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Archive).decode


def archived(package: str, files: Mapping[str, bytes]) -> Archive:
    """An archive of `files` by path, in the one order that its id is taken over."""
    return Archive(package, tuple(File(path, files[path]) for path in sorted(files)))


def version_of(archive: Archive) -> VersionId:
    """The content's own name: `DEP` and 63 bits of its SHA-256."""
    digest = hashlib.sha256(_encode(archive)).digest()
    return VersionId(branded("DEP", int.from_bytes(digest[:8], "big") >> 1))


def pieces_of(archive: Archive) -> list[bytes]:
    """The archive compressed and cut into pieces that the bus takes."""
    packed = zlib.compress(_encode(archive), 1)
    return [packed[start : start + PIECE_BYTES] for start in range(0, len(packed), PIECE_BYTES)]


def opened(pieces: Sequence[bytes], expected: VersionId) -> Archive:
    """The archive in `pieces`. Raises Refused when it is not what `expected` names, or leaves its folder."""
    try:
        archive = decompressed(b"".join(pieces))
    except Refused as error:
        raise Refused(f"version {expected}: {error}; deploy the folder again") from None
    if (found := version_of(archive)) != expected:
        raise Refused(f"version {expected}: expected its own content, got that of {found}; deploy the folder again")
    return archive


def decompressed(packed: bytes) -> Archive:
    """The archive in joined pieces. Raises Refused for what is none, is too large, or leaves its folder."""
    unpacking = Unpacking()
    unpacking.feed(packed)
    return unpacking.archive()


class Unpacking:
    """An archive that comes in parts: no more in memory than a version may have, refused at the first byte over."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj()
        self._plain = bytearray()

    def feed(self, part: bytes) -> None:
        """Take the next bytes. Raises Refused for what is no packed folder, or a larger one."""
        room = MAX_BYTES + _OVERHEAD_BYTES - len(self._plain)
        try:
            self._plain += self._inflate.decompress(part, room + 1)
        except zlib.error as error:
            raise _other(error) from None
        if self._inflate.unused_data:
            raise Refused("expected nothing after a packed folder's end, got more bytes; deploy it again")
        if len(self._plain) > MAX_BYTES + _OVERHEAD_BYTES:
            raise Refused(f"expected at most {MAX_BYTES // 1_000_000} MB of files, got more")

    def archive(self) -> Archive:
        """What came, whole. Raises Refused for what is none, is too large, or leaves its folder."""
        if not self._inflate.eof:
            raise Refused("expected a packed folder, got a part of one; deploy it again")
        try:
            return _checked(_decode(self._plain))
        except msgspec.MsgspecError as error:
            raise _other(error) from None


def _other(error: Exception) -> Refused:
    return Refused(
        f"expected a packed folder of at most {MAX_BYTES // 1_000_000} MB and {MAX_FILES} files, "
        f"got something else ({error})"
    )


def _checked(archive: Archive) -> Archive:
    if (total := sum(len(file.data) for file in archive.files)) > MAX_BYTES:
        raise Refused(f"expected at most {MAX_BYTES // 1_000_000} MB, got {total / 1e6:.1f} MB")
    if not is_inside(archive.package) or "/" in archive.package:
        raise Refused(f"expected a package's name, got {archive.package!r}")
    for file in archive.files:  # before anything is made of the paths: they may be as long as the archive
        if not is_inside(file.path):
            raise Refused(f"expected files inside the folder, got {file.path[:200]!r}")
    paths = {file.path for file in archive.files}
    folders = {parent for path in paths for parent in _parents(path)}
    if len(paths) != len(archive.files) or paths & folders:
        raise Refused("expected each path once, got one twice, or as a file and as a folder")
    return archive


def is_inside(path: str) -> bool:
    """Whether a relative path stays in its folder, spelled plainly, neither long nor deep beyond what disks take."""
    if len(path) > MAX_PATH_BYTES or len(path.encode()) > MAX_PATH_BYTES or path.count("/") >= MAX_DEPTH:
        return False
    parts = path.split("/")
    return "\0" not in path and all(part not in {"", ".", ".."} and len(part.encode()) <= 255 for part in parts)


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]
