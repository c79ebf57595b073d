"""Options that several verbs share, and how results are printed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import click
import msgspec

F = TypeVar("F", bound=Callable[..., Any])

url_option = click.option("--url", metavar="URL", help="The echod to ask (ECHOD_URL, else http://127.0.0.1:8321).")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def asks(command: F) -> F:
    """A verb that acts over HTTP and prints."""
    return url_option(json_option(command))


def print_json(value: object) -> None:
    """`value` as JSON on stdout, indented on a terminal."""
    raw = msgspec.json.encode(value)
    if sys.stdout.isatty():
        raw = msgspec.json.format(raw, indent=2)
    click.echo(raw.decode())


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
    """Rows under columns; `empty` where there are none. Off a terminal nothing is cut or coloured."""
    listed = [[("" if cell is None else str(cell)) for cell in row] for row in rows]
    if not listed:
        click.echo(empty, err=True)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console = Console(width=10_000)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in listed:
        table.add_row(*(Text(cell) for cell in row))
    with console.capture() as printed:
        console.print(table)
    click.echo(printed.get(), nl=False)  # rich ends the process where nobody reads any more


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Name and value, a line each."""
    for name, value in facts:
        if value is not None and value != "":
            click.echo(f"{name:<11} {value}")


def seconds_of(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """A duration option ("30s", "5m", or seconds) as seconds."""
    if value is None:
        return None
    from echofn.units import duration_ms

    try:
        return duration_ms(value) / 1000
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, parameter) from None
