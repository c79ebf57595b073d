"""What a client asks for, before any way is taken: whom an order is for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from echod.client.orders import Record, result_of, target_of
from echofn import queue
from echofn.testing import fake_context
from echofn.testing.fake import START


@pytest.fixture
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ModuleType]:
    """A module with one function, under the name of the parameter."""
    name = str(request.param)
    path = tmp_path / (name.replace(".", "/") + ".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("from echofn import queue\n\n@queue\ndef pack(payload): ...\n")
    sys.path.insert(0, str(tmp_path))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(tmp_path))
        for each in [each for each in sys.modules if each.partition(".")[0] == name.partition(".")[0]]:
            del sys.modules[each]


@pytest.mark.parametrize(
    ("shop", "package", "wanted"),
    [
        ("functions.zshop", None, "zshop.pack"),
        ("functions.eu.zshop", None, "eu.zshop.pack"),
        ("zacme.functions.eu.zshop", None, "eu.zshop.pack"),
        ("zjobs.zshop", None, "zshop.pack"),
        ("zjobs.functions", None, "functions.pack"),  # a module of that name is no folder
        ("zshop", None, "zshop.pack"),
        ("zacme.jobs.zshop", None, "jobs.zshop.pack"),
        ("zacme.jobs.zshop", "zacme.jobs", "zshop.pack"),
    ],
    indirect=["shop"],
)
def test_a_function_has_the_name_that_it_has_in_tests_and_where_it_is_served(
    shop: ModuleType, package: str | None, wanted: str
) -> None:
    assert target_of(shop.pack, package).name == wanted
    if package is None:
        ctx = fake_context()
        ctx.enqueue(shop.pack, 1)
        assert ctx.enqueued[0].function == wanted


@queue(batch=5)
def weigh(rows: list[int]) -> list[bytes | ValueError | Exception]: ...


@queue(batch=5)
def store(rows: list[int]) -> list[ValueError | None]: ...


@pytest.mark.parametrize(("function", "stored", "wanted"), [(weigh, "AAE=", b"\x00\x01"), (store, None, None)])
def test_a_result_of_a_batch_has_the_type_of_what_is_no_error(function: Any, stored: object, wanted: object) -> None:
    """A list of results may hold an exception: that is the error of its job, which then has no result."""
    ended = dict.fromkeys(("due", "minted", "started", "ended"), START)
    record = Record(
        id="JOB00000000001", function="m.f", lane="-", state="done", reason=None, attempts=1, failures=0, error=None,
        result=stored, **ended,
    )  # fmt: skip
    assert result_of(record, target_of(function, None).result_type) == wanted
