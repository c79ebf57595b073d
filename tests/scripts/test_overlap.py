"""overlap and jitter of a recurrence: what `occur` makes of an instant at which an earlier job has not ended.

Job names in these tests are in the order in which they were minted.
"""

from __future__ import annotations

import asyncio

import pytest

from audit import audit
from doing import LEASE_MS, claim, claim_one, counted, dead, done, retry, settle
from echod.bus import Bus
from echod.bus.answers import Occurred
from echod.model.ids import JobId
from echod.model.job import Cancelled, Claimed, Delay, Hold, Job, Release
from echofn.manifest import Constant, Overlap, Policy
from scripts.test_recurrences import FIRST_MS, row
from server import PATIENCE_S, Server

SECOND_MS = 1000


class Rule:
    """One recurrence due each second, and the jobs it has made."""

    def __init__(self, bus: Bus, server: Server) -> None:
        self.bus, self.server = bus, server
        self.due_ms = FIRST_MS
        self.revision = 0

    async def write(self, overlap: Overlap) -> None:
        await self.bus.recur(
            "f",
            "r",
            rule="every 1s",
            tz="UTC",
            trigger=overlap.encode(),
            payload=b"\x05",
            next_ms=FIRST_MS,
            generation=1,
            overlap=overlap,
        )
        self.revision += 1

    async def occur(self, at_ms: int | None = None) -> Occurred:
        """The next due; asked twice, as after a lost reply."""
        id = self.bus.new_job_id()
        due_ms, self.due_ms = self.due_ms, self.due_ms + SECOND_MS
        first = await self.bus.occur(
            "f", "r", self.revision, due_ms, next_ms=self.due_ms, job=id, at_ms=due_ms if at_ms is None else at_ms
        )
        again = await self.bus.occur(
            "f", "r", self.revision, due_ms, next_ms=self.due_ms, job=self.bus.new_job_id(), at_ms=due_ms
        )
        assert again == Occurred("already", first.id)
        audit(self.server, "f")
        return first

    async def mint(self, at_ms: int | None = None) -> JobId:
        answer = await self.occur(at_ms)
        assert answer.outcome == "minted"
        assert answer.id is not None
        return answer.id

    async def job(self, id: JobId) -> Job:
        found = await self.bus.job(id, queue="f")
        assert found is not None
        return found

    async def states(self, *ids: JobId) -> list[str]:
        audit(self.server, "f")
        return [(await self.job(id)).state for id in ids]


@pytest.fixture
async def rule(bus: Bus, server: Server) -> Rule:
    return Rule(bus, server)


async def test_allow_makes_a_job_beside_the_earlier_one(rule: Rule) -> None:
    await rule.write("allow")
    ids = [await rule.mint() for _ in range(20)]
    assert [job.id for job in await claim(rule.bus, 20)] == ids


# ---- skip ---------------------------------------------------------------------------------------------------------


async def test_skip_drops_an_instant_at_which_the_earlier_job_has_not_ended(rule: Rule) -> None:
    await rule.write("skip")
    first = await rule.mint()
    assert (await rule.occur()).outcome == "dropped"  # pending
    job = await claim_one(rule.bus)
    assert (await rule.occur()).outcome == "dropped"  # active
    await settle(rule.bus, [retry(job, 60_000)])
    assert (await rule.occur()).outcome == "dropped"  # to be tried again
    found = await row(rule.bus)
    assert (found.skipped, found.missed, found.next_ms) == (3, 0, FIRST_MS + 4 * SECOND_MS)
    assert (await counted(rule.bus, "skipped"), await counted(rule.bus, "minted")) == (3, 1)
    assert list(audit(rule.server, "f").rows) == [first]


@pytest.mark.parametrize("end", ["done", "dead", "cancelled", "erased"])
async def test_a_job_that_ended_in_any_way_is_none_to_wait_for(rule: Rule, end: str) -> None:
    await rule.write("skip")
    first = await rule.mint()
    job = await claim_one(rule.bus)
    match end:
        case "done" | "erased":
            await settle(rule.bus, [done(job)])
        case "dead":
            await settle(rule.bus, [dead(job)])
        case _:
            await settle(rule.bus, [Cancelled(Hold(job.id, job.attempts, job.holder), done(job).run, "")])
    if end == "erased":
        rule.server.command("HSET", "emq:{f}:meta", "keep_count", 0)
        rule.server.clock.advance(60_000)
        await rule.bus.beat(pump=True)
        assert await rule.bus.job(first, queue="f") is None
    await rule.mint()


async def test_a_job_run_by_hand_is_none_to_wait_for(rule: Rule) -> None:
    await rule.write("skip")
    assert await rule.bus.run_now("f", "r", rule.bus.new_job_id())
    await rule.mint()
    assert await rule.bus.run_now("f", "r", rule.bus.new_job_id())
    assert (await rule.occur()).outcome == "dropped"


async def test_a_job_that_was_redriven_counts_again(rule: Rule) -> None:
    await rule.write("skip")
    first = await rule.mint()
    await settle(rule.bus, [dead(await claim_one(rule.bus))])
    second = await rule.mint()
    await settle(rule.bus, [done(await claim_one(rule.bus))])
    await rule.bus.redrive("f", [first])
    assert (await rule.occur()).outcome == "dropped"
    await settle(rule.bus, [done(await claim_one(rule.bus))])
    third = await rule.mint()
    assert await rule.states(first, second, third) == ["done", "done", "pending"]


async def test_an_earlier_job_is_known_however_many_instants_it_outlasts(rule: Rule) -> None:
    await rule.write("skip")
    await rule.mint()
    await claim_one(rule.bus)
    assert {(await rule.occur()).outcome for _ in range(40)} == {"dropped"}


async def test_a_rule_that_came_to_skip_knows_the_jobs_from_before(rule: Rule) -> None:
    await rule.write("allow")
    await rule.mint()
    await rule.write("skip")
    assert (await rule.occur()).outcome == "dropped"


# ---- queue --------------------------------------------------------------------------------------------------------


async def test_queue_keeps_one_job_waiting_behind_the_one_that_runs(rule: Rule) -> None:
    await rule.write("queue")
    first = await rule.mint()
    assert (await rule.occur()).outcome == "dropped"  # the first has not begun: it is the one that waits
    job = await claim_one(rule.bus)
    second = await rule.mint()
    assert (await rule.occur()).outcome == "dropped"
    waiting = await rule.job(second)
    assert (waiting.state, waiting.reason, waiting.waits_for) == ("scheduled", None, (first,))
    assert await claim(rule.bus) == []
    tick = await rule.bus.tick("f")  # its place in the schedule is no instant
    assert (tick.promoted, tick.next_in_ms is None or tick.next_in_ms <= LEASE_MS) == (0, True)
    [claimed] = await settle(rule.bus, [done(job)], count=1)  # woken by the settle, claimed in the same call
    assert claimed.id == second
    assert (claimed.due_ms, (await rule.job(second)).waits_for) == (FIRST_MS + 2 * SECOND_MS, ())
    assert (await row(rule.bus)).skipped == 2


async def test_what_is_tried_again_or_put_off_has_begun_and_keeps_the_next_waiting(rule: Rule) -> None:
    await rule.bus.configure("f", Policy(retries=1), 1)
    await rule.write("queue")
    await rule.mint()
    job = await claim_one(rule.bus)
    second = await rule.mint()
    await settle(rule.bus, [Delay(Hold(job.id, job.attempts, job.holder), done(job).run, 10)])
    assert (await rule.occur()).outcome == "dropped"
    rule.server.clock.advance(1000)
    await rule.bus.tick("f")
    job = await claim_one(rule.bus)
    await settle(rule.bus, [retry(job, 10)])
    assert (await rule.job(second)).state == "scheduled"
    rule.server.clock.advance(1000)
    await rule.bus.tick("f")
    [claimed] = await settle(rule.bus, [retry(await claim_one(rule.bus))], count=1)  # charged out: dead
    assert claimed.id == second


async def test_a_lease_that_ends_for_good_wakes_who_waits(rule: Rule) -> None:
    await rule.bus.configure("f", Policy(retries=0, backoff=Constant(10)), 1)
    await rule.write("queue")
    first = await rule.mint()
    job = await claim_one(rule.bus)
    await rule.bus.extend("f", [Hold(job.id, job.attempts, job.holder)], 15_000, begun=[Hold(job.id, 1, job.holder)])
    second = await rule.mint()
    rule.server.clock.advance(LEASE_MS + 1)
    assert (await rule.bus.tick("f")).recovered == 1
    assert await rule.states(first, second) == ["dead", "pending"]


async def test_who_waits_is_cancelled_as_any_other_and_the_next_takes_its_place(rule: Rule) -> None:
    await rule.write("queue")
    first = await rule.mint()
    job = await claim_one(rule.bus)
    second = await rule.mint()
    assert await rule.bus.cancel("f", second) == "cancelled"
    third = await rule.mint()
    assert (await rule.job(third)).waits_for == (first,)
    await settle(rule.bus, [done(job)])
    assert await rule.states(first, second, third) == ["done", "cancelled", "pending"]
    assert (await rule.job(second)).waits_for == ()


async def test_who_was_cancelled_while_it_waited_stays_so_when_the_other_ends(rule: Rule) -> None:
    await rule.write("queue")
    first = await rule.mint()
    job = await claim_one(rule.bus)
    second = await rule.mint()
    await rule.bus.cancel("f", second)
    await settle(rule.bus, [done(job)])
    assert await rule.states(first, second) == ["done", "cancelled"]


async def test_who_waits_for_a_row_that_was_lost_goes_on_at_the_next_instant(rule: Rule) -> None:
    await rule.write("queue")
    first = await rule.mint()
    await claim_one(rule.bus)
    second = await rule.mint()
    for command in (
        ("DEL", f"emq:{{f}}:job:{first}"),
        ("ZREM", "emq:{f}:active", first),
        ("ZREM", "emq:{f}:jobs", first),
    ):
        rule.server.command(*command)
    await rule.bus.pause_recurrence("f", "r")
    assert (await rule.bus.tick("f")).next_in_ms is None, "it waits for no instant"
    await rule.bus.resume_recurrence("f", "r", rule.due_ms)
    assert (await rule.occur()).outcome == "dropped"
    assert await rule.states(second) == ["pending"]


@pytest.mark.parametrize("place", ["active", "backoff"])
async def test_who_waits_for_a_row_that_was_lost_goes_on_when_that_is_buried(rule: Rule, place: str) -> None:
    """Although no further instant comes."""
    await rule.write("queue")
    first = await rule.mint()
    job = await claim_one(rule.bus)
    second = await rule.mint()
    if place == "backoff":
        await settle(rule.bus, [retry(job)])
    rule.server.command("DEL", f"emq:{{f}}:job:{first}")
    rule.server.clock.advance(LEASE_MS + 1)
    await rule.bus.tick("f")
    jobs = await claim(rule.bus, 2)
    if place == "backoff":  # the claim buried it
        assert jobs == []
        jobs = await claim(rule.bus, 2)
    assert [job.id for job in jobs] == [second]
    assert await rule.states(first, second) == ["dead", "active"]


# ---- replace ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["lane", "jitter", "backoff"])
async def test_replace_ends_an_earlier_job_that_waits_at_once(rule: Rule, place: str) -> None:
    await rule.write("replace")
    first = await rule.mint(rule.server.clock.now_ms() + 60_000 if place == "jitter" else None)
    if place == "backoff":
        await settle(rule.bus, [retry(await claim_one(rule.bus), 60_000)])
    second = await rule.mint()
    assert await rule.states(first, second) == ["cancelled", "pending"]
    assert await counted(rule.bus, "cancelled") == 1


async def replaced(rule: Rule) -> tuple[Claimed, JobId]:
    """A job that runs and was asked to stop, and the one that waits for it."""
    await rule.write("replace")
    await rule.mint()
    job = await claim_one(rule.bus)
    return job, await rule.mint()


@pytest.mark.parametrize(
    ("verdict", "became"),
    [("done", "done"), ("retry", "cancelled"), ("delay", "cancelled"), ("release", "cancelled"), ("dead", "dead")],
)
async def test_the_new_job_starts_once_the_one_that_runs_has_settled_in_any_way(
    rule: Rule, verdict: str, became: str
) -> None:
    job, second = await replaced(rule)
    hold = Hold(job.id, job.attempts, job.holder)
    assert (await rule.bus.extend("f", [hold], LEASE_MS)).cancelling == (job.id,)
    assert await claim(rule.bus) == []
    assert await rule.states(job.id, second) == ["active", "scheduled"]
    given = {
        "done": done(job),
        "retry": retry(job),
        "delay": Delay(hold, done(job).run, 5),
        "release": Release(hold),
        "dead": dead(job),
    }[verdict]
    [claimed] = await settle(rule.bus, [given], count=1)
    assert claimed.id == second
    assert await rule.states(job.id, second) == [became, "active"]
    answer = await rule.bus.settle("f", "W2", [done(job)], lease_ms=LEASE_MS)  # fenced
    assert answer.refused == (job.id,)


async def test_the_new_job_starts_when_the_lease_of_the_old_one_ends(rule: Rule) -> None:
    job, second = await replaced(rule)
    rule.server.clock.advance(LEASE_MS + 1)
    assert (await rule.bus.tick("f")).recovered == 1
    assert await rule.states(job.id, second) == ["cancelled", "pending"]
    answer = await rule.bus.settle("f", "W2", [done(job)], lease_ms=LEASE_MS)
    assert answer.refused == (job.id,)


async def test_a_job_that_waits_to_replace_is_replaced_itself(rule: Rule) -> None:
    job, second = await replaced(rule)
    third = await rule.mint()
    assert await rule.states(job.id, second, third) == ["active", "cancelled", "scheduled"]
    assert (await rule.job(third)).waits_for == (job.id,)
    await settle(rule.bus, [done(job)])
    assert await rule.states(job.id, second, third) == ["done", "cancelled", "pending"]


async def test_one_that_waits_for_several_starts_after_the_last(rule: Rule) -> None:
    await rule.write("allow")
    ids = [await rule.mint() for _ in range(3)]
    jobs = await claim(rule.bus, 3)
    await rule.write("replace")
    last = await rule.mint()
    assert (await rule.job(last)).waits_for == tuple(ids)
    for job in jobs:
        assert (await rule.job(last)).state == "scheduled"
        await settle(rule.bus, [done(job)])
    assert (await rule.job(last)).state == "pending"


async def test_all_hear_that_the_old_job_is_to_stop(rule: Rule) -> None:
    heard: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    rule.bus.on("cancel", lambda queue, id: heard.put_nowait((queue, id)))
    job, _ = await replaced(rule)
    assert await asyncio.wait_for(heard.get(), PATIENCE_S) == ("f", job.id)


# ---- jitter -------------------------------------------------------------------------------------------------------


async def test_a_job_with_jitter_waits_for_its_own_due_and_is_late_from_there(rule: Rule) -> None:
    await rule.write("allow")
    at_ms = rule.server.clock.now_ms() + 100_000
    id = await rule.mint(at_ms)
    job = await rule.job(id)
    assert (job.state, job.reason, job.due_ms) == ("scheduled", "at", at_ms)
    assert job.occurrence is not None
    assert job.occurrence.due_ms == FIRST_MS
    assert (await row(rule.bus)).next_ms == FIRST_MS + SECOND_MS  # the rule's own due does not move
    rule.server.clock.set(at_ms + 60_000)
    await rule.bus.tick("f")
    await settle(rule.bus, [done(await claim_one(rule.bus))])
    late = (await rule.bus.metrics("f", 3_600_000)).late
    assert [114 <= bucket <= 122 for bucket in late] == [True]  # one to two minutes, as buckets of log 1.1


async def test_one_that_waited_for_another_still_waits_for_its_own_due(rule: Rule) -> None:
    await rule.write("queue")
    await rule.mint()
    job = await claim_one(rule.bus)
    at_ms = rule.server.clock.now_ms() + 100_000
    second = await rule.mint(at_ms)
    await settle(rule.bus, [done(job)])
    found = await rule.job(second)
    assert (found.state, found.reason, found.waits_for, found.due_ms) == ("scheduled", "at", (), at_ms)
    rule.server.clock.set(at_ms)
    await rule.bus.tick("f")
    assert await rule.states(second) == ["pending"]


async def test_racing_pumps_agree_on_one_outcome(server: Server) -> None:
    pumps = [await Bus.open(server.address) for _ in range(4)]
    for number, pump in enumerate(pumps):
        await pump.join(f"NOD{number}")  # type: ignore[arg-type]
    rule = Rule(pumps[0], server)
    await rule.write("replace")

    async def ask(pump: Bus, due_ms: int) -> str:
        answer = await pump.occur("f", "r", 1, due_ms, next_ms=due_ms + SECOND_MS, job=pump.new_job_id())
        return answer.outcome

    for step in range(20):
        asked = await asyncio.gather(*(ask(pump, FIRST_MS + step * SECOND_MS) for pump in pumps))
        assert sorted(asked) == ["already", "already", "already", "minted"]
    books = audit(server, "f")
    assert sorted(books.state_of(id) for id in books.rows) == ["cancelled"] * 19 + ["pending"]
    for pump in pumps:
        await pump.close()
