"""The pytest fixture `bus`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from echofn.testing.kit import Bus
from echofn.testing.stage import running_bus


@pytest.fixture
def bus() -> Iterator[Bus]:
    """A bus with nothing in it, on a private server whose clock stands at Monday 2026-01-05T00:00Z until `advance`.

    The server is started once a session and emptied before each test. Import the fixture where it is used, or once in
    a conftest.py: `from echofn.testing import bus`.
    """
    with running_bus() as bus:
        yield bus
