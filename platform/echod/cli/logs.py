"""`echod logs`: what a job wrote, live with -f."""

from __future__ import annotations

import click
import msgspec

from echod.cli.client import Client, Json, part
from echod.cli.options import asks, print_json


@click.command()
@click.argument("job_id", metavar="JOB")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@asks
def logs(job_id: str, follow: bool, url: str | None, as_json: bool) -> None:
    """Print what a job wrote: its prints, its logging, its errors."""
    client = Client(url)
    path = f"/jobs/{part(job_id)}/logs"
    if not follow:
        lines = client.get(path)
        if as_json:
            print_json(lines)
            return
        for line in lines:
            _print(line)
        return
    for kind, data in client.events(path):
        if kind == "log":
            click.echo(data) if as_json else _print(msgspec.json.decode(data))


def _print(line: Json) -> None:
    level = f" {line['level']}" if line.get("stream") == "log" and line.get("level") else ""
    click.echo(f"{line.get('at', '')}{level} {line['text']}")
