"""The flags of verbs that have settings, each also an ECHOD_… variable, read into one Config."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from echod.config import DEFAULT_PORT, LEVELS, Config, from_env
from echofn.units import duration_ms, rate

F = TypeVar("F", bound=Callable[..., Any])

_FLAGS = (
    click.option("--host", metavar="ADDRESS", help="Listen here.  [default: 127.0.0.1]"),
    click.option(
        "--port", type=click.IntRange(0, 65535), help=f"Listen here; 0: any free one.  [default: {DEFAULT_PORT}]"
    ),
    click.option(
        "--state", type=click.Path(path_type=Path), help="Folder for the embedded bus and versions.  [default: .echod]"
    ),
    click.option("--bus", metavar="URL", help="Your own Valkey: valkey://…, valkeys://… or unix:///path."),
    click.option("--sandbox", type=click.Choice(("auto", *LEVELS)), help="The least level of confinement to accept."),
    click.option("--lease", metavar="DURATION", help="How long a claim holds unless renewed.  [default: 15s]"),
    click.option("--app", metavar="NAME", help="A name of your own on a shared bus."),
    click.option("--env", metavar="NAME", help="dev or prod.  [default: dev for `dev`, else prod]"),
    click.option("--request-limit", metavar="RATE", help="Requests by path and client, or off.  [default: 1000/s]"),
    click.option("--allow-host", metavar="HOST", multiple=True, help="Another Host that requests may name."),
)


def _rate(text: str | None) -> str | None:
    if text is not None and text != "off":
        try:
            rate(text)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--request-limit") from None
    return text


def settings(command: F) -> F:
    """Give a verb the common flags and pass it the resulting Config as `config`."""

    @functools.wraps(command)
    def wrapped(*args: Any, **values: Any) -> Any:
        flags: dict[str, object] = {
            name: values.pop(name) for name in ("host", "port", "state", "bus", "sandbox", "app", "env")
        }
        flags["request_limit"] = _rate(values.pop("request_limit"))
        flags["allow_host"] = values.pop("allow_host") or None
        flags["reload"] = False if values.pop("no_reload", False) else None
        flags["clock"] = values.pop("clock", False) or None
        if lease := values.pop("lease"):
            try:
                flags["lease_ms"] = duration_ms(lease)
            except ValueError as error:
                raise click.BadParameter(str(error), param_hint="--lease") from None
        if flags["env"] is None and not os.environ.get("ECHOD_ENV"):
            flags["env"] = "dev" if click.get_current_context().info_name == "dev" else "prod"
        config: Config = from_env(os.environ, **flags)
        return command(*args, config=config, **values)

    for flag in reversed(_FLAGS):
        wrapped = flag(wrapped)
    return wrapped  # type: ignore[return-value]
