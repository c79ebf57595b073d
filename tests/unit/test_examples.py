"""The shipped examples: called as the plain functions they are, and run by a bus whose clock the test moves."""

import importlib.util
import sys
import zlib
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import pytest

from echofn import Fail, Request, Retry
from echofn.testing import Bus, bus, fake_context

__all__ = ["bus"]
FOLDER = Path(__file__).resolve().parents[2] / "functions"


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"functions.{name}", FOLDER / f"{name}.py")
    assert spec
    assert spec.loader
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def test_greet_speaks_the_language_it_is_asked_for() -> None:
    hello, ctx = module("hello"), fake_context()
    assert hello.greet(hello.Person("Ada", "fr"), ctx) == {"greeting": "Bonjour, Ada!", "attempt": 1}
    assert hello.greet(hello.Person("Bo", "tlh"), ctx)["greeting"] == "Hello, Bo!"
    assert ctx.lines == ["greeting Ada", "greeting Bo"]


CSV = "customer,sku,quantity\nacme,bolt,3\nbee,nut,5\n"


def test_an_import_makes_one_job_a_row_and_tells_its_progress() -> None:
    orders, ctx = module("orders"), fake_context()
    assert orders.import_csv(CSV, ctx) == 2
    assert [(job.function, job.payload) for job in ctx.enqueued] == [
        ("orders.pack", orders.Order("acme", "bolt", 3)),
        ("orders.pack", orders.Order("bee", "nut", 5)),
    ]
    assert ctx.progressed == [(0.5, "row 1 of 2"), (1.0, "row 2 of 2")]


def test_each_row_of_an_import_is_packed_in_its_customers_lane(bus: Bus) -> None:
    orders = module("orders")
    bus.load(orders)
    job = bus.enqueue(orders.import_csv, CSV)
    bus.run_due()
    assert [(packed.lane, packed.result) for packed in job.children] == [
        ("acme", "3 x bolt packed for acme"),
        ("bee", "5 x nut packed for bee"),
    ]


@pytest.mark.parametrize(
    "text", ["", "a,b\n1,2\n", "customer,sku,quantity\nacme,bolt,many\n", "customer,sku,quantity\nacme,bolt\n"]
)
def test_a_bad_import_fails_for_good_with_its_reason(text: str) -> None:
    with pytest.raises(Fail):
        module("orders").import_csv(text, fake_context())


def test_a_charge_that_the_provider_refuses_raises_and_one_that_it_delays_says_when() -> None:
    payments = module("payments")
    assert payments.charge(1200, fake_context(fence=7)) == "charged 1200 (7)"
    with pytest.raises(payments.ServiceUnavailable):
        payments.charge(1213, fake_context())
    with pytest.raises(Retry):
        payments.charge(1277, fake_context())


def test_a_charge_is_tried_three_times_and_then_dead(bus: Bus) -> None:
    payments = module("payments")
    bus.load(payments)
    refused, delayed = bus.enqueue(payments.charge, 1213), bus.enqueue(payments.charge, 1277)
    bus.run_due()
    assert (refused.state, delayed.state) == ("scheduled", "scheduled")
    bus.advance("100ms")
    assert bus.run_due() == [delayed]
    assert delayed.result == "charged 1277 (2)"
    for wait in ("100ms", "400ms"):  # "200ms" since the first run, then "400ms"
        bus.advance(wait)
        bus.run_due()
    assert (refused.state, refused.failures) == ("dead", 3)
    assert refused.error is not None
    assert refused.error.type == "ServiceUnavailable"


def test_the_picture_is_a_png_of_the_size_asked_for() -> None:
    render = module("render")
    png = render.mandelbrot(render.View(width=16, height=9, depth=20))
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert (int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")) == (16, 9)
    size = int.from_bytes(png[33:37], "big")
    assert len(zlib.decompress(png[41 : 41 + size])) == 9 * 17


def test_the_heart_beats_three_times_a_minute_and_the_report_comes_on_monday_at_six_in_berlin(bus: Bus) -> None:
    clock = module("clock")
    bus.load(clock)
    bus.advance("1m")
    assert [job.due.second for job in bus.jobs(clock.heartbeat)] == [20, 40, 0]
    assert all("late_ms" in job.result for job in bus.run_due())
    bus.advance(timedelta(days=1), pump=False)  # nobody wants a day's heartbeats
    bus.run_due()
    (report,) = bus.jobs(clock.weekly_report)
    assert f"{report.due:%A %H:%M}" == "Monday 05:00"
    assert report.result == "report for the week since 2025-12-29T05:00:00+00:00"
    assert report.log == ["reporting on the week since 2025-12-29T05:00:00+00:00"]


def test_a_push_becomes_a_review_of_each_commit() -> None:
    github, ctx = module("github"), fake_context()
    body = (FOLDER.parent / "tests/data/github-push.json").read_bytes()
    assert github.on_push(Request(headers={"X-GitHub-Event": "push"}, body=body), ctx) == 3
    assert [(job.function, job.payload.author) for job in ctx.enqueued] == [
        *(("github.review", "mara-quill"), ("github.review", "bo-ferro"), ("github.review", "mara-quill"))
    ]
    said = [github.review(job.payload) for job in ctx.enqueued]
    assert said[0] == "example-org/tide-tables@1f7e5d2 by mara-quill: Correct the spring tide of March (1 files)"
    assert github.on_push(Request(headers={"X-GitHub-Event": "ping"}, body=b"{}"), ctx) == 0


def test_a_commit_is_reviewed_once_in_each_repository_it_is_pushed_to(bus: Bus) -> None:
    github, ctx = module("github"), fake_context()
    body = (FOLDER.parent / "tests/data/github-push.json").read_bytes()
    fork = body.replace(b"example-org/tide-tables", b"mara-quill/tide-tables")
    for pushed in (body, fork, body):  # the last as when a branch is pushed that has the commits of another
        github.on_push(Request(headers={"X-GitHub-Event": "push"}, body=pushed), ctx)
    bus.load(github)
    jobs = [bus.enqueue(github.review, job.payload, unique=job.unique) for job in ctx.enqueued]
    assert [job.id for job in jobs[:3]] == [job.id for job in jobs[6:]]
    assert len({job.id for job in jobs}) == 6
