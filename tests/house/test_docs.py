"""The documentation holds together: its reference is current, its commands exist, its site needs no other host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import follow
from echod.cli import reference
from echofn.options import KNOWN

DOCS = follow.ROOT / "docs"


def test_the_reference_is_current() -> None:
    made = reference.documents()
    assert {path.name: path.read_text() for path in (DOCS / "reference").iterdir()} == made, (
        "run: python -m echod.cli.reference"
    )


@pytest.mark.parametrize("annotation", KNOWN)
def test_every_option_is_known_to_type_checkers_and_has_a_meaning(annotation: str) -> None:
    described = {name: meaning for name, (_, _, meaning) in reference.options_of(annotation).items()}
    assert set(described) == set(KNOWN[annotation])
    assert [name for name, meaning in described.items() if not meaning] == []


@pytest.mark.parametrize("page", [follow.README, *follow.GUIDE], ids=lambda page: page.stem)
def test_commands_and_foreign_code_of_a_page_are_real(page: Path) -> None:
    follow.check(page)


def test_a_command_that_there_is_not_is_found_out() -> None:
    follow.check_verbs("echod invoke shop.pack --data '{}' --wait | head\nechod schedules run 'a/b'\n")
    for line in ("echod invok shop.pack", "echod invoke shop.pack --dta 1", "echod schedules add f --cro x"):
        with pytest.raises(AssertionError):
            follow.check_verbs(line)


def test_the_guide_is_whole() -> None:
    assert {page.name for page in follow.GUIDE} == {page.name for page in (DOCS / "guide").iterdir()}


def test_the_tests_that_show_a_guarantee_exist() -> None:
    text = (DOCS / "guarantees.md").read_text()
    file, shown = "", set[str]()
    for path, name in re.findall(r"`(tests/[\w/]+\.py)?::(\w+)`", text):
        file = path or file
        source = (follow.ROOT / file).read_text()
        assert re.search(rf"def {name}\(", source) or f".{name} = " in source or f"{name} = " in source, (file, name)
        shown.add(name)
    assert len(shown) > 30
    assert re.findall(r"^### (\d+)\. ", text, re.M) == [str(number) for number in range(1, 16)]


def test_links_of_the_readme_lead_to_a_heading_that_exists() -> None:
    links = re.findall(r"\]\((docs/[\w/.-]+\.md)(?:#([\w-]+))?\)", follow.README.read_text())
    assert len([anchor for _, anchor in links if anchor]) > 5
    for page, anchor in links:
        headings = re.findall(r"^#+ (.+)$", (follow.ROOT / page).read_text(), re.M)
        slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert anchor in {"", *slugs}, (page, anchor)


def test_the_drawn_floors_are_those_that_are_held() -> None:
    contracts = tomllib.loads((follow.ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    drawn = re.search(r"(?:^    \S.*\n)+", (DOCS / "architecture.md").read_text(), re.M)
    assert drawn
    assert [re.split(r"  +", line.strip())[0] for line in drawn[0].splitlines()] == contracts[0]["layers"]


def test_the_site_builds_strict_and_loads_nothing_from_another_host(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=follow.ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (built.returncode, built.stdout + built.stderr) == (0, "")
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 30
    elsewhere = re.compile(
        r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?(?:https?:)?//|<link\b[^>]*rel=\"?(?:stylesheet|preconnect|icon)[^>]*href=\"?(?:https?:)?//"
    )
    assert [page.name for page in pages if elsewhere.search(page.read_text())] == []
    styles = [path.name for path in tmp_path.rglob("*.css") if re.search(r"url\(\"?(?:https?:)?//", path.read_text())]
    assert styles == []
