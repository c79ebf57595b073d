"""Verbs about lanes: list them; set weights and limits of a function or of one lane."""

from __future__ import annotations

import click

from echod.cli.client import Client, part
from echod.cli.options import asks, print_json, print_table
from echofn.units import duration_text


@click.command()
@click.option("--function", metavar="NAME", help="Of this function only.")
@asks
def lanes(function: str | None, url: str | None, as_json: bool) -> None:
    """List lanes that have work, the next to be served first, and those with settings of their own."""
    found = Client(url).get("/lanes", **({"function": function} if function else {}))
    if as_json:
        print_json(found)
        return
    print_table(
        ("FUNCTION", "LANE", "WAITING", "RUNNING", "WEIGHT", "SHARE", "LIMITS", ""),
        [
            (
                each["function"],
                each["lane"] if len(each["lane"]) <= 40 else each["lane"][:39] + "…",
                each["pending"],
                each["active"],
                each["weight"],
                None if each["share"] is None else f"{each['share']:.0%}",
                _limits(each["concurrency"], each["rate"]),
                _waits(each["why"], each["until_ms"]),
            )
            for each in found["lanes"]
        ],
        "no lane has work",
    )


@click.command("set")
@click.argument("name", metavar="FUNCTION")
@click.option("--lane", metavar="LANE", help="Of this lane only.  [default: of the function]")
@click.option("--weight", metavar="N", help="A share from 1 to 100; of the function: of each of its lanes.")
@click.option("--concurrency", metavar="N", help="So many jobs run at once, on all nodes together.")
@click.option("--rate", metavar="RATE", help='So many start in a window that begins with the first: "100/s", "5/m".')
@click.option("--lane-concurrency", metavar="N", help="--concurrency of each lane.")
@click.option("--lane-rate", metavar="RATE", help="--rate of each lane.")
@click.option("--reset", is_flag=True, help="Set all that is not given back to what code says.")
@asks
def set_(
    name: str,
    lane: str | None,
    weight: str | None,
    concurrency: str | None,
    rate: str | None,
    lane_concurrency: str | None,
    lane_rate: str | None,
    reset: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Set weight and limits of FUNCTION, or of one lane of it, by hand.

    It holds over deploys, whatever code says, until it is set back: by "default" as its value, or --reset. "none" lifts
    a limit that code has. Limits delay, they refuse nothing.
    """
    given = {
        "weight": weight,
        "concurrency": concurrency,
        "rate": rate,
        "lane_concurrency": lane_concurrency,
        "lane_rate": lane_rate,
    }
    changes = {what: _value(what, text) for what, text in given.items() if text is not None}
    body = {**changes, **({"lane": lane} if lane is not None else {}), **({"reset": True} if reset else {})}
    said = Client(url).send("POST", f"/functions/{part(name)}/set", body)
    if as_json:
        print_json(said)
        return
    words = [
        f"{what.replace('_', ' ')} {'as code says' if value is None else value}" for what, value in said["set"].items()
    ]
    click.echo(f"{name}{f' lane {lane}' if lane is not None else ''}: {', '.join(words)}")


def _value(what: str, text: str) -> int | str | None:
    """What the gateway takes; it judges."""
    if text == "default":
        return None
    if what.endswith("rate") or text == "none":
        return text
    if not text.isascii() or not text.isdigit():
        raise click.UsageError(f'--{what.replace("_", "-")}: expected a number, "none" or "default", got {text!r}')
    return int(text)


def _limits(concurrency: int | None, rate: str | None) -> str:
    return " ".join(part for part in (f"{concurrency} at once" if concurrency else "", rate or "") if part)


def _waits(why: str | None, until_ms: int | None) -> str:
    """Why a lane is not served now, and for how long."""
    if why is None:
        return ""
    said = {"concurrency": "as many run as may", "batch": "gathers a batch"}.get(why, why)
    return said if until_ms is None else f"{said}, {duration_text(-(-until_ms // 1000) * 1000)} more"
