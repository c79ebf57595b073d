"""Handlers run as whoever this machine offers: root, root with a readable interpreter, an ordinary user."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.runtime.driving import Base
from walls.machine import IS_ROOT, NOBODY, Who, base_of, open_folder, public_python

WHO = ("root", "root-public", "user") if IS_ROOT else ("user",)


@pytest.fixture(scope="session")
def public() -> Iterator[Who]:
    with open_folder() as folder:
        yield public_python(folder)


@pytest.fixture(scope="module", params=WHO)
def who(request: pytest.FixtureRequest) -> Who:
    """root: the interpreter as it lies there, which other users may not be able to read."""
    if request.param == "root" or not IS_ROOT:
        return Who(sys.executable, None, None)
    public: Who = request.getfixturevalue("public")
    return public if request.param == "root-public" else public._replace(user=NOBODY)


@pytest.fixture(scope="module")
def module_base(who: Who) -> Iterator[Base]:
    with base_of(who) as base:
        yield base


@pytest.fixture
def base(module_base: Base) -> Iterator[Base]:
    """A base without workers and code of other tests."""
    yield module_base
    module_base.dismiss()


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder
