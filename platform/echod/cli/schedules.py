"""Verbs about schedules: list, pause, resume. A name with a slash is one schedule, without one a whole function."""

from __future__ import annotations

import click

from echod.cli.client import Client, part
from echod.cli.options import asks, print_json, print_table


@click.command()
@asks
def schedules(url: str | None, as_json: bool) -> None:
    """List schedules with their next due instants."""
    found = Client(url).get("/schedules")
    if as_json:
        print_json(found)
        return
    print_table(
        ("SCHEDULE", "RULE", "ZONE", "NEXT", "LAST", "MISSED", "SKIPPED", ""),
        [
            (
                each["id"],
                each["rule"],
                each["tz"],
                each["next"],
                each["last"],
                each["missed"],
                each["skipped"],
                "paused" if each["paused"] else each["error"],
            )
            for each in found["schedules"]
        ],
        "no schedules",
    )


@click.command()
@click.argument("name", metavar="FUNCTION|SCHEDULE")
@asks
def pause(name: str, url: str | None, as_json: bool) -> None:
    """Pause a function (its jobs wait), or one schedule of it (its instants are skipped, and counted)."""
    _switch(name, "pause", url, as_json)


@click.command()
@click.argument("name", metavar="FUNCTION|SCHEDULE")
@asks
def resume(name: str, url: str | None, as_json: bool) -> None:
    """Resume what was paused."""
    _switch(name, "resume", url, as_json)


def _switch(name: str, action: str, url: str | None, as_json: bool) -> None:
    kind = "schedules" if "/" in name else "functions"
    answer = Client(url).post(f"/{kind}/{part(name)}/{action}")
    print_json(answer) if as_json else click.echo(f"{name} {action}d")
