"""README and guide, followed block by block in a fresh folder outside the checkout, against one live node each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from follow import GUIDE, README, Reader, blocks


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
