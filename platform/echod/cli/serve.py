"""Verbs that serve: dev, start, and one role alone."""

from __future__ import annotations

import os
from pathlib import Path

import click

from echod.cli.settings import settings
from echod.config import Config
from echod.errors import Refused

ALL = frozenset({"gateway", "pump", "worker"})

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON lines: one when ready, then what happens.")
_folder = click.argument("folder", required=False, type=click.Path(path_type=Path), envvar="ECHOD_FOLDER")


@click.command()
@_folder
@settings
@_json
@click.option("--no-reload", is_flag=True, help="Do not watch the folder.")
@click.option("--clock", is_flag=True, help="A clock that `echod clock` drives; for good, on this --state.")
def dev(config: Config, folder: Path | None, as_json: bool) -> int:
    """Serve FOLDER (default: functions) with reload: embedded bus, gateway, pages, pump, workers.

    A folder that has a `functions` folder and no Python files of its own is a project: its `functions` are served.
    """
    return _serve(config, ALL, folder or Path("functions"), dev=True, as_json=as_json)


@click.command()
@_folder
@settings
@_json
@click.option("--no-reload", is_flag=True, hidden=True)
def start(config: Config, folder: Path | None, as_json: bool) -> int:
    """Serve FOLDER as it is now, or without one the active version; no reload, and callers need a token."""
    return _serve(config, ALL, folder, dev=False, as_json=as_json)


def _role(name: str, text: str) -> click.Command:
    @click.command(name=name, help=text)
    @settings
    @_json
    def verb(config: Config, as_json: bool) -> int:
        if config.bus is None:
            raise Refused(f"{name}: expected --bus URL (or ECHOD_BUS), got none; `echod bus` prints a running node's")
        return _serve(config, frozenset({name}), None, dev=False, as_json=as_json)

    return verb


gateway = _role("gateway", "Run the HTTP gateway and its pages alone, on your own bus.")
pump = _role(
    "pump", "Run a pump alone, on your own bus: due jobs, schedules, recovery of lost leases. Any number may run."
)
worker = _role("worker", "Run a worker node alone, on your own bus: it serves the active version.")


def _serve(config: Config, roles: frozenset[str], folder: Path | None, *, dev: bool, as_json: bool) -> int:
    """Run a node until it is stopped; the exit code."""
    from echod import log
    from echod.node import terminal
    from echod.node.node import serve

    chosen = os.environ.get("ECHOD_LOG", "")
    quiet = dev and not chosen and not as_json  # at a terminal the lines of `dev` itself say what happened
    level = log.WARNING if quiet else log.INFO
    log.configure(as_json=as_json or chosen == "json", level=level, to_stdout=as_json)
    terminal.configure(for_programs=as_json)
    return serve(config, roles, folder, dev=dev)
