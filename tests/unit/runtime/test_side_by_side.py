"""Async runs side by side on one loop: each gets its own answer, its own output, its own end."""

from __future__ import annotations

import pytest

from echofn import frames
from echofn.manifest import Policy
from unit.runtime.driving import Base, Worker, job

MEETING = """
import asyncio
here, all_here = 0, asyncio.Event()
async def f(payload, ctx):
    global here
    here += 1
    if here == payload["of"]: all_here.set()
    print("before", payload["n"])
    await all_here.wait()
    print("after", payload["n"])
    return payload["n"]
"""


def test_runs_wait_for_each_other_on_one_loop_and_print_into_their_own_jobs(shared: Base) -> None:
    worker = shared.serve(MEETING)
    answers = worker.run(*(job({"n": n, "of": 10}) for n in range(10)))
    assert [answer.result for answer in answers] == list(range(10))
    assert [answer.text("stdout") for answer in answers] == [f"before {n}\nafter {n}" for n in range(10)]


def test_no_more_runs_at_once_than_per_worker_says(shared: Base) -> None:
    worker = shared.serve(
        """
        import asyncio
        now, most = 0, 0
        async def f(payload):
            global now, most
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.005)
            now -= 1
            return most
        """,
        policy=Policy(per_worker=3),
    )
    answers = worker.run(*(job() for _ in range(12)))  # `collect` counts, too
    assert max(answer.result for answer in answers) == 3


def test_a_quick_run_overtakes_a_slow_one(shared: Base) -> None:
    worker = shared.serve(
        """
        import asyncio
        gate = asyncio.Event()
        async def f(payload):
            if payload == "opens": gate.set()
            else: await gate.wait()
            return payload
        """
    )
    first = worker.hand(job("waits"))
    assert worker.read() == frames.Begun(first)
    worker.hand(job("opens"))
    assert worker.read() == frames.Begun(first + 1)
    ended = worker.read()
    assert isinstance(ended, frames.Ended)
    assert ended.index == first + 1
    ended = worker.read()
    assert isinstance(ended, frames.Ended)
    assert ended.index == first


def test_logging_and_tasks_and_threads_of_a_run_land_in_its_own_job(shared: Base) -> None:
    worker = shared.serve(
        """
        import asyncio, logging
        async def say(n):
            await asyncio.sleep(0)
            logging.getLogger("m").info("task %s", n)
        async def f(payload, ctx):
            await asyncio.gather(say(payload), asyncio.sleep(0.01))
            await asyncio.to_thread(print, "thread", payload)
            ctx.log.info("own %s", payload)
        """
    )
    for n, answer in enumerate(worker.run(*(job(n) for n in range(5)))):
        assert sorted(line.text for line in answer.output) == sorted([f"task {n}", f"thread {n}", f"own {n}"])


def test_a_neighbour_that_fails_or_exits_touches_nobody(shared: Base) -> None:
    worker = shared.serve(
        """
        import asyncio, sys
        async def exits(): sys.exit(3)
        async def f(payload):
            if payload == "raise": raise ValueError("bad")
            if payload == "exit": sys.exit(2)
            if payload == "stop": asyncio.get_running_loop().stop()
            if payload == "task": await asyncio.gather(exits())
            await asyncio.sleep(0.02)
            return payload
        """
    )
    answers = worker.run(*(job(word) for word in ["a", "raise", "b", "exit", "stop", "task", "c"]))
    assert [answer.outcome for answer in answers] == ["done", "retry", "done", "retry", "done", "retry", "done"]
    assert [answers[n].fault.exception for n in (1, 3, 5)] == ["ValueError", "SystemExit", "SystemExit"]


def test_the_bills_of_runs_side_by_side_add_up(shared: Base) -> None:
    worker = shared.serve(
        """
        import asyncio, time
        async def f(payload):
            await asyncio.sleep(0)
            start = time.process_time()
            while time.process_time() - start < 0.05: pass
            await asyncio.sleep(0)
            return time.process_time()
        """
    )
    before = worker.one().result
    answers = worker.run(*(job() for _ in range(4)))
    spent = max(answer.result for answer in answers) - before
    billed = sum(answer.ended.cpu_us for answer in answers if answer.ended) / 1e6
    assert 0.2 <= billed <= spent * 2  # each alone would be billed nearly all of it: four times as much


def test_a_refusal_is_told_to_the_run_that_met_it(shared: Base) -> None:
    worker = shared.serve(
        """
        import asyncio, socket
        met, seen = asyncio.Event(), asyncio.Event()
        async def f(payload):
            if payload == "meets":
                try: socket.create_connection(("127.0.0.1", 9), 0.1)
                except OSError: pass
                met.set()
                await seen.wait()
                raise RuntimeError("after all")
            await met.wait()
            seen.set()
            raise ValueError("my own")
        """,
        level="standard",
    )
    meets, other = worker.run(job("meets"), job("other"))
    assert (meets.outcome, meets.fault.cause) == ("dead", "wall:network")
    assert (other.outcome, other.fault.cause) == ("retry", "error")


# ---- the end of a run -----------------------------------------------------------------------------------------------

PATIENT = """
import asyncio
ended = []
async def f(payload, ctx):
    try:
        print("waits")
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        ended.append((payload, ctx.cancelled))
        if payload == "deaf": return "went on"
        raise
"""


def begun(worker: Worker, *payloads: object) -> int:
    """Jobs handed over that have all printed a line; the first one's position."""
    first = worker.hand(*map(job, payloads))
    seen: set[int] = set()
    while len(seen) < len(payloads):
        if isinstance(message := worker.read(), frames.Output):
            seen.add(message.index)
    return first


def test_a_cancelled_run_gets_a_cancelled_error_and_its_neighbour_nothing(shared: Base) -> None:
    worker = shared.serve(PATIENT)
    first = begun(worker, "a", "b")
    worker.send(frames.Cancel(first))
    assert worker.read() == frames.Listens(first)
    ended = worker.read()
    assert isinstance(ended, frames.Ended)
    assert (ended.index, ended.outcome, ended.obeyed) == (first, "retry", True)
    assert ended.fault is not None
    assert ended.fault.exception == "CancelledError"
    worker.send(frames.Cancel(first))  # once more: it is over
    worker.send(frames.Cancel(first + 1))
    assert worker.read() == frames.Listens(first + 1)
    assert isinstance(worker.read(), frames.Ended)


def test_a_run_that_swallows_its_cancellation_says_that_it_knew(shared: Base) -> None:
    worker = shared.serve(PATIENT)
    first = begun(worker, "deaf")
    worker.send(frames.Cancel(first))
    assert worker.read() == frames.Listens(first)
    ended = worker.read()
    assert isinstance(ended, frames.Ended)
    assert (ended.outcome, ended.obeyed) == ("done", True)


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_job_that_is_cancelled_before_it_begins_never_runs(shared: Base, kind: str) -> None:
    worker = shared.serve(
        f"""
        import os, time
        ran = []
        {kind} f(payload):
            ran.append(payload)
            while payload and not os.path.exists(payload): time.sleep(0.002)
            return ran
        """,
        policy=Policy(per_worker=1),
    )
    gate = shared.folder / "gate"
    first = worker.hand(*map(job, [str(gate), "never", "nor this", ""]))
    assert worker.read() == frames.Begun(first)
    worker.send(frames.Cancel(first + 1))
    worker.send(frames.Withdraw(first + 2))
    worker.send(frames.Withdraw(first))  # has begun: it goes on
    gate.touch()
    opened, *skipped, last = worker.collect_rest(first, begun=1)
    assert opened.outcome == "done"
    assert [answer.ended for answer in skipped] == [None, None]
    assert last.result == [str(gate), ""]


def test_a_sync_handler_that_asks_is_told(shared: Base) -> None:
    worker = shared.serve(
        """
        import time
        def f(payload, ctx):
            print("runs")
            while not ctx.cancelled: time.sleep(0.001)
        """
    )
    first = worker.hand(job())
    assert worker.read() == frames.Begun(first)
    said = {type(worker.read()), type(worker.read())}
    assert said == {frames.Output, frames.Listens}  # it says once that it asks
    worker.send(frames.Cancel(first))
    ended = worker.read()
    assert isinstance(ended, frames.Ended)
    assert (ended.outcome, ended.obeyed) == ("done", True)


def test_a_thread_of_a_handler_may_ask(shared: Base) -> None:
    worker = shared.serve(
        """
        import threading, time
        def f(payload, ctx):
            def look():
                while not ctx.cancelled: time.sleep(0.001)
                told.set()
            told = threading.Event()
            threading.Thread(target=look).start()
            return told.wait(60)
        """
    )
    first = worker.hand(job())
    assert worker.read() == frames.Begun(first)
    assert worker.read() == frames.Listens(first)
    worker.send(frames.Cancel(first))
    [answer] = worker.collect_rest(first)
    assert answer.result is True


def test_frames_that_come_while_a_handler_asks_are_not_lost(shared: Base) -> None:
    worker = shared.serve(
        """
        import time
        def f(payload, ctx):
            end = time.monotonic() + payload
            while time.monotonic() < end: ctx.cancelled
            return payload
        """
    )
    for _ in range(5):
        worker.hand(job(0.02))
    assert [answer.result for answer in worker.collect(5)] == [0.02] * 5
    first = worker.hand(job(0.05))
    assert worker.read() == frames.Begun(first)
    worker.send(frames.Stop())
    assert worker.collect_rest(first)[0].outcome == "done"
    assert worker.end().status == 0


def test_an_async_handler_that_keeps_the_loop_busy_may_ask(shared: Base) -> None:
    worker = shared.serve(
        """
        import time
        async def f(payload, ctx):
            print("runs")
            end = time.monotonic() + 60
            while time.monotonic() < end:
                if ctx.cancelled: return "told"
            return "not told"
        """
    )
    first = begun(worker, None)
    worker.send(frames.Cancel(first))
    [answer] = worker.collect_rest(first)
    assert (answer.result, answer.ended and answer.ended.obeyed) == ("told", True)


# ---- more time ------------------------------------------------------------------------------------------------------


def test_extend_moves_the_deadline_and_says_so(shared: Base) -> None:
    worker = shared.serve(
        """
        def f(payload, ctx):
            before = ctx.deadline
            ctx.extend("5m")
            ctx.extend(1.5)
            return (ctx.deadline - before).total_seconds()
        """
    )
    answer = worker.one()
    assert answer.result == 301.5
    assert [each.by_ms for each in answer.said if isinstance(each, frames.Extend)] == [300_000, 1_500]


def test_no_run_is_extended_past_a_week(shared: Base) -> None:
    worker = shared.serve(
        """
        def f(payload, ctx):
            start = ctx.deadline
            for _ in range(3): ctx.extend("5d")
            return (ctx.deadline - start).total_seconds()
        """
    )
    assert worker.one(timeout_ms=1_000).result == 7 * 86_400 - 1


@pytest.mark.parametrize(
    ("call", "kind"),
    [("ctx.extend('soon')", "ValueError"), ("ctx.extend(-1)", "ValueError"), ("ctx.extend()", "TypeError")],
)
def test_what_is_no_duration_is_an_error_at_the_call(shared: Base, call: str, kind: str) -> None:
    answer = shared.serve(f"def f(payload, ctx):\n    {call}\n").one()
    assert answer.fault.exception == kind
    assert answer.said == []


def test_a_run_that_is_to_end_or_has_ended_cannot_be_extended(shared: Base) -> None:
    worker = shared.serve(
        """
        import time
        kept = []
        def f(payload, ctx):
            if payload == "later":
                kept[0].extend("1m")
            kept.append(ctx)
            if payload == "told":
                while not ctx.cancelled: time.sleep(0.001)
                ctx.extend("1m")
        """
    )
    first = worker.hand(job("told"))
    assert worker.read() == frames.Begun(first)
    worker.send(frames.Cancel(first))
    [told] = worker.collect_rest(first)
    assert told.fault.exception == "RuntimeError"
    assert worker.one("later").fault.exception == "RuntimeError"
