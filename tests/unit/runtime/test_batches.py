"""Batches: one call for many payloads, and an end for each."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from unit.runtime.driving import Answer, Base, batch, job

HEAD = "import echofn, msgspec, os, typing\nfrom echofn import *\n"


def answer_of(shared: Base, body: str, *payloads: Any, head: str = "", kind: str = "", **fields: Any) -> Answer:
    """The answer to one batch of a handler with this body; the worker must be fit for another afterwards."""
    lines = "\n".join("    " + line for line in body.splitlines())
    worker = shared.serve(
        f"{HEAD}{head}\n@queue(batch=10)\ndef f(payloads{kind}, ctx):\n"
        f"    if payloads == ['again']: return ['fit']\n{lines}\n"
    )
    [answer] = worker.run(batch(*payloads, **fields))
    if not kind:
        assert ends(worker.run(batch("again"))[0], 1) == [("done", "fit")]
    return answer


def ends(answer: Answer, count: int) -> list[tuple[str, Any]]:
    """Each job's outcome, with its result, or with its fault's type and cause."""
    assert answer.ended is not None
    found: list[tuple[str, Any]] = []
    for number in range(count):
        end = answer.parts.get(number, answer.ended)
        told = f"{end.fault.exception}:{end.fault.cause}" if end.fault else msgspec.msgpack.decode(end.result)
        found.append((end.outcome, told))
    return found


# ---- what comes back ----


def test_a_batch_is_one_call_with_a_list(shared: Base) -> None:
    answer = answer_of(shared, "return [[os.getpid(), payloads]] * len(payloads)", 1, "two", None)
    assert len({str(told) for _, told in ends(answer, 3)}) == 1
    assert ends(answer, 3)[0][1][1] == [1, "two", None]


def test_none_is_all_done_and_costs_one_answer(shared: Base) -> None:
    answer = answer_of(shared, "pass", 1, 2, 3)
    assert answer.parts == {}
    assert ends(answer, 3) == [("done", None)] * 3


@pytest.mark.parametrize("expression", ["[p * 10 for p in payloads]", "tuple(p * 10 for p in payloads)"])
def test_a_list_gives_each_job_its_result(shared: Base, expression: str) -> None:
    assert ends(answer_of(shared, f"return {expression}", 1, 2, 3), 3) == [("done", 10), ("done", 20), ("done", 30)]


def test_an_exception_in_the_list_is_its_jobs_verdict(shared: Base) -> None:
    body = (
        "return [ValueError('odd'), Retry('later', after='5s'), Snooze('7s'), Fail('never'), Cancel('moot'),\n"
        "    MemoryError(), KeyboardInterrupt(), None, 8]"
    )
    answer = answer_of(shared, body, *range(9))
    assert ends(answer, 9) == [
        ("retry", "ValueError:error"),
        ("retry", "Retry:error"),
        ("delay", None),
        ("dead", "Fail:error"),
        ("cancelled", None),
        ("retry", "MemoryError:memory"),
        ("retry", "KeyboardInterrupt:error"),
        ("done", None),
        ("done", 8),
    ]
    assert [answer.parts[n].after_ms for n in (0, 1, 2)] == [None, 5_000, 7_000]
    assert answer.parts[4].reason == "moot"
    assert answer.parts[0].fault is not None
    assert answer.parts[0].fault.message == "odd"


def test_raising_is_for_all(shared: Base) -> None:
    answer = answer_of(shared, "raise ValueError('all')", 1, 2)
    assert (answer.parts, answer.outcome, answer.fault.exception) == ({}, "retry", "ValueError")
    assert "m.py" in answer.fault.traceback
    assert answer_of(shared, "raise Fail('all')", 1, 2).outcome == "dead"
    assert answer_of(shared, "raise Snooze('1m')", 1, 2).outcome == "delay"


@pytest.mark.parametrize(
    ("expression", "got"),
    [("[1]", "got 1"), ("[]", "got 0"), ("[1, 2, 3]", "got 3"), ("'ab'", "got str"), ("{}", "dict")],
)
def test_anything_else_is_a_protocol_error_and_all_are_retried(shared: Base, expression: str, got: str) -> None:
    answer = answer_of(shared, f"return {expression}", 1, 2)
    assert (answer.parts, answer.outcome, answer.fault.cause) == ({}, "retry", "protocol")
    assert "expected None or a list of 2 results, one for each payload" in answer.fault.message
    assert got in answer.fault.message


def test_a_result_that_cannot_be_stored_ends_its_job_alone(shared: Base) -> None:
    answer = answer_of(shared, "return [1, object(), b'x' * (1 << 20), 4]", *range(4))
    assert ends(answer, 4) == [("done", 1), ("dead", "ResultError:result"), ("dead", "ResultError:result"), ("done", 4)]


def test_the_results_of_a_batch_are_bounded_together(shared: Base) -> None:
    answer = answer_of(shared, "return [b'x' * 1_000_000] * 9 + [1]", *range(10))
    outcomes = [outcome for outcome, _ in ends(answer, 10)]
    assert outcomes == ["done"] * 8 + ["dead", "done"]
    assert answer.parts[8].fault is not None
    assert "at most 8 MiB in one batch" in answer.parts[8].fault.message


# ---- what goes in ----

ORDER = "class Order(msgspec.Struct):\n    number: int\n"


def test_payloads_become_what_the_list_holds(shared: Base) -> None:
    answer = answer_of(
        shared,
        "return [p.number + 1 for p in payloads]",
        {"number": 1},
        {"number": 2},
        head=ORDER,
        kind=": list[Order]",
    )
    assert ends(answer, 2) == [("done", 2), ("done", 3)]


def test_a_payload_that_does_not_fit_ends_its_job_and_the_others_run(shared: Base) -> None:
    body = "return [f'{p.number} of {len(payloads)}: {job.job_id}' for p, job in zip(payloads, ctx.jobs, strict=True)]"
    payloads = [{"number": 1}, {"number": "x"}, 3, {"number": 4}]
    answer = answer_of(shared, body, *payloads, head=ORDER, kind=": list[Order]")
    assert ends(answer, 4) == [
        ("done", "1 of 2: JOB00000000000"),
        ("dead", "PayloadError:payload"),
        ("dead", "PayloadError:payload"),
        ("done", "4 of 2: JOB00000000003"),
    ]


def test_where_no_payload_fits_nobody_is_called(shared: Base) -> None:
    answer = answer_of(shared, "os._exit(9)", 1, 2, head=ORDER, kind=": list[Order]")
    assert ends(answer, 2) == [("dead", "PayloadError:payload")] * 2


def test_a_payload_that_did_not_fit_is_told_before_the_call(shared: Base) -> None:
    """So that a crash of the others is not charged to it."""
    worker = shared.serve(f"{HEAD}{ORDER}\n@queue(batch=10)\ndef f(payloads: list[Order]): os._exit(9)\n")
    worker.hand(batch({"number": 1}, "unfit"))
    first, second = worker.read(), worker.read()
    assert type(first).__name__ == "Begun"
    assert (type(second).__name__, getattr(second, "member", None)) == ("Part", 1)
    assert worker.read() is None


def test_a_batch_of_one_is_a_list_too(shared: Base) -> None:
    worker = shared.serve(f"{HEAD}@queue(batch=10)\ndef f(payloads): return payloads\n")
    assert ends(worker.run(job("alone"))[0], 1) == [("done", "alone")]


# ---- the context ----


def test_the_context_tells_each_jobs_attempt_and_the_largest(shared: Base) -> None:
    told = "[ctx.attempt, ctx.last_attempt, [(j.job_id, j.attempt, j.last_attempt, j.fence) for j in ctx.jobs]]"
    answer = answer_of(shared, f"return [{told}] * 2", 1, 2, attempt=3, last_attempt=True, fence=[7, 9])
    assert ends(answer, 1)[0][1][:2] == [3, True]
    assert ends(answer, 1)[0][1][2] == [["JOB00000000000", 1, False, 7], ["JOB00000000001", 1, False, 9]]


def test_without_a_batch_the_context_has_its_one_job(shared: Base) -> None:
    worker = shared.serve(HEAD + "def f(payload, ctx): return [(j.job_id, j.attempt, str(j.due)) for j in ctx.jobs]\n")
    [[job_id, attempt, due]] = worker.one(attempt=2).result
    assert (job_id, attempt, due) == ("JOB0KHTOWnGLuC", 2, "1970-01-01 00:00:01+00:00")


def test_what_a_run_enqueues_is_its_own_and_what_a_job_does_is_that_jobs(shared: Base) -> None:
    body = (
        "ctx.enqueue('m.g', 'all')\n"
        "for n, job in enumerate(ctx.jobs): job.enqueue('m.g', n, delay='1s')\n"
        "return [1, ValueError('no'), None]"
    )
    answer = answer_of(shared, body, *range(3))
    assert answer.ended is not None

    def told(children: Any) -> list[tuple[int, Any]]:
        return [(child.number, msgspec.msgpack.decode(child.payload)) for child in children]

    assert told(answer.ended.children) == [(5_000, "all")]
    assert {n: told(part.children) for n, part in answer.parts.items()} == {0: [(5_001, 0)], 1: [], 2: [(5_003, 2)]}


def test_a_batch_that_raises_enqueues_nothing(shared: Base) -> None:
    answer = answer_of(shared, "ctx.enqueue('m.g', 1)\nctx.jobs[0].enqueue('m.g', 1)\nraise ValueError", 1, 2)
    assert answer.ended is not None
    assert (answer.ended.children, answer.parts) == ((), {})


def test_without_a_batch_a_jobs_children_are_the_runs(shared: Base) -> None:
    worker = shared.serve(HEAD + "def f(payload, ctx): ctx.jobs[0].enqueue('m.g', 1)\n")
    ended = worker.one().ended
    assert ended is not None
    assert len(ended.children) == 1


def test_enqueue_knows_what_one_job_of_a_batch_function_takes(shared: Base) -> None:
    head = f"{ORDER}@queue(batch=5)\ndef g(orders: list[Order]): pass\n"
    assert answer_of(shared, "ctx.enqueue(g, {'number': 1})", 1, head=head).outcome == "done"
    wrong = answer_of(shared, "ctx.enqueue(g, [{'number': 1}])", 1, head=head)
    assert (wrong.outcome, wrong.fault.exception) == ("retry", "ValueError")


# ---- async ----


def test_async_batches_run_side_by_side_each_as_one(shared: Base) -> None:
    worker = shared.serve(
        f"{HEAD}import asyncio\nboth = asyncio.Event()\nseen = []\n@queue(batch=10)\nasync def f(payloads):\n"
        "    seen.append(payloads)\n    if len(seen) == 2: both.set()\n    await both.wait()\n"
        "    return [ValueError() if p == 'bad' else len(payloads) for p in payloads]\n",
        is_async=True,
    )
    first, second = worker.run(batch(1, "bad", 3), batch(4, 5))
    assert ends(first, 3) == [("done", 3), ("retry", "ValueError:error"), ("done", 3)]
    assert ends(second, 2) == [("done", 2), ("done", 2)]


def test_a_cancelled_batch_says_of_each_job_how_far_it_came(shared: Base) -> None:
    worker = shared.serve(
        f"{HEAD}import time\n@queue(batch=10)\ndef f(payloads, ctx):\n    print('runs')\n"
        "    while not ctx.cancelled: time.sleep(0.001)\n    return [None, Retry('not yet')]\n"
    )
    from echofn import frames

    index = worker.hand(batch(1, 2))
    while not isinstance(worker.read(), frames.Listens):
        pass
    worker.send(frames.Cancel(index))
    first, second, ended = worker.read(), worker.read(), worker.read()
    assert isinstance(first, frames.Part)
    assert isinstance(second, frames.Part)
    assert isinstance(ended, frames.Ended)
    assert (first.outcome, second.outcome, ended.obeyed) == ("done", "retry", True)
