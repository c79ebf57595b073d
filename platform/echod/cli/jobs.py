"""Verbs about jobs: list, show, cancel."""

from __future__ import annotations

import click
import msgspec

from echod.cli.client import Client, Json, members_of, part
from echod.cli.options import asks, print_facts, print_json, print_table

STATES = ("pending", "scheduled", "active", "done", "dead", "cancelled")


@click.command()
@click.option("--function", metavar="NAME", help="Only jobs of this function.")
@click.option("--state", type=click.Choice(STATES), help="Only jobs in this state.")
@click.option("--lane", help="Only jobs of this lane.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 200))
@click.option("--cursor", help="Go on where the last list ended.")
@asks
def jobs(
    function: str | None,
    state: str | None,
    lane: str | None,
    limit: int,
    cursor: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    """List jobs, newest first."""
    client = Client(url)
    page = client.get("/jobs", function=function, state=state, lane=lane, limit=limit, cursor=cursor)
    if as_json:
        print_json(page)
        return
    print_table(
        ("JOB", "FUNCTION", "LANE", "STATE", "ATTEMPTS", "MINTED", "ENDED"),
        [
            (job["id"], job["function"], job["lane"], _state(job), job["attempts"], job["minted"], job["ended"])
            for job in page["jobs"]
        ],
        "no jobs",
    )
    if page.get("cursor"):
        click.echo(f"more: --cursor {page['cursor']}", err=True)


@click.command()
@click.argument("job_id", metavar="JOB")
@asks
def job(job_id: str, url: str | None, as_json: bool) -> None:
    """Show one job: payload, result or error, and every run of it."""
    record = Client(url).get(f"/jobs/{part(job_id)}")
    if as_json:
        print_json(record)
        return
    occurrence = members_of(record.get("occurrence"))
    print_facts(
        [
            *((name, record.get(name)) for name in ("id", "function", "lane")),
            ("state", _state(record)),
            ("attempts", f"{record['attempts']} ({record['failures']} charged)"),
            *((name, record.get(name)) for name in ("due", "minted", "started", "ended", "version", "parent")),
            ("schedule", f"{occurrence['recurrence']} due {occurrence['due']}" if occurrence else None),
            ("payload", _brief(record.get("payload"))),
            ("result", _brief(record["result"]) if record["state"] == "done" else None),
        ]
    )
    if record.get("history"):
        click.echo()
        print_table(
            ("RUN", "OUTCOME", "CAUSE", "STARTED", "ENDED", "WORKER"),
            [
                (run["attempt"], run["outcome"], run.get("cause"), run["started"], run["ended"], run["worker"])
                for run in record["history"]
            ],
            "",
        )
    if error := record.get("error"):
        click.echo(f"\n{error['type']}: {error['message']} (cause: {error['cause']})")
        click.echo(error.get("traceback") or "", nl=False)


@click.command()
@click.argument("job_ids", metavar="JOB…", nargs=-1, required=True)
@asks
def cancel(job_ids: tuple[str, ...], url: str | None, as_json: bool) -> None:
    """Cancel jobs; what runs is asked to stop."""
    client = Client(url)
    answers = [client.post(f"/jobs/{part(job_id)}/cancel") for job_id in job_ids]
    if as_json:
        print_json(answers if len(answers) > 1 else answers[0])
        return
    for job_id, answer in zip(job_ids, answers, strict=True):
        click.echo(f"{job_id} {members_of(answer).get('state', 'cancelled')}")


def _state(record: Json) -> str:
    said = ", ".join([*filter(None, [record.get("reason")]), *(["orphaned"] if record.get("orphaned") else [])])
    return str(record["state"]) + (f" ({said})" if said else "")


def _brief(value: object, limit: int = 2000) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters; all with --json)"
