"""The shipped examples as plain functions: called as they stand, with a context of the test's own."""

import importlib.util
import sys
import zlib
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from echofn import Fail, Request, Retry

FOLDER = Path(__file__).resolve().parents[2] / "functions"


class Context:
    """As much of a context as the examples use."""

    attempt = 1
    fence = 1
    due = datetime.now(UTC)
    previous: datetime | None = None

    def __init__(self) -> None:
        self.enqueued: list[tuple[str, Any]] = []
        self.noted: list[float] = []
        self.log = self

    def info(self, text: str, *args: object) -> None:
        assert text % args

    def enqueue(self, function: Any, payload: object, unique: str | None = None) -> str:
        self.enqueued.append((function.__name__, payload))
        return "JOB00000000000"

    def progress(self, fraction: float, note: str = "") -> None:
        self.noted.append(fraction)


@pytest.fixture
def ctx() -> Context:
    return Context()


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"functions.{name}", FOLDER / f"{name}.py")
    assert spec
    assert spec.loader
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def test_greet_speaks_the_language_it_is_asked_for(ctx: Context) -> None:
    hello = module("hello")
    assert hello.greet(hello.Person("Ada", "fr"), ctx) == {"greeting": "Bonjour, Ada!", "attempt": 1}
    assert hello.greet(hello.Person("Bo", "tlh"), ctx)["greeting"] == "Hello, Bo!"


def test_an_import_makes_one_job_a_row_and_tells_its_progress(ctx: Context) -> None:
    orders = module("orders")
    text = "customer,sku,quantity\nacme,bolt,3\nbee,nut,5\n"
    assert orders.import_csv(text, ctx) == 2
    assert ctx.enqueued == [("pack", orders.Order("acme", "bolt", 3)), ("pack", orders.Order("bee", "nut", 5))]
    assert ctx.noted == [0.5, 1.0]
    assert orders.pack(orders.Order("acme", "bolt", 3)) == "3 x bolt packed for acme"


@pytest.mark.parametrize(
    "text", ["", "a,b\n1,2\n", "customer,sku,quantity\nacme,bolt,many\n", "customer,sku,quantity\nacme,bolt\n"]
)
def test_a_bad_import_fails_for_good_with_its_reason(text: str, ctx: Context) -> None:
    with pytest.raises(Fail):
        module("orders").import_csv(text, ctx)


def test_a_charge_that_the_provider_refuses_raises_and_one_that_it_delays_says_when(ctx: Context) -> None:
    payments = module("payments")
    assert payments.charge(1200, ctx) == "charged 1200 (1)"
    with pytest.raises(payments.ServiceUnavailable):
        payments.charge(1213, ctx)
    with pytest.raises(Retry):
        payments.charge(1277, ctx)


def test_the_picture_is_a_png_of_the_size_asked_for() -> None:
    render = module("render")
    png = render.mandelbrot(render.View(width=16, height=9, depth=20))
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert (int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")) == (16, 9)
    size = int.from_bytes(png[33:37], "big")
    assert len(zlib.decompress(png[41 : 41 + size])) == 9 * 17


def test_the_clock_tells_how_late_it_was(ctx: Context) -> None:
    assert module("clock").heartbeat(None, ctx)["late_ms"] >= 0


def test_a_push_becomes_a_review_of_each_commit(ctx: Context) -> None:
    github = module("github")
    body = (FOLDER.parent / "tests/data/github-push.json").read_bytes()
    assert github.on_push(Request(headers={"X-GitHub-Event": "push"}, body=body), ctx) == 3
    assert [(name, review.author) for name, review in ctx.enqueued] == [
        *(("review", "mara-quill"), ("review", "bo-ferro"), ("review", "mara-quill"))
    ]
    said = [github.review(review) for _, review in ctx.enqueued]
    assert said[0] == "example-org/tide-tables@1f7e5d2 by mara-quill: Correct the spring tide of March (1 files)"
    assert github.on_push(Request(headers={"X-GitHub-Event": "ping"}, body=b"{}"), ctx) == 0
