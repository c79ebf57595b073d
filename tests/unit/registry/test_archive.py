"""Versions are named by their content and come back whole from their pieces."""

from __future__ import annotations

import os

import pytest

from echod.errors import Refused
from echod.registry.archive import PIECE_BYTES, Archive, File, archived, is_inside, opened, pieces_of, version_of


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
    "path", ["../a.py", "/etc/passwd", "a//b.py", "", ".", "a/../../b", "a\0.py", "./a.py", "a" * 256]
)
def test_a_path_that_leaves_the_folder_is_refused(path: str) -> None:
    assert not is_inside(path)
    archive = Archive("functions", (File(path, b""),))
    with pytest.raises(Refused, match="inside the folder"):
        opened(pieces_of(archive), version_of(archive))


@pytest.mark.parametrize("paths", [("a.py", "a.py"), ("a", "a/b.py"), ("x/y", "x/y/z/w.py")])
def test_a_path_twice_or_as_file_and_folder_is_refused(paths: tuple[str, ...]) -> None:
    archive = Archive("functions", tuple(File(path, b"") for path in paths))
    with pytest.raises(Refused, match="each path once"):
        opened(pieces_of(archive), version_of(archive))
