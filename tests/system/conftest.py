"""The rig of a supervisor that `make` and `node` give; and patience for calls that a test makes in its own process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

import rig as rigs
from acting import SOURCE, Make
from echod.bus import link
from echofn.manifest import Function
from rig import Rig, function
from server import Server

AS_SHIPPED = {"test_client", "test_two_ways"}  # whose calls are those of a user's program


@pytest.fixture(autouse=True)
def patient_calls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bus that has not answered for 0.8 s is away; a machine that is busy for a second must not say so."""
    if request.path.stem not in AS_SHIPPED:
        monkeypatch.setattr(link, "CALL_TIMEOUT_S", 10.0)


@pytest.fixture
def make(server: Server, tmp_path: Path) -> Make:
    def make(*functions: Function, source: str = SOURCE, **options: Any) -> AbstractAsyncContextManager[Rig]:
        return rigs.rig(server.address, tmp_path, source, functions or (function("act"),), **options)

    return make


@pytest.fixture
async def node(make: Make) -> AsyncIterator[Rig]:
    """A node that serves `act` and `spread`."""
    async with make(function("act", timeout_ms=120_000), function("spread")) as made:
        yield made
