"""settle and extend: every verdict, stale fences, resends, charges."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from audit import audit
from doing import LEASE_MS, ME, claim, claim_one, counted, dead, done, hold, mint, retry, run, settle
from echod.bus import Bus, working
from echod.bus.rows import NEVER_MS, hold_row, pack, verdict_row
from echod.errors import Refused
from echod.model.ids import JobId
from echod.model.job import Cancelled, Child, Claimed, Delay, Done, Error, Hold, Mint, Release, Retry, Verdict
from echod.policy.buckets import index
from echofn.manifest import Policy
from server import PATIENCE_S, Server

HOUR_MS = 3_600_000


async def test_done_files_the_job_with_its_result_and_history(bus: Bus, server: Server) -> None:
    (id,) = await mint(bus)
    job = await claim_one(bus)
    await settle(bus, [done(job, b"\x2a")])
    audit(server, "f")
    record = await bus.job(id)
    assert record is not None
    assert (record.state, record.result, record.attempts, record.failures, record.version) == (
        "done",
        b"\x2a",
        1,
        0,
        "DEP1",
    )
    (entry,) = record.history
    assert (entry.attempt, entry.outcome, entry.worker, entry.cpu_us, entry.peak_bytes, entry.cold) == (
        1,
        "done",
        "WRKworker",
        1000,
        4096,
        True,
    )
    assert record.started_ms == entry.started_ms == job.claimed_ms
    assert await counted(bus, "done") == 1


async def test_retry_is_charged_and_comes_back_after_its_wait(bus: Bus, server: Server) -> None:
    (id,) = await mint(bus)
    await settle(bus, [retry(await claim_one(bus), after_ms=5000)])
    record = await bus.job(id)
    assert record is not None
    assert (record.state, record.reason, record.failures, record.error) == (
        "scheduled",
        "retry",
        1,
        Error("ValueError", "no", "trace", "error"),
    )
    audit(server, "f")
    server.clock.advance(5001)
    assert (await bus.tick("f")).promoted == 1
    again = await claim_one(bus)
    assert (again.id, again.attempts, again.failures) == (id, 2, 1)


@pytest.mark.parametrize("size", [1, 14, 15, 16, 49, 50])
async def test_an_entry_of_the_history_costs_no_look_at_those_before_it(bus: Bus, server: Server, size: int) -> None:
    """Read or written anew these would be an error: the server's msgpack has no word for their kind of bytes."""
    past: list[tuple[int, str, str, int, Any]] = [(number, "retry", "error", 7, b"a run") for number in range(size)]
    past[0] = (0, "retry", "error", 7, "the oldest is read where it goes")
    (id,) = await mint(bus)
    server.command("HSET", f"emq:{{f}}:job:{id}", "y", pack(past))
    await settle(bus, [retry(await claim_one(bus), cause="timeout")])
    (*kept, last) = msgspec.msgpack.decode(
        audit(server, "f").rows[id][b"y"], type=list[tuple[int, str, str, int, msgspec.Raw]]
    )
    assert pack(kept) == pack(past[-49:])
    assert last[:3] == (1, "retry", "timeout")


UNREADABLE = [b"", b"\xc0", b"\xdc\x00", b"\xdc\x00\x00", b"xyz"]
UNREADABLE_AND_LONG = [b"\xdc\xff\xff\xc1", b"\xdc\x00\x40\xc1abc", b"\xdc\x00\x32\xda\xff", b"\xdc\x00\x32\x01"]


@pytest.mark.parametrize("damaged", [*UNREADABLE, *UNREADABLE_AND_LONG])
async def test_a_history_that_nobody_can_read_breaks_no_settle_off(bus: Bus, server: Server, damaged: bytes) -> None:
    """It would be half done: those before it settled, those after it not. The history starts anew."""
    ids = await mint(bus, count=3)
    server.command("HSET", f"emq:{{f}}:job:{ids[1]}", "y", damaged)
    jobs = await claim(bus, 3)
    await settle(bus, [retry(job) for job in jobs])
    assert not audit(server, "f").active
    record = await bus.job(ids[1])
    assert record is not None
    assert [entry.outcome for entry in record.history] == ["retry"]


FIELDS_OF_A_ROW = "m w d f pr p st sz y r e er ca z bh nx u wt lb k v oc"


@pytest.mark.parametrize("field", FIELDS_OF_A_ROW.split(" "))
@pytest.mark.parametrize("damaged", [None, "", "x", "nan", "1e400", "-1e400"])
async def test_a_row_that_nobody_can_read_breaks_no_settle_off(
    bus: Bus, server: Server, field: str, damaged: str | None
) -> None:
    """Nothing of echod writes such a field; a person did, or another program."""
    verdicts: list[Callable[[Claimed], Verdict]] = [
        *(done, dead, retry, lambda job: retry(job, after_ms=0)),
        *(lambda job: Delay(hold(job), run(job), 50), lambda job: Release(hold(job))),
    ]
    ids = await mint(bus, count=len(verdicts) + 1, priority=2)
    jobs = await claim(bus, len(ids))
    for id in ids[:-1]:
        how = (
            ["HDEL", f"emq:{{f}}:job:{id}", field]
            if damaged is None
            else ["HSET", f"emq:{{f}}:job:{id}", field, damaged]
        )
        server.command(*how)
    await settle(bus, [*[verdict(job) for verdict, job in zip(verdicts, jobs, strict=False)], done(jobs[-1])])
    assert not server.command("ZCARD", "emq:{f}:active")
    assert server.command("HGET", f"emq:{{f}}:job:{ids[-1]}", "s") == b"d"
    assert max((await bus.metrics("f", 60_000)).wait, default=0) < index(1e12)  # they can be read, and are of this age
    server.clock.advance(1000)
    await bus.tick("f")


@pytest.mark.parametrize("damaged", ["", "x", "nan", "-nan", "1e400", "-1e400"])
async def test_a_due_that_nobody_can_read_breaks_no_settle_off_of_the_job_before_it(
    bus: Bus, server: Server, damaged: str
) -> None:
    (first,) = await mint(bus)
    (second,) = await mint(bus, in_ms=HOUR_MS)
    server.command("HSET", f"emq:{{f}}:job:{first}", "nx", second)
    server.command("HSET", f"emq:{{f}}:job:{second}", "bh", first, "d", damaged)
    server.command("ZADD", "emq:{f}:schedule", NEVER_MS, second)
    await settle(bus, [done(await claim_one(bus))])
    audit(server, "f")
    assert (await claim_one(bus)).id == second


async def test_retries_allow_one_run_more_than_their_number(bus: Bus, server: Server) -> None:
    await bus.configure("f", Policy(retries=2), 1)
    (id,) = await mint(bus)
    for _ in range(3):
        await settle(bus, [retry(await claim_one(bus), after_ms=0)])
    record = await bus.job(id)
    assert record is not None
    assert (record.state, record.failures, [entry.outcome for entry in record.history]) == (
        "dead",
        3,
        ["retry", "retry", "dead"],
    )
    assert (await counted(bus, "failed"), await counted(bus, "retried"), await counted(bus, "dead")) == (3, 2, 1)
    audit(server, "f")


async def test_dead_goes_to_the_morgue_at_once(bus: Bus, server: Server) -> None:
    (id,) = await mint(bus)
    await settle(bus, [dead(await claim_one(bus), "payload")])
    record = await bus.job(id)
    assert record is not None
    assert (record.state, record.history[-1].cause) == ("dead", "payload")
    assert record.error is not None
    audit(server, "f")


async def test_delay_is_not_charged(bus: Bus, server: Server) -> None:
    (id,) = await mint(bus)
    job = await claim_one(bus)
    await settle(bus, [Delay(hold(job), run(job), 60_000)])
    record = await bus.job(id)
    assert record is not None
    assert (record.state, record.reason, record.failures) == ("scheduled", "snooze", 0)
    assert audit(server, "f").totals["snoozed"] == 1


@pytest.mark.parametrize("verdict", [retry, lambda job, ms: Delay(hold(job), run(job), ms)], ids=["retry", "delay"])
async def test_a_run_that_was_not_told_of_before_its_verdict_is_the_last_that_started(
    bus: Bus, server: Server, verdict: Callable[[Claimed, int], Verdict]
) -> None:
    (id,) = await mint(bus)
    first = await claim_one(bus)
    await bus.extend("f", [hold(first)], begun=[hold(first)])
    await settle(bus, [verdict(first, 0)])
    server.clock.advance(5000)
    second = await claim_one(bus)
    await settle(bus, [verdict(second, 60_000)])
    assert (await bus.job(id)).started_ms == second.claimed_ms  # type: ignore[union-attr]


async def test_release_puts_the_job_back_uncharged(bus: Bus, server: Server) -> None:
    (id,) = await mint(bus, lane="a")
    await settle(bus, [Release(hold(await claim_one(bus)))])
    record = await bus.job(id)
    assert record is not None
    assert (record.state, record.failures, record.history) == ("pending", 0, ())
    assert audit(server, "f").lanes == {"a": [id]}


async def test_cancelled_ends_the_job_with_its_reason(bus: Bus, server: Server) -> None:
    (id,) = await mint(bus)
    job = await claim_one(bus)
    await settle(bus, [Cancelled(hold(job), run(job), "not needed")])
    record = await bus.job(id)
    assert record is not None
    assert record.state == "cancelled"
    assert record.error is not None
    assert record.error.message == "not needed"
    audit(server, "f")
    assert sum((await bus.metrics("f", 3_600_000)).duration.values()) == 1


@pytest.mark.parametrize("wrong", ["attempts", "holder", "id"])
async def test_a_late_settle_changes_nothing(bus: Bus, server: Server, wrong: str) -> None:
    (id,) = await mint(bus)
    job = await claim_one(bus)
    good = hold(job)
    bad = Hold(
        bus.new_job_id() if wrong == "id" else good.id,
        good.attempts + (wrong == "attempts"),
        good.holder + ("x" if wrong == "holder" else ""),
    )
    before = audit(server, "f")
    for verdict in (done(job), retry(job), dead(job)):
        from msgspec.structs import replace

        answer = await bus.settle("f", ME, [replace(verdict, hold=bad)])
        assert answer.refused == (bad.id,)
    after = audit(server, "f")
    assert (after.rows, after.active) == (before.rows, before.active)
    assert await counted(bus, "refused") == 3
    assert (await bus.job(id)).state == "active"  # type: ignore[union-attr]


async def test_two_settles_of_one_job_count_once(bus: Bus, server: Server) -> None:
    await mint(bus)
    job = await claim_one(bus)
    answer = await bus.settle("f", ME, [done(job), done(job)])
    assert answer.refused == (job.id,)
    assert await counted(bus, "done") == 1
    audit(server, "f")


async def test_a_settle_claims_the_next_in_the_same_step(bus: Bus, server: Server) -> None:
    ids = await mint(bus, count=5)
    jobs = await claim(bus, 2)
    following = await settle(bus, [done(job) for job in jobs], count=2)
    assert [job.id for job in following] == ids[2:4]
    audit(server, "f")


async def test_a_settle_sent_again_gets_its_reply_and_changes_nothing(bus: Bus, server: Server) -> None:
    await mint(bus, count=4)
    first, second = await claim(bus, 2)
    stale = done(second)
    verdicts = [verdict_row(done(first)), ["release", second.id, 9, "old", False, 0, 0, False]]
    arguments = {
        "claimer": ME,
        "sequence": 12,
        "want": 1,
        "lease_ms": LEASE_MS,
        "holder": "h",
        "popped": 0,
        "begun": pack([]),
        "verdicts": pack(verdicts),
    }
    reply = await bus.run("settle", "f", **arguments)
    before = audit(server, "f")
    assert (await bus.run("settle", "f", **arguments))[:6] == reply
    after = audit(server, "f")
    assert (after.rows, after.active, after.done) == (before.rows, before.active, before.done)
    assert await counted(bus, "done") == 1
    await settle(bus, [stale])


async def test_what_a_lost_reply_claimed_is_not_rebuilt_once_it_is_settled(bus: Bus) -> None:
    await mint(bus, count=2)
    arguments = {
        "claimer": ME,
        "sequence": 3,
        "want": 2,
        "lease_ms": 1000,
        "holder": "h",
        "popped": 0,
        "begun": b"\x90",
    }
    first = await bus.run("claim", "f", **arguments)
    other = Hold(first[2][0][0].decode(), 1, "h")
    job = Claimed(other.id, 1, "h", 0, b"", "-", 0, 0, first[0])
    await settle(bus, [done(job)], claimer="another")
    again = await bus.run("claim", "f", **arguments)
    assert [entry[0] for entry in again[2]] == [first[2][1][0]]


async def test_first_settle_wins_a_done_stands_although_a_cancel_was_asked_for(bus: Bus, server: Server) -> None:
    (id,) = await mint(bus)
    job = await claim_one(bus)
    assert await bus.cancel("f", id) == "cancelling"
    await settle(bus, [done(job)])
    assert audit(server, "f").state_of(id) == "done"


@pytest.mark.parametrize("kind", ["retry", "delay", "release"])
async def test_a_cancelled_run_that_would_come_back_ends(bus: Bus, server: Server, kind: str) -> None:
    (id,) = await mint(bus)
    job = await claim_one(bus)
    await bus.cancel("f", id)
    await settle(
        bus,
        [{"retry": retry(job), "delay": Delay(hold(job), run(job), 5), "release": Release(hold(job))}[kind]],
    )
    assert audit(server, "f").state_of(id) == "cancelled"
    assert await counted(bus, "cancelled") == 1


async def test_a_cancelled_run_that_fails_at_its_last_try_ends_cancelled_and_not_dead(bus: Bus, server: Server) -> None:
    await bus.configure("f", Policy(retries=0), 1)
    (id,) = await mint(bus)
    job = await claim_one(bus)
    await bus.cancel("f", id)
    await settle(bus, [retry(job)])
    assert audit(server, "f").state_of(id) == "cancelled"
    assert (await counted(bus, "cancelled"), await counted(bus, "dead")) == (1, 0)


async def test_children_wait_in_out_until_they_are_cleared(bus: Bus, server: Server) -> None:
    await mint(bus)
    job = await claim_one(bus)
    child = Child("g", Mint(id=bus.new_job_id(), payload=b"\xff\x00", parent=job.id, lane="ü"))
    with server.clock.stopped():
        await settle(bus, [done(job, children=(child,))])
        assert await bus.sweep_out("f") == ([], "")  # younger than a second
        assert await bus.sweep_out("f", older_ms=0) == ([child], "")
    server.clock.advance(1001)
    assert await bus.sweep_out("f") == ([child], "")
    assert (await bus.beat(pump=True)).unsent == ("f",)
    await bus.mint(child.queue, [child.mint])
    await bus.clear_out("f", [child.mint.id])
    assert await bus.sweep_out("f") == ([], "")
    assert (await bus.beat(pump=True)).unsent == ()


async def test_children_of_a_settle_that_lies_ahead_by_the_clock_are_sent(bus: Bus, server: Server) -> None:
    """The clock went back a day, and nobody was left to send them: they do not wait for it to be there again."""
    server.clock.advance(86_400_000)
    await bus.tick("f")
    await mint(bus)
    job = await claim_one(bus)
    child = Child("f", Mint(id=bus.new_job_id(), payload=b"", parent=job.id))
    await settle(bus, [done(job, children=(child,))])
    server.clock.advance(-86_400_000)
    assert await bus.sweep_out("f") == ([child], "")


async def test_of_many_children_each_is_swept_though_a_call_looks_at_some(bus: Bus, server: Server) -> None:
    parent = bus.new_job_id()
    children = [Child("g", Mint(id=bus.new_job_id(), payload=b"\xc0", parent=parent)) for _ in range(1500)]
    stored = [each for child in children for each in (child.mint.id, b"0" * 13 + pack(child))]
    server.command("HSET", "emq:{f}:out", *stored)
    found, cursor, parts = set[JobId](), "", list[int]()
    while len(parts) < 100:
        some, cursor = await bus.sweep_out("f", cursor=cursor)
        found |= {child.mint.id for child in some}
        parts.append(len(some))
        if not cursor:
            break
    assert found == {child.mint.id for child in children}
    assert (len(parts) > 1, max(parts) < 1000, cursor) == (True, True, "")


async def test_a_failed_run_leaves_no_children(bus: Bus) -> None:
    await mint(bus)
    job = await claim_one(bus)
    await settle(bus, [retry(job)])
    assert await bus.sweep_out("f", older_ms=0) == ([], "")


async def test_a_waiting_mint_is_told_only_at_the_end(bus: Bus, server: Server) -> None:
    import asyncio

    heard: asyncio.Queue[str] = asyncio.Queue()
    bus.on("ended", heard.put_nowait)
    (id,) = await mint(bus, wait=bus.wait_channel)
    await settle(bus, [retry(await claim_one(bus), after_ms=0)])
    await settle(bus, [done(await claim_one(bus))])
    assert await asyncio.wait_for(heard.get(), PATIENCE_S) == id
    assert heard.empty()


async def test_histograms_count_duration_wait_and_late(bus: Bus, server: Server) -> None:
    await mint(bus, in_ms=1000)
    server.clock.advance(1500)
    await bus.tick("f")
    job = await claim_one(bus)
    from doing import run as run_of
    from echod.model.job import Done

    await settle(bus, [Done(hold(job), run_of(job, took_ms=110))])
    metrics = await bus.metrics("f", 3_600_000)
    assert metrics.duration == {49: 1}  # floor(log(110) / log(1.1))
    assert sum(metrics.wait.values()) == 1
    assert len(metrics.late) == 1
    assert min(metrics.late) >= 64  # at least 500 ms


async def test_a_wait_is_since_a_job_was_last_put_into_its_lane_and_never_below_nothing(
    bus: Bus, server: Server
) -> None:
    """The start is by the host's clock."""
    (id,) = await mint(bus)
    first = await claim_one(bus)
    await settle(bus, [Retry(hold(first), run(first, waited_ms=-5000), Error("E", "m"), 0)])
    server.clock.advance(3_600_000)
    second = await claim_one(bus)
    await settle(bus, [Release(hold(second))])
    third = await claim_one(bus)
    await settle(bus, [done(third)])
    record = await bus.job(id)
    assert record is not None
    assert record.history[0].wait_ms == 0
    await bus.beat(pump=False)  # its clock follows
    assert max((await bus.metrics("f", 7_200_000)).wait) < 73  # a second


async def test_nothing_is_stored_of_a_result_that_is_none(bus: Bus, server: Server) -> None:
    (id,) = await mint(bus)
    await settle(bus, [done(await claim_one(bus), result=b"\xc0")])
    assert b"o" not in audit(server, "f").rows[id]


async def test_a_queue_without_a_policy_retries_three_times(bus: Bus) -> None:
    await mint(bus)
    for _ in range(3):
        await settle(bus, [retry(await claim_one(bus), after_ms=0)])
    await settle(bus, [retry(await claim_one(bus))])
    assert await counted(bus, "dead") == 1


async def test_a_settle_of_one_marks_another_as_begun(bus: Bus) -> None:
    await mint(bus, count=2)
    first, second = await claim(bus, 2)
    await bus.settle("f", ME, [done(first)], begun=[hold(second)])
    assert (await bus.job(second.id)).started_ms is not None  # type: ignore[union-attr]


async def test_timeouts_are_counted(bus: Bus) -> None:
    await mint(bus)
    await settle(bus, [retry(await claim_one(bus), cause="timeout")])
    assert await counted(bus, "timeouts") == 1


async def test_an_error_with_lone_surrogates_is_stored_all_the_same(bus: Bus) -> None:
    from echod.model.job import Dead

    (id,) = await mint(bus)
    job = await claim_one(bus)
    await settle(bus, [Dead(hold(job), run(job), Error("E", "bad \ud800 text"))])
    record = await bus.job(id)
    assert record is not None
    assert record.error == Error("E", "bad ? text")


async def test_extend_renews_and_tells_what_is_lost_and_what_shall_stop(bus: Bus, server: Server) -> None:
    await mint(bus, count=3)
    kept, stopping, lost = await claim(bus, 3, lease_ms=5000)
    await settle(bus, [done(lost)])
    await bus.cancel("f", stopping.id)
    answer = await bus.extend("f", [hold(kept), hold(stopping), hold(lost)], 60_000)
    assert (answer.lost, answer.cancelling) == ((lost.id,), (stopping.id,))
    assert audit(server, "f").active[kept.id] == answer.now_ms + 60_000
    again = await bus.extend("f", [hold(kept), hold(stopping), hold(lost)], 60_000)
    assert (again.lost, again.cancelling) == (answer.lost, answer.cancelling)


@pytest.mark.parametrize("wrong", [{"attempts": 2}, {"holder": "another"}])
async def test_a_lease_is_renewed_for_its_holder_alone(bus: Bus, server: Server, wrong: dict[str, Any]) -> None:
    await mint(bus)
    job = await claim_one(bus, lease_ms=5000)
    answer = await bus.extend("f", [msgspec.structs.replace(hold(job), **wrong)], 60_000)
    assert answer.lost == (job.id,)
    assert audit(server, "f").active[job.id] == job.claimed_ms + 5000


async def test_no_record_says_that_a_run_ended_before_it_began(bus: Bus) -> None:
    """A supervisor's guess of the bus's time may be ahead of it by a millisecond or two."""
    (id,) = await mint(bus)
    job = await claim_one(bus)
    ahead = msgspec.structs.replace(run(job), started_ms=job.claimed_ms + 5000, ended_ms=job.claimed_ms + 5001)
    await settle(bus, [Done(hold(job), ahead)])
    record = await bus.job(id, queue="f")
    assert record is not None
    assert record.started_ms is not None
    assert record.ended_ms is not None
    assert record.minted_ms <= record.started_ms <= record.ended_ms


async def test_a_begun_run_shows_as_started(bus: Bus) -> None:
    (id,) = await mint(bus)
    job = await claim_one(bus)
    assert (await bus.job(id)).started_ms is None  # type: ignore[union-attr]
    await bus.extend("f", [], begun=[hold(job)])
    assert (await bus.job(id)).started_ms is not None  # type: ignore[union-attr]


async def test_each_run_shows_the_start_that_was_told_of_it_once_and_none_that_lies_ahead(bus: Bus) -> None:
    await mint(bus, count=3)
    jobs = await claim(bus, 3)
    at_ms = jobs[0].claimed_ms
    told = [at_ms - 2000, at_ms - 1000, at_ms + 3_600_000]
    await bus.extend("f", [], begun=[hold(job) for job in jobs], began_ms=told)
    await bus.extend("f", [], begun=[hold(jobs[0])], began_ms=[at_ms - 500])
    first, second, ahead = [record.started_ms for job in jobs if (record := await bus.job(job.id))]
    assert (first, second) == (at_ms - 2000, at_ms - 1000)
    assert ahead is not None
    assert at_ms <= ahead < told[2]


async def test_a_stale_begun_marks_nothing(bus: Bus) -> None:
    (id,) = await mint(bus)
    job = await claim_one(bus)
    await bus.extend("f", [], begun=[Hold(job.id, job.attempts, "another")])
    assert hold_row(hold(job))[0] == id
    assert (await bus.job(id)).started_ms is None  # type: ignore[union-attr]


async def test_progress_is_the_holders_to_tell(bus: Bus) -> None:
    (id,) = await mint(bus)
    job = await claim_one(bus)
    assert await bus.progress("f", hold(job), 0.4, "half-way")
    assert (await bus.job(id)).progress == (0.4, "half-way")  # type: ignore[union-attr]
    for stale in (Hold(id, 9, job.holder), Hold(id, job.attempts, "x")):
        assert not await bus.progress("f", stale, 0.9)
    await settle(bus, [retry(job)])
    assert not await bus.progress("f", hold(job), 0.9), "it runs no more"
    assert (await bus.job(id)).progress == (0.4, "half-way")  # type: ignore[union-attr]


async def test_a_settle_that_asks_for_more_says_why_there_is_nothing(bus: Bus) -> None:
    async def asked() -> tuple[str | None, int | None]:
        await mint(bus)
        job = await claim_one(bus)
        claim = (await bus.settle("f", ME, [done(job)], count=1, lease_ms=LEASE_MS)).claim
        return claim.blocked, claim.retry_in_ms

    assert await asked() == ("empty", None)
    await mint(bus)
    job = await claim_one(bus)
    await mint(bus)
    await bus.pause("f")
    claim = (await bus.settle("f", ME, [done(job)], count=1, lease_ms=LEASE_MS)).claim
    assert (claim.jobs, claim.blocked) == ((), "paused")


SPOILT: list[tuple[str, int, Any, str]] = [
    ("done", 0, "ended", "kind"),
    ("done", 0, None, "kind"),
    ("done", 2, "1", "fence"),
    ("done", 4, False, "run"),
    ("done", 5, None, "run"),
    ("done", 6, math.nan, "run"),
    ("done", 7, None, "result"),
    ("done", 8, [["JOB00000000009", 5]], "children"),
    ("done", 8, "none", "children"),
    ("retry", 8, None, "cause"),
    ("retry", 9, None, "delay"),
    ("dead", 7, 5, "error"),
    ("delay", 7, None, "delay"),
    ("cancelled", 7, 5, "error"),
]


@pytest.mark.parametrize(("kind", "index", "value", "told"), SPOILT)
async def test_a_malformed_verdict_settles_none_of_its_call(
    bus: Bus, server: Server, monkeypatch: pytest.MonkeyPatch, kind: str, index: int, value: Any, told: str
) -> None:
    """One that broke off in the middle left its job in no place at all, and those before it settled."""
    await mint(bus, count=2)
    first, second = await claim(bus, 2)
    bad = {
        "done": done(second),
        "retry": retry(second),
        "dead": dead(second),
        "delay": Delay(hold(second), run(second), 1_000),
        "cancelled": Cancelled(hold(second), run(second), "by hand"),
    }[kind]
    as_it_is = working.verdict_row

    def spoilt(verdict: Verdict) -> list[Any]:
        row = as_it_is(verdict)
        if verdict is bad:
            row[index] = value
        return row

    monkeypatch.setattr(working, "verdict_row", spoilt)
    with pytest.raises(Refused, match=f"MALFORMED verdict 2: expected another .*{told}.*nothing was settled"):
        await settle(bus, [done(first), bad])
    books = audit(server, "f")
    assert (set(books.active), books.done) == ({first.id, second.id}, {})
    monkeypatch.setattr(working, "verdict_row", as_it_is)
    await settle(bus, [done(first), done(second)])
    assert len(audit(server, "f").done) == 2
