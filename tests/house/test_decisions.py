"""Every decision is listed, and every listed one is there."""

import re
from pathlib import Path

NOTES = Path(__file__).resolve().parents[2] / "docs/decisions"


def test_the_list_of_decisions_is_whole():
    listed = set(re.findall(r"\]\((\d{4}-[^)]+\.md)\)", (NOTES / "README.md").read_text()))
    assert listed == {path.name for path in NOTES.glob("[0-9]*.md")}
