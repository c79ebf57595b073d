"""Workers' folders: private, wiped whatever is in them, and never another node's."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from echod.scratch import Scratch, wipe


def test_a_folder_is_private_and_gone_afterwards(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path / "tmp", "NOD1")
    scratch.open()
    folder = scratch.fresh("WRK1")
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "file").write_text("x")
    scratch.close()
    assert not (tmp_path / "tmp" / "NOD1").exists()


def test_what_a_killed_node_left_is_wiped_and_what_a_live_one_holds_is_not(tmp_path: Path) -> None:
    root = tmp_path / "tmp"
    (root / "NOD0" / "WRK1").mkdir(parents=True)
    (root / "NOD0" / "WRK1" / "file").write_text("x")
    alive = Scratch(root, "NOD1")
    alive.open()
    held = alive.fresh("WRK1")
    fresh = Scratch(root, "NOD2")
    fresh.open()
    assert not (root / "NOD0").exists()
    assert held.exists()
    fresh.close()
    alive.close()


def test_folders_that_are_made_at_once_are_each_others_and_left_by_nobody(tmp_path: Path) -> None:
    """A node's workers and what it imports, or two nodes: one that is made and not held yet is not wiped."""

    def opened(name: str) -> bool:
        scratch = Scratch(tmp_path / "tmp", name)
        scratch.open()
        folder = scratch.fresh("WRK1")
        is_there = folder.is_dir()
        scratch.close()
        return is_there

    with ThreadPoolExecutor(8) as at_once:
        assert all(at_once.map(opened, [f"NOD{number}" for number in range(400)]))
    assert list((tmp_path / "tmp").iterdir()) == []


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(outside)
    wipe(folder)
    assert not folder.exists()
    assert (outside / "kept").exists()


def test_closed_and_deep_folders_go_too(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "closed" / "inner").mkdir(parents=True)
    (folder / "closed" / "inner" / "file").write_text("x")
    (folder / "closed").chmod(0)
    here = os.getcwd()
    try:
        os.chdir(folder)
        for _ in range(1_500):  # longer than a path may be, deeper than Python recurses
            os.mkdir("deep")
            os.chdir("deep")
    finally:
        os.chdir(here)
    wipe(folder)
    assert not folder.exists()


def test_a_folder_that_is_gone_already_is_no_trouble(tmp_path: Path) -> None:
    wipe(tmp_path / "nothing")
