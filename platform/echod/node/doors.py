"""What is checked before anything starts: who could reach the gateway, and how handlers will be confined."""

from __future__ import annotations

from typing import NamedTuple

from echod.config import LEVELS, Config, Level, Sandbox, is_loopback
from echod.errors import Refused
from echofn import walls


class Walls(NamedTuple):
    """The level handlers run at, and what this machine lacks of a better one."""

    level: Level
    missing: tuple[str, ...]


def chosen(sandbox: Sandbox) -> Walls:
    """The level for a `--sandbox` setting: the best there is for auto. Raises Refused below a level asked for."""
    best = walls.available()
    if sandbox == "auto":
        return Walls(best.level, best.missing)
    if LEVELS.index(sandbox) < LEVELS.index(best.level):
        lacks = "; ".join(best.missing)
        raise Refused(f"--sandbox: expected {sandbox} walls, got {best.level} ({lacks}); use --sandbox {best.level}")
    return Walls(sandbox, best.missing if sandbox == best.level else ())


def refuse_open_door(config: Config, verb: str, *, has_tokens: bool = False) -> None:
    """Raises Refused when the gateway would listen beyond this machine and neither `config` nor the bus has a token."""
    if config.token or has_tokens or is_loopback(config.host):
        return
    make = "python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
    raise Refused(
        f"--host {config.host} can be reached from other machines, and no token is set: whoever reaches it runs your "
        f'functions; start it with one: ECHOD_TOKEN="$({make})" echod {verb} --host {config.host}'
    )


def needs_token(config: Config) -> bool:
    """Whether the door is open to other machines and `config` has no token: then the bus must."""
    return config.token is None and not is_loopback(config.host)
