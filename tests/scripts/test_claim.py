"""claim: leases, fences, blocked queues, resends; and lanes in turn."""

from __future__ import annotations

from typing import Any

import pytest

from audit import audit, open_books
from doing import LEASE_MS, ME, claim, claim_one, commands, counted, done, hold, mint, replies_lost, settle
from echod.bus import Bus
from echod.bus.rows import pack
from echod.errors import BusError
from echod.model.job import Mint, Occurrence
from echofn.manifest import Policy
from server import PATIENCE_S, Server

TURN = 5040


async def test_a_claim_leases_jobs_under_a_fence(bus: Bus, server: Server) -> None:
    (id,) = await mint(bus, lane="acme", version="DEP00000000001")
    answer = await bus.claim("f", ME, 5, LEASE_MS)
    (job,) = answer.jobs
    assert (job.id, job.attempts, job.failures, job.payload, job.lane) == (id, 1, 0, b"\x01", "acme")
    assert (job.version, job.claimed_ms) == ("DEP00000000001", answer.now_ms)
    assert audit(server, "f").active == {id: answer.now_ms + LEASE_MS}


async def test_each_claim_of_a_job_has_another_fence(bus: Bus) -> None:
    from echod.model.job import Release

    await mint(bus)
    first = await claim_one(bus)
    await settle(bus, [Release(hold(first))])
    second = await claim_one(bus)
    assert second.attempts == 2
    assert second.holder != first.holder


async def test_an_empty_queue_says_empty(bus: Bus) -> None:
    answer = await bus.claim("f", ME, 1, LEASE_MS)
    assert (answer.jobs, answer.blocked, answer.retry_in_ms) == ((), "empty", None)


async def test_a_paused_queue_says_paused_and_serves_after_resume(bus: Bus, server: Server) -> None:
    (id,) = await mint(bus)
    await bus.pause("f")
    assert (await bus.claim("f", ME, 1, LEASE_MS)).blocked == "paused"
    audit(server, "f")
    await bus.resume("f")
    assert (await claim_one(bus)).id == id


async def test_a_paused_lane_is_held_and_the_others_are_served(bus: Bus, server: Server) -> None:
    (held,) = await mint(bus, lane="a")
    await bus.pause("f", lane="a")
    (free,) = await mint(bus, lane="b")
    assert audit(server, "f").held == {"a"}
    assert [job.id for job in await claim(bus, 5)] == [free]
    assert (await bus.claim("f", ME, 1, LEASE_MS)).blocked == "paused"
    await bus.resume("f", lane="a")
    audit(server, "f")
    assert [job.id for job in await claim(bus, 5)] == [held]


async def test_a_lane_paused_while_empty_holds_what_comes(bus: Bus, server: Server) -> None:
    await bus.pause("f", lane="a")
    await mint(bus, lane="a")
    assert audit(server, "f").held == {"a"}


async def test_a_lane_that_waits_for_an_instant_says_until_when(bus: Bus, server: Server) -> None:
    await bus.set("f", {"rate": (1, 60_000)}, lane="a")
    first, second = await mint(bus, lane="a", count=2)
    job = await claim_one(bus)
    assert job.id == first
    await settle(bus, [done(job)])
    assert list(audit(server, "f").later) == ["a"]
    answer = await bus.claim("f", ME, 1, LEASE_MS)
    assert answer.blocked == "capped"
    assert answer.retry_in_ms is not None
    assert 30_000 < answer.retry_in_ms <= 60_000
    server.clock.advance(60_001)
    await bus.tick("f")
    assert [job.id for job in await claim(bus)] == [second]
    audit(server, "f")


async def test_a_claim_sent_again_gets_the_same_jobs(bus: Bus, server: Server) -> None:
    await mint(bus, count=4)
    arguments = {
        "claimer": ME,
        "sequence": 7,
        "want": 2,
        "lease_ms": 1000,
        "holder": "h",
        "popped": 0,
        "begun": b"\x90",
    }
    first = await bus.run("claim", "f", **arguments)
    again = await bus.run("claim", "f", **arguments)
    assert again[:6] == first
    assert again[6] >= first[0]
    assert len(audit(server, "f").active) == 2


async def test_a_claim_that_got_nothing_says_why_when_sent_again(bus: Bus) -> None:
    await mint(bus)
    await bus.pause("f")
    arguments = {
        "claimer": ME,
        "sequence": 7,
        "want": 2,
        "lease_ms": 1000,
        "holder": "h",
        "popped": 0,
        "begun": b"\x90",
    }
    first = await bus.run("claim", "f", **arguments)
    assert first[3] == b"paused"
    assert (await bus.run("claim", "f", **arguments))[:6] == first


async def test_a_claim_sent_again_gets_nothing_that_is_anothers_by_now(bus: Bus, server: Server) -> None:
    await mint(bus)
    call = {"claimer": "slow", "sequence": 7, "want": 1, "lease_ms": 1000, "holder": "h", "popped": 0}
    assert len((await bus.run("claim", "f", begun=pack([]), **call))[2]) == 1  # type: ignore[arg-type]
    server.clock.advance(1001)
    await bus.tick("f")
    await claim_one(bus)
    assert (await bus.run("claim", "f", begun=pack([]), **call))[2] == []  # type: ignore[arg-type]


async def test_a_claim_sent_again_says_again_when_to_ask(bus: Bus, server: Server) -> None:
    await bus.configure("f", Policy(rate="1/m"), 1)
    await mint(bus, count=2)
    await claim_one(bus)
    call = {"claimer": "other", "sequence": 7, "want": 1, "lease_ms": 1000, "holder": "h", "popped": 0}
    first, again = [await bus.run("claim", "f", begun=pack([]), **call) for _ in range(2)]  # type: ignore[arg-type]
    assert first[3:5] == again[3:5]
    assert 50_000 < first[4] <= 60_000


async def test_payloads_of_more_than_a_claim_hands_out_are_known(bus: Bus, server: Server) -> None:
    for size, is_large in ((16 * 1024, False), (16 * 1024 + 1, True)):
        await mint(bus, payload=bytes(size))
        assert ("large" in audit(server, "f").meta) == is_large


async def test_a_row_that_was_evicted_ends_in_the_morgue(bus: Bus, server: Server) -> None:
    (id,) = await mint(bus)
    server.command("DEL", f"emq:{{f}}:job:{id}")
    assert await claim(bus) == []
    job = await bus.job(id)
    assert job is not None
    assert job.state == "dead"
    assert job.error is not None
    assert job.error.cause == "missing"


@pytest.mark.parametrize("want", [1, 5])
@pytest.mark.parametrize("size", [1, 20_000])  # the larger one has its payloads weighed before the claim
@pytest.mark.parametrize("policy", [Policy(), Policy(lane_concurrency=5, lane_rate="9/h", rate="9/h")])
async def test_a_lane_that_was_evicted_takes_no_turn(
    bus: Bus, server: Server, policy: Policy, size: int, want: int
) -> None:
    await bus.configure("f", policy, 1)
    for lane in "abc":
        await mint(bus, lane=lane, payload=bytes(size))
    server.command("DEL", "emq:{f}:lane:a", "emq:{f}:lane:c")
    assert [job.lane for job in await claim(bus, want)] == ["b"]
    assert await claim(bus) == []
    assert not server.command("EXISTS", "emq:{f}:ring")
    assert [server.command("HGET", "emq:{f}:lanes", f"a:{kind}") for kind in "as"] == [None, None]
    started = server.command("HGET", "emq:{f}:meta", "window")
    assert started is None or started.endswith(b" 1")
    await mint(bus, lane="a")
    assert [job.lane for job in await claim(bus, 2)] == ["a"]


async def test_an_occurrence_travels_with_its_claim(bus: Bus) -> None:
    await bus.recur("f", "r", rule="every 1000", tz="UTC", trigger=b"", payload=b"\x05", next_ms=1000, generation=1)
    (due,) = (await bus.tick("f")).due
    await bus.occur("f", "r", due.revision, due.due_ms, next_ms=None, job=bus.new_job_id())
    job = await claim_one(bus)
    assert (job.occurrence, job.payload, job.due_ms) == (Occurrence("f/r", 1000), b"\x05", 1000)


# --- lanes in turn -------------------------------------------------------------------------------------------------


async def served(bus: Bus, count: int) -> str:
    """The lanes of the next `count` jobs, claimed at once."""
    return "".join(job.lane for job in await claim(bus, count))


async def test_a_claim_for_n_serves_lanes_in_turn(bus: Bus, server: Server) -> None:
    for lane in "abc":
        await mint(bus, count=3, lane=lane)
    assert await served(bus, 7) == "abcabca"
    audit(server, "f")
    assert await served(bus, 7) == "bc"


@pytest.mark.parametrize("lanes", ["a", "ab", "abcde"])
async def test_claiming_at_once_equals_claiming_one_by_one(bus: Bus, server: Server, lanes: str) -> None:
    for queue in ("at-once", "one-by-one"):
        for index, lane in enumerate(lanes):
            await mint(bus, queue, count=4 + index * 2, lane=lane)
        await bus.set(queue, {"weight": 3}, lane="a")
    together = [job.lane for job in await claim(bus, 12, "at-once")]
    singly = [(await claim_one(bus, "one-by-one")).lane for _ in range(len(together))]
    assert together == singly
    first, second = audit(server, "at-once"), audit(server, "one-by-one")
    assert first.ring == second.ring
    assert first.meta.get("V") == second.meta.get("V")


async def test_shares_follow_weights(bus: Bus) -> None:
    await bus.set("f", {"weight": 3}, lane="a")
    for lane in "ab":
        await mint(bus, count=40, lane=lane)
    lanes = await served(bus, 40)
    assert lanes.count("a") == 30


async def test_a_flood_delays_another_lane_by_one_turn_at_most(bus: Bus) -> None:
    await mint(bus, count=300, lane="flood")
    await served(bus, 100)
    await mint(bus, lane="small")
    assert "small" in [(await claim_one(bus)).lane for _ in range(2)]


async def test_a_lane_that_comes_and_goes_does_not_starve_the_others(bus: Bus, server: Server) -> None:
    """A job minted into lane x as soon as x is empty: x wins its share and never more."""
    for lane in ("a", "b", "c"):
        await mint(bus, count=40, lane=lane)
    turns = []
    await mint(bus, lane="x")
    for _ in range(80):
        job = await claim_one(bus)
        turns.append(job.lane)
        if job.lane == "x":
            await mint(bus, lane="x")
    assert turns.count("x") <= 21
    assert min(turns.count(lane) for lane in "abc") >= 18
    audit(server, "f")


async def test_fresh_names_win_nothing(bus: Bus) -> None:
    """Somebody who takes a new lane's name for each job waits as long as with one name."""
    shares = []
    for queue, name in (("one-name", "x"), ("fresh-names", "x{}")):
        await mint(bus, queue, count=60, lane="steady")
        turns: list[str] = []
        await mint(bus, queue, lane=name.format(0))
        for number in range(1, 60):
            turns.append((await claim_one(bus, queue)).lane)
            if turns[-1] != "steady":
                await mint(bus, queue, lane=name.format(number))
        shares.append(turns.count("steady"))
    assert shares[0] == shares[1] >= 29


class JoinAtTheMinimum:
    """The ring as it must not be: a lane joins at the ring's least virtual time."""

    def __init__(self) -> None:
        self.ring: dict[str, int] = {}
        self.jobs: dict[str, int] = {}

    def mint(self, lane: str, count: int = 1) -> None:
        if not self.jobs.get(lane):
            self.ring[lane] = min(self.ring.values(), default=0)
        self.jobs[lane] = self.jobs.get(lane, 0) + count

    def claim(self) -> str:
        lane = min(self.ring, key=lambda name: (self.ring[name], name))
        self.jobs[lane] -= 1
        self.ring[lane] += TURN
        if not self.jobs[lane]:
            del self.ring[lane]
        return lane


async def test_joining_at_the_minimum_starves_and_ours_does_not(bus: Bus) -> None:
    """Two lanes that come and go, `a` and `b`, each minted anew as it empties, beside `z`, which always has work."""
    bad = JoinAtTheMinimum()
    bad.mint("z", 100)
    bad_turns = []
    for lane in "ab":
        bad.mint(lane)
    for _ in range(60):
        lane = bad.claim()
        bad_turns.append(lane)
        if lane != "z":
            bad.mint(lane)
    assert bad_turns.count("z") == 0, "the reference no longer shows the starvation: this test proves nothing"

    await mint(bus, count=100, lane="z")
    turns = []
    for lane in "ab":
        await mint(bus, lane=lane)
    for _ in range(60):
        lane = (await claim_one(bus)).lane
        turns.append(lane)
        if lane != "z":
            await mint(bus, lane=lane)
    assert turns.count("z") >= 19


async def test_a_lane_back_from_a_pause_has_earned_no_credit(bus: Bus, server: Server) -> None:
    for lane in "ab":
        await mint(bus, count=60, lane=lane)
    await bus.pause("f", lane="a")
    await served(bus, 20)
    await bus.resume("f", lane="a")
    lanes = await served(bus, 11)
    assert abs(lanes.count("a") - lanes.count("b")) <= 1
    audit(server, "f")


async def test_virtual_time_stands_while_only_lanes_that_wait_are_left(bus: Bus, server: Server) -> None:
    """Else who comes then would be far ahead of them."""
    await bus.configure("f", Policy(lane_rate="1/m"), 1)
    await mint(bus, lane="waits", count=2)
    await claim_one(bus)
    await mint(bus, lane="gone")
    await claim_one(bus)
    books = audit(server, "f")
    assert (books.ring, list(books.later), "V" in books.meta) == ({}, ["waits"], True)
    await bus.pause("f", lane="waits")
    await mint(bus, lane="gone too")
    await claim_one(bus)
    books = audit(server, "f")
    assert (books.later, books.held, "V" in books.meta) == ({}, {"waits"}, True)


async def test_nothing_remains_of_emptied_lanes(bus: Bus, server: Server) -> None:
    for number in range(20):
        await mint(bus, lane=f"tenant{number}")
    await settle(bus, [done(job) for job in await claim(bus, 20)])
    books = audit(server, "f")
    assert (books.lanes, books.ring, "V" in books.meta) == ({}, {}, False)
    assert server.command("EXISTS", "emq:{f}:lanes") == 0


async def test_claiming_costs_the_same_among_many_lanes(bus: Bus, server: Server) -> None:
    """Counted in server commands, so that no noise of the machine is in it."""

    costs = []
    for lanes in (100, 3000):
        queue = f"q{lanes}"
        for start in range(0, lanes, 250):
            mints = [Mint(id=bus.new_job_id(), payload=b"", lane=f"L{start + index}") for index in range(250)]
            await bus.mint(queue, mints[: min(250, lanes - start)])
        before = commands(server)
        assert len(await claim(bus, 50, queue)) == 50
        costs.append(commands(server) - before)
    assert costs[1] <= costs[0] + 5


async def test_a_huge_claim_is_served_whole(bus: Bus, server: Server) -> None:
    for lane in "ab":
        await mint(bus, count=250, lane=lane)
    assert len(await claim(bus, 500)) == 500
    assert open_books(server, "f").lanes == {}


@pytest.mark.parametrize("lanes", [1, 4500])
async def test_a_claim_of_more_than_one_call_serves_loses_none(bus: Bus, server: Server, lanes: int) -> None:
    """The stack of Lua holds 8,000 values, two of them a job: a claim is cut, and the bell rings for the others."""
    await mint_many(bus, 4500, lanes)
    assert await bus.ring_wait(PATIENCE_S) == "f"
    jobs = (await bus.claim("f", ME, 4500, LEASE_MS)).jobs
    assert len(jobs) == 500
    found = audit(server, "f")
    assert (len(found.active), sum(map(len, found.lanes.values()))) == (500, 4000)
    assert await bus.ring_wait(PATIENCE_S) == "f"
    await bus.claim("f", ME, 1, LEASE_MS)
    assert await bus.ring_wait(PATIENCE_S) == "f"
    # Of another claimer, who was not told by the bell.
    assert len((await bus.claim("f", "WRK2", 4500, LEASE_MS)).jobs) == 500


MIB = 1024 * 1024


@pytest.mark.parametrize("limits", [{}, {"concurrency": 15}, {"lane_concurrency": 15, "lane_rate": (100, 60_000)}])
async def test_a_claim_is_bounded_in_bytes_and_lanes_stay_in_turn(bus: Bus, server: Server, limits: Any) -> None:
    """A reply that is a lease on its way would be lost with it, and claimed again, for ever."""
    if limits:
        await bus.set("f", limits)
    ids = {lane: [(await mint(bus, lane=lane, payload=bytes(MIB - 1)))[0] for _ in range(8)] for lane in "ab"}
    (small,) = await mint(bus, lane="c")
    assert await bus.ring_wait(5) == "f"
    first = await claim(bus, 16)
    assert [job.id for job in first[:3]] == [ids["a"][0], ids["b"][0], small]
    assert [job.id for job in first[3:]] == [
        id for pair in zip(ids["a"][1:4], ids["b"][1:4], strict=True) for id in pair
    ]
    audit(server, "f")
    assert await bus.ring_wait(5) == "f", "for those that did not go into it"
    rest = await settle(bus, [done(job) for job in first], count=16)
    assert [job.id for job in rest] == [id for pair in zip(ids["a"][4:], ids["b"][4:], strict=True) for id in pair]
    audit(server, "f")


async def test_a_payload_larger_than_a_claim_is_claimed_alone(bus: Bus, server: Server) -> None:
    bus.link.patience_s = 20
    ids = [(await mint(bus, payload=bytes(9 * MIB)))[0] for _ in range(2)]
    assert [[job.id for job in await claim(bus, 5)] for _ in range(2)] == [[id] for id in ids]
    audit(server, "f")


async def mint_many(bus: Bus, count: int, lanes: int) -> None:
    for start in range(0, count, 500):
        numbers = range(start, min(start + 500, count))
        await bus.mint("f", [Mint(id=bus.new_job_id(), payload=b"\xc0", lane=f"L{each % lanes}") for each in numbers])


async def test_many_verdicts_are_settled_in_one_call(bus: Bus, server: Server) -> None:
    await mint_many(bus, 9000, 1)
    jobs = [job for _ in range(18) for job in (await bus.claim("f", ME, 500, LEASE_MS)).jobs]
    await settle(bus, [done(job) for job in jobs])
    assert (len(audit(server, "f").active), len(open_books(server, "f").done)) == (0, 9000)


async def test_after_a_call_that_broke_off_one_job_is_claimed_before_many(bus: Bus, server: Server) -> None:
    """An error that no script says on purpose: what was taken may be lost, and as many are not risked again."""
    await mint_many(bus, 50, 1)
    server.command("SET", "emq:{f}:active", "spoiled")
    for _ in range(3):
        with pytest.raises(BusError, match="WRONGTYPE"):
            await bus.claim("f", ME, 20, LEASE_MS)
    assert int(str(server.command("ZCARD", "emq:{f}:lane:L0"))) == 50 - 20 - 1 - 1
    server.command("DEL", "emq:{f}:active")
    assert len(await claim(bus, 20)) == 20


async def test_a_bell_popped_for_a_claim_whose_reply_comes_late_is_answered(bus: Bus, server: Server) -> None:
    """What the late reply brought is all that was wanted: the bell is for others, then."""
    await mint(bus, count=2)
    await claim(bus, 1)
    with replies_lost(bus):
        await bus.claim("f", ME, 1, LEASE_MS)
    await mint(bus)
    assert await bus.ring_wait(PATIENCE_S) == "f"
    assert len(await claim(bus, 1)) == 1
    assert await bus.ring_wait(PATIENCE_S) == "f"


async def test_who_was_refused_by_a_reply_that_came_late_is_told_with_the_next(bus: Bus) -> None:
    """Else the children of a run that is no longer ours would be sent."""
    await mint(bus, count=3)
    stale, second = await claim(bus, 2)
    await settle(bus, [done(stale)])
    with replies_lost(bus):
        await bus.settle("f", ME, [done(stale)], count=1, lease_ms=LEASE_MS)
    answer = await bus.settle("f", ME, [done(stale), done(second)], count=2, lease_ms=LEASE_MS)
    assert answer.refused == (stale.id,)
    assert (len(answer.claim.jobs), answer.claim.blocked) == (1, None)
    assert await counted(bus, "done") == 2
