"""`echod sandbox`: which walls stand on this machine, and what a function has opened in its own."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import click

from echod.cli.options import json_option, print_json, print_table
from echod.config import LEVELS
from echod.errors import Refused


@click.command()
@click.argument("function", required=False)
@click.option("--folder", type=click.Path(path_type=Path), default=Path("functions"), help="Where FUNCTION is.")
@click.option("--env", default="dev", show_default=True, help="Whose annotations count: dev or prod.")
@click.option("--sandbox", type=click.Choice(("auto", *LEVELS)), default="auto", help="The level to look at.")
@json_option
def sandbox(function: str | None, folder: Path, env: str, sandbox: str, as_json: bool) -> int:
    """Try the walls on this machine and print each: enforced, unavailable here (why), or off; and FUNCTION's openings.

    Exits 1 when a level was asked for and this machine cannot give it.
    """
    from echofn.walls import trial

    with tempfile.TemporaryDirectory(prefix="echod-") as place:
        try:
            found = trial.available(place, "strict" if sandbox == "auto" else sandbox)
        except RuntimeError as error:
            raise Refused(str(error)) from None
        opened = asyncio.run(_opened(function, folder, env, place, found.level)) if function else None
    rows = trial.states(found, found.level)
    if opened is not None:
        rows = [_with_openings(row, opened) for row in rows]
    if as_json:
        walls = [dict(zip(("name", "does", "state", "why"), row, strict=True)) for row in rows]
        print_json({"level": found.level, "missing": found.missing, "walls": walls, "openings": opened})
    else:
        click.echo(f"level: {found.level}" + "".join(f"\n  not better: {why}" for why in found.missing))
        print_table(
            ("WALL", "STATE", "WHAT IT DOES", "WHY NOT"), [(row[0], row[2], row[1], row[3]) for row in rows], ""
        )
        for name, value in (opened or {}).items():
            click.echo(f"{name:<10} {value}")
    return 0 if sandbox in {"auto", found.level} else 1


Row = tuple[str, str, str, str]


async def _opened(name: str, folder: Path, env: str, place: str, level: str) -> dict[str, Any]:
    """What a function of a folder has opened. Raises Refused when there is none of this name."""
    from echod.deploy.discovery import Discovery
    from echod.deploy.snapshot import served_folder, taken
    from echod.registry import folders

    snapshot = taken(served_folder(folder))
    root = folders.write(Path(place), snapshot.version, snapshot.archive)
    manifest = await Discovery(level, env).describe(root, snapshot)
    found = next((each for each in manifest.functions if each.name == name), None)
    if found is None:
        known = ", ".join(each.name for each in manifest.functions) or "none"
        raise Refused(f"expected a function of {folder}, got {name!r}; there are: {known}")
    policy = found.policy
    network = policy.network if isinstance(policy.network, bool) else list(policy.network)
    sizes = {"memory": policy.memory_bytes, "tmp": policy.tmp_bytes}
    return {"network": network, "processes": policy.processes, **sizes, "secrets": list(found.secrets)}


def _with_openings(row: Row, opened: dict[str, Any]) -> Row:
    """A wall that this function has opened stands for others, not for it."""
    name, does, state, why = row
    if state == "enforced" and opened["network"] and name == "private-network":
        return name, does, "off", f"opened: network={opened['network']}"
    if state == "enforced" and opened["network"] is True and name == "ports":
        return name, does, "off", "opened: network=True"
    return name, does, state, why
