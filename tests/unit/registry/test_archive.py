"""Versions are named by their content and come back whole from their pieces."""

from __future__ import annotations

import os
import tracemalloc
import zlib

import pytest

from echod.errors import Refused
from echod.registry.archive import (
    PIECE_BYTES,
    Archive,
    File,
    Unpacking,
    archived,
    decompressed,
    is_inside,
    opened,
    pieces_of,
    version_of,
)


def test_equal_files_have_one_id_whatever_their_order() -> None:
    one = archived("functions", {"a.py": b"1", "b/c.py": b"2"})
    other = archived("functions", {"b/c.py": b"2", "a.py": b"1"})
    assert version_of(one) == version_of(other)
    assert version_of(one).startswith("DEP")
    assert len(version_of(one)) == 14


@pytest.mark.parametrize(
    "other",
    [
        archived("functions", {"a.py": b"2"}),
        archived("functions", {"b.py": b"1"}),
        archived("handlers", {"a.py": b"1"}),
        archived("functions", {"a.py": b"1", "b.py": b""}),
    ],
)
def test_another_content_path_or_package_is_another_version(other: Archive) -> None:
    assert version_of(other) != version_of(archived("functions", {"a.py": b"1"}))


def test_a_large_archive_comes_back_from_its_pieces() -> None:
    archive = archived("functions", {"data.bin": os.urandom(3 * PIECE_BYTES), "a.py": b"x = 1\n"})
    pieces = pieces_of(archive)
    assert len(pieces) > 3
    assert all(len(piece) <= PIECE_BYTES for piece in pieces)
    assert opened(pieces, version_of(archive)) == archive


def test_pieces_that_are_damaged_or_of_another_version_are_refused() -> None:
    archive = archived("functions", {"a.py": b"x = 1\n"})
    version = version_of(archive)
    with pytest.raises(Refused, match="got something else"):
        opened([b"garbage"], version)
    with pytest.raises(Refused, match="its own content"):
        opened(pieces_of(archived("functions", {"a.py": b"x = 2\n"})), version)
    with pytest.raises(Refused):
        opened([], version)


@pytest.mark.parametrize(
    "path",
    [
        "../a.py",
        "/etc/passwd",
        "a//b.py",
        "",
        ".",
        "a/../../b",
        "a\0.py",
        "./a.py",
        "a" * 256,
        "/".join("a" * 33),
        "a/" * 2_000_000 + "a",
    ],
)
def test_a_path_that_leaves_the_folder_is_refused(path: str) -> None:
    assert not is_inside(path)
    archive = Archive("functions", (File(path, b""),))
    with pytest.raises(Refused, match="inside the folder"):
        opened(pieces_of(archive), version_of(archive))


def test_whatever_arrives_it_is_the_archive_or_refused() -> None:
    """Cut off anywhere, or with any byte another: never another error, never another content under its name."""
    archive = archived("functions", {"a.py": b"x = 1\n" * 50, "sub/b.py": bytes(range(256))})
    (packed,) = pieces_of(archive)
    version = version_of(archive)
    damaged = [packed[:cut] for cut in range(len(packed))]
    damaged += [packed[:at] + bytes([packed[at] ^ 0x5A]) + packed[at + 1 :] for at in range(len(packed))]
    told = 0
    for each in damaged:
        try:
            assert opened([each], version) == archive
        except Refused:
            told += 1
    assert told > len(packed)


def test_more_files_or_bytes_than_a_version_may_have_are_refused() -> None:
    many = Archive("functions", tuple(File(f"f{number}", b"") for number in range(100_000)))
    with pytest.raises(Refused, match="10000 files"):
        decompressed(b"".join(pieces_of(many)))
    large = Archive("functions", (File("movie.bin", bytes(21_000_000)),))
    with pytest.raises(Refused, match=r"at most 20 MB, got 21\.0 MB"):
        decompressed(b"".join(pieces_of(large)))


def test_what_inflates_without_end_is_refused_before_it_has() -> None:
    bomb = zlib.compress(b"\x92\xa9functions\x91\x92\xa1a\xc6\x7f\xff\xff\xff" + bytes(200_000_000), 9)
    tracemalloc.start()
    try:
        with pytest.raises(Refused, match="at most 20 MB of files, got more"):
            decompressed(bomb)
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()


def test_parts_that_come_one_by_one_are_the_same_archive_and_refused_at_the_first_byte_too_many() -> None:
    archive = archived("functions", {"a.py": b"x = 1\n" * 50, "movie.bin": os.urandom(100_000)})
    packed = b"".join(pieces_of(archive))
    unpacking = Unpacking()
    for at in range(0, len(packed), 1000):
        unpacking.feed(packed[at : at + 1000])
    assert unpacking.archive() == archive

    large = zlib.compress(bytes(26_000_000), 0)
    unpacking = Unpacking()
    unpacking.feed(large[:23_900_000])
    with pytest.raises(Refused, match="got more"):
        unpacking.feed(large[23_900_000:24_100_000])


def test_bytes_after_an_archives_end_are_refused() -> None:
    packed = b"".join(pieces_of(archived("functions", {"a.py": b"x = 1\n"})))
    with pytest.raises(Refused, match="expected nothing after"):
        decompressed(packed + b"x")
    unpacking = Unpacking()
    unpacking.feed(packed)
    with pytest.raises(Refused, match="expected nothing after"):
        unpacking.feed(b"x")


@pytest.mark.parametrize("paths", [("a.py", "a.py"), ("a", "a/b.py"), ("x/y", "x/y/z/w.py")])
def test_a_path_twice_or_as_file_and_folder_is_refused(paths: tuple[str, ...]) -> None:
    archive = Archive("functions", tuple(File(path, b"") for path in paths))
    with pytest.raises(Refused, match="each path once"):
        opened(pieces_of(archive), version_of(archive))
