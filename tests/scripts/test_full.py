"""A server whose memory is out: new work is refused, what is there goes on and makes room, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from audit import audit, open_books
from doing import LEASE_MS, ME, claim, claim_one, commands, counted, done, hold, mint, replies_lost, retry, settle
from echod.bus import Bus
from echod.bus.rows import pack, verdict_row
from echod.errors import BusFull
from echod.model.ids import VersionId
from echod.model.job import Child, Mint, Minted
from server import PATIENCE_S, Server, running


@pytest.fixture
async def full(server: Server, bus: Bus) -> AsyncIterator[Server]:
    """The server with four jobs of `f`, of which one is ours, and its memory out since."""
    await mint(bus, count=3)
    yield server
    server.command("CONFIG", "SET", "maxmemory", "0")


def fill(server: Server) -> None:
    server.command("CONFIG", "SET", "maxmemory", "1")


async def test_waiting_jobs_are_claimed_and_end_although_no_job_can_be_minted(bus: Bus, full: Server) -> None:
    fill(full)
    with pytest.raises(BusFull):
        await bus.mint("f", [Mint(id=bus.new_job_id(), payload=b"\x01")])
    jobs = await claim(bus, 2)
    following = await settle(bus, [done(jobs[0]), retry(jobs[1])], count=1)
    await settle(bus, [done(job) for job in following])
    books = audit(full, "f")
    assert (len(books.done), len(books.schedule), len(books.active), books.lanes) == (2, 1, 0, {})


async def test_what_frees_or_ends_something_goes_on_although_memory_is_out(bus: Bus, full: Server) -> None:
    """Leases are renewed, jobs cancelled, drained and purged, schedules and settings taken back, lost leases found."""
    await bus.recur("f", "r", rule="x", tz="UTC", trigger=b"", payload=b"\x05", next_ms=10**15, generation=None)
    first, second = await mint(bus, "g", count=2)
    running, lost = await claim(bus, 2)
    fill(full)
    assert (await bus.extend("f", [hold(running)], 10 * LEASE_MS, begun=[hold(running)])).lost == ()
    assert await bus.cancel("g", first) == "cancelled"
    assert await bus.drain("g", [second]) == (second,)
    assert await bus.purge("g", [first, second], ["cancelled"]) == (first, second)
    assert await bus.unrecur("f", "r", None) == "removed"
    await bus.set("f", {"concurrency": 9})
    full.clock.advance(LEASE_MS + 1)
    assert (await bus.tick("f")).recovered == 1
    await settle(bus, [done(running)])
    assert audit(full, "f").state_of(lost.id) == "pending"
    assert audit(full, "g").rows == {}


async def test_a_version_that_filled_the_memory_can_be_left(bus: Bus, full: Server) -> None:
    first, second = VersionId("DEP00000000001"), VersionId("DEP00000000002")
    for version in (first, second):
        await bus.put_version(version, [b"x"], b"m")
        await bus.activate(version)
    fill(full)
    assert (await bus.activate(first)).generation == 3
    with pytest.raises(BusFull):
        await bus.put_version(VersionId("DEP00000000003"), [b"x"], b"m")


async def test_a_claim_at_the_limit_sent_twice_claims_once(bus: Bus, full: Server) -> None:
    """The second head remembers as the first does."""
    fill(full)
    jobs = await claim(bus, 2)
    last = {name: value for name, value in _last(full).items() if name in ("seq", "holder")}
    assert [job.holder for job in jobs] == [last["holder"]] * 2
    again = await bus.run(
        "claim!", "f", claimer=ME, sequence=last["seq"], want=2, lease_ms=LEASE_MS, holder="else", popped=0,
        begun=b"\x90",
    )  # fmt: skip
    assert [row[0].decode() for row in again[2]] == [job.id for job in jobs]
    assert len(audit(full, "f").active) == 2


def _last(server: Server) -> dict[str, str]:
    flat = server.command("HGETALL", f"emq:{{f}}:last:{ME}")
    assert isinstance(flat, list)
    return {str(flat[i], "ascii"): str(flat[i + 1], "ascii") for i in range(0, len(flat), 2)}


async def test_scripts_that_were_flushed_are_loaded_again_although_memory_is_out(bus: Bus, full: Server) -> None:
    fill(full)
    full.command("FUNCTION", "FLUSH")
    await settle(bus, [done(await claim_one(bus))])
    assert len(audit(full, "f").done) == 1


async def test_a_queue_whose_children_cannot_be_minted_rests_and_others_go_on(bus: Bus, full: Server) -> None:
    """Else every claimed parent would grow the server, without a bound."""
    await mint(bus, "g")
    (parent,) = await claim(bus, 1)
    fill(full)
    child = Child("g", Mint(id=bus.new_job_id(), payload=b"\x01", parent=parent.id))
    following = await bus.settle("f", ME, [done(parent, children=(child,))], count=1, lease_ms=LEASE_MS)
    for answer in (following.claim, await bus.claim("f", ME, 1, LEASE_MS)):
        assert (answer.jobs, answer.blocked, answer.retry_in_ms) == ((), "full", 1000)
    await claim_one(bus, "g")
    full.command("CONFIG", "SET", "maxmemory", "0")
    assert len(await claim(bus, 1)) == 1


async def test_a_node_starts_and_serves_on_a_full_server(bus: Bus, full: Server) -> None:
    from echofn.manifest import Policy

    fill(full)
    late = await Bus.open(full.address)
    await late.join("NOD2")  # type: ignore[arg-type]
    await late.configure("fresh", Policy(), 1)
    await late.beat(pump=True)
    await late.ring("f")
    claimed = await claim(late, 1, claimer="WRK2")
    await settle(late, [done(job) for job in claimed], claimer="WRK2")
    assert [job.id for job in claimed] == list(audit(full, "f").done) != []
    await late.close()


async def test_archives_give_way_until_jobs_can_be_minted_again() -> None:
    """Finished jobs fill the server (their retention allows more than there is): they go, the young ones stay."""
    async with running("--maxmemory-policy", "noeviction") as server:
        bus = await Bus.open(server.address)
        try:
            await bus.join("NOD1")  # type: ignore[arg-type]
            results = bytes(50_000)
            for _ in range(40):
                await mint(bus, count=10)
                await settle(bus, [done(job, result=results) for job in await claim(bus, 10)])
            server.clock.advance(11_000)
            kept = await mint(bus, count=20)
            await settle(bus, [done(job, result=results) for job in await claim(bus, 20)])
            (waits,) = await mint(bus)
            used = memory_of(server)
            server.command("CONFIG", "SET", "maxmemory", used - 1_000_000)
            one = Mint(id=bus.new_job_id(), payload=b"\x01")
            with pytest.raises(BusFull):
                await bus.mint("f", [one])
            async with asyncio.timeout(PATIENCE_S):
                while memory_of(server) > (used - 1_000_000) * 0.95:
                    await asyncio.sleep(0)
            assert await bus.mint("f", [one]) == [Minted(one.id)]
            books = audit(server, "f")
            assert set(kept) <= set(books.done)
            assert len(books.done) < 420
            assert {waits, one.id} == set(books.lanes["-"])
        finally:
            await bus.close()


async def test_a_job_whose_row_was_evicted_ends_in_the_morgue_and_is_not_run_with_nothing(
    bus: Bus, server: Server
) -> None:
    evicted, whole = await mint(bus, count=2)
    server.command("DEL", f"emq:{{f}}:job:{evicted}")
    assert [job.id for job in await claim(bus, 2)] == [whole]
    record = await bus.job(evicted)
    assert record is not None
    assert record.error is not None
    assert (record.state, record.error.cause) == ("dead", "missing")
    assert await counted(bus, "dead") == 1
    audit(server, "f")


async def test_relief_takes_no_more_rows_than_one_call_may_of_all_queues_together(bus: Bus, server: Server) -> None:
    for queue in ("f", "g"):
        await mint(bus, queue, count=3)
        await settle(bus, [done(job) for job in await claim(bus, 3, queue)], queue)
    server.clock.advance(11_000)
    for limit, left in ((2, 4), (3, 1), (3, 0)):
        await bus.run("relieve", limit=limit, cursor="0")
        assert sum(len(audit(server, queue).done) for queue in ("f", "g")) == left


@pytest.fixture
async def archives(bus: Bus, server: Server) -> list[str]:
    """Of 1500 queues eight have a job that ended: the keys of their archives."""
    names = [f"q{number}" for number in range(1500)]
    server.command("HSET", "emq:{~}:queues", *(name for name in names for _ in range(2)))
    for name in names[::200]:
        await mint(bus, name)
        await settle(bus, [done(await claim_one(bus, name))], name)
    server.clock.advance(11_000)
    return [f"emq:{{{name}}}:done" for name in names[::200]]


async def test_relief_looks_at_some_queues_a_call_and_comes_to_all(
    bus: Bus, server: Server, archives: list[str]
) -> None:
    costs, cursor, most, trimmed = list[int](), b"0", 2, 0
    while cursor != b"0" or trimmed == most or not costs:
        before, given = commands(server), cursor
        trimmed, _, _, cursor = await bus.run("relieve", limit=most, cursor=cursor)
        assert trimmed < most or cursor == given, "it comes back to where it had no more to give"
        costs.append(commands(server) - before)
    assert server.command("EXISTS", *archives) == 0
    assert max(costs) < 2000


async def test_who_meets_a_full_server_relieves_all_of_its_queues(bus: Bus, full: Server, archives: list[str]) -> None:
    fill(full)
    with pytest.raises(BusFull):
        await bus.mint("f", [Mint(id=bus.new_job_id(), payload=b"\x01")])
    async with asyncio.timeout(PATIENCE_S):
        while full.command("EXISTS", *archives):
            await asyncio.sleep(0.01)


async def test_a_settle_without_memory_takes_twice_what_it_adds_off_the_archive(bus: Bus, server: Server) -> None:
    """All of it counts as over its limits then."""
    await mint(bus, count=6)
    *jobs, last = await claim(bus, 6)
    await settle(bus, [done(job) for job in jobs])
    server.clock.advance(11_000)
    call = {"claimer": ME, "sequence": 99, "want": 0, "lease_ms": LEASE_MS, "holder": "h", "popped": 0}
    await bus.run("settle!", "f", begun=pack([]), verdicts=pack([verdict_row(done(last))]), **call)  # type: ignore[arg-type]
    assert len(audit(server, "f").done) == 5 + 1 - 2


async def test_the_last_seconds_may_fill_eight_megabytes_where_memory_is_out(bus: Bus, server: Server) -> None:
    await mint(bus, count=4)
    *jobs, last = await claim(bus, 4)
    for job in jobs:
        await settle(bus, [done(job, result=bytes(4_000_000))])
    call = {"claimer": ME, "sequence": 99, "want": 0, "lease_ms": LEASE_MS, "holder": "h", "popped": 0}
    await bus.run("settle!", "f", begun=pack([]), verdicts=pack([verdict_row(done(last))]), **call)  # type: ignore[arg-type]
    assert list(audit(server, "f").done) == [jobs[1].id, jobs[2].id, last.id]


async def test_results_that_pile_up_within_seconds_are_bounded_when_memory_is_out() -> None:
    """The last ten seconds are kept for mints that are sent again, but not without an end."""
    async with running("--maxmemory-policy", "noeviction") as server:
        bus = await Bus.open(server.address)
        try:
            await bus.join("NOD1")  # type: ignore[arg-type]
            await mint(bus, count=200)
            server.command("CONFIG", "SET", "maxmemory", memory_of(server) + 1_000_000)
            jobs = await claim(bus, 5)
            while jobs:
                jobs = await settle(bus, [done(job, result=bytes(200_000)) for job in jobs], count=5)
            limit = int(server.command("CONFIG", "GET", "maxmemory")[1])  # type: ignore[index]
            async with asyncio.timeout(PATIENCE_S):
                while memory_of(server) > limit + 9 * 1024 * 1024:  # FULL_BYTES, and the row that passed it
                    await asyncio.sleep(0.01)
            assert len(open_books(server, "f").done) < 60
            assert audit(server, "f").lanes == {}
        finally:
            await bus.close()


def memory_of(server: Server) -> int:
    told = server.command("INFO", "memory")
    assert isinstance(told, bytes)
    return int(told.split(b"used_memory:")[1].split()[0])


async def test_what_was_settled_without_memory_by_a_reply_that_came_late_is_not_settled_again(
    bus: Bus, full: Server
) -> None:
    first, second = await claim(bus, 2)
    fill(full)
    with replies_lost(bus):
        await bus.settle("f", ME, [done(first)], lease_ms=LEASE_MS)
    answer = await bus.settle("f", ME, [done(first), done(second)], lease_ms=LEASE_MS)
    assert answer.refused == ()
    assert (await counted(bus, "done"), await counted(bus, "refused")) == (2, 0)
