"""Verbs about schedules: list, register, remove, run, pause, resume.

A name with a slash is one schedule, without one a whole function.
"""

from __future__ import annotations

import click
import msgspec

from echod.cli.client import Client, part
from echod.cli.options import asks, print_json, print_table


@click.group(invoke_without_command=True)
@asks
@click.pass_context
def schedules(context: click.Context, url: str | None, as_json: bool) -> None:
    """List schedules with their next due instants; register, remove or run one."""
    if context.invoked_subcommand is not None:
        return
    found = Client(url).get("/schedules")
    if as_json:
        print_json(found)
        return
    print_table(
        ("SCHEDULE", "RULE", "ZONE", "NEXT", "LAST", "MISSED", "SKIPPED", "OF", ""),
        [
            (
                each["id"],
                each["rule"],
                each["tz"],
                each["next"],
                each["last"],
                each["missed"],
                each["skipped"],
                "code" if each["origin"] == "code" else "run time",
                "paused" if each["paused"] else each["error"],
            )
            for each in found["schedules"]
        ],
        "no schedules",
    )


@schedules.command()
@click.argument("function")
@click.option("--cron", metavar="RULE", help='When: five or six cron fields, as "0 6 * * mon".')
@click.option("--tz", metavar="ZONE", help="The rule's zone, as Europe/Berlin.  [default: UTC]")
@click.option("--every", metavar="DURATION", help="Or a period, as 20s, counted from the epoch.")
@click.option("--anchor", metavar="INSTANT", help="Or from this instant (RFC 3339).")
@click.option("--name", help="What it is called.  [default: its rule and zone]")
@click.option("--data", default="null", metavar="JSON", help="What its jobs carry: JSON, @FILE, or - for stdin.")
@click.option("--missed", type=click.Choice(["skip", "last", "all"]), default="last", show_default=True)
@click.option("--cap", type=click.IntRange(1, 10_000), default=100, show_default=True, help="With --missed all.")
@asks
def add(
    function: str,
    cron: str | None,
    tz: str | None,
    every: str | None,
    anchor: str | None,
    name: str | None,
    data: str,
    missed: str,
    cap: int,
    url: str | None,
    as_json: bool,
) -> None:
    """Register a schedule of FUNCTION, or change the one of this name. It is of nobody's code, and survives deploys.

    Prints its id, by which `echod schedules remove`, `echod pause` and `echod resume` know it.
    """
    from echod.cli.invoke import payload_of

    given = {"cron": cron, "tz": tz, "every": every, "anchor": anchor, "name": name}
    wanted = {name: value for name, value in given.items() if value is not None}
    body = {"function": function, **wanted, "payload": msgspec.Raw(payload_of(data)), "missed": missed, "cap": cap}
    made = Client(url).send("POST", "/schedules", body)
    print_json(made) if as_json else click.echo(f"{made['id']} next {made['next'] or 'never'}")


@schedules.command()
@click.argument("schedule", metavar="SCHEDULE")
@asks
def remove(schedule: str, url: str | None, as_json: bool) -> None:
    """Remove a schedule that was registered at run time; jobs that it made stay."""
    answer = Client(url).call("DELETE", f"/schedules/{part(schedule)}").body
    print_json(answer) if as_json else click.echo(f"{schedule} removed")


@schedules.command()
@click.argument("schedule", metavar="SCHEDULE")
@asks
def run(schedule: str, url: str | None, as_json: bool) -> None:
    """Make a job of a schedule now; its next due instant stays."""
    made = Client(url).post(f"/schedules/{part(schedule)}/run")
    print_json(made) if as_json else click.echo(made["id"])


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
