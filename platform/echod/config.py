"""Every setting of a process in one frozen value, read once in the CLI and passed down. Pure: reads no file."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, get_args

import msgspec

from echod.errors import Refused
from echofn.units import duration_ms, rate

Level = Literal["strict", "standard", "minimal", "off"]
LEVELS: tuple[str, ...] = get_args(Level)
Sandbox = Literal["auto", "strict", "standard", "minimal", "off"]
DEFAULT_PORT = 8321


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Settings; every one is a flag and an ECHOD_… variable of the same name."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    state: Path = Path(".echod")
    bus: str | None = None  # None: the embedded server in `state`
    sandbox: Sandbox | None = None  # None: auto for `dev`, else standard
    lease_ms: int = 15_000
    reload: bool = True
    clock: bool = False  # `dev` alone: the embedded bus's clock can be driven
    app: str = ""
    token: str | None = None
    env: Literal["dev", "prod"] | str = "dev"
    allow_host: tuple[str, ...] = ()
    request_limit: str | None = None  # "100/s" by path and client, or off; None: 1000/s, clients on this machine spared
    valkey_server: str | None = None

    def masked(self) -> dict[str, object]:
        """For people's eyes: secrets replaced, a password in the bus address too."""
        raw: dict[str, object] = msgspec.structs.asdict(self)
        raw["state"] = str(self.state)
        if self.token:
            raw["token"] = "***"
        if self.bus and "@" in self.bus:
            scheme, _, rest = self.bus.partition("://")
            raw["bus"] = f"{scheme}://***@{rest.rpartition('@')[2]}"
        return raw


def from_env(env: Mapping[str, str], /, **flags: object) -> Config:
    """The settings of ECHOD_… variables, overridden by `flags` that are not None.

    Raises Refused with every fault at once, each as "NAME: expected …, got …".
    """
    faults: list[str] = []
    values: dict[str, object] = {}

    def take(field: str, convert: Callable[[str], object], expected: str) -> None:
        text = env.get(f"ECHOD_{field.upper()}")
        if not text:
            return
        try:
            values[field] = convert(text)
        except ValueError:
            faults.append(f"ECHOD_{field.upper()}: expected {expected}, got {text!r}")

    take("host", str, "an address")
    take("port", _port, "a number from 0 to 65535")
    take("state", Path, "a folder")
    take("bus", str, "valkey://…, valkeys://… or unix:///path")
    take("sandbox", _sandbox, "auto, strict, standard, minimal or off")
    take("reload", _flag, "1 or 0")
    take("clock", _flag, "1 or 0")
    take("app", _app, "up to 64 of A-Z a-z 0-9 _ . -")
    take("token", str, "a token")
    take("env", str, "a name")
    take("allow_host", _hosts, "hosts, by commas")
    take("request_limit", _limit, "a rate such as 100/s, or off")
    take("valkey_server", str, "a path")
    lease = env.get("ECHOD_LEASE")
    if lease:
        try:
            values["lease_ms"] = duration_ms(lease)
        except ValueError as error:
            faults.append(f"ECHOD_LEASE: {error}")
    if faults:
        raise Refused("; ".join(faults))
    values.update({name: value for name, value in flags.items() if value is not None})
    config = Config(**values)  # type: ignore[arg-type]
    if not 1_000 <= config.lease_ms <= 3_600_000:
        raise Refused(f"lease: expected 1s to 1h, got {config.lease_ms} ms")
    return config


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65535:
        raise ValueError
    return number


def _hosts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _limit(text: str) -> str:
    if text != "off":
        rate(text)
    return text


def _flag(text: str) -> bool:
    if text.lower() in {"1", "true", "yes", "on"}:
        return True
    if text.lower() in {"0", "false", "no", "off"}:
        return False
    raise ValueError


def _sandbox(text: str) -> str:
    if text not in ("auto", *LEVELS):
        raise ValueError
    return text


def _app(text: str) -> str:
    if len(text) > 64 or not all(c.isascii() and (c.isalnum() or c in "_.-") for c in text):
        raise ValueError
    return text
