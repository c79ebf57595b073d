"""From a run's end to its verdict."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from echod.bus.answers import ExtendAnswer
from echod.errors import BusAway
from echod.model.ids import JobId, VersionId
from echod.model.job import Cancelled, Child, Claimed, Dead, Delay, Done, Hold, Mint, Retry, RunRecord
from echod.supervisor import outcomes
from echod.supervisor.channel import Fault
from echod.supervisor.leases import MOST_PER_CALL, Book, Lease, granted, instant
from echod.supervisor.outcomes import MOST_VERDICTS
from echofn import frames
from echofn.manifest import Constant, CronTrigger, Function, Policy, QueueTrigger, WebhookTrigger

RUN = RunRecord(worker="WRK1", version="DEP1", started_ms=1, ended_ms=2)
FUNCTION = Function(
    name="shop.pack",
    module="shop",
    attribute="pack",
    file="shop.py",
    line=1,
    policy=Policy(backoff=Constant(700), lane="tenant"),
    triggers=(QueueTrigger(),),
)


def lease(*, failures: int = 0, cancelling: bool = False) -> Lease:
    job = Claimed(JobId("JOB00000000001"), failures + 1, "h", failures, b"\xc0", "-", 1_000, 1_000, 1_000)
    made = Lease(job, FUNCTION, VersionId("DEP1"), 0.0, 15.0)
    made.cancelling = cancelling
    made.first_child = 5_000
    return made


def said(outcome: str, **more: Any) -> frames.Ended:
    return frames.Ended(index=0, outcome=outcome, wall_us=1_000, cpu_us=1, peak_bytes=1, **more)  # type: ignore[arg-type]


SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
OTHERS = (
    msgspec.structs.replace(FUNCTION, name="shop.typed", takes_payload=True, payload_schema=SCHEMA),
    msgspec.structs.replace(FUNCTION, name="shop.hook", triggers=(WebhookTrigger("/hooks/in", None),)),
    msgspec.structs.replace(FUNCTION, name="shop.report", triggers=(CronTrigger("n", "0 6 * * *"),), default=b"\x03"),
)


def verdict(ended: frames.Ended, *, cancelling: bool = False, told: Any = None) -> Any:
    found = {each.name: each for each in (FUNCTION, *OTHERS)}
    made = lease(cancelling=cancelling)
    made.told = told or ("cancelled" if cancelling else None)
    return outcomes.of(made, RUN, ended, found.get, roll=0.5)


FAULT = frames.Fault("ValueError", "no", "trace", "error")


def test_each_outcome_has_its_verdict() -> None:
    assert isinstance(verdict(said("done", result=b"\x01")), Done)
    assert isinstance(verdict(said("dead", fault=FAULT)), Dead)
    assert isinstance(verdict(said("cancelled", reason="no need")), Cancelled)
    assert verdict(said("delay", after_ms=50)).after_ms == 50
    assert verdict(said("retry", fault=FAULT)).after_ms == 700  # the policy's
    assert verdict(said("retry", fault=FAULT, after_ms=5)).after_ms == 5  # the author's


@pytest.mark.parametrize("outcome", ["retry", "delay"])
def test_what_was_asked_to_stop_is_not_tried_again(outcome: str) -> None:
    assert isinstance(verdict(said(outcome, fault=FAULT), cancelling=True), Cancelled)


def test_a_result_that_came_before_the_stop_stands() -> None:
    assert isinstance(verdict(said("done"), cancelling=True), Done)


def test_who_knew_of_a_cancel_and_returned_has_obeyed() -> None:
    assert isinstance(verdict(said("done", obeyed=True), cancelling=True), Cancelled)
    assert isinstance(verdict(said("dead", fault=FAULT, obeyed=True), cancelling=True), Dead)


ENDED = frames.Fault("CancelledError", "", "where it was", "error")


def test_who_knew_of_its_deadline_and_ended_has_run_out_of_time() -> None:
    for ended in (said("done", obeyed=True), said("retry", fault=ENDED, obeyed=True)):
        late = verdict(ended, told="timeout")
        assert isinstance(late, Retry)
        assert (late.error.type, late.error.cause) == ("Timeout", "timeout")
        assert "60000 ms" in late.error.message
    assert late.error.traceback == "where it was"
    own = verdict(said("retry", fault=FAULT, obeyed=True), told="timeout")
    assert (own.error.type, own.error.message, own.error.cause) == ("ValueError", "no", "timeout")


def test_verdicts_of_its_own_stand_at_a_deadline() -> None:
    assert isinstance(verdict(said("delay", after_ms=5, obeyed=True), told="timeout"), Delay)
    assert isinstance(verdict(said("dead", fault=FAULT, obeyed=True), told="timeout"), Dead)
    assert verdict(said("retry", fault=FAULT, after_ms=5, obeyed=True), told="timeout").after_ms == 5


def test_who_did_not_know_ends_as_it_says() -> None:
    assert isinstance(verdict(said("done"), told="timeout"), Done)
    assert verdict(said("retry", fault=FAULT), told="timeout").error.cause == "error"


def test_a_worker_that_says_it_obeyed_without_being_told_is_not_believed() -> None:
    assert isinstance(verdict(said("done", obeyed=True)), Done)
    assert verdict(said("retry", fault=FAULT, obeyed=True)).error.cause == "error"


def test_a_start_at_a_wall_is_dead_and_another_failed_start_is_tried_again() -> None:
    def start(cause: str) -> Any:
        failed = frames.Failed("OSError", "no", "…", cause)
        return outcomes.not_started(lease(), RUN, failed, failed.cause, roll=0.5)

    assert isinstance(start("wall:network"), Dead)
    assert isinstance(start("error"), Retry)


def test_a_crash_is_charged_and_backs_off_like_an_error() -> None:
    crash: Any = outcomes.crashed(lease(failures=2), RUN, "signal:SEGV", "", roll=0.5)
    assert isinstance(crash, Retry)
    assert (crash.error.cause, crash.after_ms) == ("signal:SEGV", 700)
    assert "SIGSEGV" in crash.error.message


def test_waits_are_kept_within_bounds() -> None:
    assert verdict(said("delay", after_ms=-5)).after_ms == 0
    assert verdict(said("delay", after_ms=2**60)).after_ms == outcomes.MAX_WAIT_MS
    assert isinstance(verdict(said("delay")), Delay)


@pytest.mark.parametrize(
    "result",
    [
        b"",
        b"\xc1",
        b"\x91" * 100_000 + b"\xc0",
        b"\xc0\xc0",
        b"\xa1\xff",
        msgspec.msgpack.encode(msgspec.msgpack.Ext(5, b"x")),
        bytes(frames.MAX_RESULT_BYTES + 1),
    ],
    ids=["nothing", "not msgpack", "too deep", "two values", "no UTF-8", "an extension", "too large"],
)
def test_a_result_that_no_reader_could_take_is_a_fault(result: bytes) -> None:
    with pytest.raises(Fault):
        verdict(said("done", result=result))


@pytest.mark.parametrize(
    ("given", "kept"), [("wall:network", "wall:network"), ("payload", "payload"), ("odd", "error")]
)
def test_a_cause_is_one_of_ours(given: str, kept: str) -> None:
    told = verdict(said("dead", fault=frames.Fault("E", "m", "t", given)))
    assert told.error.cause == kept


def test_long_texts_are_cut() -> None:
    told = verdict(
        said("dead", fault=frames.Fault("E" * 9_999, "m" * 99_999, "t" * 999_999 + "end", "wall:" + "x" * 9_999))
    )
    assert len(told.error.type) == outcomes.MAX_TYPE
    assert len(told.error.message) == outcomes.MAX_MESSAGE
    assert len(told.error.traceback) == outcomes.MAX_TRACEBACK
    assert told.error.traceback.endswith("end")
    assert len(told.error.cause) <= outcomes.MAX_TYPE


def test_a_bill_is_what_can_be_true() -> None:
    run = outcomes.record("WRK1", lease(), 5_000, 1_500_000, said("done"), cold=True)
    assert (run.started_ms, run.ended_ms, run.cold) == (3_500, 5_000, True)
    lying = frames.Ended(0, "done", 1, cpu_us=-1, peak_bytes=2**62)
    assert outcomes.record("WRK1", lease(), 5_000, 0, lying, cold=False).cpu_us == 0
    assert outcomes.record("WRK1", lease(), 5_000, 0, lying, cold=False).peak_bytes == 0


def test_a_run_began_no_later_than_it_said_so_wherever_a_clock_went_meanwhile() -> None:
    begun = lease()
    begun.began_ms = 2_000
    run = outcomes.record("WRK1", begun, 3 * 86_400_000, 1_500_000, said("done"), cold=False)
    assert (run.started_ms, run.ended_ms) == (2_000, 3 * 86_400_000)


# ---- children -----------------------------------------------------------------------------------------------------


def spread(*children: frames.Child) -> Any:
    return verdict(said("done", children=children))


def child(number: int = 5_000, **more: Any) -> frames.Child:
    more.setdefault("function", "shop.pack")
    more.setdefault("payload", msgspec.msgpack.encode({"tenant": "north"}))
    return frames.Child(number=number, **more)


def test_a_child_is_minted_by_the_policy_of_its_function() -> None:
    done = spread(child(5_001), child(5_002, lane="own", delay_ms=70), child(5_003, at_ms=9, unique="k", priority=2))
    first, second, third = (each.mint for each in done.children)
    assert [each.queue for each in done.children] == ["shop.pack"] * 3
    assert (first.lane, first.in_ms, first.at_ms, first.parent) == ("north", None, None, "JOB00000000001")
    assert (second.lane, second.in_ms) == ("own", 70)
    assert (third.at_ms, third.unique.key, third.priority) == (9, "k", 2)
    assert len({first.id, second.id, third.id}) == 3


def test_a_child_without_a_payload_gets_that_of_its_functions_annotation() -> None:
    usual = msgspec.msgpack.encode({"tenant": "acme"})
    function = msgspec.structs.replace(FUNCTION, triggers=(QueueTrigger(usual),))
    ended = said("done", children=(child(payload=b"\xc0"), child(5_001)))
    done: Any = outcomes.of(lease(), RUN, ended, {"shop.pack": function}.get, roll=0.5)
    first, second = (each.mint for each in done.children)
    assert (first.payload, first.lane) == (usual, "acme")
    assert second.payload != usual


def test_bytes_do_not_fit_a_childs_text() -> None:
    schema = {"type": "object", "properties": {"tenant": {"type": "string"}}}
    function = msgspec.structs.replace(FUNCTION, payload_schema=schema)
    ended = said("done", children=(child(payload=msgspec.msgpack.encode({"tenant": b"north"})),))
    failed: Any = outcomes.of(lease(), RUN, ended, {"shop.pack": function}.get, roll=0.5)
    assert "$.tenant: got bytes" in failed.error.message


@pytest.mark.parametrize(
    "children",
    [
        [child(4_999)],
        [child(5_000 + frames.MAX_CHILDREN)],
        [child(5_000), child(5_000)],
        [child(5_000 + n) for n in range(frames.MAX_CHILDREN)] + [child(1)],
        [child(payload=bytes(1024 * 1024 + 1))],
        [child(payload=b"\xc1")],
        [child(payload=b"\x91" * 100_000 + b"\xc0")],
        [child(at_ms=-5)],
        [child(at_ms=2**60)],
        [child(delay_ms=-1)],
        [child(priority=10**9)],
        [child(lane="x" * (1024 * 1024 + 1))],
        [child(unique="x" * (1024 * 1024 + 1))],
        [child(unique="")],
        [child(unique="x" * 256)],
        [child(delay_ms=frames.FURTHEST_MS + 1)],
        [child(payload=msgspec.msgpack.encode({1: 2}))],
        [child(payload=msgspec.msgpack.encode([msgspec.msgpack.Ext(5, b"x")]))],
        [child(payload=msgspec.msgpack.encode({"at": float("nan")}))],
        [child(payload=b"\xd6\xff\x00\x00\x00\x00")],
        [child(function="shop.typed", payload=msgspec.msgpack.encode({1: 2}))],
    ],
    ids=[
        *("below", "above", "twice", "too many", "too large", "not msgpack", "too deep"),
        *("before all time", "after all time", "backwards", "too urgent", "lane too large", "key too large"),
        *("key empty", "key too long", "too far"),
        *("number key", "extension", "not a number", "date", "number key of a type"),
    ],
)
def test_children_that_no_honest_worker_sends_are_a_fault(children: list[frames.Child]) -> None:
    with pytest.raises(Fault):
        spread(*children)


def packed(payload: object) -> bytes:
    return msgspec.msgpack.encode(payload)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (child(function="shop.nowhere"), "expected a function of this version that is not off, got 'shop.nowhere'"),
        (child(payload=packed({"tenant": {"id": 1}})), "enqueue: shop.pack: tenant: expected text, a number"),
        (child(function="shop.typed", payload=packed({"id": "x"})), 'enqueue: shop.typed: $.id: "x" is not of type'),
        (child(function="shop.typed", payload=packed(None)), 'enqueue: shop.typed: $: null is not of type "object"'),
        (child(payload=b"\x91" * 200 + b"\xc0"), "at most 100 levels of nesting"),
        (child(function="shop.hook"), "started by its webhook alone, at /hooks/in"),
    ],
    ids=["unknown", "lane", "payload", "no payload", "deep", "webhook"],
)
def test_an_enqueue_that_cannot_be_done_fails_the_run(wrong: frames.Child, words: str) -> None:
    told = spread(child(5_001), wrong)
    assert isinstance(told, Retry)
    assert words in told.error.message


def test_a_function_of_a_schedule_alone_is_enqueued_with_its_parameters_default() -> None:
    [made] = spread(child(function="shop.report", payload=packed(None))).children
    assert (made.queue, made.mint.payload) == ("shop.report", b"\x03")


def test_a_missing_lane_is_the_common_one() -> None:
    assert spread(child(payload=b"\xc0")).children[0].mint.lane == "-"


# ---- leases -------------------------------------------------------------------------------------------------------


def test_a_lease_counts_from_before_the_call_that_granted_it() -> None:
    job = lease().job  # claimed at 1,000 by the bus's clock
    assert granted(job, 1_000, sent=50.0) == 50.0
    assert granted(job, 4_000, sent=50.0) == 47.0  # told by an answer that was lost and asked for again
    assert granted(job, 900, sent=50.0) == 50.0  # the bus's clock stepped back


class Extending:
    """A bus that extends whatever it is asked to, at once, or fails from the call `fails_from` on."""

    def __init__(self, fails_from: int = 1000) -> None:
        self.calls: list[tuple[list[Hold], list[Hold]]] = []
        self.fails_from = fails_from

    async def extend(self, _queue: str, holds: list[Hold], _lease_ms: int, **marks: Any) -> ExtendAnswer:
        assert len(holds) <= MOST_PER_CALL
        if len(self.calls) >= self.fails_from:
            raise BusAway("not there")
        self.calls.append((holds, marks["begun"]))
        await asyncio.sleep(0)
        return ExtendAnswer(0, (), ())


def book(bus: Extending) -> Book:
    means: Any = SimpleNamespace(bus=bus, lease_ms=15_000, spawn=asyncio.ensure_future)
    return Book("shop.pack", means, on_lost=print, on_cancelling=print, on_tick=lambda _now: None)


async def extended(held: Book) -> None:
    """One tick, and what it sends."""
    held._tick()
    assert held._extending is not None
    await held._extending


async def test_one_tick_extends_and_marks_all_that_is_due_however_much_it_is() -> None:
    """A call at each tick held 12,500 leases of 15 s, and lost the others to the recovery of a healthy bus."""
    bus = Extending()
    held, now = book(bus), instant()
    leases = [lease() for _ in range(20 * MOST_PER_CALL + 1)]
    for each in leases:
        each.granted, each.until, each.begun = now - 6, now + 9, now - 6
        held.add(each)
    await extended(held)
    assert len(bus.calls) == 21
    assert sum(len(begun) for _, begun in bus.calls) == len(leases)
    assert all(each.marked and each.granted >= now for each in leases)
    await held.close()


async def test_the_oldest_leases_are_extended_first_and_marks_alone_come_last() -> None:
    bus = Extending()
    held, now = book(bus), instant()
    fresh, aged = [[lease() for _ in range(MOST_PER_CALL)] for _ in range(2)]
    for age, each in enumerate(aged):
        each.granted, each.until, each.marked = now - 6 - age / MOST_PER_CALL, now + 8, True
    for each in fresh:
        each.granted, each.until, each.begun = now - 1, now + 14, now - 1
    for each in (*fresh, *aged):
        held.add(each)
    await extended(held)
    assert bus.calls[0][0] == [each.hold for each in reversed(aged)]
    assert [len(begun) for _, begun in bus.calls] == [0, MOST_PER_CALL]
    await held.close()


async def test_what_a_failed_call_left_is_extended_by_the_next_tick() -> None:
    bus = Extending(fails_from=1)
    held, now = book(bus), instant()
    leases = [lease() for _ in range(3 * MOST_PER_CALL)]
    for each in leases:
        each.granted, each.until = now - 6, now + 9
        held.add(each)
    await extended(held)
    assert sum(each.granted >= now for each in leases) == MOST_PER_CALL
    bus.fails_from = 1000
    await extended(held)
    assert len(bus.calls) == 3
    assert all(each.granted >= now for each in leases)
    await held.close()


async def test_what_ended_while_others_were_extended_is_not_sent() -> None:
    """Its verdict may be with the bus, which would call it lost."""
    bus = Extending()
    held, now = book(bus), instant()
    leases = [lease() for _ in range(2 * MOST_PER_CALL)]
    for age, each in enumerate(leases):
        each.granted, each.until = now - 6 - age / MOST_PER_CALL, now + 8
        held.add(each)
    held._tick()
    assert held._extending is not None
    while not bus.calls:
        await asyncio.sleep(0)
    for each in leases[:MOST_PER_CALL]:  # the youngest: they are in the second call
        held.remove(each)
    await held._extending
    assert len(bus.calls) == 1
    await held.close()


# ---- children without a block -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 999])
def test_a_run_that_was_given_no_ids_has_no_children(number: int) -> None:
    made = lease()
    made.first_child = 0
    with pytest.raises(Fault):
        outcomes.of(made, RUN, said("done", children=(child(number),)), {"shop.pack": FUNCTION}.get, roll=0.5)


@pytest.mark.parametrize(
    ("children", "waiting", "fit"),
    [(0, 0, 0), (0, 3, 3), (0, 1000, MOST_VERDICTS), (8, 1000, 130), (999, 3, 1), (3000, 3, 1)],
)
def test_a_call_is_bounded_in_verdicts_and_in_children(children: int, waiting: int, fit: int) -> None:
    sent = tuple(Child("f", Mint(id=JobId(f"JOB{number}"), payload=b"\xc0")) for number in range(children))
    verdict = Done(Hold(JobId("JOB"), 1, "h"), RUN, b"\xc0", children=sent)
    assert outcomes.fitting([verdict] * waiting) == fit
