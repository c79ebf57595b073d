"""What is checked before anything starts: who could reach the gateway, and how handlers will be confined."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from echod.config import Config, Level, Sandbox, is_loopback
from echod.errors import Refused
from echofn.walls import trial


class Walls(NamedTuple):
    """The level handlers run at, and what this machine lacks of a better one."""

    level: Level
    missing: tuple[str, ...]


def wanted(sandbox: Sandbox | None, verb: str) -> Sandbox:
    """The level when none was said: on a developer's machine the best there is, elsewhere one to rely on."""
    return sandbox or ("auto" if verb == "dev" else "standard")


def chosen(sandbox: Sandbox, state: Path) -> Walls:
    """The level for a `--sandbox` setting, tried below `state`: the best there is for auto.

    Raises Refused below a level asked for.
    """
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        best = trial.available(str(state), "strict" if sandbox == "auto" else sandbox)
    except (OSError, RuntimeError) as error:
        raise Refused(f"--state {state}: {error}") from None
    if sandbox != "auto" and best.level != sandbox:
        lacks = "; ".join(best.missing)
        fix = f"mend that, or accept less with --sandbox {best.level}"
        raise Refused(f"--sandbox: expected {sandbox} walls, got {best.level} ({lacks}); {fix}")
    return Walls(best.level, best.missing)


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
