"""What is checked before anything starts: who reaches the gateway, how handlers are confined, which are not served."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from echod.config import Config, Level, Sandbox, is_loopback
from echod.errors import Refused
from echod.registry.peers import About
from echofn.manifest import Function, Policy
from echofn.walls import trial

_SHORTEST_TOKEN = 16  # characters
UNENFORCED: Mapping[str, tuple[str, ...]] = {  # options by the level that has no wall for them: docs/sandbox.md
    "minimal": ("network", "processes"),
    "off": ("network", "processes", "memory_bytes", "tmp_bytes"),
}


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


def needs_token(config: Config, verb: str) -> bool:
    """Whether callers must show a token: all but those of `dev` on this machine alone."""
    return verb != "dev" or not is_loopback(config.host)


def refuse_open_door(config: Config, verb: str, *, has_tokens: bool = False) -> None:
    """Raises Refused when callers must show a token and there is none, in `config` or the bus, or one to be guessed."""
    if not needs_token(config, verb):
        return
    make = "python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
    if config.token and len(config.token) < _SHORTEST_TOKEN:
        raise Refused(
            f"ECHOD_TOKEN: expected at least {_SHORTEST_TOKEN} characters, which nobody guesses, got "
            f'{len(config.token)}; make one: ECHOD_TOKEN="$({make})"'
        )
    if config.token or has_tokens:
        return
    who = "every process of this machine" if is_loopback(config.host) else "other machines too"
    raise Refused(
        f"{verb} on {config.host}: {who} could run your functions, and no token is set; start it with one: "
        f'ECHOD_TOKEN="$({make})" echod {verb} --host {config.host}'
    )


def bar(function: Function, about: About) -> str | None:
    """Why a node must not serve a function. `dev` takes the walls there are, and has said what is missing."""
    why = reaches_bus(function, about.open_port)
    return why or (None if about.verb == "dev" else unenforced(function, about.sandbox))


def reaches_bus(function: Function, port: int | None) -> str | None:
    """Why a function must not be served: it can connect to `port`, where the bus asks nobody for a password."""
    network = function.policy.network
    if port is None or network is False or (network is not True and port not in network):
        return None
    opened = "network=True" if network is True else f"network={list(network)}"
    return (
        f"{function.name} is not served: with {opened} it reaches the bus, which answers on port {port} without a "
        "password, and could change every job of every function; give the bus a password (requirepass), "
        + ("or list the ports it needs in network=" if network is True else f"or take {port} out of network=")
    )


def unenforced(function: Function, level: str) -> str | None:
    """Why a function must not be served at `level`: an option of its own asks for a wall that is not there.

    What nobody said is no reason: whoever asked for such a level knows that it lacks walls. Nor is network=True, which
    asks for none.
    """
    said = {name: value for name in UNENFORCED.get(level, ()) if (value := getattr(function.policy, name)) is not True}
    lacks = [name for name, value in said.items() if value != getattr(Policy(), name)]
    if not lacks:
        return None
    told = ", ".join(f"{name.removesuffix('_bytes')}=" for name in lacks)
    why = f"nothing enforces its {told} at --sandbox {level}"
    return f"{function.name} is not served: {why}; take standard, or leave that out"
