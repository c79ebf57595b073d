"""Version folders are written whole, checked, and mended."""

from __future__ import annotations

import os
import time
from pathlib import Path

from echod.registry.archive import archived, version_of
from echod.registry.folders import KEPT_S, holds, prune, write

ARCHIVE = archived("functions", {"shop.py": b"x = 1\n", "sub/deep/cart.py": b"y = 2\n", "data/rows.csv": b"a,b\n"})
VERSION = version_of(ARCHIVE)


def test_a_version_is_written_below_its_package(tmp_path: Path) -> None:
    root = write(tmp_path / "versions", VERSION, ARCHIVE)
    assert (root / "functions" / "sub" / "deep" / "cart.py").read_bytes() == b"y = 2\n"
    assert holds(root, VERSION)
    assert [entry.name for entry in (tmp_path / "versions").iterdir()] == [VERSION]


def test_writing_again_leaves_an_intact_folder_alone(tmp_path: Path) -> None:
    root = write(tmp_path, VERSION, ARCHIVE)
    before = (root / "functions" / "shop.py").stat().st_ino
    assert write(tmp_path, VERSION, ARCHIVE) == root
    assert (root / "functions" / "shop.py").stat().st_ino == before


def test_a_changed_missing_or_foreign_file_is_noticed_and_mended(tmp_path: Path) -> None:
    root = write(tmp_path, VERSION, ARCHIVE)
    for damage in (
        lambda: (root / "functions" / "shop.py").write_bytes(b"x = 666\n"),
        lambda: (root / "functions" / "shop.py").unlink(),
        lambda: (root / "functions" / "extra.py").write_bytes(b""),
        lambda: (root / "functions" / "link.py").symlink_to("/etc/hostname"),
        lambda: (root / "other").mkdir(),
    ):
        damage()
        assert not holds(root, VERSION)
        write(tmp_path, VERSION, ARCHIVE)
        assert holds(root, VERSION)


def test_only_folders_that_are_old_and_needed_by_no_version_are_removed(tmp_path: Path) -> None:
    for name in ("DEP-needed", "DEP-old", "DEP-young", ".new-left"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "m.py").touch()
        if name != "DEP-young":
            when = time.time() - KEPT_S - 1
            os.utime(tmp_path / name, (when, when))
    prune(tmp_path, {"DEP-needed"})
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["DEP-needed", "DEP-young"]


def test_whatever_our_umask_a_worker_of_another_user_can_read_it(tmp_path: Path) -> None:
    umask = os.umask(0o077)
    try:
        root = write(tmp_path / "versions", VERSION, ARCHIVE)
    finally:
        os.umask(umask)
    modes = {(path.is_dir(), path.stat().st_mode & 0o777) for path in (root, *root.rglob("*"))}
    assert modes == {(True, 0o755), (False, 0o644)}
