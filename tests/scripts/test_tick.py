"""tick: what falls due, what a lost lease costs, and what a step of the server's clock may not do."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from audit import audit, open_books
from doing import LEASE_MS, ME, bury, claim, claim_one, commands, counted, done, hold, mint, retry, settle
from echod.bus import Bus
from echod.bus.clock import StepWatch, monotonic_ms
from echod.model.ids import NodeId
from echod.model.job import Child, Mint
from echod.pump.outbox import Outbox
from echod.pump.setbacks import Setbacks
from echofn.manifest import Backoff, Constant, Exponential, Linear, Policy, Waits
from server import PATIENCE_S, Server


async def let_pass(bus: Bus, server: Server, ms: int) -> None:
    """Time passes on the server and, as far as the bus can tell, on this host."""
    server.clock.advance(ms)
    bus.steps = StepWatch()


async def test_due_jobs_go_to_their_lanes_by_due_alone(bus: Bus, server: Server) -> None:
    await mint(bus, count=300, in_ms=3_600_000)
    (near,) = await mint(bus, in_ms=60_000, lane="a")
    tick = await bus.tick("f")
    assert tick.next_in_ms is not None
    assert 0 < tick.next_in_ms <= 60_000
    server.clock.advance(60_001)
    tick = await bus.tick("f")
    assert (tick.promoted, tick.more) == (1, False)
    assert audit(server, "f").lanes == {"a": [near]}


async def test_a_mountain_of_due_jobs_is_promoted_in_bounded_steps(bus: Bus, server: Server) -> None:
    await mint(bus, count=450, in_ms=1000)
    server.clock.advance(2000)
    promoted = []
    more = True
    while more:
        tick = await bus.tick("f")
        promoted.append(tick.promoted)
        more = tick.more
    assert (sum(promoted), max(promoted)) == (450, 200)
    audit(server, "f")


async def test_a_tick_sent_again_does_nothing_more(bus: Bus, server: Server) -> None:
    await mint(bus, in_ms=10)
    server.clock.advance(1000)
    await bus.tick("f")
    before = audit(server, "f")
    assert (await bus.tick("f")).promoted == 0
    assert audit(server, "f") == before


async def test_an_earlier_due_is_told_to_all(bus: Bus) -> None:
    import asyncio

    heard: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
    bus.on("due", lambda queue, in_ms: heard.put_nowait((queue, in_ms)))
    await mint(bus, in_ms=60_000)
    await mint(bus, in_ms=90_000)
    await mint(bus, in_ms=5_000)
    assert await asyncio.wait_for(heard.get(), PATIENCE_S) == ("f", 60_000)
    assert await asyncio.wait_for(heard.get(), PATIENCE_S) == ("f", 5_000)
    assert heard.empty()
    await mint(bus)
    await settle(bus, [retry(await claim_one(bus), 3_000)])
    assert await asyncio.wait_for(heard.get(), PATIENCE_S) == ("f", 3_000)


async def test_a_begun_run_whose_lease_ends_is_charged_as_lost(bus: Bus, server: Server) -> None:
    await bus.configure("f", Policy(backoff=Constant(70_000)), 1)
    (id,) = await mint(bus)
    job = await claim_one(bus, lease_ms=5000)
    await bus.extend("f", [], begun=[hold(job)])
    await let_pass(bus, server, 5001)
    assert (await bus.tick("f")).recovered == 1
    record = await bus.job(id)
    assert record is not None
    assert (record.state, record.reason, record.failures) == ("scheduled", "retry", 1)
    assert [(entry.outcome, entry.cause) for entry in record.history] == [("lost", "lost")]
    assert record.due_ms - server.clock.now_ms() > 10_000
    assert audit(server, "f").totals == {"minted": 1, "lost": 1, "failed": 1, "retried": 1}
    assert (await bus.settle("f", ME, [done(job)])).refused == (id,)


@pytest.mark.parametrize(
    ("backoff", "waits"),
    [
        (Linear(7_000, 12_000), [7_000, 12_000, 12_000]),
        (Constant(7_000), [7_000] * 3),
        (Waits((3_000, 9_000)), [3_000, 9_000, 9_000]),
        (Exponential(7_000, 12_000), None),
    ],
)
async def test_a_lost_run_waits_as_its_policy_says(
    bus: Bus, server: Server, backoff: Backoff, waits: list[int] | None
) -> None:
    await bus.configure("f", Policy(backoff=backoff), 1)
    (id,) = await mint(bus)
    told: list[int] = []
    for _ in range(3):
        job = await claim_one(bus, lease_ms=1_000)
        await bus.extend("f", [], begun=[hold(job)])
        await let_pass(bus, server, 1_001)
        await bus.tick("f")
        record = await bus.job(id)
        assert record is not None
        told.append(record.due_ms - record.history[-1].ended_ms)
        await let_pass(bus, server, 12_001)
        await bus.tick("f")
    assert told == waits if waits else all(0 <= wait <= 12_000 for wait in told)


async def test_a_job_that_was_not_begun_comes_back_uncharged(bus: Bus, server: Server) -> None:
    (id,) = await mint(bus, lane="a")
    await claim_one(bus, lease_ms=5000)
    await let_pass(bus, server, 5001)
    await bus.tick("f")
    record = await bus.job(id)
    assert record is not None
    assert (record.state, record.failures, record.history) == ("pending", 0, ())
    assert audit(server, "f").lanes == {"a": [id]}


async def test_eleven_losses_before_the_start_end_in_the_morgue(bus: Bus, server: Server) -> None:
    (id,) = await mint(bus)
    for losses in range(1, 12):
        await claim_one(bus, lease_ms=1000)
        await let_pass(bus, server, 1001)
        await bus.tick("f")
        record = await bus.job(id)
        assert record is not None
        assert record.state == ("pending" if losses <= 10 else "dead")
    assert record.error is not None
    assert record.error.cause == "lost"
    audit(server, "f")


async def test_poison_reaches_the_morgue_at_exactly_its_limit(bus: Bus, server: Server) -> None:
    await bus.configure("f", Policy(retries=2, backoff=Waits((0,))), 1)
    (id,) = await mint(bus)
    for runs in range(1, 4):
        job = await claim_one(bus, lease_ms=1000)
        await bus.extend("f", [], 1000, begun=[hold(job)])
        await let_pass(bus, server, 1001)
        await bus.tick("f")
        record = await bus.job(id)
        assert record is not None
        assert (record.state, record.failures) == ("pending" if runs < 3 else "dead", runs)
    assert await counted(bus, "dead") == 1
    audit(server, "f")


async def test_so_many_leases_are_recovered_a_tick_and_it_says_that_there_are_more(bus: Bus, server: Server) -> None:
    await mint(bus, count=3)
    await claim(bus, 3)
    for recovered, more in ((2, True), (1, False)):
        await let_pass(bus, server, LEASE_MS + 1)
        tick = await bus.tick("f", 2)
        assert (tick.recovered, tick.more) == (recovered, more)


async def test_the_last_of_lost_runs_is_told_with_its_own_start_and_wait(bus: Bus, server: Server) -> None:
    await bus.configure("f", Policy(retries=1), 1)
    (id,) = await mint(bus)
    server.clock.advance(3_600_000)
    await settle(bus, [retry(await claim_one(bus), 0)])
    job = await claim_one(bus, lease_ms=60_000)
    await bus.extend("f", [], begun=[hold(job)])
    await let_pass(bus, server, 60_001)
    await bus.tick("f")
    record = await bus.job(id)
    assert record is not None
    assert (record.state, [entry.outcome for entry in record.history]) == ("dead", ["retry", "lost"])
    last = record.history[-1]
    assert last.started_ms is not None
    assert last.started_ms - job.claimed_ms < 30_000
    assert last.wait_ms < 30_000
    assert audit(server, "f").totals == {"minted": 1, "lost": 1, "failed": 2, "retried": 1, "dead": 1}


async def test_a_lost_run_that_was_asked_to_stop_ends_cancelled(bus: Bus, server: Server) -> None:
    (id,) = await mint(bus)
    job = await claim_one(bus, lease_ms=1000)
    await bus.extend("f", [], 1000, begun=[hold(job)])
    await bus.cancel("f", id)
    await let_pass(bus, server, 1001)
    await bus.tick("f")
    books = audit(server, "f")
    assert books.state_of(id) == "cancelled"
    assert books.totals == {"minted": 1, "lost": 1, "cancelled": 1}
    assert [entry.outcome for entry in (await bus.job(id)).history] == ["lost"]  # type: ignore[union-attr]


async def test_a_history_that_nobody_can_read_breaks_no_tick_off(bus: Bus, server: Server) -> None:
    """It would have taken the job out of `active` and put it nowhere. The history starts anew."""
    for_each = [b"xyz", b"\xdc\xff\xff\xc1", b"\xdc\x00\x32\xda\xff", b"\xdc\x00\x32\x01"]
    ids = await mint(bus, count=len(for_each))
    holds = [hold(job) for job in await claim(bus, len(ids), lease_ms=1000)]
    await bus.extend("f", holds, 1000, begun=holds)
    for id, damaged in zip(ids, for_each, strict=True):
        server.command("HSET", f"emq:{{f}}:job:{id}", "y", damaged)
    await let_pass(bus, server, 1001)
    assert (await bus.tick("f")).recovered == len(ids)
    audit(server, "f")
    for id in ids:
        record = await bus.job(id)
        assert record is not None
        assert [entry.cause for entry in record.history] == ["lost"]


@pytest.mark.parametrize(
    "damage",
    [("HSET", "meta", "backoff", b"\xc1"), ("HSET", "meta", "backoff", b"\x80\x00"), ("HDEL", "job:", "m", "w")],
)
async def test_a_lost_job_of_which_something_cannot_be_read_is_retried_and_keeps_no_pump_from_its_beats(
    bus: Bus, server: Server, damage: tuple[str, ...]
) -> None:
    await mint(bus, count=2)
    jobs = await claim(bus, 2, lease_ms=1000)
    await bus.extend("f", [hold(job) for job in jobs], 1000, begun=[hold(job) for job in jobs])
    await bus.cancel("f", jobs[0].id)
    verb, key, *rest = damage
    server.command(verb, f"emq:{{f}}:{key}{jobs[1].id if key == 'job:' else ''}", *rest)
    await let_pass(bus, server, 3000)
    assert (await bus.beat(pump=True)).tick.recovered == 2
    books = open_books(server, "f")
    assert [books.state_of(job.id) for job in jobs] == ["cancelled", "scheduled"]


async def test_a_lost_row_rings_for_the_place_that_it_gives_back(bus: Bus, server: Server) -> None:
    await bus.configure("f", Policy(concurrency=1), 1)
    (gone, _) = await mint(bus, count=2)
    assert await bus.ring_wait(PATIENCE_S) == "f"
    await claim(bus, 2, lease_ms=1000)
    assert audit(server, "f").wake == []
    server.command("DEL", f"emq:{{f}}:job:{gone}")
    await let_pass(bus, server, 1001)
    await bus.tick("f")
    assert audit(server, "f").wake == ["f"]


@pytest.mark.parametrize("policy", [Policy(), Policy(concurrency=1), Policy(lane_concurrency=1)])
async def test_a_lost_row_of_a_running_job_ends_in_the_morgue_and_gives_its_place_back(
    bus: Bus, server: Server, policy: Policy
) -> None:
    """An eviction took it, and with it the name of its lane."""
    await bus.configure("f", policy, 1)
    gone, after = await mint(bus, lane="a", count=2)
    (job,) = await claim(bus, 1, lease_ms=1000)
    await mint(bus, lane="b")
    others = await claim(bus, 1, lease_ms=60_000)
    server.command("DEL", f"emq:{{f}}:job:{gone}")
    assert (await bus.settle("f", ME, [done(job)])).refused == (gone,)
    await let_pass(bus, server, 1001)
    assert (await bus.tick("f")).recovered == 1
    record = await bus.job(gone)
    assert record is not None
    assert record.error is not None
    assert (record.state, record.error.cause) == ("dead", "missing")
    assert len(audit(server, "f").active) == len(others)
    assert after in [job.id for job in [*others, *await claim(bus, 5)]]
    audit(server, "f")


async def test_of_lost_rows_among_many_lanes_the_places_are_given_back_without_a_look_at_the_other_jobs(
    bus: Bus, server: Server
) -> None:
    """One row goes, then more of them; each lane may start its next job at once."""
    await bus.configure("f", Policy(lane_concurrency=1), 1)
    lanes = [f"L{number}" for number in range(1500)]
    await bus.mint("f", [Mint(id=bus.new_job_id(), payload=b"", lane=lane) for lane in lanes for _ in range(2)])
    jobs = [job for _ in range(3) for job in await claim(bus, 500, lease_ms=60_000)]
    assert len(jobs) == 1500
    first, later = jobs[:1], jobs[-300:]
    for gone in (first, later):
        server.command("DEL", *(f"emq:{{f}}:job:{job.id}" for job in gone))
        server.command("ZADD", "emq:{f}:active", *(part for job in gone for part in (0, job.id)))
        before = commands(server)
        tick = await bus.tick("f", limit=500)
        assert (tick.recovered, tick.more) == (len(gone), False)
        assert commands(server) - before < 100 + 30 * len(gone)
    assert len(audit(server, "f").of_lanes(":a")) == 1199
    assert {job.lane for job in await claim(bus, 500)} == {job.lane for job in [*first, *later]}
    audit(server, "f")


async def test_a_row_that_is_lost_while_lanes_have_no_limit_takes_no_place_up_later(bus: Bus, server: Server) -> None:
    limited, free = Policy(lane_concurrency=2), Policy()
    await bus.configure("f", limited, 1)
    lost, other = await mint(bus, lane="a", count=2)
    await claim(bus, 2, lease_ms=1000)
    await bus.configure("f", free, 2)
    server.command("DEL", f"emq:{{f}}:job:{lost}")
    await let_pass(bus, server, 1001)
    await bus.tick("f")
    await bus.configure("f", limited, 3)
    while (await bus.tick("f")).more:
        pass
    audit(server, "f")
    await bus.drain("f", [other])
    await mint(bus, lane="a", count=3)
    assert len(await claim(bus, 3)) == 2
    audit(server, "f")


async def test_a_renewed_lease_is_not_recovered(bus: Bus, server: Server) -> None:
    await mint(bus)
    job = await claim_one(bus, lease_ms=60_000)
    server.clock.advance(40_000)
    await bus.extend("f", [hold(job)], 60_000)
    await let_pass(bus, server, 40_000)
    assert (await bus.tick("f")).recovered == 0


@pytest.mark.parametrize(("roll", "expected"), [(0.0, 0), (0.5, 4000), (0.999, 7992)])
async def test_exponential_backoff_has_full_jitter_under_its_doubling(
    bus: Bus, server: Server, roll: float, expected: int
) -> None:
    await bus.configure("f", Policy(retries=50), 1)
    (id,) = await mint(bus)
    server.command("HSET", f"emq:{{f}}:job:{id}", "f", 4)  # the fifth failure: 500 * 2^4 = 8000
    job = await claim_one(bus, lease_ms=1000)
    await bus.extend("f", [], 1000, begun=[hold(job)])
    await let_pass(bus, server, 1001)
    shifted = (roll - 0.61803398875) % 1  # the script shifts the roll for each job of a tick
    now_ms, *_ = await bus.run("tick", "f", limit=10, roll=shifted, expected_ms=0)
    record = await bus.job(id)
    assert record is not None
    assert abs(record.due_ms - now_ms - expected) <= 1


async def test_a_step_by_more_than_a_lease_recovers_nothing_for_one_lease_more(bus: Bus, server: Server) -> None:
    await mint(bus)
    job = await claim_one(bus, lease_ms=15_000)
    await bus.tick("f")
    server.clock.advance(3_600_000)
    tick = await bus.tick("f")
    assert tick.recovered == 0
    assert tick.stepped_ms > 3_500_000
    assert tick.next_in_ms is not None
    assert tick.next_in_ms > 5_000  # and not at once
    assert (await bus.extend("f", [hold(job)], 15_000)).lost == ()
    assert audit(server, "f").active[job.id] > server.clock.now_ms()


async def test_a_step_within_a_long_lease_takes_no_time_from_who_recovers(bus: Bus, server: Server) -> None:
    """Who held it could renew meanwhile: a lease is as long as the last claim said."""
    await mint(bus)
    await claim_one(bus, lease_ms=60_000)
    await bus.tick("f")
    for recovered in (0, 1):
        server.clock.advance(31_000)
        assert (await bus.tick("f")).recovered == recovered


async def test_after_that_lease_the_dead_are_recovered(bus: Bus, server: Server) -> None:
    await mint(bus)
    await claim_one(bus, lease_ms=15_000)
    await bus.tick("f")
    server.clock.advance(3_600_000)
    await bus.tick("f")
    await let_pass(bus, server, 15_001)
    assert (await bus.tick("f")).recovered == 1


async def test_after_a_step_who_renews_keeps_its_run_and_who_is_dead_pays_only_for_what_it_began(
    bus: Bus, server: Server
) -> None:
    await mint(bus, count=3)
    alive, begun, unbegun = await claim(bus, 3)
    await bus.extend("f", [hold(alive)], begun=[hold(alive), hold(begun)])
    await bus.tick("f")
    server.clock.advance(86_400_000)
    await bus.tick("f")
    assert (await bus.extend("f", [hold(alive)])).lost == ()
    await let_pass(bus, server, 14_000)
    assert (await bus.extend("f", [hold(alive)])).lost == ()
    await let_pass(bus, server, 1_001)
    assert (await bus.tick("f")).recovered == 2
    books = audit(server, "f")
    assert list(books.active) == [alive.id]
    assert (books.state_of(begun.id), books.rows[begun.id][b"f"]) == ("scheduled", b"1")
    assert (books.state_of(unbegun.id), books.rows[unbegun.id].get(b"f")) == ("pending", None)
    await settle(bus, [done(alive)])


async def test_a_clock_that_goes_back_takes_no_run_from_its_holder(bus: Bus, server: Server) -> None:
    """Its lease ends later than it thinks; renewed, it ends as ever. A dead one's ends when the clock is there."""
    await mint(bus, count=2)
    alive, dead = await claim(bus, 2)
    await bus.tick("f")
    server.clock.advance(-3_600_000)
    assert (await bus.tick("f")).recovered == 0
    assert (await bus.extend("f", [hold(alive)], 15_000)).lost == ()
    assert audit(server, "f").active[alive.id] < server.clock.now_ms() + 16_000
    await settle(bus, [done(alive)])
    await let_pass(bus, server, 3_600_000)
    assert (await bus.beat(pump=True)).tick.recovered == 0
    await let_pass(bus, server, 15_001)
    assert (await bus.tick("f")).recovered == 1
    assert audit(server, "f").state_of(dead.id) == "pending"


@pytest.mark.parametrize("back_ms", [3_600_000, 3_580_000])
async def test_after_a_step_back_within_the_hold_it_lasts_one_lease_from_there(
    bus: Bus, server: Server, back_ms: int
) -> None:
    """An instant in the future must not keep recovery on hold until the clock has caught up, nor is the hold over: if
    the clock is set back by less than it had gone forward, who is alive has still had no chance to renew.
    """
    await mint(bus)
    await claim_one(bus, lease_ms=15_000)
    await bus.tick("f")
    server.clock.advance(3_600_000)
    await bus.tick("f")
    server.clock.advance(-back_ms)
    assert (await bus.tick("f")).recovered == 0
    await let_pass(bus, server, 15_001)
    assert (await bus.tick("f")).recovered == 1


async def test_a_step_that_a_new_pump_sees_within_the_hold_of_another_takes_nothing_from_it(
    bus: Bus, server: Server
) -> None:
    """To a new pump it is an outage, which holds what ended in it; the lease ended before, by a clock that stepped."""
    await mint(bus)
    await bus.beat(pump=True)
    await claim_one(bus, lease_ms=15_000)
    server.clock.advance(3_600_000)
    assert (await bus.beat(pump=True)).tick.recovered == 0
    server.clock.advance(7_200_000)
    newcomer = await Bus.open(server.address)
    await newcomer.join(NodeId("NOD00000000002"))
    tick = (await newcomer.beat(pump=True)).tick
    assert (tick.recovered, tick.stepped_ms) == (0, -1)
    await let_pass(newcomer, server, 15_001)
    assert (await newcomer.tick("f")).recovered == 1
    await newcomer.close()


async def test_a_step_seen_at_one_queue_protects_the_others(bus: Bus, server: Server) -> None:
    for queue in "fg":
        await mint(bus, queue)
        await claim_one(bus, queue)
    await bus.tick("f")
    server.clock.advance(3_600_000)
    await bus.tick("f")
    assert (await bus.tick("g")).recovered == 0


async def test_silence_is_no_step(bus: Bus, server: Server) -> None:
    """A pump that was frozen: both clocks passed, so what is overdue is recovered at once."""
    await mint(bus)
    await claim_one(bus, lease_ms=15_000)
    await bus.tick("f")
    assert bus.steps._last is not None
    bus_ms, heard_ms = bus.steps._last
    bus.steps._last = (bus_ms, heard_ms - 90_000)  # 90 s ago here …
    server.clock.advance(90_000)  # … and there
    tick = await bus.tick("f")
    assert (tick.recovered, tick.stepped_ms) == (1, 0)


async def test_the_first_tick_after_a_reconnect_recovers_nothing_for_one_lease_more(bus: Bus, server: Server) -> None:
    await mint(bus)
    await claim_one(bus, lease_ms=15_000)
    await bus.tick("f")
    up = asyncio.Event()
    bus.on("connected", up.set)
    server.command("CLIENT", "KILL", "TYPE", "normal")
    await asyncio.wait_for(up.wait(), PATIENCE_S)
    server.clock.advance(16_000)
    tick = await bus.tick("f")
    assert (tick.recovered, tick.stepped_ms) == (0, -1)
    await let_pass(bus, server, 15_001)
    assert (await bus.tick("f")).recovered == 1


def test_an_outage_is_told_with_one_tick_and_time_goes_on_from_when_that_was_sent() -> None:
    """Told again with each, it would put recovery off for as long as ticks come in quick succession."""
    watch = StepWatch()
    watch.outage()  # before a first tick nothing can have been missed
    assert watch.expected_ms() == 0
    watch.restarted()
    assert watch.expected_ms() == -1
    watch.ticked(1000, monotonic_ms())
    assert watch.expected_ms() >= 1000
    watch.outage()
    assert watch.expected_ms() == -1000
    watch.ticked(2000, monotonic_ms() - 500)
    assert watch.expected_ms() >= 2500
    watch.driven()
    assert watch.expected_ms() == 0


async def test_a_clock_that_goes_back_makes_dues_wait_and_doubles_nothing(bus: Bus, server: Server) -> None:
    await bus.recur("f", "r", rule="every 1000", tz="UTC", trigger=b"", payload=b"", next_ms=1000, generation=1)
    (due,) = (await bus.tick("f")).due
    await bus.occur("f", "r", due.revision, due.due_ms, next_ms=server.clock.now_ms() + 1000, job=bus.new_job_id())
    await mint(bus, in_ms=500)
    server.clock.advance(-60_000)
    tick = await bus.tick("f")
    assert (tick.due, tick.promoted, tick.recovered) == ((), 0, 0)
    assert tick.next_in_ms is not None
    assert 30_000 < tick.next_in_ms <= 60_600
    assert len(audit(server, "f").rows) == 2


# --- retention -----------------------------------------------------------------------------------------------------


async def finish(bus: Bus, count: int, result: bytes = b"\x02") -> None:
    await mint(bus, count=count)
    await settle(bus, [done(job, result) for job in await claim(bus, count)])


async def test_the_archive_is_trimmed_by_age_by_the_beat(bus: Bus, server: Server) -> None:
    await bus.configure("f", Policy(keep_ms=60_000), 1)
    await finish(bus, 3)
    server.clock.advance(30_000)
    await bus.beat(pump=True)
    assert len(audit(server, "f").done) == 3
    server.clock.advance(30_001)
    await bus.beat(pump=True)
    assert audit(server, "f").rows == {}


async def test_the_archive_is_trimmed_by_count_by_settle_in_bounded_steps(bus: Bus, server: Server) -> None:
    await finish(bus, 30)
    server.command("HSET", "emq:{f}:meta", "keep_count", 5)
    server.clock.advance(10_001)
    await finish(bus, 4)
    assert len(audit(server, "f").done) == 30 + 4 - 8
    await finish(bus, 20)
    assert len(audit(server, "f").done) == 24  # the old are gone, what is younger than ten seconds stays


async def test_a_small_step_does_not_end_the_hold_of_an_outage(bus: Bus, server: Server) -> None:
    await mint(bus)
    await claim_one(bus, lease_ms=15_000)
    server.clock.advance(15_001)
    outage = await bus.run("tick", "f", limit=10, roll=0.5, expected_ms=-1)
    delayed = await bus.run("tick", "f", limit=10, roll=0.5, expected_ms=outage[0] - 2_000)
    assert (outage[5], delayed[5]) == (0, 0)
    server.clock.advance(15_001)
    assert (await bus.tick("f")).recovered == 1


async def look(bus: Bus, server: Server, queue: str, passed_ms: int = 0, step_ms: int = 0) -> int:
    """A pump's look after so much time, and after a step of the clock that it sees; how many leases it recovered."""
    server.clock.advance(passed_ms + step_ms)
    reply = await bus.run("tick", queue, limit=10, roll=0.5, expected_ms=server.clock.now_ms() - step_ms)
    return int(reply[5])


async def test_a_small_step_does_not_end_the_hold_of_a_large_one_whatever_the_lease(bus: Bus, server: Server) -> None:
    """Queues differ in their leases: one is over its hold where another is still within it."""
    for queue, lease_ms in (("f", 300_000), ("g", 15_000)):
        await mint(bus, queue)
        await claim_one(bus, queue, lease_ms=lease_ms)
    for step_ms in (3_600_000, 20_000):  # more than both leases, more than one
        assert await look(bus, server, "f", 40_000, step_ms) == await look(bus, server, "g") == 0
    assert [await look(bus, server, "f", 40_000), await look(bus, server, "g")] == [0, 1]
    assert await look(bus, server, "f", 220_001) == 1


async def test_many_queues_see_one_step_and_push_no_other_out(bus: Bus, server: Server) -> None:
    """A turn asks of many queues at once: each ask has seen the same step, and another may follow at any moment."""
    await mint(bus)
    await claim_one(bus, lease_ms=15_000)
    for step_ms in (100_000, 20_000):
        server.clock.advance(step_ms)
        expected_ms = server.clock.now_ms() - step_ms
        asks = [bus.run("tick", f"g{number}", limit=10, roll=0.5, expected_ms=expected_ms) for number in range(40)]
        await asyncio.gather(*asks)
        server.clock.advance(1_500)
    for _ in range(40):
        assert await look(bus, server, "f", 0, 1_100) == 0
        server.clock.advance(-900)
    kept = server.command("HGET", "emq:{~}:hold", "steps")
    assert isinstance(kept, bytes)
    assert len(msgspec.msgpack.decode(kept)) < 16


async def test_connections_that_break_again_and_again_do_not_put_recovery_off(bus: Bus, server: Server) -> None:
    """Two pumps whose connections a proxy closes every 20 s, whoever is dead meanwhile."""
    await mint(bus)
    await claim_one(bus, lease_ms=15_000)
    other = await Bus.open(server.address)
    pumps = [bus, other]
    recovered = []
    for step in range(8):
        pump = pumps[step % 2]
        if step > 1:
            pump.steps.outage()
        recovered.append((await pump.tick("f")).recovered)
        server.clock.advance(10_000)
    await other.close()
    assert sum(recovered) == 1
    assert recovered.index(1) <= 5  # 50 s: its lease, a beat, and one lease more


async def test_an_outage_holds_what_ended_in_it_also_where_a_second_follows(bus: Bus, server: Server) -> None:
    await mint(bus)
    await claim_one(bus, lease_ms=15_000)
    await bus.tick("f")
    server.clock.advance(100_000)
    for _ in range(2):
        bus.steps.outage()
        assert (await bus.tick("f")).recovered == 0
        server.clock.advance(2_000)
    bus.steps.outage()
    assert (await bus.tick("f")).recovered == 0  # 4 s after the first
    server.clock.advance(11_001)
    bus.steps.outage()
    tick = await bus.tick("f")
    assert (tick.recovered, tick.stepped_ms) == (1, -1)


async def test_a_child_stays_until_a_sweep_of_out_cannot_mint_it_again(bus: Bus, server: Server) -> None:
    (parent,) = await mint(bus, "p")
    child = Child("f", Mint(id=bus.new_job_id(), payload=b"\x01", parent=parent))
    await settle(bus, [done(await claim_one(bus, "p"), children=(child,))], "p")
    await bus.mint("f", [child.mint])  # and here the node dies: nobody clears `out`
    server.command("HSET", "emq:{f}:meta", "keep_count", 0)
    await settle(bus, [done(await claim_one(bus))])
    server.clock.advance(20_000)
    await bus.beat(pump=True)
    outbox = Outbox(bus, Setbacks())
    outbox.heard(["p"])
    assert await outbox.sweep() == 1
    assert await claim(bus) == []
    server.clock.advance(20_000)
    await bus.beat(pump=True)
    assert audit(server, "f").done == {}


async def test_the_archive_is_trimmed_by_bytes(bus: Bus, server: Server) -> None:
    server.command("HSET", "emq:{f}:meta", "keep_bytes", 100_000)
    for _ in range(10):
        await finish(bus, 1, bytes(20_000))
        server.clock.advance(11_000)
    books = audit(server, "f")
    assert int(books.meta["ab"]) <= 120_500


async def test_twice_the_bytes_are_trimmed_however_young(bus: Bus, server: Server) -> None:
    server.command("HSET", "emq:{f}:meta", "keep_bytes", 50_000)
    for _ in range(10):
        await finish(bus, 1, bytes(20_000))
    books = audit(server, "f")
    assert int(books.meta["ab"]) <= 100_000
    assert "cut" in books.meta


async def test_the_morgue_is_kept_thirty_days(bus: Bus, server: Server) -> None:
    id = await bury(bus)
    server.clock.advance(29 * 86_400_000)
    await bus.beat(pump=True)
    assert audit(server, "f").state_of(id) == "dead"
    server.clock.advance(86_400_000 + 1000)
    await bus.beat(pump=True)
    assert audit(server, "f").rows == {}


async def test_a_trimmed_job_takes_its_log_with_it(bus: Bus, server: Server) -> None:
    from echod.bus.answers import LogLine

    (id,) = await mint(bus)
    await bus.log("f", id, [LogLine(1, 1, "stdout", "info", "", "x")])
    await settle(bus, [done(await claim_one(bus))])
    server.clock.advance(8 * 86_400_000)
    await bus.beat(pump=True)
    left = server.command("KEYS", "emq:{f}:*")
    assert isinstance(left, list)
    assert sorted(key for key in left if b":m:" not in key and b":h:" not in key) == [
        b"emq:{f}:meta",
        b"emq:{f}:totals",
    ]


# ---- what others were bitten by -----------------------------------------------------------------------------------


async def test_waiting_for_an_instant_is_not_leased_time(bus: Bus, server: Server) -> None:
    """A delay far beyond the lease: nothing is recovered or run before it, and it runs once."""
    (id,) = await mint(bus, in_ms=60_000)
    for _ in range(5):
        await let_pass(bus, server, 5_001)
        tick = await bus.tick("f")
        assert (tick.promoted, tick.recovered) == (0, 0)
        assert await claim(bus, 1, lease_ms=5_000) == []
    await let_pass(bus, server, 35_001)
    await bus.tick("f")
    job = await claim_one(bus, lease_ms=5_000)
    assert (job.id, job.attempts) == (id, 1)
    await settle(bus, [done(job)])


async def test_sweeps_in_a_tight_loop_take_no_fresh_job_from_anybody(bus: Bus, server: Server) -> None:
    """Claimed and not begun is no reason: the lease alone is."""
    await mint(bus, count=500)
    held = []
    for _ in range(50):
        jobs, tick = await asyncio.gather(claim(bus, 10, lease_ms=60_000), bus.tick("f"))
        held += jobs
        assert tick.recovered == 0
    await let_pass(bus, server, 30_000)
    assert (await bus.tick("f")).recovered == 0
    answer = await bus.settle("f", ME, [done(job) for job in held])
    assert answer.refused == ()
    assert [job.attempts for job in held] == [1] * 500


async def test_of_eight_who_race_for_a_job_one_gets_it(bus: Bus) -> None:
    for _ in range(200):
        (id,) = await mint(bus)
        found = await asyncio.gather(*[claim(bus, 1, claimer=f"WRK{number}") for number in range(8)])
        assert [job.id for jobs in found for job in jobs] == [id]


async def test_of_eight_pumps_over_one_mountain_each_job_is_promoted_once_and_none_works_for_nothing(
    server: Server,
) -> None:
    pumps = [await Bus.open(server.address) for _ in range(8)]
    await pumps[0].join("NOD1")  # type: ignore[arg-type]
    ids = await mint(pumps[0], count=3_000, at_ms=server.clock.now_ms() + 500_000)
    server.clock.advance(500_001)
    ticks: list[int] = []

    async def pump_on(pump: Bus) -> None:
        more = True
        while more:
            tick = await pump.tick("f")
            ticks.append(tick.promoted)
            more = tick.more

    await asyncio.gather(*map(pump_on, pumps))
    assert sum(ticks) == 3_000
    assert len(ticks) <= 3_000 // 200 + 2 * len(pumps)  # linear: each ends with one empty look
    assert sorted(audit(server, "f").lanes["-"]) == ids
    for pump in pumps:
        await pump.close()


async def test_while_a_queue_is_paused_what_falls_due_and_what_is_lost_waits_and_runs_after(
    bus: Bus, server: Server
) -> None:
    (due,) = await mint(bus, in_ms=1_000)
    (lost,) = await mint(bus)
    await claim_one(bus, lease_ms=1_000)
    await bus.pause("f")
    await let_pass(bus, server, 2_000)
    tick = await bus.tick("f")
    assert (tick.promoted, tick.recovered) == (1, 1)
    assert await claim(bus, 5) == []
    assert sorted(audit(server, "f").lanes["-"]) == sorted([due, lost])
    await bus.resume("f")
    assert {job.id for job in await claim(bus, 5)} == {due, lost}


async def test_after_a_restart_a_pump_that_has_just_come_takes_nothing_for_one_lease(bus: Bus, server: Server) -> None:
    await mint(bus)
    job = await claim_one(bus)
    await bus.extend("f", [hold(job)], LEASE_MS, begun=[hold(job)])
    server.clock.advance(LEASE_MS + 1)
    newcomer = await Bus.open(server.address)
    newcomer.steps.restarted()
    await newcomer.join(NodeId("NOD00000000002"))
    for stepped_ms in (-1, 0):
        tick = (await newcomer.beat(pump=True)).tick
        assert (tick.recovered, tick.stepped_ms) == (0, stepped_ms)
    assert (await bus.extend("f", [hold(job)], LEASE_MS)).lost == ()
    await newcomer.close()


@pytest.mark.parametrize("steps_ms", [[30_000], [3_600_000], [-86_400_000, 3_600_000]])
async def test_a_step_that_a_new_pump_sees_first_takes_no_lease_from_who_is_alive(
    bus: Bus, server: Server, steps_ms: list[int]
) -> None:
    """It has no tick of its own to compare with: the last beat of any pump, which the bus keeps, tells it. Beats of
    nodes that are no pumps tell nothing.
    """
    await mint(bus, count=3)
    jobs = await claim(bus, 3)
    await bus.beat(pump=True)
    for step_ms in steps_ms:
        await bus.extend("f", [hold(job) for job in jobs], LEASE_MS, begun=[hold(job) for job in jobs])
        server.clock.advance(step_ms)
    await bus.beat(pump=False)
    late = await Bus.open(server.address)
    await late.join(NodeId("NOD2"))
    tick = (await late.beat(pump=True)).tick
    assert (tick.stepped_ms, tick.recovered) == (-1, 0)
    await settle(bus, [done(job) for job in jobs])
    await late.close()


async def test_a_pump_that_starts_knows_a_step_from_a_tick_that_saw_the_one_before(bus: Bus, server: Server) -> None:
    """Set back and on again between two beats, the clock looks untouched to it; a tick has noticed the one back."""
    await mint(bus)
    job = await claim_one(bus)
    await bus.beat(pump=True)
    server.clock.advance(-7_200_000)
    await bus.tick("f")
    await bus.extend("f", [hold(job)], LEASE_MS)
    server.clock.advance(7_200_000)
    late = await Bus.open(server.address)
    await late.join(NodeId("NOD2"))
    assert (await late.beat(pump=True)).tick.recovered == 0
    assert (await bus.extend("f", [hold(job)], LEASE_MS)).lost == ()
    await late.close()


async def test_a_step_that_two_pumps_saw_holds_what_an_outage_of_the_first_one_hides(bus: Bus, server: Server) -> None:
    await mint(bus)
    job = await claim_one(bus)
    other = await Bus.open(server.address)
    for pump in (bus, other):
        await pump.tick("f")
    server.clock.advance(3_600_000)
    for pump in (bus, other):
        assert (await pump.tick("f")).stepped_ms > 0
        server.clock.advance(50)
    bus.steps.outage()
    server.clock.advance(3_600_000)
    assert (await bus.tick("f")).recovered == 0
    assert (await bus.extend("f", [hold(job)], LEASE_MS)).lost == ()
    await other.close()


async def test_a_step_that_a_pump_told_of_as_an_outage_holds_what_the_next_outage_hides(
    bus: Bus, server: Server
) -> None:
    """One that has just started, on a server that had, too, knows nothing of when its outage began."""
    await mint(bus)
    job = await claim_one(bus)
    late = await Bus.open(server.address)
    late.steps.restarted()
    await bus.tick("f")
    server.clock.advance(3_600_000)
    for pump in (bus, late):
        assert (await pump.tick("f")).stepped_ms
    bus.steps.outage()
    server.clock.advance(3_600_000)
    assert (await bus.tick("f")).recovered == 0
    assert (await bus.extend("f", [hold(job)], LEASE_MS)).lost == ()
    await late.close()


@pytest.mark.parametrize(("is_seen", "on_ms"), [(True, 1_800_000), (True, 7_200_000), (False, 1_800_000)])
async def test_an_outage_after_the_clock_went_back_began_no_later_than_another_pump_looked(
    bus: Bus, server: Server, is_seen: bool, on_ms: int
) -> None:
    await mint(bus)
    job = await claim_one(bus)
    other = await Bus.open(server.address)
    await other.join(NodeId("NOD2"))
    for pump in (bus, other):
        await pump.beat(pump=True)
    server.clock.advance(-3_600_000)
    if is_seen:
        await other.beat(pump=True)
    await other.extend("f", [hold(job)], LEASE_MS)
    bus.steps.outage()
    server.clock.advance(on_ms)
    assert (await bus.tick("f")).recovered == 0
    assert (await bus.extend("f", [hold(job)], LEASE_MS)).lost == ()
    await other.close()


async def test_however_many_tell_of_outages_a_step_stays_on_record_for_one_lease(bus: Bus, server: Server) -> None:
    """Of one silence each beat of a node that is no pump tells; and connections flap."""
    await mint(bus)
    job = await claim_one(bus, lease_ms=300_000)
    late = await Bus.open(server.address)
    await late.join(NodeId("NOD2"))
    await bus.beat(pump=True)
    server.clock.advance(3_600_000)
    assert (await bus.beat(pump=True)).tick.recovered == 0
    server.clock.advance(30_000)
    for _ in range(20):
        await late.beat(pump=False)
        server.clock.advance(1_100)
    assert (await late.beat(pump=True)).tick.recovered == 0
    for _ in range(20):
        server.clock.advance(1_100)
        bus.steps.outage()
        assert (await bus.tick("f")).recovered == 0
    assert (await bus.extend("f", [hold(job)], 300_000)).lost == ()
    await late.close()


async def test_an_outage_that_was_told_again_stays_on_record_however_many_came_between(
    bus: Bus, server: Server
) -> None:
    """Two pumps and a holder lost one connection; the holder's pump and the holder are the last to be back."""
    await mint(bus)
    job = await claim_one(bus, lease_ms=60_000)
    server.clock.advance(59_000)
    other, late = [await Bus.open(server.address) for _ in range(2)]
    for pump in (other, late):
        await pump.tick("f")
    server.clock.advance(2_000)
    for pump in [*[other] * 16, late, other]:
        pump.steps.outage()
        assert (await pump.tick("f")).recovered == 0
        server.clock.advance(2_500)
    server.clock.advance(15_000)
    other.steps.outage()
    assert (await other.tick("f")).recovered == 0
    assert (await bus.extend("f", [hold(job)], 60_000)).lost == ()
    await other.close()
    await late.close()


@pytest.mark.parametrize(("silent_ms", "recovered"), [(18_000, 1), (30_000, 0)])
async def test_pumps_that_are_silent_for_longer_than_pumps_are_were_away(
    bus: Bus, server: Server, silent_ms: int, recovered: int
) -> None:
    await mint(bus)
    await claim(bus)
    await bus.beat(pump=True)
    server.clock.advance(silent_ms)
    late = await Bus.open(server.address)
    await late.join(NodeId("NOD2"))
    assert (await late.beat(pump=True)).tick.recovered == recovered
    await late.close()


async def test_a_second_outage_is_held_for_a_lease_of_its_own(bus: Bus, server: Server) -> None:
    await mint(bus)
    await claim_one(bus, lease_ms=15_000)
    await bus.tick("f")
    recovered = list[int]()
    for later_ms, is_outage in ((1_000, True), (13_500, True), (2_000, False), (13_500, False)):
        server.clock.advance(later_ms)
        bus.steps.outage() if is_outage else await let_pass(bus, server, 0)
        recovered.append((await bus.tick("f")).recovered)
    assert recovered == [0, 0, 0, 1]


async def test_a_pump_that_starts_beside_another_takes_what_was_lost_at_once(bus: Bus, server: Server) -> None:
    await mint(bus)
    await claim(bus)
    server.clock.advance(LEASE_MS - 1000)
    await bus.beat(pump=True)
    server.clock.advance(2000)
    late = await Bus.open(server.address)
    await late.join(NodeId("NOD2"))
    assert (await late.beat(pump=True)).tick.recovered == 1
    await late.close()
