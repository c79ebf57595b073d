"""Batches: a turn serves a lane's next jobs together; a lane with fewer waits until its first job has waited."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from audit import audit
from doing import LEASE_MS, ME, bury, claim, commands, done, hold, mint, retry, settle
from echod.bus import Bus
from echod.bus.rows import pack, verdict_row
from echod.model.ids import JobId
from echod.model.job import Mint, Release
from echofn.manifest import Constant, Policy
from server import PATIENCE_S, Server

TURN, WAIT_MS = 5040, 30_000


async def batched(bus: Bus, size: int = 3, wait_ms: int = 0, queue: str = "f", **fields: object) -> None:
    policy = Policy(batch=size, batch_wait_ms=wait_ms, backoff=Constant(1000), **fields)  # type: ignore[arg-type]
    assert await bus.configure(queue, policy, 1)


async def turns(bus: Bus, count: int, queue: str = "f") -> list[list[JobId]]:
    """The members of each batch that a claim for `count` turns gets."""
    found: dict[int, list[JobId]] = {}
    answer = await bus.claim(queue, ME, count, LEASE_MS)
    for job in answer.jobs:
        found.setdefault(job.turn, []).append(job.id)
    assert list(found) == list(range(1, len(found) + 1))
    assert answer.turns == len(found)
    return list(found.values())


# --- a turn --------------------------------------------------------------------------------------------------------


async def test_a_turn_serves_a_batch_of_one_lane(bus: Bus, server: Server) -> None:
    await batched(bus)
    a, b = await mint(bus, lane="a", count=4), await mint(bus, lane="b", count=2)
    assert await turns(bus, 1) == [a[:3]]
    audit(server, "f")
    assert await turns(bus, 5) == [b, a[3:]]
    assert audit(server, "f").ring == {}


async def test_a_queue_without_batches_names_no_turn(bus: Bus) -> None:
    await mint(bus, count=3)
    answer = await bus.claim("f", ME, 2, LEASE_MS)
    assert [job.turn for job in answer.jobs] == [0, 0]
    assert answer.turns == 2


async def test_a_batch_is_charged_for_each_of_its_jobs(bus: Bus, server: Server) -> None:
    await batched(bus)
    await bus.set("f", {"weight": 2}, lane="a")
    await mint(bus, lane="a", count=5)
    await mint(bus, lane="b", count=7)
    await turns(bus, 1)
    assert audit(server, "f").ring == {"a": TURN // 2 + 3 * TURN // 2, "b": TURN}
    await turns(bus, 1)
    books = audit(server, "f")
    assert books.ring == {"a": TURN // 2 + 3 * TURN // 2, "b": TURN + 3 * TURN}
    assert float(books.meta["V"]) == TURN


async def test_shares_of_jobs_follow_weights_whatever_the_lanes_bring_together(bus: Bus) -> None:
    """A lane that always fills its batches gets no more than one that brings single jobs, per job and weight."""
    await batched(bus, 4)
    await mint(bus, lane="bulk", count=200)
    served = {"bulk": 0, "single": 0}
    await mint(bus, lane="single")
    for _ in range(60):
        jobs = await claim(bus)
        served[jobs[0].lane] += len(jobs)
        if jobs[0].lane == "single":
            await mint(bus, lane="single")
    assert served["single"] >= served["bulk"] - 4


async def test_priority_orders_within_the_lane(bus: Bus) -> None:
    await batched(bus, 2)
    (last,) = await mint(bus, priority=5)
    first = await mint(bus, count=2)
    assert await turns(bus, 2) == [first, [last]]


async def test_a_batch_is_bounded_in_bytes(bus: Bus, server: Server) -> None:
    await batched(bus, 50)
    ids = [(await mint(bus, payload=bytes(1024 * 1024)))[0] for _ in range(10)]
    assert await turns(bus, 1) == [ids[:8]]
    books = audit(server, "f")
    assert books.ring == {"-": TURN + 8 * TURN}
    assert await turns(bus, 1) == [ids[8:]]


async def test_a_claim_of_batches_is_bounded_in_bytes_and_the_bell_goes_on(bus: Bus, server: Server) -> None:
    await batched(bus, 5)
    for _ in range(20):
        await mint(bus, payload=bytes(1024 * 1024))
    assert await bus.ring_wait(5) == "f"
    assert [len(turn) for turn in await turns(bus, 9)] == [5, 5]
    assert audit(server, "f").wake == ["f"]


async def test_a_claim_is_bounded_in_jobs_and_the_bell_goes_on(bus: Bus, server: Server) -> None:
    await batched(bus, 400)
    for lane in "abcd":
        await mint(bus, lane=lane, count=400)
    assert await bus.ring_wait(1) == "f"
    assert [len(turn) for turn in await turns(bus, 9)] == [400, 400]
    assert audit(server, "f").wake == ["f"]
    assert [len(turn) for turn in await turns(bus, 9)] == [400, 400]


async def test_a_claim_is_bounded_in_turns_and_the_bell_goes_on(bus: Bus, server: Server) -> None:
    await batched(bus, 3)
    await fill_lanes(bus, "f", 203, 1)
    assert await bus.ring_wait(1) == "f"
    assert len(await turns(bus, 1000)) == 200
    assert audit(server, "f").wake == ["f"]
    assert len(await turns(bus, 1000)) == 3
    assert audit(server, "f").ring == {}


async def test_a_claim_of_batches_sent_again_gets_the_same_turns(bus: Bus, server: Server) -> None:
    await batched(bus, 2)
    await mint(bus, count=5)
    arguments = {
        "claimer": ME,
        "sequence": 7,
        "want": 2,
        "lease_ms": 1000,
        "holder": "h",
        "popped": 0,
        "begun": pack([]),
    }
    first = await bus.run("claim", "f", **arguments)
    again = await bus.run("claim", "f", **arguments)
    assert [job[10] for job in first[2]] == [1, 1, 2, 2]
    assert again[:6] == first
    assert len(audit(server, "f").active) == 4


async def test_a_settle_of_batches_claims_turns_and_sent_again_settles_nothing_twice(bus: Bus, server: Server) -> None:
    await batched(bus, 2, retries=1)
    await mint(bus, count=6)
    good, bad, *_ = await claim(bus, 2)
    arguments = {
        "claimer": ME,
        "sequence": 7,
        "want": 1,
        "lease_ms": 1000,
        "holder": "h",
        "popped": 0,
        "begun": pack([]),
        "verdicts": pack([verdict_row(done(good)), verdict_row(retry(bad))]),
    }
    first = await bus.run("settle", "f", **arguments)
    again = await bus.run("settle", "f", **arguments)
    assert again[:6] == first
    assert [job[10] for job in first[2]] == [1, 1]
    books = audit(server, "f")
    assert (list(books.done), list(books.schedule), len(books.active)) == ([good.id], [bad.id], 4)


async def test_when_memory_is_out_a_batch_is_settled_and_the_next_is_claimed(bus: Bus, server: Server) -> None:
    await batched(bus, 2)
    await mint(bus, count=4)
    jobs = await claim(bus)
    server.command("CONFIG", "SET", "maxmemory", "1")
    try:
        answer = await bus.settle("f", ME, [done(job) for job in jobs], count=1, lease_ms=LEASE_MS)
        assert (answer.refused, len(answer.claim.jobs)) == ((), 2)
    finally:
        server.command("CONFIG", "SET", "maxmemory", "0")
    assert set(audit(server, "f").done) == {job.id for job in jobs}


async def test_leases_of_a_batch_end_each_by_itself(bus: Bus, server: Server) -> None:
    """Begun members are charged, the others go back: a batch is what runs together, not what is kept together."""
    await batched(bus, 3)
    ids = await mint(bus, count=3)
    jobs = await claim(bus)
    await bus.extend("f", [hold(job) for job in jobs], LEASE_MS, begun=[hold(job) for job in jobs[:2]])
    assert len(set(audit(server, "f").active.values())) == 1
    server.clock.advance(LEASE_MS + 1)
    await bus.tick("f")
    books = audit(server, "f")
    assert [books.state_of(id) for id in ids] == ["scheduled", "scheduled", "pending"]


# --- batch_wait ----------------------------------------------------------------------------------------------------


async def test_a_lane_with_fewer_waits_until_its_first_job_has_waited(bus: Bus, server: Server) -> None:
    await batched(bus, 3, WAIT_MS)
    (first,) = await mint(bus, lane="a")
    began_ms = int(audit(server, "f").rows[first][b"m"])
    server.clock.advance(10_000)
    (second,) = await mint(bus, lane="a")
    assert audit(server, "f").later == {"a": began_ms + WAIT_MS}
    answer = await bus.claim("f", ME, 1, LEASE_MS)
    assert (answer.jobs, answer.blocked) == ((), "capped")
    tick = await bus.tick("f")
    assert tick.next_in_ms is not None
    assert 0 < tick.next_in_ms <= 20_000  # of the first, and not the second's 30
    assert answer.retry_in_ms is not None
    assert tick.next_in_ms <= answer.retry_in_ms <= 20_000
    server.clock.advance(tick.next_in_ms)
    assert (await bus.tick("f")).next_in_ms is None
    assert audit(server, "f").wake == ["f"]
    assert await turns(bus, 5) == [[first, second]]
    audit(server, "f")


async def test_who_asks_before_the_tick_is_told_to_ask_again_but_not_in_a_loop(bus: Bus, server: Server) -> None:
    await batched(bus, 3, WAIT_MS)
    await mint(bus)
    server.clock.advance(WAIT_MS + 5000)
    answer = await bus.claim("f", ME, 1, LEASE_MS)
    assert (answer.blocked, answer.retry_in_ms) == ("capped", 20)


async def test_nobody_is_called_while_a_lane_gathers(bus: Bus, server: Server) -> None:
    await batched(bus, 3, WAIT_MS)
    await mint(bus, count=2)
    assert "rung" not in audit(server, "f").meta
    await mint(bus)
    assert audit(server, "f").wake == ["f"]


async def test_pumps_hear_of_the_instant_of_the_first_lane(bus: Bus, server: Server) -> None:
    heard: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
    bus.on("due", lambda queue, in_ms: heard.put_nowait((queue, in_ms)))
    await batched(bus, 3, WAIT_MS)
    await mint(bus, lane="a")
    queue, in_ms = await asyncio.wait_for(heard.get(), PATIENCE_S)
    assert queue == "f"
    assert in_ms == WAIT_MS
    await mint(bus, lane="b")
    await bus.recur("f", "r", rule="x", tz="UTC", trigger=b"", payload=b"", next_ms=1, generation=1)
    assert (await asyncio.wait_for(heard.get(), PATIENCE_S)) == ("f", 0), "lane b, which comes after a, was told"


async def test_a_full_lane_is_served_at_once(bus: Bus, server: Server) -> None:
    await batched(bus, 3, WAIT_MS)
    ids = await mint(bus, count=2)
    ids += await mint(bus)
    assert audit(server, "f").later == {}
    assert await turns(bus, 1) == [ids]
    assert "rung" in audit(server, "f").meta


async def test_what_is_left_behind_waits_for_its_own_first(bus: Bus, server: Server) -> None:
    await batched(bus, 3, WAIT_MS)
    await mint(bus, count=2)
    server.clock.advance(10_000)
    rest = (await mint(bus, count=3))[1:]
    began_ms = int(audit(server, "f").rows[rest[0]][b"m"])
    assert [len(turn) for turn in await turns(bus, 5)] == [3]
    assert audit(server, "f").later == {"-": began_ms + WAIT_MS}


async def test_what_is_left_behind_and_has_waited_is_served_too(bus: Bus, server: Server) -> None:
    await batched(bus, 3, WAIT_MS)
    await bus.pause("f")
    ids = await mint(bus, count=5)
    server.clock.advance(WAIT_MS)
    await bus.resume("f")
    assert await turns(bus, 5) == [ids[:3], ids[3:]]


async def test_the_wait_is_the_oldest_jobs_whatever_runs_first(bus: Bus, server: Server) -> None:
    await batched(bus, 3, WAIT_MS)
    (old,) = await mint(bus, priority=9)
    server.clock.advance(10_000)
    await mint(bus, priority=1)
    began_ms = int(audit(server, "f").rows[old][b"m"])
    assert audit(server, "f").later == {"-": began_ms + WAIT_MS}
    await bus.set("f", {"weight": 2}, lane="-")  # it is judged anew
    assert audit(server, "f").later == {"-": began_ms + WAIT_MS}


async def test_when_the_first_is_cancelled_the_lane_waits_for_its_next(bus: Bus, server: Server) -> None:
    await batched(bus, 3, WAIT_MS)
    (first,) = await mint(bus)
    server.clock.advance(10_000)
    (second,) = await mint(bus)
    assert await bus.cancel("f", first) == "cancelled"
    began_ms = int(audit(server, "f").rows[second][b"m"])
    assert audit(server, "f").later == {"-": began_ms + WAIT_MS}
    assert await bus.cancel("f", second) == "cancelled"
    assert audit(server, "f").later == {}


async def test_a_full_lane_that_loses_a_job_waits_again(bus: Bus, server: Server) -> None:
    await batched(bus, 3, WAIT_MS)
    ids = await mint(bus, count=3)
    await bus.cancel("f", ids[1])
    assert list(audit(server, "f").later) == ["-"]
    server.clock.advance(WAIT_MS)
    await bus.tick("f")
    assert await turns(bus, 1) == [[ids[0], ids[2]]]


async def test_a_paused_lane_gathers_while_it_is_held(bus: Bus, server: Server) -> None:
    await batched(bus, 3, WAIT_MS)
    await bus.pause("f", lane="a")
    first = await mint(bus, lane="a")
    await bus.resume("f", lane="a")
    assert list(audit(server, "f").later) == ["a"]
    await bus.pause("f", lane="a")
    first += await mint(bus, lane="a", count=2)
    assert audit(server, "f").held == {"a"}
    await bus.resume("f", lane="a")
    assert await turns(bus, 1) == [first]


async def test_retries_and_redriven_jobs_fill_a_lane(bus: Bus, server: Server) -> None:
    await batched(bus, 2, WAIT_MS)
    dead = await bury_whole(bus, server)
    failed = await mint(bus, count=2)
    await settle(bus, [retry(job) for job in await claim(bus)])
    server.clock.advance(1500)  # the backoff
    assert (await bus.tick("f")).promoted == 2
    assert await turns(bus, 1) == [failed]
    await bus.redrive("f", dead)
    assert await turns(bus, 1) == [dead]


async def bury_whole(bus: Bus, server: Server) -> list[JobId]:
    """Two jobs in the morgue, by way of a queue whose batches are single jobs just then."""
    await bus.configure("f", Policy(), 1)
    ids = [await bury(bus) for _ in range(2)]
    await batched(bus, 2, WAIT_MS)
    return ids


async def test_what_was_released_gathers_again(bus: Bus, server: Server) -> None:
    await batched(bus, 2, WAIT_MS)
    ids = await mint(bus, count=2)
    await settle(bus, [Release(hold(job)) for job in await claim(bus)])
    assert audit(server, "f").later == {}, "a whole batch that came back waits for nothing"
    assert await turns(bus, 1) == [ids]


async def test_a_tick_lets_so_many_lanes_go_and_says_that_there_are_more(bus: Bus, server: Server) -> None:
    await batched(bus, 3, WAIT_MS)
    for lane in "abc":
        await mint(bus, lane=lane)
    server.clock.advance(WAIT_MS + 1)
    for more, left in ((True, 1), (False, 0)):
        assert (await bus.tick("f", 2)).more == more
        assert len(audit(server, "f").later) == left


async def test_what_comes_back_late_gathers_from_then_on(bus: Bus, server: Server) -> None:
    await batched(bus, 2, WAIT_MS)
    await mint(bus, count=2)
    first, second = await claim(bus)
    server.clock.advance(WAIT_MS)
    await settle(bus, [done(first), Release(hold(second))])
    books = audit(server, "f")
    assert books.later == {"-": int(books.rows[second.id][b"w"]) + WAIT_MS}


async def test_a_lane_that_gathers_says_so_although_its_window_is_open(bus: Bus) -> None:
    await batched(bus, 2, WAIT_MS, lane_rate="5/10s")
    await mint(bus, count=2)
    await claim(bus)
    await mint(bus)
    assert [lane.why for lane in await bus.lanes("f")] == ["batch"]


async def test_a_lane_at_its_rate_gathers_on_when_its_window_ends(bus: Bus, server: Server) -> None:
    await batched(bus, 2, WAIT_MS, lane_rate="2/10s")
    await mint(bus, count=2)
    assert len(await claim(bus)) == 2
    (id,) = await mint(bus)
    books = audit(server, "f")
    assert books.later == {"-": int(books.rows[id][b"m"]) + WAIT_MS}


async def test_a_lane_that_gathered_has_earned_no_credit(bus: Bus, server: Server) -> None:
    await batched(bus, 2, WAIT_MS)
    await mint(bus, lane="a")
    await mint(bus, lane="b", count=40)
    await turns(bus, 10)
    server.clock.advance(WAIT_MS)
    await bus.tick("f")
    books = audit(server, "f")
    assert books.ring["a"] == float(books.meta["V"])


async def test_after_the_clock_went_back_a_lane_waits_anew_and_not_for_the_hour(bus: Bus, server: Server) -> None:
    await batched(bus, 3, WAIT_MS)
    await mint(bus)
    await bus.tick("f")
    server.clock.advance(-3_600_000)
    (second,) = await mint(bus)
    await bus.tick("f")
    until_ms = int(audit(server, "f").rows[second][b"m"]) + WAIT_MS
    assert audit(server, "f").later == {"-": until_ms}
    server.clock.advance(WAIT_MS // 2)
    await bus.tick("f")
    assert audit(server, "f").later == {"-": until_ms}, "once"
    server.clock.advance(WAIT_MS // 2 + 1)
    await bus.tick("f")
    assert [len(turn) for turn in await turns(bus, 1)] == [2]


async def test_a_job_of_the_future_is_waited_for_from_now_on(bus: Bus, server: Server) -> None:
    await batched(bus, 3, WAIT_MS)
    await mint(bus)
    await bus.tick("f")
    server.clock.advance(-3_600_000)
    await bus.tick("f")
    assert audit(server, "f").later["-"] < server.clock.now_ms() + 2 * WAIT_MS


@pytest.mark.parametrize("policy", [Policy(), Policy(batch=1, batch_wait_ms=WAIT_MS), Policy(batch=3)])
async def test_a_new_policy_lets_go_what_gathered_by_the_old(bus: Bus, server: Server, policy: Policy) -> None:
    await batched(bus, 3, WAIT_MS)
    await mint(bus, count=2)
    await bus.configure("f", policy, 2)
    books = audit(server, "f")
    assert (books.later, books.wake) == ({}, ["f"])


async def test_a_queue_that_gathers_tells_how_old_its_oldest_is(bus: Bus, server: Server) -> None:
    await batched(bus, 3, WAIT_MS)
    (id,) = await mint(bus)
    assert (await bus.stats(["f"]))["f"].oldest_ms == int(audit(server, "f").rows[id][b"m"])


@pytest.mark.parametrize("verb", ["drain", "move"])
async def test_who_leaves_a_long_lane_that_gathers_costs_no_look_at_all_of_it_each(
    bus: Bus, server: Server, verb: str
) -> None:
    costs = []
    for count in (250, 900):
        await batched(bus, 1000, WAIT_MS, queue=f"q{count}")
        ids = await mint(bus, f"q{count}", lane="a", count=count)
        before = commands(server)
        changed = (
            await bus.drain(f"q{count}", ids[:200]) if verb == "drain" else await bus.move(f"q{count}", ids[:200], "b")
        )
        assert len(changed) == 200
        costs.append(commands(server) - before)
    assert costs[1] <= costs[0] + 200
    assert costs[0] < 200 * 25


async def fill_lanes(bus: Bus, queue: str, lanes: int, size: int) -> list[list[JobId]]:
    """`size` jobs in each of that many lanes: the first of each, the second of each, and so on."""
    rounds = [[Mint(id=bus.new_job_id(), payload=b"", lane=f"L{n}") for n in range(lanes)] for _ in range(size)]
    for mints in rounds:
        await bus.mint(queue, mints)
    return [[mint.id for mint in mints] for mints in rounds]


async def test_a_call_looks_at_a_bounded_number_of_jobs_in_lanes_that_gather(bus: Bus, server: Server) -> None:
    lanes, costs = 30, list[list[int]]()
    for size in (4, 35):
        queue = f"q{size}"
        await batched(bus, 1000, WAIT_MS, queue, lane_concurrency=1)
        _, second, third, *_ = await fill_lanes(bus, queue, lanes, size)
        server.clock.advance(WAIT_MS)
        await bus.tick(queue)
        jobs = await claim(bus, lanes, queue)
        marks = [commands(server)]
        await settle(bus, [done(job) for job in jobs], queue)
        marks.append(commands(server))
        await bus.drain(queue, second)
        marks.append(commands(server))
        await bus.move(queue, third, "another")
        marks.append(commands(server))
        costs.append([after - before for before, after in itertools.pairwise(marks)])
        books = audit(server, queue)
        assert len(books.lanes) == lanes + 1
        for lane, ids in books.lanes.items():
            assert lane in books.ring or books.later[lane] == WAIT_MS + min(int(books.rows[id][b"m"]) for id in ids)
    for few, many in zip(*costs, strict=True):
        assert many - few < 500 + 32


async def test_a_claim_looks_at_no_job_of_a_lane_that_is_held_anyway(bus: Bus, server: Server) -> None:
    costs = []
    for size in (3, 12):
        await batched(bus, 100, WAIT_MS, f"q{size}", lane_concurrency=1)
        await fill_lanes(bus, f"q{size}", 20, size)
        server.clock.advance(WAIT_MS)
        await bus.tick(f"q{size}")
        before = commands(server)
        assert len(await claim(bus, 20, f"q{size}")) == 20
        costs.append(commands(server) - before)
        assert len(audit(server, f"q{size}").held) == 20
    assert costs[1] <= costs[0]  # which loads the scripts, too


async def test_lanes_whose_wait_is_over_are_not_looked_at_job_by_job(bus: Bus, server: Server) -> None:
    costs = []
    for size in (2, 20):
        await batched(bus, 100, WAIT_MS, queue=f"q{size}")
        for lane in range(50):
            await mint(bus, f"q{size}", lane=f"L{lane}", count=size)
        server.clock.advance(WAIT_MS + 1)
        before = commands(server)
        await bus.tick(f"q{size}")
        costs.append(commands(server) - before)
        assert len(audit(server, f"q{size}").ring) == 50
    assert costs[1] <= costs[0] + 20


@pytest.mark.parametrize("most", [1, 5])
async def test_a_batch_with_an_evicted_row_leaves_its_lane_in_order(bus: Bus, server: Server, most: int) -> None:
    """The lane counts what is active, and not what it meant to hand out."""
    await bus.configure("f", Policy(batch=3, lane_concurrency=most, retries=0), 1)
    ids = await mint(bus, lane="a", count=12)
    gone = [ids[0], ids[4]]
    server.command("DEL", *(f"emq:{{f}}:job:{id}" for id in gone))
    ran = list[JobId]()
    for _ in range(12):
        jobs = await claim(bus)
        await settle(bus, [done(job) for job in jobs])
        ran += [job.id for job in jobs]
    assert ran == [id for id in ids if id not in gone]
    assert audit(server, "f").settings == {}


async def test_claiming_batches_costs_the_same_among_many_lanes(bus: Bus, server: Server) -> None:
    costs = []
    for lanes in (10, 1000):
        queue = f"q{lanes}"
        await batched(bus, 5, queue=queue)
        for number in range(lanes):
            await mint(bus, queue, lane=f"L{number}", count=5)
        before = commands(server)
        assert len(await turns(bus, 10, queue)) == 10
        costs.append(commands(server) - before)
    assert costs[1] <= costs[0] + 5
