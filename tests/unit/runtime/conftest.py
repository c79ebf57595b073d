from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.runtime.driving import Base


@pytest.fixture(scope="module")
def one_base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Base]:
    """A base for all tests of a file that only look at workers."""
    base = Base(tmp_path_factory.mktemp("base"))
    try:
        yield base
    finally:
        base.close()


@pytest.fixture
def shared(one_base: Base) -> Iterator[Base]:
    """That base, without workers and code of other tests."""
    yield one_base
    one_base.dismiss()


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Base]:
    """A base over an empty folder `functions`; nothing of it is left afterwards."""
    base = Base(tmp_path)
    try:
        yield base
    finally:
        base.close()
