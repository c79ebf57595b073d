"""`echod functions FOLDER`: what a folder holds, for an environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from echod.cli.app import run

SOURCE = """
from echofn import cron, queue
@cron("0 6 * * *", env="prod")
def nightly(): pass
@queue(payload={"n": 1})
def always(payload): pass
"""
Said = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "functions"
    folder.mkdir()
    (folder / "m.py").write_text(SOURCE)
    return folder


def test_annotations_for_another_environment_are_told_as_off(capsys: Said, folder: Path) -> None:
    assert run(["functions", str(folder)]) == 0
    said = capsys.readouterr()
    assert "m.always" in said.out
    assert "m.nightly" not in said.out
    assert said.err == "m.py:3: off here: @cron of m.nightly (env=prod)\n"


def test_env_chooses_which_annotations_count(capsys: Said, folder: Path) -> None:
    assert run(["functions", str(folder), "--env", "prod", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in found["functions"]] == ["m.always", "m.nightly"]
    assert found["functions"][0]["triggers"] == [{"kind": "queue", "payload": {"n": 1}}]
    assert found["off"] == []
