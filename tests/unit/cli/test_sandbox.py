"""`echod sandbox`: each wall as it stands on this machine, a function's openings, and an exit code for scripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from echod.cli.app import run
from echofn.walls import trial
from echofn.walls.levels import WALLS

OPENED = """
from echofn import queue
@queue(network=[443], processes=2, memory="1GB", tmp="128MB", secrets=["STRIPE_KEY"])
def pay(): pass
@queue(network=True)
def fetch(): pass
@queue
def plain(): pass
"""
Said = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "functions"
    folder.mkdir()
    (folder / "billing.py").write_text(OPENED)
    return folder


def told(capsys: Said, *arguments: str) -> dict[str, Any]:
    assert run(["sandbox", *arguments, "--json"]) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


def states(said: dict[str, Any]) -> dict[str, str]:
    return {wall["name"]: wall["state"] for wall in said["walls"]}


def test_every_wall_is_told_once_with_its_state(capsys: Said, tmp_path: Path) -> None:
    said = told(capsys)
    found = trial.available(str(tmp_path))
    assert [wall["name"] for wall in said["walls"]] == [wall.name for wall in WALLS]
    assert said["level"] == found.level
    assert said["openings"] is None
    assert {name for name, state in states(said).items() if state == "enforced"} == set(found.walls)
    assert all(wall["why"] for wall in said["walls"] if wall["state"] != "enforced")


def test_what_a_level_does_not_have_is_off(capsys: Said) -> None:
    said = told(capsys, "--sandbox", "minimal")
    assert said["level"] == "minimal"
    assert states(said)["rlimits"] == "enforced"
    assert {states(said)[name] for name in ("files", "calls", "private-root")} == {"off"}


def test_a_functions_openings_are_told_and_its_open_walls_are_off(capsys: Said, folder: Path) -> None:
    said = told(capsys, "billing.pay", "--folder", str(folder))
    opened = {"network": [443], "processes": 2, "memory": 1 << 30, "tmp": 128 << 20, "secrets": ["STRIPE_KEY"]}
    assert said["openings"] == opened
    plain, fetch = (told(capsys, name, "--folder", str(folder)) for name in ("billing.plain", "billing.fetch"))
    assert plain["openings"]["network"] is False
    assert states(plain)["ports"] == "enforced"
    assert fetch["openings"]["network"] is True
    assert states(fetch)["ports"] == "off"
    assert next(wall["why"] for wall in fetch["walls"] if wall["name"] == "ports") == "opened: network=True"


def test_for_people_it_is_a_table_with_the_openings_below(capsys: Said, folder: Path) -> None:
    assert run(["sandbox", "billing.pay", "--folder", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("level: ")
    assert any(line.split()[:2] == ["calls", "enforced"] for line in lines)
    assert any(line.split() == ["network", "[443]"] for line in lines)


def test_a_function_that_is_not_there_is_refused_with_those_that_are(capsys: Said, folder: Path) -> None:
    assert run(["sandbox", "billing.play", "--folder", str(folder)]) == 2
    assert "there are: billing.pay, billing.fetch, billing.plain" in capsys.readouterr().err


def test_a_level_that_this_machine_cannot_give_exits_1(capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    found = trial.Available("standard", ("strict: unshare: Operation not permitted",), ("files",))
    monkeypatch.setattr(trial, "available", lambda _folder, _most: found)
    assert run(["sandbox", "--sandbox", "strict"]) == 1
    assert "not better: strict: unshare: Operation not permitted" in capsys.readouterr().out
