""".env: read as shells write it, and never over the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from echod.node.dotenv import loaded, parsed


def test_the_usual_spellings_are_read() -> None:
    text = "# notes\nTOKEN=abc\nexport NAME = 'a b' \nQUOTED=\"x # y\"\nBARE=x # y\nEMPTY=\n\nnonsense\n1=2\nURL=a=b\n"
    assert parsed(text) == {"TOKEN": "abc", "NAME": "a b", "QUOTED": "x # y", "BARE": "x", "EMPTY": "", "URL": "a=b"}


def test_the_environment_wins_then_the_folder_then_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "functions"
    folder.mkdir()
    (folder / ".env").write_text("A=folder\nB=folder\n")
    (tmp_path / ".env").write_text("A=parent\nB=parent\nC=parent\n")
    monkeypatch.chdir("/")
    assert loaded(folder, {"A": "environment"}) == {"A": "environment", "B": "folder", "C": "parent"}
