"""Verbs about a project and its settings: init, config, bus."""

from __future__ import annotations

import asyncio
import os
import shlex
from pathlib import Path

import click

from echod.cli.options import json_option, print_facts, print_json
from echod.cli.settings import settings
from echod.config import Config
from echod.errors import Refused

TEMPLATE = {
    "functions/hello.py": '''"""A first function, called over HTTP, by `echod invoke`, or from its page."""

from dataclasses import dataclass

from echofn import Context, queue


@dataclass
class Person:
    name: str = "world"


@queue(retries=3, timeout="10s", payload=Person())
def greet(payload: Person, ctx: Context) -> dict[str, str | int]:
    """Say hello to somebody."""
    ctx.log.info("greeting %s", payload.name)
    return {"hello": payload.name, "attempt": ctx.attempt}
''',
    "functions/pulse.py": '''"""A first schedule: a fresh job every 20 seconds. `@cron("0 6 * * mon")` works alike."""

from echofn import every


@every("20s")
def beat() -> str:
    """Show that the clock ticks."""
    return "alive"
''',
    "tests/test_hello.py": '''"""Functions are plain functions; a bus of its own runs what is due as time passes."""

from echofn.testing import Bus, bus, fake_context
from functions import hello, pulse

__all__ = ["bus"]  # a pytest fixture: importing it is all there is to do


def test_greet_says_hello() -> None:
    ctx = fake_context()
    assert hello.greet(hello.Person("Ada"), ctx) == {"hello": "Ada", "attempt": 1}
    assert ctx.lines == ["greeting Ada"]


def test_the_pulse_beats_three_times_a_minute(bus: Bus) -> None:
    bus.load(pulse)
    bus.advance("1m")
    bus.run_due()
    assert [job.result for job in bus.jobs(pulse.beat)] == ["alive", "alive", "alive"]
''',
    "pyproject.toml": """[tool.pytest.ini_options]
pythonpath = ["."]
testpaths = ["tests"]
""",
    "README.md": """# {name}

`echod dev` serves the functions in `functions/` and runs new code on save.
`echod invoke hello.greet --data '{{"name": "Ada"}}' --wait` calls one.
`pytest` runs the tests in `tests/`.
""",
    ".gitignore": """.echod/
.env
__pycache__/
""",
}


@click.command()
@click.argument("folder")
@json_option
def init(folder: str, as_json: bool) -> None:
    """Write a small project to start from: two functions, a test, a README."""
    if not folder:
        raise Refused("FOLDER: expected a folder's name, or . for this one, got none")
    _init(Path(folder), as_json=as_json)


def _init(folder: Path, *, as_json: bool) -> None:
    taken = [path for path in TEMPLATE if (folder / path).exists()]
    if taken:
        raise Refused(
            f"{folder}: expected none of the template's files there, got {', '.join(taken)}; name another folder"
        )
    try:
        for path, text in TEMPLATE.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text.format(name=folder.absolute().name) if path == "README.md" else text)
    except OSError as error:
        raise Refused(f"{folder}: {error.strerror or error}") from None
    if as_json:
        print_json({"folder": str(folder.absolute()), "files": list(TEMPLATE)})
        return
    for path in TEMPLATE:
        click.echo(f"  {folder / path}")
    here = folder.absolute() == Path.cwd()
    click.echo(("" if here else f"cd {shlex.quote(str(folder))} && ") + "echod dev")


@click.command()
@settings
@json_option
def config(config: Config, as_json: bool) -> None:
    """Print the settings in use: defaults, ECHOD_… variables, flags. Secrets are masked."""
    if as_json:
        print_json(config.masked())
    else:
        print_facts(config.masked().items())


@click.command()
@settings
@json_option
def bus(config: Config, as_json: bool) -> None:
    """Print the address of the bus in use; with --json also what the server says of itself."""
    address = config.bus or f"unix://{config.state.absolute() / 'valkey.sock'}"
    shown = str(Config(bus=address).masked()["bus"])
    if not as_json:
        click.echo(shown if os.isatty(1) else address)
        return
    print_json({"address": shown, **asyncio.run(_server(address, config.app))})


async def _server(address: str, app: str) -> dict[str, object]:
    from echod.bus import Bus

    bus = await Bus.open(address, app=app)
    try:
        return await bus.server()
    finally:
        await bus.close()
