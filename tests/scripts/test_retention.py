"""Nothing grows over many jobs but what retention allows: by age, count and bytes, in bounded steps."""

from __future__ import annotations

import collections

import pytest

from audit import audit, open_books
from doing import bury, claim, claim_one, dead, done, hold, mint, reads, retry, run, settle, watched
from echod.bus import Bus
from echod.bus.answers import LogLine
from echod.bus.bulk import Filter
from echod.model.ids import JobId
from echod.model.job import Cancelled, Claimed, Error, Mint, Retry, Unique
from echofn.manifest import Constant, Policy
from server import Server

DAY_MS = 86_400_000
ROUNDS, ROUND_JOBS, ROUND_MS = 20, 1000, 3 * DAY_MS
KEPT = 200


def families(server: Server) -> collections.Counter[str]:
    """How many keys there are of each kind."""
    keys = server.command("KEYS", "*")
    assert isinstance(keys, list)
    return collections.Counter(key.split(b"}:")[1].split(b":")[0].decode() for key in keys)


def entries(server: Server) -> dict[str, int]:
    """How much lies in the keys that are one for a queue, or for all."""
    sizes = {}
    for name in ("jobs", "done", "dead", "schedule", "active", "logged"):
        sizes[name] = server.command("ZCARD", f"emq:{{f}}:{name}")
    for name in ("meta", "lanes", "totals", "out"):
        sizes[name] = server.command("HLEN", f"emq:{{f}}:{name}")
    sizes["nodes"] = server.command("HLEN", "emq:{~}:nodes")
    sizes["wake"] = server.command("LLEN", "emq:{~}:wake")
    return {name: size for name, size in sizes.items() if isinstance(size, int)}


def memory(server: Server) -> int:
    server.command("MEMORY", "PURGE")
    info = server.command("INFO", "memory")
    assert isinstance(info, bytes)
    return int(info.split(b"used_memory:")[1].split()[0])


_HELD = """
local held = 0
for _, key in ipairs(redis.call('KEYS', '*')) do held = held + redis.call('MEMORY', 'USAGE', key, 'SAMPLES', 0) end
return held
"""


def memory_of_keys(server: Server) -> int:
    """What all keys hold, without what connections do: a buffer of one may hold as much as a hundred jobs."""
    held = server.command("EVAL", _HELD, 0)
    assert isinstance(held, int)
    return held


async def a_round(bus: Bus, number: int) -> None:
    """A thousand jobs, of every kind and to every end, under names that never come again."""
    mints = [
        Mint(
            id=bus.new_job_id(),
            payload=b"\xc4\x10" + bytes(16),
            lane=f"tenant {number}.{n % 50}",
            priority=n % 3,
            in_ms=50 if n % 10 == 0 else None,
            unique=Unique(f"{number}.{n}", until=("done", "started", DAY_MS)[n % 3]) if n % 5 == 0 else None,
        )
        for n in range(ROUND_JOBS)
    ]
    await bus.mint("f", mints)
    await bus.cancel("f", mints[1].id)
    await bus.drain("f", [mint.id for mint in mints[100:150]])
    await bus.move("f", [mint.id for mint in mints[150:200]], f"moved {number}")
    await bus.set("f", {"weight": 7}, lane=f"tenant {number}.1")
    await bus.set("f", {"weight": None}, lane=f"tenant {number}.1")


async def worked_off(bus: Bus, server: Server) -> int:
    """Run what there is; some fail, some for good, some write. How many were run."""
    ran = 0
    while True:
        server.clock.advance(15_000)
        await bus.beat(pump=True)
        jobs = await claim(bus, 500)
        if not jobs:
            return ran
        for job in jobs[:5]:
            await bus.log("f", job.id, [LogLine(1, 1, "stdout", "info", "", "x" * 500)])
        verdicts = [
            retry(job)
            if n % 100 == 3 and not job.failures
            else dead(job)
            if job.failures and n % 2
            else done(job, b"\xc4\x20" + bytes(32))
            for n, job in enumerate(jobs)
        ]
        await settle(bus, verdicts)
        ran += len(jobs)


async def trimmed(bus: Bus, server: Server) -> None:
    """A minute later, what pumps do."""
    server.clock.advance(60_000)
    more = (await bus.beat(pump=True)).tick.more
    while more:
        more = (await bus.tick("f")).more


async def test_twenty_thousand_jobs_leave_what_retention_allows_and_nothing_more(bus: Bus, server: Server) -> None:
    """Sixty days. From when morgue and hours are full on, each kind of key and each set stays as it is."""
    server.command("HSET", "emq:{f}:meta", "keep_count", KEPT)
    seen: list[tuple[collections.Counter[str], dict[str, int], int]] = []
    for number in range(ROUNDS):
        await a_round(bus, number)
        await worked_off(bus, server)
        await trimmed(bus, server)
        if number in {ROUNDS - 6, ROUNDS - 1}:
            seen.append((families(server), entries(server), memory(server)))
        server.clock.advance(ROUND_MS)
        await bus.beat(pump=True)
    (keys_before, sizes_before, bytes_before), (keys, sizes, bytes_after) = seen
    assert audit(server, "f").lanes == {}
    assert sizes["done"] == sizes_before["done"] == KEPT
    assert sizes["jobs"] == sizes["done"] + sizes["dead"]
    assert sizes["lanes"] == 0, "nothing remains of lanes without settings"
    assert {name: size for name, size in sizes.items() if size > sizes_before[name] + 5} == {}
    assert {name: count for name, count in keys.items() if count > keys_before[name] + 5} == {}
    assert (keys["lane"], keys["unique"]) == (0, keys_before["unique"])
    assert bytes_after < bytes_before * 1.1, "memory goes with what is kept"


@pytest.mark.parametrize("lanes", [1, 10])
async def test_a_small_pending_job_costs_at_most_400_bytes(bus: Bus, server: Server, lanes: int) -> None:
    """In all structures: its row, its place, the list of all jobs (design §4.10). `bench memory` has more of it."""
    count = 20_000
    await mint(bus, count=lanes)
    before = memory(server)
    payload = b"\xd9\x1e" + b"x" * 30
    for start in range(0, count, 500):
        numbers = range(start, start + 500)
        mints = [Mint(id=bus.new_job_id(), payload=payload, lane=f"L{number % lanes}") for number in numbers]
        await bus.mint("f", mints)
    assert 200 < (memory(server) - before) / count <= 400


@pytest.mark.parametrize("state", ["done", "cancelled"])
async def test_the_archive_is_bounded_by_count_age_and_bytes(bus: Bus, server: Server, state: str) -> None:
    async def end(count: int) -> list[JobId]:
        ids = await mint(bus, count=count, payload=b"\xc5\x03\xe8" + bytes(1000))
        if state == "cancelled":
            await bus.drain("f", ids)
        else:
            await settle(bus, [done(job) for job in await claim(bus, count)])
        return ids

    await end(1)
    (one,) = open_books(server, "f").rows.values()
    ten = int(one[b"sz"]) * 21 // 2
    for field, value, left in (("keep_count", 7, 7), ("keep_bytes", ten, 10), ("keep", 59_000, 0)):
        server.command("HDEL", "emq:{f}:meta", "keep_count", "keep_bytes", "keep")
        server.command("HSET", "emq:{f}:meta", field, value)
        ids = await end(40)
        await trimmed(bus, server)
        assert [id for id in ids if id in audit(server, "f").done] == (ids[-left:] if left else []), field


async def test_what_ended_before_the_clock_went_back_does_not_outlast_what_ends_after_it(
    bus: Bus, server: Server
) -> None:
    """The archive is full of what ended "tomorrow", and the morgue has one such job."""

    async def end(count: int) -> list[JobId]:
        ids = await mint(bus, count=count)
        await settle(bus, [done(job) for job in await claim(bus, count)])
        return ids

    server.command("HSET", "emq:{f}:meta", "keep_count", 250)
    server.clock.advance(DAY_MS)
    await bus.beat(pump=True)
    buried = await bury(bus)
    old = await end(250)
    server.clock.advance(-DAY_MS)
    await trimmed(bus, server)
    young = await end(3)
    await trimmed(bus, server)
    assert list(audit(server, "f").done) == [*old[3:], *young], "the oldest gave way"
    picked = await bus.pick("f", Filter(states=("done",)), limit=500)
    assert picked.ids == (*old[3:], *young)
    server.clock.advance(30 * DAY_MS - 60_000)
    await trimmed(bus, server)
    assert audit(server, "f").rows == {}, buried


def failed_at_length(job: Claimed) -> Retry:
    """A run that leaves a long traceback."""
    return Retry(hold(job), run(job), Error("ValueError", "no", "t" * 20_000, "error"), 60_000)


async def a_hundred(bus: Bus, holding: str) -> None:
    """Jobs in the archive that hold much besides payload and result."""
    lane = "ü" * 4000 if holding == "name" else "-"
    ids = await mint(bus, count=100, lane=lane)
    jobs = await claim(bus, 100)
    if holding == "error":
        await settle(bus, [failed_at_length(job) for job in jobs])
        await bus.drain("f", ids)
        return
    await settle(bus, [done(job) for job in jobs])
    for id in ids if holding == "line" else ():
        await bus.log("f", id, [LogLine(1, 1, "stdout", "info", "", "x")])


@pytest.mark.parametrize("holding", ["error", "name", "line"])
async def test_the_archive_counts_the_memory_that_its_jobs_hold(bus: Bus, server: Server, holding: str) -> None:
    """An error of 20 kB, a lane's name of 8 kB, a line of output, which takes a page: the limit of bytes is of all."""
    await a_hundred(bus, holding)  # what comes once, whatever is kept
    counted, before = int(audit(server, "f").meta["ab"]), memory_of_keys(server)
    await a_hundred(bus, holding)
    counted = int(audit(server, "f").meta["ab"]) - counted
    assert 0.8 < counted / (memory_of_keys(server) - before) < 1.25
    assert counted > 100 * 4000


async def test_what_evicted_rows_counted_for_is_forgotten_with_the_last_job(bus: Bus, server: Server) -> None:
    """Or it would count for ever, and jobs that have just ended would be trimmed at once."""
    for end in ("trim", "purge"):
        ids = await mint(bus, count=3)
        await settle(bus, [done(job) for job in await claim(bus, 3)])
        server.command("DEL", *(f"emq:{{f}}:job:{id}" for id in ids[:2]))
        if end == "purge":
            await bus.purge("f", ids, ["done"])
        else:
            server.clock.advance(8 * 86_400_000)
            await trimmed(bus, server)
        books = open_books(server, "f")
        assert (books.done, books.meta.get("ab")) == ({}, None)


async def test_where_an_acl_forbids_to_measure_jobs_end_and_count_with_their_payloads(bus: Bus, server: Server) -> None:
    server.command("ACL", "SETUSER", "default", "-memory")
    try:
        (id,) = await mint(bus, payload=b"\xc5\x27\x10" + bytes(10_000))
        await settle(bus, [done(await claim_one(bus))])
        await bus.log("f", id, [LogLine(1, 1, "stdout", "info", "", "x" * 1000)])
    finally:
        server.command("ACL", "SETUSER", "default", "+memory")
    assert 11_000 < int(audit(server, "f").meta["ab"]) < 12_000


async def test_a_run_that_ends_its_job_without_an_error_leaves_none_of_an_earlier_one(bus: Bus, server: Server) -> None:
    """It would be the largest part of the archive, and nobody reads it, or takes it for the last run's."""
    ids = await mint(bus, count=3)
    await settle(bus, [failed_at_length(job) for job in await claim(bus, 3)])
    server.clock.advance(60_001)
    await bus.tick("f")
    finished, stopped = await claim(bus, 2)
    await settle(bus, [done(finished), Cancelled(hold(stopped), run(stopped), "")])
    await bus.drain("f", ids)
    told = [record.error and record.error.message for id in ids if (record := await bus.job(id, queue="f"))]
    assert told == [None, None, "no"], "what waited for another run shows why"
    assert [b"er" in audit(server, "f").rows[id] for id in ids] == [False, False, True]
    record = await bus.job(stopped.id, queue="f")
    assert record is not None
    assert [(entry.outcome, entry.cause) for entry in record.history] == [("retry", "error"), ("cancelled", "")]


async def test_a_job_that_was_redriven_and_is_done_keeps_no_error_of_its_time_in_the_morgue(
    bus: Bus, server: Server
) -> None:
    id = await bury(bus)
    await bus.redrive("f", [id])
    await settle(bus, [done(await claim_one(bus))])
    assert b"er" not in audit(server, "f").rows[id]


async def test_whoever_ends_jobs_reads_no_payload_to_measure_it(bus: Bus, server: Server) -> None:
    """A settle, a cancel, a drain, a lost lease: with payloads of 1 MiB, 250 of them held up the server for 150 ms."""
    waiting, drained, *_ = await mint(bus, count=6)
    await bus.move("f", [waiting, drained], "later")
    jobs = await claim(bus, 4)
    assert len(jobs) == 4
    with watched(server) as said:
        await settle(bus, [done(jobs[0]), dead(jobs[1]), retry(jobs[2], 0)])
        await bus.cancel("f", waiting)
        await bus.drain("f", [drained])
    with watched(server) as later:
        server.clock.advance(15_000)
        assert (await bus.tick("f")).recovered == 1
    assert reads(said + later, ":job:", "s") >= 5
    assert reads(said + later, ":job:", "p") == 0


async def test_the_morgue_is_bounded_by_age_and_goes_with_its_logs(bus: Bus, server: Server) -> None:
    old = await bury(bus)
    await bus.log("f", old, [LogLine(1, 1, "stdout", "info", "", "x")])
    server.clock.advance(29 * DAY_MS)
    await bus.beat(pump=True)
    new = await bury(bus)
    server.clock.advance(DAY_MS + 1)
    await trimmed(bus, server)
    assert list(audit(server, "f").dead) == [new]
    assert server.command("EXISTS", f"emq:{{f}}:log:{old}") == 0


@pytest.mark.parametrize("place", ["archive", "morgue"])
async def test_what_belongs_to_a_job_goes_with_it(bus: Bus, server: Server, place: str) -> None:
    """The key of a backfill, and a log even where the row that knew of it was evicted."""
    await bus.recur("f", "r", rule="x", tz="UTC", trigger=b"", payload=b"", next_ms=None, generation=1)
    await bus.backfill("f", "r", [(n, bus.new_job_id()) for n in (1, 2)])
    for job in await claim(bus, 2):
        await bus.log("f", job.id, [LogLine(1, 1, "stdout", "info", "", "x")])
        await settle(bus, [done(job) if place == "archive" else dead(job)])
    assert (families(server)["unique"], families(server)["log"]) == (2, 2)
    server.command("DEL", f"emq:{{f}}:job:{job.id}")
    server.clock.advance(31 * DAY_MS)
    await bus.tick("f")
    kinds = families(server)
    assert (kinds["job"], kinds["log"], kinds["logged"], kinds["jobs"]) == (0, 0, 0, 0)
    assert kinds["unique"] == 1  # whose row was evicted: it counts for nothing


async def test_minutes_are_kept_for_two_hours_and_hours_for_eight_days(bus: Bus, server: Server) -> None:
    await mint(bus)
    assert (families(server)["m"], families(server)["h"]) == (1, 1)
    server.clock.advance(7200_000)
    assert families(server)["m"] == 1, "a window of two hours reads it still"
    server.clock.advance(121_000)
    assert families(server)["m"] == 0
    server.clock.advance(8 * DAY_MS - 7400_000)
    assert families(server)["h"] == 1
    server.clock.advance(90_000)
    assert families(server)["h"] == 0


async def test_a_young_child_gives_way_at_twice_the_bytes(bus: Bus, server: Server) -> None:
    """Thirty seconds it stays for the sweep of its parent's `out`, but not to grow the archive without a bound."""
    server.command("HSET", "emq:{f}:meta", "keep_count", 0, "keep_bytes", 3000)
    ids = list[JobId]()
    for _ in range(8):
        ids += await mint(bus, payload=b"\xc5\x03\xe8" + bytes(1000), parent=bus.new_job_id())
        await settle(bus, [done(job) for job in await claim(bus)])
    server.clock.advance(11_000)
    await bus.tick("f")  # no longer young, but a child
    books = audit(server, "f")
    assert list(books.done) == ids[-len(books.done) :]
    assert 3000 < int(books.meta["ab"]) <= 6000
    assert "cut" in books.meta


async def test_whoever_ends_jobs_trims_twice_as_many_of_the_archive(bus: Bus, server: Server) -> None:
    """A settle, a cancel and a drain: an archive that is too long gets shorter by whatever is added to it."""
    await mint(bus, count=20)
    await settle(bus, [done(job) for job in await claim(bus, 20)])
    server.clock.advance(11_000)
    server.command("HSET", "emq:{f}:meta", "keep_count", 0)
    first, *others, last = await mint(bus, count=5)
    await bus.cancel("f", first)
    assert len(audit(server, "f").done) == 20 + 1 - 2
    await bus.drain("f", others)
    assert len(audit(server, "f").done) == 19 + 3 - 6
    (job,) = await claim(bus)
    assert job.id == last
    await settle(bus, [done(job)])
    assert len(audit(server, "f").done) == 16 + 1 - 2


async def test_a_job_that_is_tried_for_ever_keeps_fifty_entries_of_its_history(bus: Bus, server: Server) -> None:
    await bus.configure("f", Policy(retries=100, backoff=Constant(0)), 1)
    (id,) = await mint(bus)
    for _ in range(53):
        (job,) = await claim(bus)
        await settle(bus, [retry(job, 0)])
        await bus.tick("f")
    record = await bus.job(id, queue="f")
    assert record is not None
    assert [entry.attempt for entry in record.history] == list(range(4, 54))
