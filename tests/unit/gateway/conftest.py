"""The gateway's fixtures."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from unit.gateway.kit import Rig, Valkey, serving


@pytest.fixture
async def rig(server: Valkey) -> AsyncIterator[Rig]:
    """A gateway without a token, as on a developer's machine."""
    async with serving(server) as rig:
        yield rig
