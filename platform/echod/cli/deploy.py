"""`echod deploy`, `versions`, `rollback`: a folder becomes a version on a running echod, and the way back."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import click

from echod.cli.client import Client, Json, part
from echod.cli.options import asks, print_json, print_table
from echod.errors import Refused

_PART_BYTES = 64 * 1024
_MOST_NAMES = 10
TIMEOUT_S = 600.0  # a folder of many modules is imported on the target, which may be slow

_to = click.option("--to", metavar="URL", help="Same as --url.")
_plan = click.option("--plan", is_flag=True, help="Say what would change; switch nothing.")


@click.command()
@click.argument("folder", required=False, default="functions", type=click.Path(path_type=Path))
@_to
@_plan
@asks
def deploy(folder: Path, to: str | None, plan: bool, url: str | None, as_json: bool) -> None:
    """Store FOLDER (default: functions) as a version and switch to it.

    The target imports it, confined. Anything broken in it, and nothing is changed; the error names file and line.
    """
    from echod.deploy.snapshot import served_folder, taken
    from echod.registry.archive import pieces_of

    snapshot = taken(served_folder(folder))
    client = Client(to or url)
    body = b"".join(pieces_of(snapshot.archive))
    _progress(f"{snapshot.version}: {len(snapshot.archive.files)} files, {len(body) / 1000:.1f} kB packed")
    if snapshot.withheld:
        shown = ", ".join(snapshot.withheld[:_MOST_NAMES]) + (", …" if len(snapshot.withheld) > _MOST_NAMES else "")
        click.echo(f"left out, as secrets: {shown}; `!name` in .echodignore takes one in, but no .env", err=True)
    headers = {"Content-Type": "application/octet-stream", "Content-Length": str(len(body))}
    parts = deque(body[at : at + _PART_BYTES] for at in range(0, len(body), _PART_BYTES))
    path = f"/deploy?plan={int(plan)}"
    try:
        answer = client.call("POST", path, _uploaded(parts, client), headers, timeout=TIMEOUT_S).body
    except KeyboardInterrupt:
        unknown = f"given up, unless it was being switched to already; see `echod versions --url {client.url}`"
        click.echo(f"\nechod: {unknown if not (parts or plan) else 'nothing was switched'}", err=True)
        raise
    _print(answer, client, as_json=as_json)


@click.command()
@asks
def versions(url: str | None, as_json: bool) -> None:
    """List stored versions, newest first, with what each changed."""
    found = Client(url).get("/versions")
    if as_json:
        print_json(found)
        return
    print_table(
        ("VERSION", "ACTIVATED", "FUNCTIONS", "CHANGED", ""),
        [
            (
                each["id"],
                each["activated"],
                len(each["functions"]),
                _counted(each["changes"]),
                "serving" if each["active"] else "",
            )
            for each in found["versions"]
        ],
        "no version deployed; run `echod deploy FOLDER`",
    )


@click.command()
@click.argument("version", metavar="[DEP]", required=False)
@_to
@_plan
@asks
def rollback(version: str | None, to: str | None, plan: bool, url: str | None, as_json: bool) -> None:
    """Switch back to the version DEP, without one to the version before the one that serves.

    It is stored and was checked when it was deployed: nothing is uploaded. Running jobs end on their version.
    """
    client = Client(to or url)
    path = f"/versions/{part(version or _before(client))}/activate?plan={int(plan)}"
    _print(client.call("POST", path, timeout=TIMEOUT_S).body, client, as_json=as_json)


def _before(client: Client) -> str:
    """The version that was activated last but for the one that serves."""
    others = [str(each["id"]) for each in client.get("/versions")["versions"] if not each["active"]]
    if not others:
        raise Refused("expected a version before the one that serves, got none; `echod versions` lists them")
    return others[0]


def _print(answer: Json, client: Client, *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    for line in answer["plan"]["lines"]:
        click.secho(f"  {line['mark']} {line['text']}", fg=_COLOURS.get(line["mark"]))
    count = len(answer["functions"])
    functions = f"{count} function" if count == 1 else f"{count} functions"
    if answer["generation"] is None:
        click.echo(f"{answer['version']} would serve {functions} at {client.url}; nothing was switched")
    else:
        click.echo(f"{answer['version']} serves {functions} at {client.url}")


_COLOURS = {"+": "green", "~": "yellow", "-": "red"}


def _counted(plan: Json) -> str:
    """A plan in a word: "+2 ~1 -0"."""
    if plan is None:
        return ""
    marks = [line["mark"] for line in plan["lines"]]
    return " ".join(f"{mark}{count}" for mark in "+~-" if (count := marks.count(mark))) or "nothing"


def _uploaded(parts: deque[bytes], client: Client) -> Iterator[bytes]:
    """The body in parts, with a bar for people who wait, and then what they wait for."""
    if not sys.stderr.isatty():
        while parts:
            yield parts.popleft()
        return
    with click.progressbar(length=sum(map(len, parts)), label=f"to {client.url}", file=sys.stderr) as bar:
        while parts:
            yield (part := parts.popleft())
            bar.update(len(part))
    _progress("sent; its modules are imported there, and checked")


def _progress(text: str) -> None:
    """For people who wait; programs read the answer alone."""
    if sys.stderr.isatty():
        click.echo(text, err=True)
