"""Fixtures that every test may use, and how Hypothesis looks: as patiently as a busy machine asks for.

A landing draws the same examples each time: what it finds is of the change that lands. Chance is for `make soak`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from echod.bus import link, park
from server import PATIENCE_S, bus, server, shared_server

__all__ = ["bus", "server", "shared_server"]
AS_SHIPPED = {"system", "browser", "walls"}  # tests of whole nodes, with a node's own patience

settings.register_profile(
    "echod",
    deadline=None,
    derandomize=os.environ.get("ECHOD_SOAK") != "1",
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("echod")


@pytest.fixture(autouse=True)
def patient_calls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bus that has not answered for 0.8 s is away; a machine that is busy for a second must not say so.

    A test of a bus that is away says when it is: `doing.impatient`.
    """
    if request.path.relative_to(Path(__file__).parent).parts[0] not in AS_SHIPPED:
        monkeypatch.setattr(link, "CALL_TIMEOUT_S", PATIENCE_S)
        monkeypatch.setattr(park, "WATCH_S", PATIENCE_S)
