"""Which claimed jobs run together, and what each gets of the one answer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from echod.model.ids import JobId, VersionId
from echod.model.job import Cancelled, Claimed, Dead, Done, Retry, RunRecord
from echod.supervisor import batches
from echod.supervisor.channel import Fault
from echod.supervisor.events import Departure
from echod.supervisor.handover import batch_frame, payload_bytes
from echod.supervisor.leases import Lease
from echofn import frames
from echofn.manifest import Constant, Function, Policy, QueueTrigger

RUN = RunRecord(worker="WRK1", version="DEP1", started_ms=1, ended_ms=2, cpu_us=900, peak_bytes=7)
FUNCTION = Function(
    name="shop.pack",
    module="shop",
    attribute="pack",
    file="shop.py",
    line=1,
    policy=Policy(backoff=Constant(700), batch=10, retries=2),
    triggers=(QueueTrigger(),),
)
FAULT = frames.Fault("ValueError", "no", "trace", "error")


def claimed(number: int, *, turn: int = 1, failures: int = 0, holder: str = "h") -> Claimed:
    payload = msgspec.msgpack.encode(number)
    return Claimed(
        JobId(f"JOB0000000000{number}"), failures + 1, holder, failures, payload, "-", 1_000, 1_000, 1_000, turn=turn
    )


def lease(number: int, **fields: Any) -> Lease:
    return Lease(claimed(number, **fields), FUNCTION, VersionId("DEP1"), 0.0, 15.0)


def batch(count: int = 3) -> Lease:
    """A batch of that many jobs, as its first lease."""
    [lead] = batches.joined([lease(number) for number in range(count)], 10)
    lead.first_child = 5_000
    return lead


def ended(outcome: str = "done", **more: Any) -> frames.Ended:
    return frames.Ended(0, outcome, 1_000, 900, 7, **more)  # type: ignore[arg-type]


def part(member: int, outcome: str = "done", **more: Any) -> frames.Part:
    return frames.Part(0, member, outcome, **more)  # type: ignore[arg-type]


def said(lead: Lease, end: frames.Ended) -> list[Any]:
    verdicts = batches.answered(lead, RUN, end, {"shop.pack": FUNCTION}.get, roll=0.5)
    assert [each for each, _ in verdicts] == list(lead.members)
    return [verdict for _, verdict in verdicts]


# ---- who runs together --------------------------------------------------------------------------------------------


def test_what_was_claimed_in_one_turn_runs_together() -> None:
    leases = [lease(0), lease(1), lease(2, turn=2), lease(3, holder="other"), lease(4, turn=2)]
    found = batches.joined(leases, 10)
    assert [[member.job.id[-1] for member in lead.members] for lead in found] == [["0", "1"], ["2", "4"], ["3"]]
    assert [each.lead.job.id[-1] for each in leases] == ["0", "0", "2", "3", "2"]


def test_what_was_claimed_without_turns_runs_alone() -> None:
    assert [lead.others for lead in batches.joined([lease(0, turn=0), lease(1, turn=0)], 10)] == [(), ()]


def test_a_function_gets_no_more_than_it_takes() -> None:
    """The bus went by the policy of another version."""
    leases = [lease(number) for number in range(5)]
    assert [len(lead.members) for lead in batches.joined(leases, 2)] == [2, 2, 1]
    leases = [lease(number) for number in range(5)]
    assert batches.joined(leases, None) == leases
    assert [each.others for each in leases] == [()] * 5


def test_the_frame_has_every_job_and_the_largest_attempt() -> None:
    jobs = [claimed(0), claimed(1, failures=2), claimed(2, failures=1)]
    frame = batch_frame(jobs, FUNCTION, 5_000)
    assert (frame.id, frame.attempt, frame.last_attempt, frame.first_child) == (jobs[0].id, 3, True, 5_000)
    assert [(each.id, each.attempt, each.last_attempt, each.fence) for each in frame.members] == [
        (jobs[0].id, 1, False, 1), (jobs[1].id, 3, True, 3), (jobs[2].id, 2, False, 2),
    ]  # fmt: skip
    assert [each.payload for each in frame.members] == [job.payload for job in jobs]
    assert payload_bytes(frame) == 4


# ---- what each gets -----------------------------------------------------------------------------------------------


def test_the_end_of_the_run_speaks_for_those_without_a_part() -> None:
    lead = batch()
    lead.hear(part(1, "retry", fault=FAULT))
    first, second, third = said(lead, ended(result=b"\x07"))
    assert (type(first), type(second), type(third)) == (Done, Retry, Done)
    assert (first.result, third.result) == (b"\x07", b"\x07")
    assert (second.error.type, second.after_ms) == ("ValueError", 700)
    assert [verdict.hold.id for verdict in (first, second, third)] == [each.job.id for each in lead.members]


def test_the_bill_is_shared() -> None:
    assert [(each.run.cpu_us, each.run.peak_bytes) for each in said(batch(), ended())] == [(300, 7)] * 3


def test_a_run_that_raised_charges_all() -> None:
    assert [type(each) for each in said(batch(), ended("retry", fault=FAULT))] == [Retry] * 3


def child(number: int) -> frames.Child:
    return frames.Child(number, "shop.pack", b"\x01")


def test_what_the_run_enqueued_goes_with_the_first_job_that_is_done() -> None:
    lead = batch()
    lead.hear(part(0, "dead", fault=FAULT))
    lead.hear(part(2, children=(child(5_001),)))
    dead, done, third = said(lead, ended(children=(child(5_000),)))
    assert isinstance(dead, Dead)
    assert [each.mint.id for each in done.children] == ["JOB000000001Ie"]
    assert [each.mint.parent for each in done.children] == [lead.members[1].job.id]
    assert [each.mint.parent for each in third.children] == [lead.members[2].job.id]


def test_where_no_job_is_done_nothing_is_enqueued() -> None:
    lead = batch(2)
    for member in (0, 1):
        lead.hear(part(member, "retry", fault=FAULT))
    assert [type(each) for each in said(lead, ended(children=(child(5_000),)))] == [Retry, Retry]


def test_a_child_from_another_block_is_a_fault() -> None:
    lead = batch()
    lead.hear(part(0, children=(child(1),)))
    with pytest.raises(Fault, match="an id of its own"):
        said(lead, ended())


def test_one_job_that_is_to_stop_is_cancelled_where_it_would_be_tried_again() -> None:
    lead = batch()
    for member in lead.members[:2]:
        member.cancelling = True
    lead.hear(part(0, "retry", fault=FAULT))
    first, second, third = said(lead, ended())
    assert isinstance(first, Cancelled)
    assert (type(second), type(third)) == (Done, Done), "the first settle wins"
    assert not lead.is_cancelling
    lead.members[2].cancelling = True
    assert lead.is_cancelling


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ([part(3)], "got of 3"),
        ([part(-1)], "got of -1"),
        ([part(1), part(1)], "two of 1"),
    ],
)
def test_a_part_that_no_honest_worker_sends_is_a_fault(parts: list[frames.Part], told: str) -> None:
    lead = batch()
    for each in parts[:-1]:
        lead.hear(each)
    with pytest.raises(Fault, match=told):
        lead.hear(parts[-1])


def test_parts_are_bounded_together() -> None:
    lead = batch(10)
    for number in range(9):
        lead.hear(part(number, result=bytes(1 << 20)))
    with pytest.raises(Fault, match="bytes of results of a batch"):
        lead.hear(part(9, result=bytes(1 << 20)))


def test_a_function_without_batches_sends_no_parts() -> None:
    alone = lease(0)
    alone.function = msgspec.structs.replace(FUNCTION, policy=Policy())
    with pytest.raises(Fault):
        alone.hear(part(0))


def test_a_crash_is_charged_to_all_but_those_whose_end_was_told() -> None:
    lead = batch()
    lead.hear(part(1, "dead", fault=msgspec.structs.replace(FAULT, cause="payload")))
    departure = Departure((lead,), (), (), True, None, None, "signal:SEGV", "", 900, 7)
    verdicts = [verdict for _, verdict in batches.crashed(lead, RUN, departure, {}.get, roll=0.5)]
    assert [type(each) for each in verdicts] == [Retry, Dead, Retry]
    assert [each.error.cause for each in verdicts if isinstance(each, (Retry, Dead))] == [
        "signal:SEGV", "payload", "signal:SEGV",
    ]  # fmt: skip
