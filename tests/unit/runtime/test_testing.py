"""`echofn.testing`: a driven bus of the test's own, whose jobs run in its process; and a context that remembers."""

from __future__ import annotations

import asyncio
import importlib
import json.tool
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import bakery
from echod.errors import Refused
from echofn.testing import Bus, bus, fake_context

__all__ = ["bus"]
START = datetime(2026, 1, 5, tzinfo=UTC)


@pytest.fixture
def baking(bus: Bus) -> Bus:
    bus.load(bakery)
    return bus


# ---- time ----


def test_the_clock_stands_at_a_monday_until_the_test_moves_it(baking: Bus) -> None:
    assert baking.now == START
    time.sleep(0.002)  # real time goes on
    assert baking.now == START
    baking.advance("90m")
    baking.advance_to("2026-01-05T02:00:00Z")
    assert baking.now == START + timedelta(hours=2)
    with pytest.raises(ValueError, match="one way"):
        baking.advance_to(START)


def test_each_due_instant_on_the_way_becomes_a_job_of_its_own(baking: Bus) -> None:
    baking.advance("1d")
    assert [job.due for job in baking.jobs(bakery.ring)] == [START + timedelta(hours=hour) for hour in range(1, 25)]
    assert [job.state for job in baking.jobs(bakery.open_shop)] == ["pending"]
    baking.run_due()
    assert [job.result for job in baking.jobs(bakery.open_shop)] == ["2026-01-05T05:00:00+00:00"]  # 6 in Berlin
    assert len(baking.jobs(bakery.lazy, state="done")) == 24


def test_what_fell_due_while_nobody_was_there_is_settled_as_missed_says(baking: Bus) -> None:
    baking.advance("5h", pump=False)
    assert len(baking.jobs(bakery.ring)) == 5  # missed="all"
    assert len(baking.jobs(bakery.lazy)) == 1  # missed="skip": only the one that is on time still
    baking.advance("30m", pump=False)
    assert len(baking.jobs(bakery.lazy)) == 1


# ---- verdicts, as in production ----


def test_a_result_a_lane_a_log_and_progress_are_where_they_are_in_production(baking: Bus) -> None:
    job = baking.enqueue(bakery.bake, bakery.Order("rye", 3))
    assert (job.state, job.payload, job.result) == ("pending", {"loaf": "rye", "count": 3}, None)
    assert baking.run_due() == [job]
    assert (job.state, job.result, job.lane, job.attempts, job.failures) == ("done", "3 rye", "rye", 1, 0)
    assert job.log == ["baking 3", "in the oven"]
    assert job.progress == (1.0, "out of it")
    assert job.due == job.minted == job.started == job.ended == START
    assert "done result='3 rye'" in repr(job)


def test_a_failure_waits_its_backoff_and_advance_makes_it_due(baking: Bus) -> None:
    job = baking.enqueue("bakery.fail", {"flour": 1})
    assert baking.run_due() == [job]
    assert (job.state, job.reason, job.failures) == ("scheduled", "retry", 1)
    assert baking.run_due() == []
    baking.advance(0.499)
    assert baking.run_due() == []
    baking.advance("1ms")  # 500 ms: the longest that the jitter allows
    assert baking.run_due() == [job]
    baking.advance("1s")
    assert baking.run_due() == [job]
    assert (job.state, job.failures, job.attempts) == ("dead", 3, 3)
    assert job.error is not None
    assert (job.error.type, job.error.message, job.error.cause) == ("ValueError", "no {'flour': 1}", "error")
    assert job.error.traceback.splitlines()[1].strip().startswith('File "bakery.py"')


@pytest.mark.parametrize(("payload", "wait"), [("asked", "5m"), ("flat", "10s")])
def test_a_retry_waits_as_its_handler_asks_or_else_as_its_function_says(baking: Bus, payload: str, wait: str) -> None:
    job = baking.enqueue(bakery.sour, payload)
    baking.run_due()
    assert (job.state, job.result) == ("scheduled", None)
    before = baking.now
    baking.advance(wait)
    assert job.state == "pending"
    baking.run_due()
    assert (job.result, baking.now - before) == ("risen at 2 of 2", job.due - before)


def test_snooze_fail_and_cancel_end_as_a_workers_would(baking: Bus) -> None:
    snoozed, failed, cancelled = (baking.enqueue(bakery.say, word) for word in ("snooze", "fail", "cancel"))
    baking.run_due()
    assert (snoozed.state, snoozed.reason, snoozed.failures, snoozed.due) == (
        *("scheduled", "snooze", 0, START + timedelta(minutes=10)),
    )
    assert (failed.state, failed.failures) == ("dead", 1)
    assert cancelled.state == "cancelled"
    assert baking.jobs(bakery.say, state={"dead", "cancelled"}) == [failed, cancelled]


def test_annotations_count_as_in_the_environment_of_the_test(bus: Bus) -> None:
    bus.load(bakery)
    bus.advance("1h")
    assert bus.jobs(bakery.stock) == []
    bus.enqueue(bakery.stock)
    bus.load(bakery, env="prod")
    bus.advance("1h")
    bus.enqueue(bakery.stock, "stones")
    bus.run_due()
    ran = [(job.state, job.result) for job in bus.jobs(bakery.stock)]
    assert ran == [("done", "rye for prod"), ("done", "oat for prod"), ("dead", None)]


def test_an_environment_that_looks_like_a_slip_is_refused(bus: Bus) -> None:
    with pytest.raises(Refused, match=r"expected dev, prod or another, got 'prd'; did you mean 'prod'\?"):
        bus.load(bakery, env="prd")
    bus.load(bakery, env="staging")


def test_fan_out_runs_too_and_says_who_its_parent_was(baking: Bus) -> None:
    job = baking.enqueue(bakery.shop, ["rye", "spelt"])
    assert len(baking.run_due()) == 3
    assert [child.result for child in job.children] == ["1 rye", "1 spelt"]
    assert [child.lane for child in baking.jobs(bakery.bake)] == ["rye", "spelt"]
    assert job.children == baking.jobs("bakery.bake")


def test_secrets_are_the_tests_variables_and_masked_as_in_production(
    baking: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = baking.enqueue(bakery.pay, {"card": "4111 1111"})
    monkeypatch.setenv("BAKERY_KEY", "sk_live_12345")
    baking.run_due()
    assert (job.result, job.log) == ("sk_", ["[redacted] [redacted]"])


def test_a_batch_gathers_runs_as_one_and_ends_job_by_job(baking: Bus) -> None:
    early, burnt = baking.enqueue(bakery.box, "rye"), baking.enqueue(bakery.box, "burnt")
    assert baking.run_due() == []
    baking.advance("10s")
    assert baking.run_due()[:2] == [early, burnt]
    assert (early.result, burnt.state, burnt.reason) == (2, "scheduled", "retry")
    assert [child.result for child in early.children] == ["1 rye"]
    assert burnt.children == []
    assert early.log == ["boxed 2"]
    assert burnt.log == [f"ran in a batch with {early.id}, whose log has the output"]
    full = [baking.enqueue(bakery.box, "spelt") for _ in range(3)]
    baking.run_due()
    assert [job.result for job in full] == [3, 3, 3], "a full batch waits for nothing"
    baking.advance("11s")
    baking.run_due()
    assert (burnt.result, burnt.attempts, burnt.failures) == (1, 2, 1)
    assert [child.result for child in burnt.children] == ["1 burnt"]


def test_a_state_that_no_job_can_have_is_refused(baking: Bus) -> None:
    """Otherwise `assert not bus.jobs(state="daed")` could never fail."""
    for state in ("daed", ["done", "daed"]):
        with pytest.raises(ValueError, match=r"expected pending, scheduled, .* got 'daed'; did you mean 'dead'"):
            baking.jobs(state=state)
    assert baking.jobs(state=["done", "dead"]) == []


def test_a_batch_function_is_called_with_a_context_of_several_jobs() -> None:
    ctx = fake_context(attempts=[1, 3, 2])
    assert (ctx.attempt, [job.attempt for job in ctx.jobs]) == (3, [1, 3, 2])
    assert len({job.job_id for job in ctx.jobs}) == 3
    assert bakery.box(["rye", "burnt", "spelt"], ctx) == [3, 3, 3]
    assert [child.payload.loaf for child in ctx.enqueued] == ["rye", "burnt", "spelt"]
    assert [job.attempt for job in fake_context().jobs] == [1]


def test_delays_instants_and_unique_keys_are_the_buss_own(baking: Bus) -> None:
    later = baking.enqueue(bakery.knead, 1, delay="1h")
    fixed = baking.enqueue(bakery.knead, 2, at="2026-01-05T02:00:00Z")
    assert baking.run_due() == []
    baking.advance("1h")
    assert later in baking.run_due()
    baking.advance("1h")
    assert fixed in baking.run_due()
    assert (later.result, fixed.result) == (2, 3)
    first = baking.enqueue(bakery.once, bakery.Order("rye"))
    assert baking.enqueue(bakery.once, bakery.Order("rye")) == first
    baking.enqueue(bakery.once, bakery.Order("spelt"))
    with pytest.raises(Refused, match="full: 2 jobs"):
        baking.enqueue(bakery.once, bakery.Order("oat"))


@pytest.mark.parametrize("_", [1, 2])
def test_ids_are_the_same_in_every_run(baking: Bus, _: int) -> None:
    job = baking.enqueue(bakery.shop, ["rye"])
    baking.run_due()
    assert (job.id, job.children[0].id) == ("JOB0JfuMZSRFa4", "JOB0JfuMZSRFa5")


# ---- where it runs ----


def test_a_handler_runs_in_the_tests_own_thread_and_process(baking: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[int, int]] = []
    monkeypatch.setattr(bakery, "lazy", lambda: ran.append((os.getpid(), threading.get_ident())))
    baking.advance("1h")
    baking.run_due()
    assert ran == [(os.getpid(), threading.get_ident())]


async def test_an_async_test_uses_it_as_a_plain_one_does(baking: Bus) -> None:
    job = baking.enqueue(bakery.knead, 41)
    baking.run_due()
    assert job.result == 42
    await asyncio.sleep(0)


def test_what_is_not_the_handlers_to_say_goes_through_to_the_test(baking: Bus) -> None:
    baking.enqueue(bakery.interrupted, "ctrl-c")
    with pytest.raises(KeyboardInterrupt):
        baking.run_due()
    baking.enqueue(bakery.interrupted, "fail")
    with pytest.raises(pytest.fail.Exception, match="said by the handler"):
        baking.run_due()


def test_a_tests_own_time_limit_outlives_the_runs_in_it(baking: Bus) -> None:
    rang = threading.Event()
    before = signal.signal(signal.SIGALRM, lambda *_: rang.set())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        baking.enqueue(bakery.knead, 1)
        baking.run_due()
        assert rang.wait(60)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_functions_that_enqueue_each_other_for_ever_are_told(baking: Bus) -> None:
    baking.enqueue(bakery.again)
    with pytest.raises(RuntimeError, match="50 jobs ran and more are due"):
        baking.run_due(most=50)


def test_output_is_the_tests_too(baking: Bus, capsys: pytest.CaptureFixture[str], caplog: Any) -> None:
    level, streams = logging.getLogger().level, (sys.stdout, sys.stderr)
    baking.enqueue(bakery.bake, bakery.Order("rye"))
    baking.run_due()
    assert capsys.readouterr().out == "in the oven\n"
    assert "baking 1" in caplog.text
    assert (logging.getLogger().level, (sys.stdout, sys.stderr)) == (level, streams)


# ---- what is refused ----


def test_a_payload_or_a_name_that_does_not_fit_is_refused_where_the_test_says_it(baking: Bus) -> None:
    with pytest.raises(ValueError, match=r"bakery\.bake"):
        baking.enqueue(bakery.bake, {"loaf": 7})
    with pytest.raises(LookupError, match=r"did you mean 'bakery\.bake'"):
        baking.jobs("bakery.bke")
    with pytest.raises(LookupError, match=r"got 'bakery\.bke'; did you mean 'bakery\.bake'"):
        baking.enqueue("bakery.bke")
    with pytest.raises(TypeError, match="@queue"):
        baking.enqueue(bakery.plain, 1)


def test_a_module_that_echod_would_refuse_is_refused_with_its_line(bus: Bus, tmp_path: Path) -> None:
    (tmp_path / "broken_bakery.py").write_text("from echofn import cron\n\n@cron('99 * * * *')\ndef f(): ...\n")
    sys.path.insert(0, str(tmp_path))
    try:
        import broken_bakery  # type: ignore[import-not-found]

        with pytest.raises(Refused, match=r"broken_bakery\.py:3: .*99"):
            bus.load(broken_bakery)
        with pytest.raises(Refused, match="functions in json"):
            bus.load(json.tool)
    finally:
        sys.path.remove(str(tmp_path))


def test_a_package_stands_for_its_modules_and_names_are_those_of_dev(bus: Bus, tmp_path: Path) -> None:
    folder = tmp_path / "acme" / "functions"
    (folder / "eu").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "echod.toml").write_text("[defaults]\nretries = 0\n")
    (folder / "eu" / "shop.py").write_text("from echofn import queue\n\n@queue\ndef pack(payload): raise ValueError\n")
    (folder / "test_shop.py").write_text("raise AssertionError('a test is no function')\n")
    sys.path.insert(0, str(tmp_path))
    try:
        import acme.functions  # type: ignore[import-not-found]

        bus.load(acme.functions)
        job = bus.enqueue("eu.shop.pack")
        bus.run_due()
        assert (job.state, job.failures) == ("dead", 1)  # the folder's echod.toml allows no retry
    finally:
        sys.path.remove(str(tmp_path))


# ---- cost, and life ----


def test_all_tests_of_a_process_share_one_server_that_each_finds_empty(bus: Bus) -> None:
    from echofn.testing import running_bus
    from echofn.testing.stage import stage

    first = stage()
    for _ in range(10):
        with running_bus() as one:
            one.load(bakery)
            job = one.enqueue(bakery.shop, ["rye"])
            assert [each.id for each in one.jobs()] == [job.id]
            one.run_due()
    assert stage() is first


def test_the_server_ends_with_the_process_however_that_ends() -> None:
    code = (
        "import os, signal; from echofn.testing import stage as _; from echofn.testing.stage import stage\n"
        "print(stage()._server.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    server = int(ran.stdout)
    end = time.monotonic() + 60
    while Path(f"/proc/{server}").exists() and time.monotonic() < end:
        time.sleep(0.01)
    assert not Path(f"/proc/{server}").exists()


# ---- the fake context ----


def test_a_fake_context_remembers_what_was_asked_of_it(caplog: pytest.LogCaptureFixture) -> None:
    ctx = fake_context(attempt=2, last_attempt=True, lane="acme", due=START, timeout="30s", function="bakery.shop")
    assert bakery.shop(["rye", "spelt"], ctx) == 2
    assert [(job.id, job.function, job.payload) for job in ctx.enqueued] == [
        ("JOB00000000001", "bakery.bake", bakery.Order("rye")),
        ("JOB00000000002", "bakery.bake", bakery.Order("spelt")),
    ]
    assert bakery.bake(bakery.Order("rye", 2), ctx) == "2 rye"
    assert (ctx.lines, ctx.progressed, ctx.records[0].levelname) == (["baking 2"], [(1.0, "out of it")], "INFO")
    assert "baking 2" in caplog.text
    assert (ctx.attempt, ctx.last_attempt, ctx.fence, ctx.lane, ctx.due) == (2, True, 2, "acme", START)
    assert (ctx.deadline, ctx.previous, ctx.function, ctx.job_id) == (
        *(START + timedelta(seconds=30), None, "bakery.shop", "JOB00000000000"),
    )


def test_a_fake_context_refuses_what_production_would() -> None:
    ctx = fake_context()
    with pytest.raises(ValueError, match=r"bakery\.bake"):
        ctx.enqueue(bakery.bake, {"loaf": 7})
    with pytest.raises(TypeError, match="@queue"):
        ctx.enqueue(bakery.plain)
    with pytest.raises(ValueError, match="fraction"):
        ctx.progress(2)
    with pytest.raises(ValueError, match=r"expected a fraction from 0 to 1, got '0\.5'"):
        ctx.progress("0.5")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="3660 days"):
        ctx.enqueue(bakery.bake, bakery.Order("rye"), at="9999-12-31T00:00:00Z")
    assert ctx.enqueued == []
    assert ctx.enqueue("elsewhere.pack", {"n": 1}, delay="5m", lane="acme") == "JOB00000000001"
    assert ctx.enqueued[0][1:5] == ("elsewhere.pack", {"n": 1}, "acme", "5m")


def test_a_fake_context_has_the_state_and_the_end_that_it_was_given() -> None:
    ctx = fake_context(state={"http": "fake"}, timeout="1s")
    before = ctx.deadline
    ctx.extend("5m")
    assert (ctx.state.http, ctx.cancelled, ctx.extended) == ("fake", False, [300_000])
    assert ctx.deadline - before == timedelta(minutes=5)
    ctx.extend("30d")
    assert (ctx.deadline - START, ctx.extended) == (timedelta(days=7), [300_000, 30 * 86_400_000])
    late = fake_context(cancelled=True)
    assert late.cancelled
    with pytest.raises(RuntimeError, match="one that is to end"):
        late.extend("5m")
    assert fake_context(state=7).state == 7
    with pytest.raises(AttributeError, match="the test has no @lifespan"):
        _ = fake_context().state.http


def test_a_fake_context_takes_as_many_children_as_production() -> None:
    ctx = fake_context(attempts=[1, 1])
    for n in range(1_000):
        ctx.jobs[n % 2].enqueue("elsewhere.pack", n)
    with pytest.raises(RuntimeError, match="at most 1,000 jobs"):
        ctx.enqueue("elsewhere.pack")
    assert [job.id for job in ctx.enqueued[-2:]] == ["JOB000000000G7", "JOB000000000G8"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"attempt": "x"}, "attempt=: expected a whole number from 1 to .*, got 'x'"),
        ({"attempt": 0}, "attempt=: .* got 0"),
        ({"attempts": [1, 0]}, r"attempts\[1\]=: .* got 0"),
        ({"fence": 0}, "fence=: .* got 0"),
        ({"timeout": "soon"}, "timeout=: .* got 'soon'"),
        ({"last_attempt": 1}, "last_attempt=: expected True or False, got 1"),
    ],
)
def test_a_fake_context_is_given_what_a_run_can_be_told(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        fake_context(**given)


@pytest.mark.parametrize(
    ("wishes", "told"),
    [
        ({"unique": ""}, "unique=: expected 1 to 255 characters, got 0"),
        ({"unique": "k" * 256}, "unique=: expected 1 to 255 characters, got 256"),
        ({"delay": "5000w"}, "at most 3660 days"),
        ({"at": "9999-12-31T00:00:00Z"}, "within 3660 days from now"),
    ],
)
def test_a_tests_bus_refuses_the_wishes_that_http_refuses(baking: Bus, wishes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        baking.enqueue("bakery.bake", {"loaf": "rye"}, **wishes)
    assert baking.jobs() == []


def test_a_lifespan_lasts_as_long_as_the_bus(tmp_path: Path) -> None:
    from echofn.testing import running_bus

    (tmp_path / "lived.py").write_text(
        "import asyncio\nfrom echofn import lifespan, queue\nseen = []\n"
        "@lifespan\nasync def clients():\n    seen.append('enter')\n"
        "    yield {'loop': id(asyncio.get_running_loop())}\n    seen.append('leave')\n"
        "@queue\nasync def f(payload, ctx):\n    return ctx.state.loop == id(asyncio.get_running_loop())\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        import lived  # type: ignore[import-not-found]

        with running_bus() as one:
            one.load(lived)
            jobs = [one.enqueue(lived.f) for _ in range(2)]
            one.run_due()
            assert [job.result for job in jobs] == [True, True]
            assert lived.seen == ["enter"]
        assert lived.seen == ["enter", "leave"]
    finally:
        sys.path.remove(str(tmp_path))


def test_a_fake_context_needs_neither_pytest_nor_echod() -> None:
    code = "import sys, echofn.testing as t; t.fake_context(); print({'echod', 'pytest'} & {*sys.modules})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"


def written(folder: Path, name: str, source: str) -> ModuleType:
    """A module of a test's own. Names are the test's: a module is imported once."""
    (folder / f"{name}.py").write_text(source)
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))


HOOKS = """
from echofn import Request, webhook
@webhook("/hooks/github/{team}", verify="github", secret="NOT_SET_HERE", lane="json.repository.name")
def on_push(request: Request):
    said = request.json()["ref"], request.headers["X-GitHub-Event"]
    return [*said, request.params, dict(request.query), request.method]
@webhook("/hooks/plain", verify=None)
def plain(text: str):
    return text
"""


def test_a_request_to_a_webhook_becomes_the_job_that_it_would_become(bus: Bus, tmp_path: Path) -> None:
    hooks = written(tmp_path, "hooks", HOOKS)
    bus.load(hooks)
    pushed = {"ref": "main", "repository": {"name": "echod"}}
    headers = {"X-GitHub-Event": "push", "X-GitHub-Delivery": "72d3162e", "X-Hub-Signature-256": "sha256=00"}
    job = bus.post("/hooks/github/core%20team?dry=1", pushed, headers=headers)
    assert bus.post("/hooks/github/core%20team?dry=1", pushed, headers=headers) == job  # the same delivery
    text = bus.post("/hooks/plain", "hello", method="PUT")
    bus.run_due()
    assert job.result == ["main", "push", {"team": "core team"}, {"dry": "1"}, "POST"]
    assert (job.function, job.lane, text.result) == ("hooks.on_push", "echod", "hello")
    assert "x-hub-signature-256" not in job.payload["headers"]  # as in production
    with pytest.raises(LookupError, match=r"/hooks/nowhere.*loaded: /hooks/github/\{team\}, /hooks/plain"):
        bus.post("/hooks/nowhere")
    with pytest.raises(ValueError, match="method=: expected POST, PUT, PATCH, got GET"):
        bus.post("/hooks/plain", method="GET")


def test_a_job_without_payload_has_the_default_of_the_parameter(bus: Bus, tmp_path: Path) -> None:
    source = """
from dataclasses import dataclass
from echofn import every, queue
@dataclass
class Size:
    n: int
@queue
@every("1h")
def measure(payload: Size = Size(3)):
    return payload.n
"""
    sized = written(tmp_path, "sized", source)
    bus.load(sized)
    bus.advance("1h")
    bus.enqueue(sized.measure)
    bus.enqueue("sized.measure")
    bus.run_due()
    assert [job.result for job in bus.jobs(sized.measure)] == [3, 3, 3]
    ctx = fake_context()
    ctx.enqueue(sized.measure)
    assert ctx.enqueued[0].payload == sized.Size(3)
