"""README and guide, followed block by block, with the installed wheel in a fresh folder outside the checkout."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from echod.errors import Refused
from follow import GUIDE, README, Block, Reader, blocks, run_theirs


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    reader.close()


def test_the_readme_does_what_it_says(reader: Reader) -> None:
    reader.follow(blocks(README))


def test_the_guide_does_what_it_says(reader: Reader) -> None:
    for page in GUIDE:
        reader.follow(blocks(page))


THEIRS = [block for page in (README, *GUIDE) for block in blocks(page) if block.title and block.language != "sh"]


@pytest.mark.parametrize("block", THEIRS, ids=[block.title for block in THEIRS])
def test_what_others_have_in_its_place_runs(block: Block, tmp_path: Path) -> None:
    run_theirs(block, tmp_path)


def test_what_others_have_is_found_out_where_it_does_not_run(tmp_path: Path) -> None:
    for language, text in (
        ("python", "import celery.nowhere\n"),
        ("ts", "const a: = 1;\n"),
        ("text", "61 6 * * 1 ls\n"),
    ):
        with pytest.raises((AssertionError, Refused)):
            run_theirs(Block("page.md", 1, language, "x", text), tmp_path)


def test_a_page_that_does_not_do_what_it_says_is_found_out(reader: Reader, tmp_path: Path) -> None:
    def told(text: str) -> str:
        page = tmp_path / "page.md"
        page.write_text(text)
        with pytest.raises(AssertionError) as error:
            reader.follow(blocks(page))
        return str(error.value)

    good = "```python\n# functions/a.py\nfrom echofn import queue\n@queue\ndef f(): ...\n```\n"
    assert "exit code 2" in told(f"{good}```sh\nechod dev\n```\n```sh\nechod invoke a.g --wait\n```\n")
    assert re.match(r"page.md:5: expected\n2\n.*got\n1\n", told("A\n```sh\necho 1\n```\n```text\n2\n```\n"), re.S)
    assert "expected a first line" in told("```toml\nretries = 1\n```\n")
    slip = good.replace("a.py", "b.py").replace("@queue", "@queue(retry=1)")
    assert "did you mean 'retries'" in told(slip)
