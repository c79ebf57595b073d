"""`echod token`: named tokens with scopes, and one-time links for a browser. A token is printed once, when made."""

from __future__ import annotations

import click

from echod.cli.client import Client, part
from echod.cli.options import asks, print_json, print_table
from echod.model.token import SCOPES, Scope


@click.group()
def token() -> None:
    """Make, list and revoke tokens.

    Scopes: invoke (call functions), read (pages, lists, jobs), operate (pause, cancel, redrive, tokens), deploy.
    """


@token.command()
@click.argument("name", required=False)
@click.option("--scope", "scopes", multiple=True, type=click.Choice(SCOPES), help="What it may do; repeat for more.")
@click.option("--expires", metavar="DURATION", help="When it ends by itself, such as 90d.  [default: never]")
@click.option("--open", "as_link", is_flag=True, help="Print a link that signs one browser in, once, instead.")
@asks
def new(
    name: str | None, scopes: tuple[Scope, ...], expires: str | None, as_link: bool, url: str | None, as_json: bool
) -> None:
    """Make a token called NAME and print it: the only time that it is shown.

    Needs a token with `operate`, and with every scope it gives. With --open: a login link with --scope's or all of the
    caller's own rights, good for one browser within ten minutes.
    """
    client = Client(url)
    if as_link:
        if name or expires:
            raise click.UsageError("--open takes no NAME and no --expires; a link is good once, for ten minutes")
        made = client.send("POST", "/login/links", {"scopes": list(scopes)})
        link = client.url + made["path"]
        print_json({**made, "url": link}) if as_json else click.echo(link)
        return
    if name is None:
        raise click.UsageError("expected a NAME for the token, such as `echod token new ci --scope deploy`")
    if not scopes:
        raise click.UsageError(f"expected --scope at least once: {', '.join(SCOPES)}")
    made = client.send("POST", "/tokens", {"name": name, "scopes": list(scopes), "expires": expires})
    print_json(made) if as_json else click.echo(made["token"])


@token.command("list")
@asks
def list_(url: str | None, as_json: bool) -> None:
    """List tokens by name; never the tokens themselves."""
    found = Client(url).get("/tokens")
    if as_json:
        print_json(found)
        return
    print_table(
        ("NAME", "SCOPES", "MADE", "EXPIRES", "USED", "SESSIONS"),
        [
            (
                each["name"],
                " ".join(each["scopes"]),
                each["made"],
                "expired" if each["expired"] else each["expires"],
                each["used"],
                each["sessions"],
            )
            for each in found["tokens"]
        ],
        "no tokens but ECHOD_TOKEN, where it is set",
    )


@token.command()
@click.argument("name")
@asks
def revoke(name: str, url: str | None, as_json: bool) -> None:
    """Revoke the token NAME and the sessions that came of it, at once and everywhere."""
    answer = Client(url).call("DELETE", f"/tokens/{part(name)}").body
    print_json(answer) if as_json else click.echo(f"{name} revoked")
