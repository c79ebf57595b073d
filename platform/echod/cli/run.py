"""`echod run`: one call in the foreground, unconfined and without a bus, so that a debugger has the terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click


@click.command()
@click.argument("name")
@click.option("--data", default="null", metavar="JSON", help="The payload: JSON, @FILE, or - for stdin.")
@click.option("--folder", default="functions", show_default=True, type=click.Path(path_type=Path))
@click.option("--env", default="dev", show_default=True, help="What ctx.env says.")
@click.option("--json", "_as_json", is_flag=True, help="As always here: the result is JSON.")
def run(name: str, data: str, folder: Path, env: str, _as_json: bool) -> None:
    """Run one call in the foreground, without a bus, for a debugger. The result goes to stdout as JSON.

    The function is imported from FOLDER as it lies there, with no walls around it: `breakpoint()` works.
    """
    from echod.cli.invoke import payload_of
    from echod.deploy.snapshot import package_of, served_folder

    payload = payload_of(data)
    served = served_folder(folder)
    if data == "-" and not sys.stdin.isatty() and os.path.exists("/dev/tty"):
        with open("/dev/tty") as terminal:  # the payload has used stdin up; the debugger wants the keyboard
            os.dup2(terminal.fileno(), 0)
    # -P: no current directory on the path. This process is replaced: terminal and signals are the handler's.
    command = [sys.executable, "-P", "-m", "echod.cli.foreground", str(served), package_of(served), name, env]
    sys.stdout.flush()
    os.execv(sys.executable, [*command, payload.decode()])
