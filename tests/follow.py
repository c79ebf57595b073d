"""Follow pages of the documentation block by block, as a reader does: `python tests/follow.py README.md …`.

Fenced blocks are what a page asks its reader to do. They are done in their order, in one fresh folder outside the
checkout and against one live node:

- `python`, `toml`, … with a first line `# functions/shop.py`: saved as that file. If a node serves it, it must load.
- `sh`: run by bash, in the folder where the block before has left off; it must succeed. `echod dev …` in its last
  line starts the node, or starts it anew.
- `text` after `sh`: what was printed. `…` stands for anything; alone in a line, for any lines. As a reader would, a
  block that only looks (`echod jobs …`) is done again while it does not show yet what it will.
- any block with a title (`title="Celery"`): of somebody else, or for other machines. It is not run: Python must parse,
  and the verbs and options of `echod` in it must exist, as must those in a page's `inline code`.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import click

from echod.cli import serve
from echod.cli.app import group
from echod.deploy.snapshot import served_folder
from nodes import Node, environment, until

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
GUIDE = [ROOT / "docs" / page for page in re.findall(r"guide/[\w-]+\.md", (ROOT / "mkdocs.yml").read_text())]
FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.M | re.S)
NAMED = re.compile(r"# ([\w./-]+\.\w+)\n")
LOOKS = re.compile(r"(?:echod (?:functions|job|jobs|logs|schedules)(?: (?!add|remove|run|-f).*)?\n)+")
PORT = "8321"  # in the pages; the node that is followed listens elsewhere
WITHIN_S = 60


class Block(NamedTuple):
    """A fenced block; `title` is empty for one that is to be done."""

    page: str
    line: int
    language: str
    title: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    """Every fenced block of a page, in order."""
    text = page.read_text()
    for found in FENCE.finditer(text):
        yield Block(page.name, text.count("\n", 0, found.start()) + 1, found[1], found[2] or "", found[3])


def fits(expected: str, printed: str) -> bool:
    """Whether a program printed what a page says it prints."""
    lines = (
        r"(?:.*\n)*?" if line.strip() == "…" else ".*?".join(map(re.escape, line.rstrip().split("…"))) + r"[ \t]*\n"
        for line in expected.strip().splitlines()
    )
    return re.fullmatch("".join(lines), printed.strip() + "\n") is not None


def check_verbs(text: str) -> None:
    """Raises AssertionError for a verb or an option in a command line of echod that there is not."""
    for line in text.replace("\\\n", " ").splitlines():
        if not (found := re.match(r"\s*echod +([a-z][^|;&<>]*)", line)):
            continue
        words = shlex.split(found[1], comments=True)
        command: click.Command = group
        context = click.Context(group, info_name="echod")
        while isinstance(command, click.Group) and words and re.fullmatch("[a-z-]+", words[0]):
            inner = command.get_command(context, words.pop(0))
            assert inner, f"no such verb: {line.strip()}"
            command, context = inner, click.Context(inner, parent=context)
        try:
            command.make_parser(context).parse_args(words)
        except click.UsageError as error:
            raise AssertionError(f"{error.format_message()}: {line.strip()}") from None


def check(page: Path) -> None:
    """What can be said of a page without a node: titled blocks, and commands in its text."""
    for block in blocks(page):
        if block.title and block.language == "python":
            ast.parse(block.text)
        if block.language == "sh":
            check_verbs(block.text)
    for code in re.findall(r"`(echod [^`\n]+)`", FENCE.sub("", page.read_text())):
        check_verbs(code)


class Reader:
    """Somebody with a shell and an empty folder."""

    def __init__(self, place: Path) -> None:
        self.folder = place / "work"
        self.folder.mkdir()
        self.node = Node(place / "node")
        self._place = place
        self._done = self._printed = ""

    def follow(self, found: Iterable[Block]) -> None:
        """Do all that is to be done. Raises AssertionError where something comes out otherwise than its page says."""
        for block in found:
            try:
                self._do(block)
            except AssertionError as error:
                raise AssertionError(
                    f"{block.page}:{block.line}: {error}\n\nThe node said at last:\n{self._told()[-1500:]}"
                ) from None

    def close(self) -> None:
        self.node.close()

    def _do(self, block: Block) -> None:
        text = block.text.replace(PORT, str(self.node.port))
        if block.title:
            return
        if block.language == "sh":
            self._done = text
            self._run(text)
        elif block.language == "text":
            self._compare(text)
        else:
            named = NAMED.match(text)
            assert named, f"expected a first line like `# functions/shop.py`, or a title, in ```{block.language}"
            self._save(self.folder / named[1], text)

    def _compare(self, text: str) -> None:
        end = time.monotonic() + (WITHIN_S if LOOKS.fullmatch(self._done) else 0)
        while not fits(text, self._printed):
            assert time.monotonic() < end, f"expected\n{text}\ngot\n{self._printed}"
            self._run(self._done)

    def _save(self, file: Path, text: str) -> None:
        if file.exists() and file.read_text() == text:
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        seen = len(self._told())
        file.write_text(text)
        if self.node.process and file.is_relative_to(self.node.folder):
            news = re.compile(rf"^.*{re.escape(file.name)}.*: .*(?:serving|served,).*$", re.M)
            until(lambda: news.search(self._told(), seen), WITHIN_S)
            assert not self.node.errors(), f"{file.name} does not load: {self.node.errors()}"

    def _run(self, text: str) -> None:
        *before, last = text.strip().splitlines()
        serves = shlex.split(last, comments=True)[:2] == ["echod", "dev"]
        left_off = self._place / "pwd"
        script = ("\n".join(before) if serves else text) + f"\npwd >{shlex.quote(str(left_off))}\n"
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script], cwd=self.folder, timeout=WITHIN_S, text=True,
            env=environment(PATH=path, ECHOD_URL=self.node.url),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._printed = done.stdout
        assert done.returncode == 0, f"exit code {done.returncode}:\n{done.stdout}"
        self.folder = Path(left_off.read_text().strip())
        if serves:
            self._serve(shlex.split(last, comments=True)[2:])

    def _serve(self, words: list[str]) -> None:
        if self.node.process:
            self.node.end()
        with serve.dev.make_context("dev", list(words)) as context:
            self.node.folder = served_folder(self.folder / (context.params["folder"] or "functions"))
        self.node.launch("dev", *words, cwd=self.folder)
        until(lambda: self.node.is_up(ready=True), WITHIN_S)
        assert not self.node.errors(), self.node.errors()

    def _told(self) -> str:
        return self.node.said() if self.node.log.exists() else ""


def main(pages: list[str]) -> None:
    with tempfile.TemporaryDirectory() as place:
        reader = Reader(Path(place))
        try:
            for page in map(Path, pages):
                check(page)
                reader.follow(blocks(page))
                print(f"{page}: as written")
        finally:
            reader.close()


if __name__ == "__main__":
    main(sys.argv[1:])
