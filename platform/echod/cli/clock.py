"""`echod clock`: drive the clock of an `echod dev --clock`."""

from __future__ import annotations

import click

from echod.cli.client import Client
from echod.cli.options import asks, print_json
from echod.errors import Refused


@click.command(context_settings={"ignore_unknown_options": True})  # "-1d" is refused in words, not as an option
@click.argument("move", default="now", metavar="[now|+DURATION|INSTANT|next|freeze|resume]")
@asks
def clock(move: str, url: str | None, as_json: bool) -> None:
    """Drive the clock of an `echod dev --clock`, or print where it is.

    +1d moves it on, as if nothing had run meanwhile: what was missed is settled by each schedule's `missed=`. An
    INSTANT (2026-03-29T01:00:00Z) does the same up to there. `next` goes to the next due instant, so that next Monday's
    report runs now. `freeze` lets it stand still; `resume` lets it go on. It never goes back.
    """
    client = Client(url)
    found = client.get("/clock") if move == "now" else client.send("POST", "/clock", _body(move))
    if as_json:
        print_json(found)
        return
    told = [found["now"]]
    if found["frozen"]:
        told.append("frozen")
    if found["due"]:
        told.append(f"due: {', '.join(found['due'])}")
    if found["next"]:
        told.append(f"next: {found['next']}")
    click.echo("  ".join(told))


def _body(move: str) -> dict[str, str]:
    if move in ("next", "freeze", "resume"):
        return {"action": move}
    if move == "thaw":
        return {"action": "resume"}
    if move.startswith("-"):
        raise Refused(f"expected +DURATION, got {move!r}: time goes one way; a fresh --state begins at the present")
    if move.startswith("+"):
        return {"action": "advance", "by": move[1:]}
    if not move[:1].isdigit() or "-" not in move:
        raise Refused(f"expected now, +1d, next, freeze, resume, or an instant like 2026-03-29T01:00:00Z, got {move!r}")
    return {"action": "advance", "to": move}
