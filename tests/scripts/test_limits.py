"""Limits of queues and lanes: they delay, refuse nothing, hold for the whole fleet, and slow nobody else."""

from __future__ import annotations

import asyncio
import collections
import re
from typing import Any

import pytest

from audit import audit, open_books
from doing import LEASE_MS, ME, claim, claim_one, dead, done, hold, mint, retry, run, settle
from echod.bus import Bus
from echod.bus.operating import NO_LIMIT
from echod.bus.rows import pack, verdict_row
from echod.errors import BusError
from echod.model.job import Cancelled, Claimed, Delay, Mint, Release
from echofn.manifest import Constant, Policy
from server import PATIENCE_S, Server

TURN = 5040


async def code(bus: Bus, queue: str = "f", generation: int = 1, **options: Any) -> None:
    """What a version's code says of the queue."""
    assert await bus.configure(queue, Policy(backoff=Constant(1000), **options), generation)


async def blocked(bus: Bus, queue: str = "f") -> tuple[str | None, int | None]:
    answer = await bus.claim(queue, ME, 1, LEASE_MS)
    assert answer.jobs == ()
    return answer.blocked, answer.retry_in_ms


def by_lane(jobs: list[Claimed]) -> dict[str, int]:
    return dict(collections.Counter(job.lane for job in jobs))


async def rung(bus: Bus) -> bool:
    """Whether the bell has news; it is taken."""
    return await bus.ring_wait(0.2) is not None


# --- concurrency of a queue ----------------------------------------------------------------------------------------


async def test_no_more_are_active_than_may_be_and_the_next_starts_with_a_settle(bus: Bus, server: Server) -> None:
    await code(bus, concurrency=3)
    await mint(bus, count=9)
    answer = await bus.claim("f", ME, 50, LEASE_MS)
    assert (len(answer.jobs), answer.limited) == (3, True)
    assert await blocked(bus) == ("capped", None)
    more = await settle(bus, [done(answer.jobs[0]), done(answer.jobs[1])], count=50)
    assert len(more) == 2
    assert len(audit(server, "f").active) == 3


async def test_a_queue_without_limits_says_so(bus: Bus) -> None:
    await code(bus, lane_weight=5)
    await mint(bus)
    assert (await bus.claim("f", ME, 1, LEASE_MS)).limited is False


async def test_who_frees_room_rings_for_somebody_else(bus: Bus, server: Server) -> None:
    """Node A settles and claims nothing; node B is parked: it is told, once."""
    await code(bus, concurrency=1)
    await mint(bus, count=3)
    assert await rung(bus)
    job = await claim_one(bus)
    assert await blocked(bus) == ("capped", None)
    assert not await rung(bus)
    await settle(bus, [done(job)])
    assert audit(server, "f").wake == ["f"]
    other = await Bus.open(server.address)
    try:
        assert await rung(other)
        assert len(await claim(other)) == 1
        assert not await rung(other), "nothing more may start, and somebody was told"
    finally:
        await other.close()


async def test_of_many_parked_one_wakes_for_each_place(bus: Bus, server: Server) -> None:
    await code(bus, concurrency=5)
    await mint(bus, count=40)
    parked, gone = [await Bus.open(server.address) for _ in range(12)], list[Bus]()
    try:
        assert await rung(bus)
        running = await claim(bus, 9)
        assert len(running) == 5
        waits = [asyncio.create_task(each.ring_wait(30)) for each in parked]
        for expected in (1, 2):
            await settle(bus, [done(running.pop())])
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            woken = [each for each, wait in zip(parked, waits, strict=True) if wait.done()]
            waits = [wait for wait in waits if not wait.done()]
            parked = [each for each in parked if each not in woken]
            assert len(woken) == 1
            gone += woken
            assert len(await claim(woken[0], 9, claimer=f"W{expected}")) == 1
            await bus.stats(["f"])  # a trip in which another ring would have arrived
            assert not any(wait.done() for wait in waits)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    finally:
        for each in (*parked, *gone):
            await each.close()


async def test_a_lost_lease_frees_its_place_and_rings(bus: Bus, server: Server) -> None:
    await code(bus, concurrency=1)
    await mint(bus, count=2)
    await rung(bus)
    await claim_one(bus)
    assert await blocked(bus) == ("capped", None)
    bus.steps.driven()
    server.clock.advance(LEASE_MS + 1000)
    await bus.tick("f")
    assert audit(server, "f").wake == ["f"]
    assert len(await claim(bus)) == 1


async def test_a_limit_below_what_runs_takes_nothing_back(bus: Bus, server: Server) -> None:
    await mint(bus, count=5)
    jobs = await claim(bus, 4)
    await bus.set("f", {"concurrency": 2})
    assert await settle(bus, [done(jobs[0])], count=5) == []
    assert await settle(bus, [done(jobs[1])], count=5) == []
    assert len(await settle(bus, [done(jobs[2])], count=5)) == 1
    audit(server, "f")


# --- rate of a queue -----------------------------------------------------------------------------------------------


async def test_so_many_start_in_a_window_that_begins_with_the_first(bus: Bus, server: Server) -> None:
    await code(bus, rate="3/m")
    await mint(bus, count=10)
    server.clock.advance(59_000)  # the window begins with the first start, not with the minute, nor with the mint
    assert len(await claim(bus, 2)) == 2
    server.clock.advance(30_000)
    assert len(await claim(bus, 5)) == 1
    why, in_ms = await blocked(bus)
    assert why == "capped"
    assert in_ms is not None
    assert 0 < in_ms <= 30_000
    server.clock.advance(30_001)
    assert len(await claim(bus, 5)) == 3
    assert audit(server, "f").is_capped


async def test_the_pump_is_told_when_a_window_ends_and_rings_then(bus: Bus, server: Server) -> None:
    """Whoever was answered `capped` may have died: the tick at the window's end tells another."""
    heard: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
    bus.on("due", lambda queue, in_ms: heard.put_nowait((queue, in_ms)))
    await code(bus, rate="2/m")
    await mint(bus, count=3)
    assert await rung(bus)
    jobs = await claim(bus, 2)
    assert len(jobs) == 2
    queue, in_ms = await asyncio.wait_for(heard.get(), PATIENCE_S)
    assert queue == "f"
    assert in_ms == 60_000
    await mint(bus, count=1)
    assert heard.empty(), "told once a window"
    await settle(bus, [done(job) for job in jobs])
    assert 30_000 < (await bus.tick("f")).next_in_ms <= 60_000  # type: ignore[operator]
    assert not await rung(bus)
    server.clock.advance(60_001)
    await bus.tick("f")
    assert await rung(bus)
    assert len(await claim(bus, 5)) == 2


async def test_a_rate_does_not_save_up_while_paused(bus: Bus, server: Server) -> None:
    """H6: a pause of an hour with a rate of two a minute lets two go at once, not 120."""
    await code(bus, rate="2/m")
    await mint(bus, count=50)
    await claim(bus, 5)
    await bus.pause("f")
    server.clock.advance(3_600_000)
    await bus.resume("f")
    assert len(await claim(bus, 50)) == 2
    assert (await blocked(bus))[0] == "capped"


async def test_windows_that_are_over_go_in_bounded_steps(bus: Bus, server: Server) -> None:
    await code(bus, lane_rate="1/m")
    await bus.mint("f", [Mint(id=bus.new_job_id(), payload=b"", lane=f"L{n}") for n in range(250)])
    await settle(bus, [done(job) for job in await claim(bus, 250)])
    server.clock.advance(60_001)
    for more, left in ((True, 50), (False, 0)):
        assert (await bus.tick("f")).more == more
        assert len(audit(server, "f").windows) == left


async def test_two_windows_that_touch_can_start_twice_as_many(bus: Bus, server: Server) -> None:
    """As documented: n in a window, not in any stretch of its length."""
    await code(bus, rate="10/h")
    await mint(bus, count=50)
    await claim(bus, 1)
    server.clock.advance(3_540_000)
    assert len(await claim(bus, 50)) == 9
    server.clock.advance(60_001)
    assert len(await claim(bus, 50)) == 10


@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
async def test_a_step_of_the_clock_wedges_no_window(bus: Bus, server: Server, step_ms: int) -> None:
    await code(bus, rate="2/m", lane_rate="1/m")
    await mint(bus, lane="a", count=3)
    await mint(bus, lane="b", count=3)
    assert len(await claim(bus, 9)) == 2
    assert (await blocked(bus))[0] == "capped"
    await bus.tick("f")
    server.clock.advance(step_ms)
    await bus.tick("f")
    audit(server, "f")
    assert by_lane(await claim(bus, 9)) == {"a": 1, "b": 1}


# --- concurrency of lanes ------------------------------------------------------------------------------------------


async def test_a_full_lane_is_held_and_the_others_go_on(bus: Bus, server: Server) -> None:
    await code(bus, lane_concurrency=2)
    await mint(bus, lane="a", count=5)
    await mint(bus, lane="b", count=1)
    jobs = await claim(bus, 9)
    assert by_lane(jobs) == {"a": 2, "b": 1}
    books = audit(server, "f")
    assert (books.held, books.ring) == ({"a"}, {})
    assert books.of_lanes(":a") == {"a": "2", "b": "1"}
    assert await blocked(bus) == ("capped", None)
    await mint(bus, lane="b", count=3)
    assert by_lane(await claim(bus, 9)) == {"b": 1}


async def test_a_lane_is_back_when_one_of_its_jobs_ends_at_no_advantage(bus: Bus, server: Server) -> None:
    """At the later of its own virtual time and V: waiting earns no credit."""
    await code(bus, lane_concurrency=1)
    await mint(bus, lane="a", count=5)
    first = await claim_one(bus)
    own = int(audit(server, "f").of_lanes(":v")["a"])
    await mint(bus, lane="b", count=20)
    for _ in range(6):
        await settle(bus, [done(await claim_one(bus))])
    picked_at = float(audit(server, "f").meta["V"])
    assert picked_at > own
    await settle(bus, [done(first)])
    assert audit(server, "f").ring["a"] == picked_at


@pytest.mark.parametrize(
    "kind", ["done", "retry", "dead", "delay", "release", "cancelled", "lost", "lost after a cancel"]
)
async def test_whatever_becomes_of_a_job_its_lane_is_served_again(bus: Bus, server: Server, kind: str) -> None:
    await code(bus, lane_concurrency=1)
    await mint(bus, lane="a", count=2)
    job = await claim_one(bus)
    assert audit(server, "f").held == {"a"}
    verdicts = {
        "done": done,
        "retry": retry,
        "dead": dead,
        "delay": lambda job: Delay(hold(job), run(job), 60_000),
        "release": lambda job: Release(hold(job)),
        "cancelled": lambda job: Cancelled(hold(job), run(job)),
    }
    if kind in verdicts:
        await settle(bus, [verdicts[kind](job)])
    else:
        if kind == "lost after a cancel":
            await bus.cancel("f", job.id)
        bus.steps.driven()
        server.clock.advance(LEASE_MS + 1000)
        await bus.tick("f")
    books = audit(server, "f")
    assert (books.held, list(books.ring), books.of_lanes(":a")) == (set(), ["a"], {})
    assert books.wake == ["f"]


async def test_nothing_remains_of_a_limited_lane_that_has_emptied(bus: Bus, server: Server) -> None:
    await code(bus, lane_concurrency=1, lane_rate="1/s")
    for number in range(20):
        await mint(bus, lane=f"tenant{number}")
    await settle(bus, [done(job) for job in await claim(bus, 20)])
    server.clock.advance(1001)
    await bus.tick("f")
    books = audit(server, "f")
    assert (books.settings, books.windows) == ({}, {})


async def test_switched_on_it_counts_what_runs_already(bus: Bus, server: Server) -> None:
    await mint(bus, lane="a", count=5)
    jobs = await claim(bus, 2)
    assert audit(server, "f").settings == {}
    await code(bus, lane_concurrency=2)
    books = audit(server, "f")
    assert (books.of_lanes(":a"), books.held) == ({"a": "2"}, {"a"})
    await code(bus, generation=2)
    assert list(audit(server, "f").ring) == ["a"]
    more = await claim(bus, 3)
    await settle(bus, [done(job) for job in (*jobs, *more)])
    assert audit(server, "f").settings == {}


async def test_switched_on_over_many_jobs_it_counts_in_steps_and_starts_nothing_meanwhile(
    bus: Bus, server: Server
) -> None:
    for lane in "abc":
        for _ in range(2):
            await mint(bus, lane=lane, count=200)
    await claim(bus, 450)
    await claim(bus, 450)
    await mint(bus, lane="d")
    assert await rung(bus)
    heard: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
    bus.on("due", lambda *said: heard.put_nowait(said))
    await bus.set("f", {"lane_concurrency": 10})
    assert "judge" in audit(server, "f").meta
    assert await asyncio.wait_for(heard.get(), PATIENCE_S) == ("f", 0), "pumps go on with it at once"
    assert await blocked(bus) == ("capped", 20)
    assert open_books(server, "f").wake == []
    while (await bus.tick("f")).more:
        pass
    assert audit(server, "f").wake == ["f"]
    assert len(await claim(bus, 9)) == 1
    books = audit(server, "f")
    assert "judge" not in books.meta
    assert books.of_lanes(":a") == {"a": "300", "b": "300", "c": "300", "d": "1"}
    assert books.held == {"a", "b", "c"}


async def test_switched_on_it_counts_no_job_whose_row_is_gone(bus: Bus, server: Server) -> None:
    (gone,) = await mint(bus)
    await claim_one(bus)
    server.command("DEL", f"emq:{{f}}:job:{gone}")
    await bus.set("f", {"lane_concurrency": 10})
    assert server.command("EXISTS", f"emq:{{f}}:job:{gone}", "emq:{f}:lanes") == 0


async def test_an_operators_weight_comes_before_those_by_lane(bus: Bus) -> None:
    await code(bus, lane_weight={"a": 5})
    await mint(bus, lane="a")
    for weight in (5, 2):
        assert [lane.weight for lane in await bus.lanes("f")] == [weight]
        await bus.set("f", {"weight": 2})


async def test_switched_off_all_held_lanes_are_back_in_bounded_steps(bus: Bus, server: Server) -> None:
    await bus.set("f", {"lane_concurrency": 1})
    for start in range(0, 700, 100):
        for each in range(2):
            mints = [Mint(id=bus.new_job_id(), payload=b"", lane=f"L{start + n}", priority=each) for n in range(100)]
            await bus.mint("f", mints)
    await claim(bus, 350)
    await claim(bus, 350)
    assert len(audit(server, "f").held) == 700
    await bus.set("f", {"lane_concurrency": None})
    assert len(audit(server, "f").held) > 0, "one call must not judge them all"
    while (await bus.tick("f")).more:
        pass
    books = audit(server, "f")
    assert (books.held, len(books.ring), books.wake) == (set(), 700, ["f"])


# --- rate of lanes -------------------------------------------------------------------------------------------------


async def test_a_lane_at_its_rate_waits_for_its_window_and_slows_no_other(bus: Bus, server: Server) -> None:
    """I2: one in a minute for a; b and c at full speed."""
    await bus.set("f", {"rate": (1, 60_000)}, lane="a")
    for lane in "abc":
        await mint(bus, lane=lane, count=30)
    assert by_lane(await claim(bus, 41, lease_ms=600_000)) == {"a": 1, "b": 20, "c": 20}
    books = audit(server, "f")
    assert list(books.later) == ["a"]
    assert by_lane(await claim(bus, 90, lease_ms=600_000)) == {"b": 10, "c": 10}
    why, in_ms = await blocked(bus)
    assert why == "capped"
    assert in_ms is not None
    assert 10_000 < in_ms <= 60_000
    server.clock.advance(60_001)
    await bus.tick("f")
    assert by_lane(await claim(bus, 9)) == {"a": 1}


async def test_a_lane_that_comes_and_goes_keeps_to_its_rate(bus: Bus) -> None:
    await code(bus, lane_rate="2/m")
    started = 0
    for _ in range(6):
        await mint(bus, lane="a")
        jobs = await claim(bus)
        started += len(jobs)
        await settle(bus, [done(job) for job in jobs])
    assert started == 2


async def test_scheduled_jobs_come_into_their_lane_and_are_limited_there(bus: Bus, server: Server) -> None:
    """I4."""
    await code(bus, lane_concurrency=1)
    await mint(bus, lane="a", count=3, in_ms=5000)
    server.clock.advance(5001)
    assert (await bus.tick("f")).promoted == 3
    assert by_lane(await claim(bus, 9)) == {"a": 1}
    assert audit(server, "f").held == {"a"}


async def test_at_both_its_limits_a_lane_waits_for_both(bus: Bus, server: Server) -> None:
    await code(bus, lane_concurrency=1, lane_rate="1/m")
    await mint(bus, lane="a", count=3)
    job = await claim_one(bus)
    assert audit(server, "f").held == {"a"}
    await settle(bus, [done(job)])
    assert list(audit(server, "f").later) == ["a"]
    server.clock.advance(60_001)
    await bus.tick("f")
    assert by_lane(await claim(bus, 9)) == {"a": 1}


async def test_a_tighter_rate_counts_at_once(bus: Bus, server: Server) -> None:
    await code(bus, lane_rate="100/m")
    await mint(bus, lane="a", count=30)
    await claim(bus, 20)
    await bus.set("f", {"lane_rate": (10, 60_000)})
    assert list(audit(server, "f").later) == ["a"]
    await bus.set("f", {"lane_rate": (1, 1000)})  # another window: that which was is over
    assert len(await claim(bus, 9)) == 1


# --- whose word counts ---------------------------------------------------------------------------------------------


async def test_an_operators_word_holds_over_deploys_until_it_is_set_back(bus: Bus) -> None:
    await code(bus, concurrency=1, lane_rate="5/m", lane_weight=2)
    await bus.set("f", {"concurrency": 4, "lane_rate": NO_LIMIT, "weight": 7})
    await code(bus, generation=2, concurrency=2, lane_rate="1/m", lane_concurrency=9)
    limits = (await bus.stats(["f"]))["f"]
    assert limits.by_hand == ("concurrency", "lane_rate", "lane_weight")
    assert (limits.limits.concurrency, limits.limits.lane_rate) == (4, None)
    assert (limits.limits.lane_concurrency, limits.limits.lane_weight) == (9, 7)
    await bus.set("f", {"concurrency": None, "lane_rate": None, "weight": None})
    limits = (await bus.stats(["f"]))["f"]
    assert limits.by_hand == ()
    assert (limits.limits.concurrency, limits.limits.lane_rate, limits.limits.lane_weight) == (2, (1, 60_000), 1)


async def test_code_of_an_older_version_changes_no_limit(bus: Bus) -> None:
    await code(bus, generation=3, concurrency=3)
    assert not await bus.configure("f", Policy(concurrency=9), 2)
    assert (await bus.stats(["f"]))["f"].limits.concurrency == 3


async def test_a_lanes_own_limit_counts_before_that_of_all(bus: Bus) -> None:
    await code(bus, lane_concurrency=1)
    await bus.set("f", {"concurrency": 3}, lane="big")
    await bus.set("f", {"concurrency": NO_LIMIT}, lane="free")
    for lane in ("big", "free", "small"):
        await mint(bus, lane=lane, count=5)
    assert by_lane(await claim(bus, 50)) == {"big": 3, "free": 5, "small": 1}


@pytest.mark.parametrize("weigh", ["code", "by lane", "by hand", "of the lane"])
async def test_shares_follow_the_weight_whoever_set_it(bus: Bus, weigh: str) -> None:
    """Each of the four; the lane's own counts before what code says by lane, that before the default of all."""
    if weigh == "code":
        await code(bus, lane_weight=3)
        await bus.set("f", {"weight": 1}, lane="b")
    elif weigh == "by lane":
        await code(bus, lane_weight={"a": 3})
    elif weigh == "by hand":
        await code(bus, lane_weight={"b": 50})
        await bus.set("f", {"weight": 3})
        await bus.set("f", {"weight": 1}, lane="b")
    else:
        await code(bus, lane_weight={"a": 50})
        await bus.set("f", {"weight": 3}, lane="a")
    for lane in "ab":
        await mint(bus, lane=lane, count=80)
    assert by_lane(await claim(bus, 80)) == {"a": 60, "b": 20}


async def test_a_setting_that_is_not_there_is_refused_and_changes_nothing(bus: Bus) -> None:
    with pytest.raises(ValueError, match="expected some of paused, weight, concurrency, rate, got lane_rate"):
        await bus.set("f", {"lane_rate": (1, 1000)}, lane="a")
    for lane, what in (("", "rest"), ("a", "rest"), ("a", "lane_rate")):
        with pytest.raises(BusError, match=f"has no setting {what}"):
            await bus.run("set", "f", lane=lane, written="", changes=pack([["weight", 9], [what, 1]]), call="t")
    assert (await bus.stats(["f"]))["f"].by_hand == ()
    assert await bus.lanes("f") == []


async def test_a_setting_sent_again_changes_nothing_more(bus: Bus, server: Server) -> None:
    for _ in range(2):
        await bus.set("f", {"concurrency": 2, "rate": (5, 1000)}, lane="a")
    assert audit(server, "f").limits == {"own": 1}
    for _ in range(2):
        await bus.set("f", {"concurrency": None, "rate": None}, lane="a")
    assert "limits" not in audit(server, "f").meta
    assert audit(server, "f").settings == {}


@pytest.mark.parametrize("lane", ["", "a"])
async def test_a_setting_sent_again_leaves_what_another_set_since(bus: Bus, server: Server, lane: str) -> None:
    sent = {"lane": lane, "written": lane, "changes": pack([["paused", True], ["concurrency", 1]]), "call": "t"}
    assert await bus.run("set", "f", **sent) == b"ok"
    await bus.set("f", {"paused": None, "concurrency": 50}, lane=lane or None)
    assert await bus.run("set", "f", **sent) == b"ok"
    await mint(bus, lane="a", count=9)
    assert len(await claim(bus, 9)) == 9
    audit(server, "f")


# --- batches -------------------------------------------------------------------------------------------------------


async def test_a_batch_counts_its_jobs_and_is_cut_to_what_may_start(bus: Bus, server: Server) -> None:
    await code(bus, batch=10, concurrency=25, lane_concurrency=12, rate="30/m")
    for lane in "abc":
        await mint(bus, lane=lane, count=40)
    jobs = await claim(bus, 9)
    sizes = collections.Counter((job.lane, job.turn) for job in jobs)
    assert sorted(sizes.values()) == [5, 10, 10]
    audit(server, "f")
    jobs = await settle(bus, [done(job) for job in jobs], count=9)
    assert len(jobs) == 5, "the rest of the window"
    assert (await blocked(bus))[0] == "capped"
    audit(server, "f")


async def test_a_held_lane_gathers_no_batch_for_longer_than_its_wait(bus: Bus, server: Server) -> None:
    await code(bus, batch=4, batch_wait_ms=30_000, lane_concurrency=4)
    await mint(bus, lane="a", count=6)
    jobs = await claim(bus, 9)
    assert len(jobs) == 4
    assert audit(server, "f").held == {"a"}
    await settle(bus, [done(job) for job in jobs])
    assert list(audit(server, "f").later) == ["a"]
    server.clock.advance(30_001)
    await bus.tick("f")
    assert len(await claim(bus, 9)) == 2


# --- fairness and cost ---------------------------------------------------------------------------------------------


async def test_a_flood_beside_a_limited_lane_delays_neither(bus: Bus) -> None:
    """Promise 7 with limits: the limited lane has its place as soon as it may, the free ones share by weight."""
    await code(bus, lane_weight={"b": 3})
    await bus.set("f", {"concurrency": 1}, lane="slow")
    for lane in ("a", "b", "slow"):
        await mint(bus, lane=lane, count=400)
    running, lanes = list[Claimed](), list[str]()
    for _ in range(300):
        job = await claim_one(bus)
        lanes.append(job.lane)
        running.append(job)
        slow = next((each for each in running if each.lane == "slow"), None)
        if slow is not None and len(lanes) % 10 == 0:  # its jobs take ten turns of the others
            running.remove(slow)
            await settle(bus, [done(slow)])
    shares = collections.Counter(lanes)
    assert 28 <= shares["slow"] <= 31
    assert abs(shares["b"] - 3 * shares["a"]) <= 6


async def test_a_small_lane_starts_within_one_turn_of_a_flood_of_limited_lanes(bus: Bus) -> None:
    """I1."""
    await code(bus, lane_concurrency=50)
    await mint(bus, lane="flood", count=300)
    await claim(bus, 20)
    await mint(bus, lane="small")
    assert "small" in [(await claim_one(bus)).lane for _ in range(2)]


async def test_lanes_that_wait_cost_a_claim_nothing(bus: Bus, server: Server) -> None:
    """Counted in server commands: 20 lanes that are held or wait, against 2,000; and 100 free ones beside both."""

    def commands() -> int:
        info = server.command("INFO", "commandstats")
        assert isinstance(info, bytes)
        return sum(
            int(line.split("calls=")[1].split(",")[0]) for line in info.decode().splitlines() if "calls=" in line
        )

    costs = []
    for lanes in (20, 2000):
        queue = f"q{lanes}"
        await bus.set(queue, {"lane_concurrency": 1, "lane_rate": (1, 60_000)})
        for _ in range(2):
            for start in range(0, lanes, 250):
                some = [Mint(id=bus.new_job_id(), payload=b"", lane=f"L{start + n}") for n in range(min(250, lanes))]
                await bus.mint(queue, some[: lanes - start])
        running = [job for _ in range(0, lanes, 20) for job in await claim(bus, 20, queue)]
        for start in range(0, lanes // 2, 50):
            await settle(bus, [done(job) for job in running[start : min(start + 50, lanes // 2)]], queue)
        await bus.mint(queue, [Mint(id=bus.new_job_id(), payload=b"", lane=f"free{n}") for n in range(100)])
        before = commands()
        assert len(await claim(bus, 50, queue)) == 50
        costs.append(commands() - before)
    assert costs[1] <= costs[0] + 5


# --- seen ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lane", ["🚢", "{a}:b", "../x", "y" * 10_000])
async def test_lanes_of_any_name_are_limited_and_shown_as_written(bus: Bus, server: Server, lane: str) -> None:
    await bus.set("f", {"concurrency": 1, "weight": 9}, lane=lane)
    (row,) = await bus.lanes("f")
    assert (row.lane, row.place, row.pending, row.by_hand) == (lane, "idle", 0, ("weight", "concurrency"))
    await mint(bus, lane=lane, count=3)
    await claim(bus, 3)
    (row,) = await bus.lanes("f")
    assert (row.lane, row.place, row.why, row.active, row.concurrency) == (lane, "held", "concurrency", 1, 1)
    await bus.set("f", {"concurrency": None, "weight": None}, lane=lane)
    audit(server, "f")
    (row,) = await bus.lanes("f")
    assert (row.place, row.weight, row.by_hand) == ("ring", 1, ())


async def test_lanes_tell_why_they_wait_and_for_how_long(bus: Bus) -> None:
    await code(bus, lane_concurrency=2)
    await bus.set("f", {"rate": (1, 60_000)}, lane="rated")
    for lane in ("full", "rated", "paused", "free"):
        await mint(bus, lane=lane, count=5)
    await bus.pause("f", lane="paused")
    await claim(bus, 6)
    await mint(bus, lane="fresh", count=5)
    rows = {row.lane: row for row in await bus.lanes("f")}
    assert {lane: (row.place, row.why) for lane, row in rows.items()} == {
        "full": ("held", "concurrency"),
        "rated": ("later", "rate"),
        "paused": ("held", "paused"),
        "free": ("held", "concurrency"),
        "fresh": ("ring", None),
    }
    rated = rows["rated"]
    assert (rated.rate, rated.started, rated.active) == ((1, 60_000), 1, 1)
    assert rated.until_ms is not None
    assert 10_000 < rated.until_ms <= 60_000


async def test_a_claim_that_gets_nothing_says_what_stands_against_it(bus: Bus) -> None:
    await code(bus, concurrency=1)
    await mint(bus, lane="a")
    await claim_one(bus)
    assert await blocked(bus) == ("empty", None)  # and not that it is capped: there is nothing to start
    await code(bus, generation=2)
    await bus.pause("f", lane="b")
    await mint(bus, lane="b")
    assert await blocked(bus) == ("paused", None)


async def test_a_window_is_over_at_its_end(bus: Bus, server: Server) -> None:
    with server.clock.stopped():
        await code(bus, rate="1/m")
        await mint(bus, count=2)
        await claim_one(bus)
        assert await blocked(bus) == ("capped", 60_000)
        server.clock.advance(60_000)
        await claim_one(bus)


async def test_stats_tell_which_limit_stands_against_a_start(bus: Bus) -> None:
    await code(bus, concurrency=2, rate="3/m")
    await mint(bus, count=9)
    jobs = await claim(bus, 2)
    stats = (await bus.stats(["f"]))["f"]
    assert (stats.capped, stats.capped_ms) == ("concurrency", None)
    await settle(bus, [done(job) for job in jobs], count=2)
    stats = (await bus.stats(["f"]))["f"]
    assert stats.capped == "rate"
    assert stats.capped_ms is not None
    assert 10_000 < stats.capped_ms <= 60_000


async def test_a_settle_sent_again_frees_no_second_place(bus: Bus, server: Server) -> None:
    await code(bus, lane_concurrency=2)
    await mint(bus, lane="a", count=6)
    first, _ = await claim(bus, 2)
    arguments: dict[str, Any] = {
        "claimer": ME, "sequence": 7, "want": 5, "lease_ms": LEASE_MS, "holder": "h", "popped": 0, "begun": pack([]),
        "verdicts": pack([verdict_row(done(first))]),
    }  # fmt: skip
    reply = await bus.run("settle", "f", **arguments)
    assert len(reply[2]) == 1
    assert (await bus.run("settle", "f", **arguments))[:6] == reply
    assert audit(server, "f").of_lanes(":a") == {"a": "2"}


async def test_a_job_that_comes_back_and_is_claimed_in_one_step_gives_its_place_back_once(
    bus: Bus, server: Server
) -> None:
    await code(bus, lane_concurrency=1)
    (id,) = await mint(bus, lane="a")
    (again,) = await settle(bus, [Release(hold(await claim_one(bus)))], count=1)
    assert audit(server, "f").counted == {id: "a"}
    await settle(bus, [done(again)])
    assert audit(server, "f").counted == {}


async def test_an_evicted_row_takes_no_place_up(bus: Bus, server: Server) -> None:
    await code(bus, lane_concurrency=1)
    gone, _ = await mint(bus, lane="a", count=2)
    server.command("DEL", f"emq:{{f}}:job:{gone}")
    assert await claim(bus) == []
    assert len(await claim(bus)) == 1
    assert audit(server, "f").of_lanes(":a") == {"a": "1"}


# --- what it costs -------------------------------------------------------------------------------------------------


async def test_no_limit_counts_what_it_does_not_ask_for(bus: Bus, server: Server) -> None:
    """A rate of lanes knows starts; how many are active is counted from the limit on that asks for it."""
    await code(bus, lane_rate="100/m")
    await mint(bus, lane="a", count=4)
    jobs = await claim(bus, 3)
    assert audit(server, "f").of_lanes(":a") == {}
    assert [row.active for row in await bus.lanes("f")] == [None]
    await bus.set("f", {"lane_concurrency": 3})
    assert audit(server, "f").of_lanes(":a") == {"a": "3"}
    assert await blocked(bus) == ("capped", None)
    await settle(bus, [done(job) for job in jobs[:1]])
    assert [row.active for row in await bus.lanes("f")] == [2]
    assert len(await claim(bus, 5)) == 1


@pytest.mark.parametrize(
    ("options", "most"),
    [({}, 7.0), ({"lane_rate": "9999/s"}, 7.2), ({"lane_concurrency": 9999}, 10.0)],
    ids=["none", "rate", "concurrency"],
)
async def test_a_job_of_a_lane_costs_the_server_few_commands(
    bus: Bus, server: Server, options: dict[str, Any], most: float
) -> None:
    """From its claim to its end, fifty a call, of a hundred lanes, where nothing is limited and where something is."""
    await code(bus, **options)
    await bus.mint("f", [Mint(id=bus.new_job_id(), payload=b"", lane=f"L{number % 100}") for number in range(300)])
    before = calls(server)
    jobs = await claim(bus, 50)
    while jobs:
        jobs = await settle(bus, [done(job) for job in jobs], count=50)
    made = calls(server) - before
    assert len(audit(server, "f").done) == 300
    assert made / 300 <= most


def calls(server: Server) -> int:
    """Commands that scripts have made so far."""
    told = bytes(server.command("INFO", "commandstats"))  # type: ignore[call-overload]
    made = re.findall(r"cmdstat_(\w+):calls=(\d+)", told.decode())
    return sum(int(count) for name, count in made if name not in ("info", "fcall"))


async def test_a_lane_whose_own_limit_is_tighter_than_that_of_all_is_served_again(bus: Bus, server: Server) -> None:
    """It is full with two, where the others are with five: each place that is free again counts."""
    await code(bus, lane_concurrency=5)
    await bus.set("f", {"concurrency": 2}, lane="a")
    await mint(bus, lane="a", count=6)
    jobs = await claim(bus, 9)
    for _ in range(2):
        assert (len(jobs), audit(server, "f").held) == (2, {"a"})
        await settle(bus, [done(job) for job in jobs])
        assert (list(audit(server, "f").ring), audit(server, "f").held) == (["a"], set())
        jobs = await claim(bus, 9)


async def full_lanes_first(bus: Bus, server: Server) -> int:
    """Lanes that started more than their new rate allows, more than one call judges: they are in the ring still, before
    y and z with a job each; how many. No bell has rung: the queue might start nothing until just now."""
    await bus.set("f", {"lane_rate": (5, 600_000), "rate": (600, 60_000)})
    for _ in range(2):
        for start in range(0, 600, 100):
            await bus.mint("f", [Mint(id=bus.new_job_id(), payload=b"", lane=f"L{start + n}") for n in range(100)])
    jobs: list[Claimed] = []
    for _ in range(2):
        assert await rung(bus)
        jobs += await claim(bus, 300)
    await settle(bus, [done(job) for job in jobs])
    await bus.set("f", {"lane_rate": (1, 600_000)})
    await mint(bus, lane="y")
    await mint(bus, lane="z")
    assert not await rung(bus)
    server.clock.advance(60_001)
    seats = server.command("ZCARD", "emq:{f}:ring")
    assert isinstance(seats, int)
    return seats - 2


async def test_a_claim_puts_a_hundred_full_lanes_aside_and_the_next_one_goes_on(bus: Bus, server: Server) -> None:
    full = await full_lanes_first(bus, server)
    assert full > 100
    while full >= 100:
        assert await blocked(bus) == ("capped", 20)
        full -= 100
        assert server.command("ZCARD", "emq:{f}:ring") == full + 2
    assert (await claim_one(bus)).lane == "y"
    audit(server, "f")


async def test_turns_that_full_lanes_were_planned_for_are_told_to_another(bus: Bus, server: Server) -> None:
    """Who claimed got less than it wanted, and takes the queue for empty."""
    full = await full_lanes_first(bus, server)
    assert by_lane(await claim(bus, full + 1)) == {"y": 1}
    assert await rung(bus)
    assert by_lane(await claim(bus, 9)) == {"z": 1}


@pytest.mark.parametrize("how", ["a deploy", "the clock goes back"])
async def test_what_is_judged_anew_meanwhile_waits_until_all_active_jobs_are_counted(
    bus: Bus, server: Server, how: str
) -> None:
    """Else those that were not counted yet never are, and more start than may."""
    await bus.configure("f", Policy(lane_rate="9000/h"), 1)
    await bus.tick("f")
    await mint(bus, count=400, lane="t")
    assert len([job for _ in range(2) for job in await claim(bus, 200)]) == 400
    await mint(bus, count=400, lane="t")
    await bus.set("f", {"lane_concurrency": 300})
    if how == "a deploy":
        await bus.configure("f", Policy(lane_rate="9000/h", batch=3), 2)
    else:
        server.clock.advance(-5000)
    while (await bus.tick("f")).more:
        pass
    assert await claim(bus, 10) == []
    assert open_books(server, "f").of_lanes(":a") == {"t": "400"}


@pytest.mark.parametrize("damaged", ["", "x", "nan", "-nan", "1e400", "-1e400"])
@pytest.mark.parametrize("field", "wacrs")
async def test_a_lane_whose_settings_nobody_can_read_is_served_and_holds_up_no_other(
    bus: Bus, server: Server, field: str, damaged: str
) -> None:
    """Nothing of echod writes such a field; a person did, or another program."""
    await code(bus, lane_concurrency=9, lane_rate="9/h")
    await bus.set("f", {"concurrency": 5, "weight": 2}, lane="a")
    server.command("HSET", "emq:{f}:lanes", f"a:{field}", damaged)
    await bus.mint("f", [Mint(id=bus.new_job_id(), payload=b"\x01", lane=lane) for lane in "aabb"])
    jobs = [await claim_one(bus) for _ in range(4)]
    assert sorted(job.lane for job in jobs) == ["a", "a", "b", "b"]
    await settle(bus, [done(job) for job in jobs])
    audit(server, "f")
