"""`echod deploy`: a folder becomes a version on a running echod, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import click

from echod.cli.client import Client
from echod.cli.options import asks, print_json


@click.command()
@click.argument("folder", required=False, default="functions", type=click.Path(path_type=Path))
@click.option("--to", metavar="URL", help="Same as --url.")
@asks
def deploy(folder: Path, to: str | None, url: str | None, as_json: bool) -> None:
    """Store FOLDER (default: functions) as a version and switch to it.

    The target imports it, confined. Anything broken in it, and nothing is changed; the error names file and line.
    """
    from echod.deploy.snapshot import served_folder, taken
    from echod.registry.archive import pieces_of

    snapshot = taken(served_folder(folder))
    client = Client(to or url)
    body = b"".join(pieces_of(snapshot.archive))
    headers = {"Content-Type": "application/octet-stream"}
    answer = client.call("POST", "/deploy", body, headers, timeout=120.0).body
    if as_json:
        print_json(answer)
        return
    click.echo(f"{answer['version']} serves {len(answer['functions'])} functions at {client.url}")
    for name in answer["functions"]:
        click.echo(f"  {name}")
