"""Verbs about schedules: list, register, remove, run, backfill, pause, resume.

A name with a slash is one schedule, without one a whole function.
"""

from __future__ import annotations

from typing import Any

import click
import msgspec

from echod.cli.bulk import some
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
                _rule(each),
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


def _rule(row: dict[str, Any]) -> str:
    """A rule, and what is said of it beside."""
    overlap = "" if row["overlap"] == "allow" else f" overlap {row['overlap']}"
    jitter = f" jitter {row['jitter']}" if row["jitter"] else ""
    return f"{row['rule']}{overlap}{jitter}"


@schedules.command()
@click.argument("function")
@click.option("--cron", metavar="RULE", help='When: five or six cron fields, as "0 6 * * mon".')
@click.option("--tz", metavar="ZONE", help="The rule's zone, as Europe/Berlin.  [default: UTC]")
@click.option("--every", metavar="DURATION", help="Or a period, as 20s, counted from the epoch.")
@click.option("--anchor", metavar="INSTANT", help="Or from this instant (RFC 3339).")
@click.option("--name", help="What it is called.  [default: its rule and zone]")
@click.option("--data", default="null", metavar="JSON", help="What its jobs carry: JSON, @FILE, or - for stdin.")
@click.option("--missed", type=click.Choice(["skip", "last", "all"]), default="last", show_default=True)
@click.option("--cap", type=click.IntRange(1, 10_000), help="With --missed all.  [default: 100]")
@click.option(
    "--overlap",
    type=click.Choice(["allow", "skip", "queue", "replace"]),
    default="allow",
    show_default=True,
    help="What becomes of an instant at which an earlier job of it has not ended.",
)
@click.option("--jitter", metavar="DURATION", help="Its jobs start up to so much after their instants.")
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
    cap: int | None,
    overlap: str,
    jitter: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Register a schedule of FUNCTION, or change the one of this name. It is of nobody's code, and survives deploys.

    Prints its id, by which `echod schedules remove`, `echod pause` and `echod resume` know it.
    """
    from echod.cli.invoke import payload_of

    given = {"cron": cron, "tz": tz, "every": every, "anchor": anchor, "name": name, "cap": cap, "jitter": jitter}
    wanted = {name: value for name, value in given.items() if value is not None}
    body = {
        "function": function,
        **wanted,
        "payload": msgspec.Raw(payload_of(data)),
        "missed": missed,
        "overlap": overlap,
    }
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


@schedules.command()
@click.argument("schedule", metavar="SCHEDULE")
@click.option("--from", "from_", required=True, metavar="INSTANT", help="The first instant that counts (RFC 3339).")
@click.option("--to", metavar="INSTANT", help="The last.  [default: now]")
@click.option("--limit", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="Refused if it is more.")
@click.option("--plan", is_flag=True, help="Say how many instants those are, and make nothing.")
@asks
def backfill(schedule: str, from_: str, to: str | None, limit: int, plan: bool, url: str | None, as_json: bool) -> None:
    """Make a job of a schedule for each past instant of a window; its next due instant stays.

    An instant that was backfilled before is left alone for as long as that job is kept.
    """
    body = {"from": from_, "to": to, "limit": limit, "plan": plan}
    did = Client(url).send("POST", f"/schedules/{part(schedule)}/backfill", body)
    if as_json:
        print_json(did)
        return
    span = f" from {did['first']} to {did['last']}" if did["instants"] else ""
    made = "" if plan else f"; {did['minted']} minted, {did['already']} backfilled before"
    click.echo(f"{schedule}: {did['instants']} instants{span}{made}")


_of_lane = click.option("--lane", callback=some, help="Of the function only this lane; `-` is the one without a name.")


@click.command()
@click.argument("name", metavar="FUNCTION|SCHEDULE")
@_of_lane
@asks
def pause(name: str, lane: str | None, url: str | None, as_json: bool) -> None:
    """Pause a function or one lane of it (jobs wait), or one schedule (its instants are skipped, and counted)."""
    _switch(name, "pause", lane, url, as_json)


@click.command()
@click.argument("name", metavar="FUNCTION|SCHEDULE")
@_of_lane
@asks
def resume(name: str, lane: str | None, url: str | None, as_json: bool) -> None:
    """Resume what was paused: a lane is resumed by its name, and not with its function."""
    _switch(name, "resume", lane, url, as_json)


def _switch(name: str, action: str, lane: str | None, url: str | None, as_json: bool) -> None:
    kind = "schedules" if "/" in name else "functions"
    if lane is not None and kind == "schedules":
        raise click.UsageError(f"expected a function with --lane, got the schedule {name}")
    answer = Client(url).post(f"/{kind}/{part(name)}/{action}", lane=lane)
    print_json(answer) if as_json else click.echo(f"{name}{'' if lane is None else f' lane {lane}'} {action}d")
