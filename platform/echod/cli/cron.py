"""`echod cron`: what a rule means, without a bus."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from echod.cli.options import json_option, print_json
from echod.errors import Refused


@click.command()
@click.argument("expr")
@click.option("--tz", default="UTC", show_default=True, metavar="ZONE", help="The rule's zone, as Europe/Berlin.")
@click.option("--after", metavar="INSTANT", help="RFC 3339, as 2026-03-29T00:00:00Z; default: now.")
@click.option("--count", default=5, show_default=True, type=click.IntRange(1, 1000), help="How many instants.")
@json_option
def cron(expr: str, tz: str, after: str | None, count: int, as_json: bool) -> None:
    """Print the next instants of a cron rule: five fields, or six with seconds first."""
    from echod.policy.cron import describe, parse

    instant = _instant_ms(after) if after else int(datetime.now(UTC).timestamp() * 1000)
    rule = parse(expr, tz)
    instants: list[int] = []
    for _ in range(count):
        instant = rule.next_after(instant)
        instants.append(instant)
    if as_json:
        print_json([_text(each) for each in instants])
        return
    from zoneinfo import ZoneInfo

    click.echo(describe(rule.canonical), err=True)
    zone = ZoneInfo(tz)
    for each in instants:
        local = datetime.fromtimestamp(each / 1000, zone)
        click.echo(f"{_text(each)}  {local:%a %Y-%m-%d %H:%M:%S %Z}")


def _instant_ms(text: str) -> int:
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise Refused(f"--after: expected an instant like 2026-03-29T00:00:00Z, got {text!r}") from None
    if instant.tzinfo is None:
        raise Refused(f"--after: expected an instant with its offset, like {text}Z, got {text!r}")
    return int(instant.timestamp() * 1000)


def _text(instant_ms: int) -> str:
    return datetime.fromtimestamp(instant_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
