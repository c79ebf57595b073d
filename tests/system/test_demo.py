"""The recorded demonstration: what it shows happens, and docs/demo.cast is such a recording."""

from __future__ import annotations

import json
import re
from pathlib import Path

import demo

CAST = Path(__file__).resolve().parents[2] / "docs/demo.cast"
SHOWN = (
    r'"hello".*report\.py: serving DEP\w+ after \d+ ms.*"good morning"',
    r"echod clock next.*due: report\.monday.*the report of Monday",
    r"kill -9 .*1 +retry +signal:KILL.*2 +done",
)
OF_A_MACHINE = re.compile(r"/(?:tmp|root|work|usr|home|var)/|127\.0\.0\.1:(?!8321)\d")


def said(cast: str) -> str:
    """All that a cast shows, without colours."""
    head, *events = map(json.loads, cast.splitlines())
    assert (head["version"], head["width"]) == (2, demo.WIDTH)
    assert all(kind == "o" for _, kind, _ in events)
    assert [at for at, _, _ in events] == sorted(at for at, _, _ in events)
    return re.sub(r"\x1b\[[\d;]*m", "", "".join(text for _, _, text in events))


def typed(cast: str) -> list[str]:
    """What was typed into it: all that came letter by letter."""
    pieces = [json.loads(line)[2] for line in cast.splitlines()[1:]]
    lines = "".join(piece if len(piece) == 1 else "\n" for piece in pieces)
    return re.sub(r"JOB\w{11}", "JOB", re.sub(r"\n+", "\n", lines)).split("\n")


def lines(shown: str) -> set[str]:
    """All that it shows, without what is another's each time (ids, instants, pids, durations, who spoke first), each
    machine's (its walls), or may come in between (warnings).
    """
    shown = re.sub(r"(JOB|WRK|DEP)\w{11}", r"\1", shown.replace(demo.PROMPT, "\n").replace("\r", ""))
    shown = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+Z|Z| UTC)", "INSTANT", shown)
    shown = re.sub(r"^\[1\] \d+$|\d+ ms|(?<=Monday, )\d+ \w+", "N", shown, flags=re.M)
    told = {re.sub(r" +", " ", line).strip() for line in shown.splitlines()}
    return {line for line in told if not line.startswith(("INSTANT warning", "sandbox "))}


def test_the_demonstration_comes_out_and_the_recording_is_one_of_it(tmp_path: Path) -> None:
    fresh, kept = demo.cast(demo.play(tmp_path)), CAST.read_text()
    assert typed(kept) == typed(fresh), "run: make demo"
    assert lines(said(kept)) == lines(said(fresh)), "run: make demo"
    for text in (said(fresh), said(kept)):
        for shown in SHOWN:
            assert re.search(shown, text, re.S), shown
        assert OF_A_MACHINE.search(text) is None
