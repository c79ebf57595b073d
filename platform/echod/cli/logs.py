"""`echod logs`: what a job, or the jobs of a function, wrote; live with -f."""

from __future__ import annotations

import os
import select
import sys
import threading
import time

import click
import msgspec

from echod.cli.client import Client, Json, part
from echod.cli.options import asks, print_json
from echod.errors import Refused
from echod.model.ids import is_job_id

AGAIN_S = 0.5


@click.command()
@click.argument("name", metavar="FUNCTION|JOB")
@click.option("--since", metavar="DURATION", help="Of a function: only what is at most so old, as 1h.")
@click.option("--failed", is_flag=True, help="Of a function: only of jobs of which a run failed.")
@click.option("--grep", default="", metavar="TEXT", help="Only lines with this text in them.")
@click.option("--limit", type=click.IntRange(1, 1000), help="Of a function: how many of its newest lines (200).")
@click.option("-f", "--follow", is_flag=True, help="Go on: until the job has ended, or until interrupted.")
@asks
def logs(
    name: str,
    since: str | None,
    failed: bool,
    grep: str,
    limit: int | None,
    follow: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Print what a job wrote, or the jobs of a function: prints, logging, and errors of runs; oldest first."""
    client = Client(url)
    if not is_job_id(name):
        asked = {"since": since, "failed": "1" if failed else None, "grep": grep or None, "limit": limit}
        path = f"/functions/{part(name)}/logs"
        if follow:
            _follow(client, path, asked, "", as_json)
            return
        found = client.get(path, **asked)
        if as_json:
            print_json(found)
            return
        if found["truncated"]:
            click.echo("older lines are left out; see --limit and --since", err=True)
        _print(found["lines"], "")
        if not found["lines"]:
            click.echo(
                f"no such lines of {name}" if since or failed or grep else f"{name} has written nothing", err=True
            )
        return
    if since or failed or limit:
        raise Refused(f"expected --grep or -f with a job, got --since, --failed or --limit; {name} is one job")
    path = f"/jobs/{part(name)}/logs"
    if follow:
        _follow(client, path, {}, grep, as_json)
        return
    lines = [line for line in client.get(path) if grep in line["text"]]
    if as_json:
        print_json(lines)
        return
    _print(lines, grep)
    if not lines:
        click.echo(f"no such lines of {name}" if grep else f"{name} has written nothing", err=True)


def _follow(client: Client, path: str, asked: dict[str, Json], grep: str, as_json: bool) -> None:
    threading.Thread(target=_end_with_reader, daemon=True).start()
    last = ""
    while True:
        for kind, data, place in client.events(path, last, **asked):
            last = place
            if kind == "end":
                return
            if kind == "truncated":
                click.echo("lines are left out: more came than are told again", err=True)
            if kind == "log" and grep in (line := msgspec.json.decode(data))["text"]:
                click.echo(data) if as_json else _print([line], "")
        time.sleep(AGAIN_S)  # cut, by a node that starts anew or by what is in between


def _end_with_reader() -> None:
    """End this process when nobody reads what it prints any more: a write would tell only with the next line, which may
    never come (`echod logs NAME -f | head -1`).
    """
    try:
        watched = select.poll()
        watched.register(sys.stdout.fileno(), 0)  # that the other end is closed is told unasked
        watched.poll()
    except (OSError, ValueError):
        return  # not a stream that can be watched
    os._exit(141)


def _print(lines: list[Json], grep: str) -> None:
    for line in lines:
        if grep in line["text"]:
            level = f" {line['level'].upper()}" if line.get("stream") == "log" and line.get("level") else ""
            job = f" {line['job']}" if "job" in line else ""
            click.echo(f"{line.get('at', '')}{job}{level} {line['text']}")
