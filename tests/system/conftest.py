"""Calls to the bus that a test makes by itself, or through parts of a node in its own process, are patient."""

from __future__ import annotations

import pytest

from echod.bus import link

AS_SHIPPED = {"test_client", "test_two_ways"}  # whose calls are those of a user's program


@pytest.fixture(autouse=True)
def patient_calls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bus that has not answered for 0.8 s is away; a machine that is busy for a second must not say so."""
    if request.path.stem not in AS_SHIPPED:
        monkeypatch.setattr(link, "CALL_TIMEOUT_S", 10.0)
