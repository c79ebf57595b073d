"""A folder to serve, and everything between it and a real bus."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from echod.bus import Bus
from echod.deploy.discovery import Discovery
from echod.deploy.live import Live
from echod.deploy.publish import Publisher
from echod.registry.registry import Registry

HANG_MS = 2_000
PATIENT_MS = 60_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "functions"
    folder.mkdir()
    return folder


@pytest.fixture
def write(folder: Path) -> Callable[[str, str], None]:
    """Save a file as an editor does: beside its place, then renamed into it."""

    def save(path: str, text: str) -> None:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(target.name + ".tmp")
        fresh.write_text(text)
        fresh.rename(target)

    return save


@pytest.fixture
def registry(bus: Bus, tmp_path: Path) -> Iterator[Registry]:
    registry = Registry(bus, tmp_path / "state")
    yield registry
    registry.close()


@pytest.fixture
async def discovery() -> AsyncIterator[Discovery]:
    discovery = Discovery("minimal", "dev", {"TOKEN": "t0ken", "OTHER": "0ther"}, limit_ms=PATIENT_MS)
    yield discovery
    await discovery.close()


@pytest.fixture
def hangs(discovery: Discovery) -> None:
    """For a module that hangs: an import has less time. The others of its folder need none of it worth telling."""
    discovery._limit_ms = HANG_MS


@pytest.fixture
def publisher(bus: Bus, registry: Registry, discovery: Discovery) -> Publisher:
    return Publisher(bus, registry, discovery)


@pytest.fixture
def live(folder: Path, publisher: Publisher, tmp_path: Path) -> Live:
    return Live(folder, publisher, tmp_path / "state")
