"""What a node's roles stand on."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from echod.bus import Bus
from echod.config import Config
from echod.deploy.publish import Publisher
from echod.node.doors import Walls
from echod.registry.registry import Registry


class Parts(NamedTuple):
    """Made by the node, handed to its roles."""

    bus: Bus
    address: str  # of the bus
    registry: Registry
    publisher: Publisher
    config: Config
    verb: str  # dev, start, or the one role's name
    names: frozenset[str]  # of roles
    folder: Path | None  # None: the bus's active version is served
    walls: Walls
    open_port: int | None  # where functions that may reach it find the bus without a password
