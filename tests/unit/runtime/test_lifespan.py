"""A module's lifespan: entered before the first job, on the handlers' loop, behind the walls; left after the last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from echofn import frames
from unit.runtime.driving import Base, Worker, discover, job, write

STARTED = """
import asyncio
from echofn import lifespan
log = open("lived", "ab", buffering=0)
@lifespan
async def clients():
    log.write(b"enter ")
    yield {"http": "client", "loop": id(asyncio.get_running_loop())}
    log.write(b"leave ")
"""
ASYNC = (
    STARTED
    + "async def f(payload, ctx):\n    return [ctx.state.http, ctx.state.loop == id(asyncio.get_running_loop())]\n"
)
SYNC = STARTED + "def f(payload, ctx):\n    log.write(b'run ')\n    return ctx.state.http\n"
PLAIN = """
from echofn import lifespan
log = open("lived", "ab", buffering=0)
@lifespan
def clients():
    log.write(b"enter ")
    yield {"http": "client"}
    log.write(b"leave ")
"""


def started(shared: Base, source: str, **fields: Any) -> Worker:
    """A ready worker of a module with a lifespan."""
    write(shared.folder, m=source)
    worker = shared.spawn(startup_ms=30_000, is_async="async def f(" in source, **fields)
    assert worker.read() == frames.Imported()
    worker.start()
    return worker


def failed(shared: Base, source: str, **fields: Any) -> frames.Failed:
    write(shared.folder, m=source + "\ndef f(payload, ctx): pass\n")
    worker = shared.spawn(startup_ms=30_000, **fields)
    assert worker.read() == frames.Imported()
    said = worker.read()
    assert isinstance(said, frames.Failed)
    return said


def lived(shared: Base) -> str:
    return (Path(shared.tmp) / "lived").read_text()


def test_what_it_yields_is_the_state_on_the_loop_of_the_handlers(shared: Base) -> None:
    worker = started(shared, ASYNC)
    assert [answer.result for answer in worker.run(job(), job())] == [["client", True]] * 2


@pytest.mark.parametrize(
    "source", [SYNC, PLAIN + "def f(payload, ctx):\n    log.write(b'run ')\n    return ctx.state.http\n"]
)
def test_it_is_entered_once_and_left_when_the_worker_stops(shared: Base, source: str) -> None:
    worker = started(shared, source)
    assert [answer.result for answer in worker.run(job(), job())] == ["client"] * 2
    worker.send(frames.Stop())
    assert worker.end().status == 0
    assert lived(shared) == "enter run run leave "


def test_an_async_worker_leaves_it_after_its_last_run(shared: Base) -> None:
    worker = started(
        shared,
        STARTED + "import os\nasync def f(payload, ctx):\n    print('runs')\n"
        "    while not os.path.exists('go'): await asyncio.sleep(0.002)\n    log.write(b'run ')\n",
    )
    worker.hand(job(), job())
    for _ in range(4):
        worker.read()  # both have begun
    worker.send(frames.Stop())
    Path(shared.tmp, "go").touch()
    assert {type(worker.read()), type(worker.read())} == {frames.Ended}
    assert worker.end().status == 0
    assert lived(shared) == "enter run run leave "


def test_a_plain_generator_serves_an_async_function(shared: Base) -> None:
    worker = started(shared, PLAIN + "async def f(payload, ctx): return ctx.state.http\n")
    assert worker.one().result == "client"
    worker.send(frames.Stop())
    worker.end()
    assert lived(shared) == "enter leave "


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_it_is_left_where_a_run_left_a_thread(shared: Base, kind: str) -> None:
    leaves = "import threading, time; threading.Thread(target=time.sleep, args=(100,)).start()"
    worker = started(shared, PLAIN + f"{kind} f(payload, ctx): {leaves}\n")
    assert worker.one().outcome == "done"
    assert worker.end().status == 0
    assert lived(shared) == "enter leave "


def test_it_is_left_in_the_task_that_entered_it(shared: Base) -> None:
    """As a task group asks for; and what runs in it goes on beside the runs."""
    worker = started(
        shared,
        """
        import asyncio
        from echofn import lifespan
        beats = []
        async def beat():
            while True:
                beats.append(1)
                await asyncio.sleep(0.001)
        @lifespan
        async def clients():
            async with asyncio.TaskGroup() as group:
                task = group.create_task(beat())
                yield
                task.cancel()
            open("lived", "w").write("left")
        async def f(payload, ctx):
            before = len(beats)
            while len(beats) < before + 4: await asyncio.sleep(0.001)
            return len(beats) - before
        """,
    )
    assert worker.one().result > 3
    worker.send(frames.Stop())
    assert worker.end().status == 0
    assert lived(shared) == "left"


def test_what_is_no_mapping_is_the_state_itself(shared: Base) -> None:
    worker = started(
        shared,
        """
        import dataclasses
        from echofn import lifespan
        @dataclasses.dataclass
        class State:
            http: str
        @lifespan
        def clients(): yield State("typed")
        def f(payload, ctx):
            state: State = ctx.state
            return [type(state).__name__, state.http]
        """,
    )
    assert worker.one().result == ["State", "typed"]


def test_the_state_shows_what_was_yielded_and_nothing_of_ours(shared: Base) -> None:
    assert (
        started(shared, PLAIN + "def f(payload, ctx): return repr(ctx.state)\n").one().result == "State(http='client')"
    )


def test_a_name_that_was_not_yielded_says_what_was(shared: Base) -> None:
    body = "def f(payload, ctx): ctx.state.htpp\n"
    fault = started(shared, PLAIN + body).one().fault
    assert fault.exception == "AttributeError"
    assert "no 'htpp'" in fault.message
    assert "yielded http" in fault.message
    shared.dismiss()
    assert "has no @lifespan" in shared.serve(body).one().fault.message


def test_a_helper_of_contextlib_may_be_on_it(shared: Base) -> None:
    worker = started(
        shared,
        """
        import contextlib
        from echofn import lifespan
        @lifespan
        @contextlib.asynccontextmanager
        async def clients(): yield {"http": "client"}
        def f(payload, ctx): return ctx.state.http
        """,
    )
    assert worker.one().result == "client"


def test_one_of_another_module_can_be_taken_on(shared: Base) -> None:
    write(shared.folder, lib="async def clients(): yield {'http': 'shared'}\n")
    worker = started(
        shared,
        "from echofn import lifespan\nfrom .lib import clients\nclients = lifespan(clients)\n"
        "def f(payload, ctx): return ctx.state.http\n",
    )
    assert worker.one().result == "shared"


@pytest.mark.parametrize(
    ("body", "kind", "told"),
    [
        ("raise ConnectionError('no database'); yield", "ConnectionError", "no database"),
        ("import sys; sys.exit(1); yield", "SystemExit", "1"),
        (
            "if False: yield",
            "RuntimeError",
            "@lifespan (m.py:2): expected a generator that yields once, got one that ended",
        ),
        ("yield {1: 2}", "TypeError", "keywords must be strings"),
    ],
)
@pytest.mark.parametrize("kind_of", ["def", "async def"])
def test_a_start_that_fails_is_told(shared: Base, kind_of: str, body: str, kind: str, told: str) -> None:
    said = failed(shared, f"from echofn import lifespan\n@lifespan\n{kind_of} clients():\n    {body}\n")
    assert said.exception == kind
    assert told in said.message
    assert said.cause == "error"
    if "ended" not in told and "keywords" not in told:
        assert "m.py" in said.traceback


def test_a_wall_in_the_way_of_it_is_named(shared: Base) -> None:
    said = failed(
        shared,
        "import socket\nfrom echofn import lifespan\n@lifespan\ndef clients():\n"
        "    yield socket.create_connection(('127.0.0.1', 443))\n",
        level="standard",
    )
    assert said.cause == "wall:network"
    assert "Add network=[443]" in said.message


@pytest.mark.parametrize("end", ["raise ValueError('late')", "yield"])
def test_an_end_that_fails_is_told_to_the_output_and_the_worker_ends_well(shared: Base, end: str) -> None:
    worker = started(
        shared,
        f"from echofn import lifespan\n@lifespan\nasync def clients():\n    yield\n    {end}\ndef f(_): return 1\n",
    )
    assert worker.one().result == 1
    worker.send(frames.Stop())
    assert worker.end().status == 0
    assert b"@lifespan (m.py:2) did not end well" in worker.raw()


@pytest.mark.parametrize("kind_of", ["def", "async def"])
def test_what_it_prints_is_told_as_of_no_run_and_masked(shared: Base, kind_of: str) -> None:
    worker = started(
        shared,
        f"""
        import asyncio, logging, os
        from echofn import lifespan
        @lifespan
        {kind_of} clients():
            print("enter with", os.environ["KEY"])
            try:
                yield
            finally:
                for n in range(2_000):
                    print(n)
                logging.info("leave")
                print("no line end", end="")
        def f(_):
            print("run")
        """,
        secrets={"KEY": "a-secret-that-is-long"},
    )
    assert worker.one().text("stdout") == "run"
    worker.send(frames.Stop())
    assert worker.read() is None
    told = [line.text for line in worker.outside]
    assert (told[0], told[-2:]) == ("enter with [redacted]", ["leave", "no line end"])
    assert len(told) == 2_003


def test_what_goes_on_beside_its_runs_does_not_use_up_the_words_of_its_end(shared: Base) -> None:
    worker = started(
        shared,
        """
        from echofn import lifespan
        @lifespan
        async def clients():
            print("x" * 2_000_000)
            yield
            print("leave")
        async def f(_): ...
        """,
    )
    worker.one()
    worker.send(frames.Stop())
    assert worker.read() is None
    assert [line.text for line in worker.outside][-2] == "leave"
    assert "bytes cut" in worker.outside[-1].text


# ---- at load --------------------------------------------------------------------------------------------------------


def described(tmp_path: Path, source: str) -> Any:
    folder = tmp_path / "functions"
    write(folder, m=source)
    return discover(folder)["m"]


def test_discovery_tells_of_a_lifespan_and_how_long_its_start_may_take(tmp_path: Path) -> None:
    made = described(
        tmp_path,
        """
        from echofn import lifespan, queue
        @lifespan(startup_timeout="1m")
        async def clients(): yield
        @queue
        def f(payload): ...
        @queue
        async def g(payload): ...
        """,
    )
    assert made.errors == ()
    assert [(each.startup_ms, each.at_once) for each in made.functions] == [(60_000, 1), (60_000, 10)]


HEAD = "from echofn import lifespan, queue\n@queue\ndef f(payload): ...\n"


@pytest.mark.parametrize(
    ("source", "line", "told"),
    [
        (HEAD + "@lifespan\ndef a(): yield\n@lifespan\ndef b(): yield\n", 6, "expected one @lifespan in a module"),
        (HEAD + "@lifespan\ndef a(): return {}\n", 4, "expected a generator that yields once"),
        (HEAD + "@lifespan\nclass A: ...\n", 4, "expected a generator that yields once"),
        (HEAD + "@lifespan\ndef a(app): yield\n", 4, "expected a lifespan without parameters, got (app)"),
        (HEAD + "@lifespan('30s')\ndef a(): yield\n", 4, "expected keywords"),
        (HEAD + "@lifespan(startup_timeout='soon')\ndef a(): yield\n", 4, "startup_timeout="),
        (HEAD + "@lifespan(startup_timeuot='1s')\ndef a(): yield\n", 4, "did you mean 'startup_timeout'"),
        ("from echofn import lifespan\n@lifespan\ndef a(): yield\n", 2, "expected a function beside @lifespan"),
    ],
)
def test_a_lifespan_that_cannot_be_is_refused_with_its_line_and_its_functions(
    tmp_path: Path, source: str, line: int, told: str
) -> None:
    made = described(tmp_path, source)
    assert made.functions == ()
    [error] = made.errors
    assert (error.line, error.kind) == (line, "refused")
    assert told in error.message


def test_a_sync_function_has_no_use_for_per_worker(tmp_path: Path) -> None:
    made = described(
        tmp_path,
        "from echofn import queue\n@queue(per_worker=5)\ndef f(_): ...\n@queue(per_worker=5)\nasync def g(_): ...\n",
    )
    assert [each.policy.per_worker for each in made.functions] == [5]
    [error] = made.errors
    assert error.line == 2
    assert "write async def" in error.message
