"""`echod functions`: what is served, or what a folder holds."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import click

from echod.cli.client import Client, Json
from echod.cli.options import asks, print_json, print_table


@click.command()
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.option("--env", default="dev", show_default=True, help="With FOLDER: dev or prod.")
@asks
def functions(folder: Path | None, env: str, url: str | None, as_json: bool) -> int:
    """List the functions being served. With FOLDER those found in it, confined and without a bus.

    Exits 1 when something in it cannot be loaded.
    """
    found: Json = Client(url).get("/functions") if folder is None else asyncio.run(_discovered(folder, env))
    if as_json:
        print_json(found)
    else:
        _print(found, served=folder is None)
    return 1 if folder is not None and found["errors"] else 0


def _print(found: Json, *, served: bool) -> None:
    counts = ("PENDING", "ACTIVE", "SCHEDULED", "DEAD") if served else ()
    print_table(
        ("FUNCTION", "TRIGGERS", *counts),
        [
            (each["name"], ", ".join(map(_trigger, each["triggers"])), *(each[count.lower()] for count in counts))
            for each in found["functions"]
        ],
        "no functions",
    )
    for off in found.get("off", ()):
        click.echo(
            f"{off['file']}:{off['line']}: off here: @{off['kind']} of {off['function']} ({off['why']})", err=True
        )
    for error in found["errors"]:
        spots = [str(error[name]) for name in ("file", "line", "column") if error.get(name)]
        click.echo(f"{':'.join(spots) or error['module']}: {error['message']}", err=True)


def _trigger(trigger: Json) -> str:
    if "path" in trigger:
        return f"webhook {trigger['path']}"
    if "rule" not in trigger:
        return str(trigger["kind"])
    zone = trigger.get("tz", "UTC")
    return str(trigger["rule"]) + ("" if zone == "UTC" else f" {zone}")


async def _discovered(folder: Path, env: str) -> Json:
    """The folder as GET /functions would show it, found by confined processes."""
    from echod.bus.answers import QueueStats
    from echod.deploy.checks import checked
    from echod.deploy.discovery import Discovery
    from echod.deploy.snapshot import served_folder, taken
    from echod.gateway.views import function_view, load_error_view, off_view
    from echod.registry import folders
    from echofn.walls import trial

    snapshot = taken(served_folder(folder))
    with tempfile.TemporaryDirectory(prefix="echod-") as place:
        root = folders.write(Path(place), snapshot.version, snapshot.archive)
        manifest = checked(await Discovery(trial.available(place).level, env).describe(root, snapshot))
    nothing = QueueStats(pending=0, active=0, scheduled=0, dead=0, done=0, paused=False)
    return {
        "functions": [function_view(function, snapshot.version, nothing) for function in manifest.functions],
        "errors": [load_error_view(error) for error in manifest.errors],
        "off": [off_view(off) for off in manifest.off],
    }
