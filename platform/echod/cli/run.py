"""`echod run`: one call in the foreground, unconfined and without a bus, so that a debugger has the terminal."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import click

from echod.errors import Refused


@click.command()
@click.argument("name")
@click.option("--data", metavar="JSON", help="The payload, a webhook's body as it is: text, @FILE, or - for stdin.")
@click.option("--header", "-H", "headers", multiple=True, metavar="'NAME: VALUE'", help="Of a webhook's request.")
@click.option("--method", help="Of a webhook's request.  [default: POST]")
@click.option(
    "--path", help="Of a webhook's request, as /hooks/acme?a=1 for /hooks/{tenant}.  [default: the webhook's]"
)
@click.option("--query", metavar="A=1&B=2", help="Of a webhook's request.")
@click.option("--folder", default="functions", show_default=True, type=click.Path(path_type=Path))
@click.option("--env", default="dev", show_default=True, help="What ctx.env says.")
@click.option("--json", "_as_json", is_flag=True, help="As always here: the result is JSON.")
def run(
    name: str,
    data: str | None,
    headers: tuple[str, ...],
    method: str | None,
    path: str | None,
    query: str | None,
    folder: Path,
    env: str,
    _as_json: bool,
) -> None:
    """Run one call in the foreground, without a bus, for a debugger. The result goes to stdout as JSON.

    The function is imported from FOLDER as it lies there, with no walls around it: `breakpoint()` works. It gets what
    it would get over HTTP, lane and all; that of a webhook a request, as if it had been verified.
    """
    import msgspec

    from echod.cli.given import Call
    from echod.cli.invoke import data_of
    from echod.deploy.snapshot import package_of, served_folder
    from echod.node.dotenv import loaded

    pairs = [_header(text) for text in headers]
    call = Call(name, env, None if data is None else data_of(data), pairs, method, path, query)
    served = served_folder(folder)
    if data == "-" and not sys.stdin.isatty() and os.path.exists("/dev/tty"):
        with open("/dev/tty") as terminal:  # the payload has used stdin up; the debugger wants the keyboard
            os.dup2(terminal.fileno(), 0)
    with tempfile.TemporaryFile(buffering=0) as file:  # an argument has no NULs and at most 128 kB
        file.write(msgspec.msgpack.encode(call))
        file.seek(0)
        os.set_inheritable(file.fileno(), True)
        # -P: no current directory on the path. This process is replaced: terminal and signals are the handler's.
        command = [sys.executable, "-P", "-m", "echod.cli.foreground", str(served), package_of(served)]
        sys.stdout.flush()
        variables = loaded(served, os.environ) if env == "dev" else os.environ  # as `echod dev` has them
        os.execve(sys.executable, [*command, str(file.fileno())], variables)


def _header(text: str) -> tuple[bytes, bytes]:
    name, colon, value = text.encode(errors="surrogateescape").partition(b":")
    if not (colon and name.strip()):
        raise Refused(f"--header: expected 'Name: value', got {text[:60]!r}")
    return name.strip().lower(), value.strip()
