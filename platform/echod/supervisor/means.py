"""What every feed of a supervisor works with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from echod.bus import Bus
from echod.model.ids import VersionId
from echod.scratch import Scratch
from echod.supervisor.base import Base
from echod.supervisor.children import Blocks
from echod.supervisor.fanout import Fanout, Spawn
from echofn.manifest import Function, LoadError, Manifest


class Active(Protocol):
    """The version being served."""

    @property
    def version(self) -> VersionId: ...
    @property
    def generation(self) -> int: ...
    @property
    def manifest(self) -> Manifest: ...
    @property
    def errors(self) -> tuple[LoadError, ...]: ...


class Versions(Protocol):
    """What the supervisor asks of the registry."""

    @property
    def active(self) -> Active | None: ...

    def function(self, name: str) -> Function | None: ...

    async def folder(self, version: VersionId) -> Path: ...

    async def manifest(self, version: VersionId) -> Manifest | None: ...

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]: ...


@dataclass(frozen=True)
class Means:
    bus: Bus
    registry: Versions
    base: Base
    claimer: str
    lease_ms: int
    env: str  # "dev" or "prod"
    level: str
    scratch: Scratch
    cpus: int
    idle_s: float  # a worker that had nothing to do for this long goes
    environ: Mapping[str, str]  # where secrets come from
    roll: Callable[[], float]
    blocks: Blocks
    fanout: Fanout
    spawn: Spawn
