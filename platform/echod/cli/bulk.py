"""Verbs about many jobs at once: drain, move, redrive, purge, and the morgue's list.

The server does a bounded part of it a call; these go on at its cursor and add up.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TypeVar

import click

from echod.cli.client import Client, Json, members_of, part
from echod.cli.options import asks, print_json, print_table
from echod.errors import Refused

F = TypeVar("F", bound=Callable[..., object])
FILTERS = ("function", "lane", "cause", "match", "older", "newer")
REFUSED = 2  # exit code where some of the jobs were


def some(_context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """What a filter is given. Empty it would be none, and all be meant: as of a shell's variable that is not set."""
    if value == "":
        raise click.BadParameter(f"expected some text, got none; leave {parameter.opts[0]} out if all are meant")
    return value


_lane = click.option("--lane", callback=some, help="Only of this lane; `-` is the one without a name.")
_function = click.option("--function", metavar="NAME", callback=some, help="Only dead jobs of this function.")
_scheduled = click.option("--scheduled", is_flag=True, help="What waits for an instant, too.")
_dry_run = click.option("--dry-run", is_flag=True, help="Count, and change nothing.")
_yes = click.option("--yes", is_flag=True, help="Do not ask.")


def _filtered(command: F) -> F:
    """By lane, error and age."""
    for option in (
        click.option("--newer", metavar="DURATION", callback=some, help="Only what ended at most so long ago, as 30m."),
        click.option("--older", metavar="DURATION", callback=some, help="Only what ended at least so long ago, as 1h."),
        click.option(
            "--match",
            metavar="TEXT",
            callback=some,
            help="Only with this in the error: its type, message or traceback.",
        ),
        click.option(
            "--cause",
            metavar="CAUSE",
            callback=some,
            help="Only of this cause, as timeout, memory, or wall for wall:…",
        ),
        _lane,
    ):
        command = option(command)
    return command


@click.command()
@click.argument("name", metavar="NAME")
@_lane
@_scheduled
@_dry_run
@_yes
@asks
def drain(
    name: str, lane: str | None, scheduled: bool, dry_run: bool, yes: bool, url: str | None, as_json: bool
) -> None:
    """Cancel what waits in function NAME, or in one lane of it. What runs, runs on; what comes later stays.

    Works on functions that are gone, too: the way to get rid of their orphaned jobs.
    """
    query = {"lane": lane, "scheduled": _flag(scheduled)}
    client, path = Client(url), f"/functions/{part(name)}/drain"
    if not dry_run and not yes:
        _ask(client, path, query, f"Cancel {{}} that wait in {name}{f', lane {lane}' if lane else ''}?")
    _print(_swept(client, path, {**query, "dry_run": _flag(dry_run)}), "cancelled", as_json, dry_run)


@click.command()
@click.argument("names", metavar="NAME|JOB…", nargs=-1, required=True)
@click.option("--to", required=True, metavar="LANE", help="The lane to move to; `-` is the one without a name.")
@click.option("--lane", help="With NAME: the lane to move from.")
@_scheduled
@_dry_run
@asks
def move(
    names: tuple[str, ...],
    to: str,
    lane: str | None,
    scheduled: bool,
    dry_run: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Move jobs that wait to another lane of their function: a lane of NAME as a whole, or single jobs."""
    client = Client(url)
    if lane is None:
        if scheduled or dry_run:
            raise click.UsageError("--scheduled and --dry-run go with NAME and --lane; single jobs are named")
        moved = [client.call("POST", f"/jobs/{part(job)}/move?to={part(to)}").body for job in names]
        if as_json:
            print_json(moved if len(moved) > 1 else moved[0])
            return
        for job in names:
            click.echo(f"{job} moved to {to}")
        return
    name = names[0]
    if names != (name,):
        raise click.UsageError(f"expected one NAME with --lane, got {len(names)}")
    query = {"lane": lane, "to": to, "scheduled": _flag(scheduled), "dry_run": _flag(dry_run)}
    _print(_swept(client, f"/functions/{part(name)}/move", query), "moved", as_json, dry_run)


@click.command()
@click.argument("job_ids", metavar="[JOB…]", nargs=-1)
@_function
@_filtered
@click.option(
    "--rate", metavar="RATE", callback=some, help="So many at a time, as 10/s: they are due one after the other."
)
@click.option("--all", "everything", is_flag=True, help="All dead jobs of all functions.")
@_dry_run
@asks
def redrive(
    job_ids: tuple[str, ...],
    rate: str | None,
    everything: bool,
    dry_run: bool,
    url: str | None,
    as_json: bool,
    **wanted: str | None,
) -> int:
    """Run dead jobs again: same id and history, no failures charged, on the active version.

    Named jobs, or all that a filter means. A job whose unique key another job has by now is refused: exit code 2.
    """
    filters = {name: text for name, text in wanted.items() if text is not None}
    client = Client(url)
    if job_ids:
        if filters or rate or everything or dry_run:
            raise click.UsageError("expected jobs, or a filter, not both")
        answers = [client.post(f"/jobs/{part(job)}/redrive") for job in job_ids]
        if as_json:
            print_json(answers if len(answers) > 1 else answers[0])
        else:
            for job, answer in zip(job_ids, answers, strict=True):
                click.echo(f"{job} {members_of(answer).get('state', 'redriven')}")
        return 0
    if not filters and not everything:
        raise click.UsageError(f"expected jobs, a filter ({', '.join(f'--{name}' for name in FILTERS)}), or --all")
    query = {**filters, "rate": rate, "dry_run": _flag(dry_run)}
    total = _swept(client, "/morgue/redrive", query)
    _print(total, "redriven", as_json, dry_run)
    for one in total["refused"] if not as_json else ():
        click.echo(f"{one['id']} stays dead: {one['owner']} has its unique key by now", err=True)
    return REFUSED if total["refused"] else 0


@click.command()
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--state", required=True, type=click.Choice(["dead", "done", "cancelled"]), help="What to delete.")
@_filtered
@_dry_run
@_yes
@asks
def purge(
    name: str | None, state: str, dry_run: bool, yes: bool, url: str | None, as_json: bool, **wanted: str | None
) -> None:
    """Delete ended jobs of function NAME with their logs; without NAME the dead of all functions."""
    if name is None and state != "dead":
        raise click.UsageError(f"expected NAME with --state {state}; without it only the dead of all functions go")
    client, query = Client(url), dict[str, object](wanted)
    path = f"/functions/{part(name)}/purge" if name is not None else "/morgue/purge"
    if name is not None:
        query["state"] = state
    if not dry_run and not yes:
        _ask(client, path, query, f"Delete {{}} that are {state}{f' in {name}' if name else ''}, and their logs?")
    _print(_swept(client, path, {**query, "dry_run": _flag(dry_run)}), "purged", as_json, dry_run)


@click.command()
@click.option("--function", metavar="NAME", help="Only jobs of this function.")
@_filtered
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 200))
@click.option("--cursor", help="Go on where the last list ended.")
@asks
def morgue(limit: int, cursor: str | None, url: str | None, as_json: bool, **wanted: str | None) -> None:
    """List the jobs that failed for good, newest first, with why.

    The same filter as `redrive` and `purge` take, to see what it means before.
    """
    page = Client(url).get("/morgue", **wanted, limit=limit, cursor=cursor)
    if as_json:
        print_json(page)
        return
    print_table(
        ("JOB", "FUNCTION", "ENDED", "CAUSE", "ERROR"),
        [(job["id"], job["function"], job["ended"], *_why(members_of(job["error"]))) for job in page["jobs"]],
        "no dead jobs",
    )
    if page.get("cursor"):
        click.echo(f"more: --cursor {page['cursor']}", err=True)


def _why(error: dict[str, Json]) -> tuple[str, str]:
    message = str(error.get("message", "")).partition("\n")[0]
    return str(error.get("cause", "")), f"{error.get('type', '')}: {message[:100]}" if error else ""


def _flag(value: bool) -> str | None:
    return "1" if value else None


def _swept(client: Client, path: str, query: Mapping[str, object]) -> dict[str, Json]:
    """All parts of it, added up: numbers as sums, lists as one."""
    total = members_of(client.call("POST", _with(path, query)).body)
    while cursor := total.pop("cursor", None):
        more = members_of(client.call("POST", _with(path, {**query, "cursor": cursor})).body)
        for name, value in more.items():
            total[name] = total[name] + value if isinstance(value, int | list) else value
    return total


def _with(path: str, query: Mapping[str, object]) -> str:
    from urllib.parse import urlencode

    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _ask(client: Client, path: str, query: Mapping[str, object], question: str) -> None:
    """Ask on a terminal; elsewhere refuse."""
    meant = _jobs(int(_swept(client, path, {**query, "dry_run": "1"})["matched"]))
    if not sys.stdin.isatty():
        raise Refused(f"expected --yes where nobody can be asked: {question.format(meant)}")
    click.confirm(question.format(meant), abort=True, err=True)


def _print(total: dict[str, Json], verb: str, as_json: bool, dry_run: bool) -> None:
    if as_json:
        print_json(total)
    elif dry_run:
        click.echo(f"{_jobs(total['matched'])} would be {verb}")
    else:
        click.echo(f"{_jobs(total[verb])} {verb}")


def _jobs(count: int) -> str:
    return f"{count:,} job{'' if count == 1 else 's'}"
