"""drain, move, redrive, purge, morgue: parts are added up, nothing is done unasked, refusals have their exit code."""

from __future__ import annotations

import json

import pytest

from echod.cli.app import run

from .conftest import Gateway

ONE, OTHER = "JOB00000000001", "JOB00000000002"


def drained(cancelled: int, cursor: str | None = None, matched: int | None = None) -> dict[str, object]:
    matched = cancelled if matched is None else matched
    return {"name": "shop.pack", "lane": None, "matched": matched, "cancelled": cancelled, "cursor": cursor}


def test_a_drain_goes_on_at_its_cursor_and_adds_up(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.says("POST", "/functions/shop.pack/drain?lane=B%C3%B6&scheduled=1", drained(2000, "c.1"))
    gateway.says("POST", "/functions/shop.pack/drain?lane=B%C3%B6&scheduled=1&cursor=c.1", drained(7))
    assert run(["drain", "shop.pack", "--lane", "Bö", "--scheduled", "--yes"]) == 0
    assert capsys.readouterr().out == "2,007 jobs cancelled\n"
    assert run(["drain", "shop.pack", "--lane", "Bö", "--scheduled", "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cancelled"] == 2007


@pytest.mark.parametrize(
    ("verb", "path"),
    [
        (["drain", "shop.pack"], "/functions/shop.pack/drain?"),
        (["purge", "shop.pack", "--state", "dead"], "/functions/shop.pack/purge?state=dead&"),
        (["purge", "--state", "dead"], "/morgue/purge?"),
    ],
)
def test_nothing_is_deleted_or_cancelled_where_nobody_can_be_asked(
    gateway: Gateway, capsys: pytest.CaptureFixture[str], verb: list[str], path: str
) -> None:
    """Off a terminal it says how many that would be, and exits 2."""
    gateway.says("POST", f"{path}dry_run=1", {"matched": 1204, "cancelled": 0, "purged": 0, "cursor": None})
    assert run(verb) == 2
    said = capsys.readouterr()
    assert not said.out
    assert "--yes" in said.err
    assert "1,204 jobs" in said.err
    assert [asked.path for asked in gateway.asked] == [f"{path}dry_run=1"]


def test_a_dry_run_asks_nobody(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.says("POST", "/functions/shop.pack/drain?dry_run=1", drained(0, matched=1))
    assert run(["drain", "shop.pack", "--dry-run"]) == 0
    assert capsys.readouterr().out == "1 job would be cancelled\n"


def test_a_lane_is_moved_and_so_are_single_jobs(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    moved = {"name": "shop.pack", "to": "-", "matched": 3, "moved": 3, "cursor": None}
    gateway.says("POST", "/functions/shop.pack/move?lane=a&to=-", moved)
    gateway.says("POST", f"/jobs/{ONE}/move?to=b%2Fc", {"id": ONE})
    gateway.says("POST", f"/jobs/{OTHER}/move?to=b%2Fc", {"id": OTHER})
    assert run(["move", "shop.pack", "--lane", "a", "--to", "-"]) == 0
    assert run(["move", ONE, OTHER, "--to", "b/c"]) == 0
    assert capsys.readouterr().out == f"3 jobs moved\n{ONE} moved to b/c\n{OTHER} moved to b/c\n"


def test_a_redrive_by_filter_names_what_was_refused_and_exits_2(
    gateway: Gateway, capsys: pytest.CaptureFixture[str]
) -> None:
    path = "/morgue/redrive?function=shop.pack&cause=timeout&match=no+such&older=1h&rate=10%2Fs"
    refused = [{"id": ONE, "owner": OTHER}]
    gateway.says("POST", path, {"matched": 3, "redriven": 3, "refused": [], "cursor": "c"})
    gateway.says("POST", f"{path}&cursor=c", {"matched": 2, "redriven": 1, "refused": refused, "cursor": None})
    asked = ["redrive", "--function", "shop.pack", "--cause", "timeout", "--match", "no such", "--older", "1h"]
    assert run([*asked, "--rate", "10/s"]) == 2
    said = capsys.readouterr()
    assert said.out == "4 jobs redriven\n"
    assert f"{ONE} stays dead: {OTHER} has its unique key by now" in said.err
    assert run([*asked, "--rate", "10/s", "--json"]) == 2
    assert json.loads(capsys.readouterr().out) == {
        "matched": 5,
        "redriven": 4,
        "refused": [{"id": ONE, "owner": OTHER}],
    }


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["redrive"], "a filter"),
        (["redrive", ONE, "--cause", "timeout"], "not both"),
        (["redrive", ONE, "--rate", "1/s"], "not both"),
        (["redrive", "--rate", "1/s"], "a filter"),
        (["move", "shop.pack", "other", "--lane", "a", "--to", "b"], "expected one NAME"),
        (["move", ONE, "--scheduled", "--to", "b"], "NAME and --lane"),
        (["move", ONE], "--to"),
        (["purge", "shop.pack"], "--state"),
        (["purge", "--state", "done"], "expected NAME"),
        # A shell's variable that is not set: without the filter all would be meant.
        (["drain", "shop.pack", "--yes", "--lane", ""], "leave --lane out"),
        (["purge", "shop.pack", "--state", "done", "--yes", "--lane", ""], "leave --lane out"),
        (["purge", "--state", "dead", "--yes", "--match", ""], "leave --match out"),
        (["redrive", "--function", ""], "leave --function out"),
        (["redrive", "--cause", ""], "leave --cause out"),
        (["redrive", "--older", "", "--newer", "1h"], "leave --older out"),
        (["redrive", "--all", "--rate", ""], "leave --rate out"),
    ],
)
def test_what_makes_no_sense_is_refused_before_it_is_asked(
    gateway: Gateway, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert run(arguments) == 2
    assert says in capsys.readouterr().err
    assert gateway.asked == []


def test_the_morgue_is_listed_with_its_reasons(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    error = {"type": "ValueError", "message": "no such table\nmore", "traceback": "", "cause": "error"}
    job = {"id": ONE, "function": "shop.pack", "ended": "2026-01-01T00:00:01.000Z", "error": error}
    gateway.says("GET", "/morgue?limit=20", {"jobs": [job], "cursor": None})
    assert run(["morgue"]) == 0
    assert "ValueError: no such table" in capsys.readouterr().out


def test_the_morgue_is_asked_with_the_filter_of_a_redrive(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    query = "function=shop.pack&lane=Bo&cause=wall&match=no+route&older=1h&newer=2d&limit=20"
    gateway.says("GET", f"/morgue?{query}", {"jobs": [], "cursor": ONE})
    options = [part for pair in (each.split("=") for each in query.split("&")) for part in (f"--{pair[0]}", pair[1])]
    assert run(["morgue", *(option.replace("+", " ") for option in options)]) == 0
    told = capsys.readouterr()
    assert ("no dead jobs" in told.err, f"more: --cursor {ONE}" in told.err) == (True, True)
