"""mint: one test per answer, and what a resend may do."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from audit import audit, open_books
from doing import claim_one, counted, done, mint, settle
from echod.bus import Bus, minting
from echod.bus.minting import CALL_BYTES, CALL_JOBS
from echod.bus.rows import mint_row, pack
from echod.errors import BusFull, Refused
from echod.model.ids import JobId, NodeId
from echod.model.job import Conflict, Full, Mint, Minted, Stale, Taken, Unique
from echofn.manifest import Policy
from server import Server, running


async def test_a_mint_makes_a_row_and_a_place(bus: Bus, server: Server) -> None:
    (id,) = await mint(bus, lane="acme")
    books = audit(server, "f")
    assert books.lanes == {"acme": [id]}
    job = await bus.job(id)
    assert job is not None
    assert (job.state, job.lane, job.payload, job.attempts) == ("pending", "acme", b"\x01", 0)


async def test_a_mint_sent_again_changes_nothing(bus: Bus, server: Server) -> None:
    one = Mint(id=bus.new_job_id(), payload=b"\x01")
    assert await bus.mint("f", [one]) == [Minted(one.id)]
    assert await bus.mint("f", [one]) == [Minted(one.id)]
    assert audit(server, "f").lanes == {"-": [one.id]}
    assert await counted(bus, "minted") == 1


async def test_another_callers_id_is_taken(bus: Bus, server: Server) -> None:
    other = await Bus.open(server.address)
    one = Mint(id=bus.new_job_id(), payload=b"\x01")
    await bus.mint("f", [one])
    taken = Mint(id=one.id, payload=b"\x02")
    assert await other.mint("f", [taken]) == [Taken(one.id)]
    await other.join(NodeId("NOD2"))
    made = await other.mint_outside("f", taken)  # of a caller who does not choose ids: under another
    assert made.id != one.id
    assert set(audit(server, "f").rows) == {one.id, made.id}
    await other.close()


MALFORMED: list[tuple[int, Any, str]] = [
    (1, 5, "payload"),
    (2, None, "lane"),
    (4, 3, "due"),
    (5, "soon", "due"),
    (5, -1, "due"),
    (6, "high", "priority"),
    (6, 1.5, "priority"),
    (6, math.nan, "priority"),
    (6, 10**9, "priority"),
    (7, ["k", "t", 0, ""], "unique key"),
    (7, ["k", "for ever", 0, ""], "unique key"),
    (7, True, "unique key"),
    (12, ["k", "t", "1h", ""], "unique key"),
    (8, 7, "parent"),
    (11, False, "token"),
]


@pytest.mark.parametrize(("index", "value", "told"), MALFORMED)
async def test_a_mint_that_is_malformed_is_refused_before_anything_is_written(
    bus: Bus, server: Server, monkeypatch: pytest.MonkeyPatch, index: int, value: Any, told: str
) -> None:
    as_it_is = minting.mint_row

    def spoilt(mint: Mint, token: str) -> list[Any]:
        row = as_it_is(mint, token)
        if mint.payload == b"\x02":
            row[index] = value
        return row

    monkeypatch.setattr(minting, "mint_row", spoilt)
    good, bad = (Mint(id=bus.new_job_id(), payload=payload, lane="acme") for payload in (b"\x01", b"\x02"))
    with pytest.raises(Refused, match=f"MALFORMED mint 2: expected another .*{told}"):
        await bus.mint("f", [good, bad])
    assert server.command("KEYS", "*{f}*") == []
    assert await bus.mint("f", [good]) == [Minted(good.id)]


async def test_a_childs_mint_is_the_same_whoever_sends_it(bus: Bus, server: Server) -> None:
    other = await Bus.open(server.address)
    child = Mint(id=bus.new_job_id(), payload=b"\x01", parent=bus.new_job_id())
    assert await bus.mint("f", [child]) == await other.mint("f", [child]) == [Minted(child.id)]
    assert audit(server, "f").lanes == {"-": [child.id]}
    anothers = Mint(id=child.id, payload=b"\x02", parent=bus.new_job_id())
    assert await other.mint("f", [anothers]) == [Taken(child.id)]
    await other.close()


async def test_in_is_priced_by_the_servers_clock(bus: Bus, server: Server) -> None:
    server.clock.advance(3_600_000)
    (id,) = await mint(bus, in_ms=5000)
    books = audit(server, "f")
    minted_ms = int(books.rows[id][b"m"])
    assert books.schedule == {id: minted_ms + 5000}
    job = await bus.job(id)
    assert job is not None
    assert (job.state, job.reason) == ("scheduled", "delay")


async def test_at_is_an_instant_and_one_that_has_come_goes_to_its_lane(bus: Bus, server: Server) -> None:
    now_ms = server.clock.now_ms()
    (later,) = await mint(bus, at_ms=now_ms + 60_000)
    (past,) = await mint(bus, at_ms=now_ms - 60_000)
    books = audit(server, "f")
    assert books.schedule == {later: now_ms + 60_000}
    assert books.lanes == {"-": [past]}
    job = await bus.job(past)
    assert job is not None
    assert job.due_ms == now_ms - 60_000


async def test_what_is_due_at_once_needs_no_pump(bus: Bus, server: Server) -> None:
    (id,) = await mint(bus, in_ms=0)
    assert audit(server, "f").lanes == {"-": [id]}


async def test_lower_priority_numbers_go_first_and_ties_go_in_mint_order(bus: Bus) -> None:
    (last,) = await mint(bus, priority=5)
    middle = await mint(bus, count=2)
    (first,) = await mint(bus, priority=-1)
    assert [(await claim_one(bus)).id for _ in range(4)] == [first, *middle, last]


async def test_a_unique_key_answers_its_owner_until_the_owner_is_done(bus: Bus, server: Server) -> None:
    unique = Unique("k")
    (owner,) = await mint(bus, unique=unique)
    again = Mint(id=bus.new_job_id(), payload=b"\x01", unique=unique)
    assert await bus.mint("f", [again]) == [Minted(owner, duplicate=True)]
    await settle(bus, [done(await claim_one(bus))])
    assert await bus.mint("f", [again]) == [Minted(again.id)]
    audit(server, "f")


async def test_a_unique_key_with_another_body_is_a_conflict(bus: Bus) -> None:
    (owner,) = await mint(bus, unique=Unique("k", 60_000, "a"))
    same = Mint(id=bus.new_job_id(), payload=b"\x01", unique=Unique("k", 60_000, "a"))
    other = Mint(id=bus.new_job_id(), payload=b"\x01", unique=Unique("k", 60_000, "b"))
    assert await bus.mint("f", [same, other]) == [Minted(owner, duplicate=True), Conflict(owner)]


async def test_until_started_frees_the_key_at_the_claim(bus: Bus) -> None:
    unique = Unique("k", "started")
    (owner,) = await mint(bus, unique=unique)
    one = Mint(id=bus.new_job_id(), payload=b"\x01", unique=unique)
    assert await bus.mint("f", [one]) == [Minted(owner, duplicate=True)]
    await claim_one(bus)
    assert await bus.mint("f", [one]) == [Minted(one.id)]


async def test_a_fixed_time_holds_the_key_whatever_becomes_of_the_job(bus: Bus, server: Server) -> None:
    unique = Unique("k", 60_000)
    (owner,) = await mint(bus, unique=unique)
    await settle(bus, [done(await claim_one(bus))])
    one = Mint(id=bus.new_job_id(), payload=b"\x01", unique=unique)
    assert await bus.mint("f", [one]) == [Minted(owner, duplicate=True)]
    server.clock.advance(60_001)
    assert await bus.mint("f", [one]) == [Minted(one.id)]


async def test_a_key_whose_owners_row_is_gone_blocks_nobody(bus: Bus, server: Server) -> None:
    (owner,) = await mint(bus, unique=Unique("k"))
    server.command("DEL", f"emq:{{f}}:job:{owner}")
    one = Mint(id=bus.new_job_id(), payload=b"\x01", unique=Unique("k"))
    assert await bus.mint("f", [one]) == [Minted(one.id)]


async def test_an_older_owner_does_not_free_the_key_of_a_newer_one(bus: Bus) -> None:
    (old,) = await mint(bus, unique=Unique("k", "started"))
    running_old = await claim_one(bus)
    (new,) = await mint(bus, unique=Unique("k", "started"))
    await settle(bus, [done(running_old)])
    one = Mint(id=bus.new_job_id(), payload=b"\x01", unique=Unique("k", "started"))
    assert old != new
    assert await bus.mint("f", [one]) == [Minted(new, duplicate=True)]


async def test_max_pending_refuses_mints_from_outside_only(bus: Bus, server: Server) -> None:
    await bus.configure("f", Policy(max_pending=2), 1)
    mints = [Mint(id=bus.new_job_id(), payload=b"\x01") for _ in range(3)]
    answers = await bus.mint("f", mints, outside=True)
    assert answers == [Minted(mints[0].id), Minted(mints[1].id), Full(2)]
    await mint(bus)
    assert len(audit(server, "f").rows) == 3


async def test_a_resend_long_after_is_stale_where_its_row_is_gone(bus: Bus, server: Server) -> None:
    one = Mint(id=bus.new_job_id(), payload=b"\x01")
    first_ms = server.clock.now_ms() - 11_000
    arguments = {"queue": "f", "outside": 0, "resend": 1, "first_ms": first_ms, "mints": pack([mint_row(one, "7")])}
    assert await bus.run_script(bus.scripts["mint"], "f", arguments) == [6]
    assert open_books(server, "f").rows == {}
    from echod.bus.minting import _answer

    assert _answer(one, 6) == Stale(one.id)


async def test_who_names_no_body_means_any(bus: Bus) -> None:
    (first,) = await mint(bus, unique=Unique("k", body="B"))
    one = Mint(id=bus.new_job_id(), payload=b"\x01", unique=Unique("k"))
    assert await bus.mint("f", [one]) == [Minted(first, duplicate=True)]


async def test_a_resend_is_known_by_its_key_although_its_row_is_gone(bus: Bus, server: Server) -> None:
    """And rows that were trimmed young long ago are nothing against a first arrival."""
    one = Mint(id=bus.new_job_id(), payload=b"\x01", unique=Unique("k", 3_600_000))
    two = Mint(id=bus.new_job_id(), payload=b"\x01")
    assert await bus.mint("f", [one]) == [Minted(one.id)]
    await settle(bus, [done(await claim_one(bus))])
    await bus.purge("f", [one.id], ["done"])
    again = {"queue": "f", "outside": 0, "resend": 1}
    now_ms = server.clock.now_ms()
    mints = pack([mint_row(one, "7"), mint_row(two, "7")])
    assert await bus.run("mint", "f", first_ms=now_ms, mints=mints, **again) == [1, 6]  # type: ignore[arg-type]
    server.clock.advance(11_000)
    assert await bus.run("mint", "f", first_ms=now_ms + 11_000, mints=mints, **again) == [1, 1]  # type: ignore[arg-type]
    assert list(audit(server, "f").rows) == [two.id]


async def test_a_resend_whose_row_may_have_been_trimmed_young_is_stale(bus: Bus, server: Server) -> None:
    one = Mint(id=bus.new_job_id(), payload=b"\x01")
    first_ms = server.clock.now_ms() - 1000
    arguments = {"queue": "f", "outside": 0, "resend": 1, "first_ms": first_ms, "mints": pack([mint_row(one, "7")])}
    server.command("HSET", "emq:{f}:meta", "cut", first_ms + 500)
    assert await bus.run_script(bus.scripts["mint"], "f", arguments) == [6]
    server.command("HDEL", "emq:{f}:meta", "cut")
    assert await bus.run_script(bus.scripts["mint"], "f", arguments) == [1]


@pytest.mark.parametrize(
    "name",
    ["🚀", "a{b}:c", "../x", "a b", "x" * 10_000, "ä", "a\u0308", "\ud800", "#/%?*\n", "~", "~" + "0" * 43, ":", "{}"],
    ids=lambda name: ascii(name[:12]),
)
async def test_any_name_is_kept_apart_and_shown_as_written(bus: Bus, server: Server, name: str) -> None:
    (id,) = await mint(bus, queue=name, lane=name)
    assert name in await bus.queues()
    job = await bus.job(id, queue=name)
    assert job is not None
    assert (job.lane, job.function) == (name, name)
    claimed = await claim_one(bus, queue=name)
    assert claimed.lane == name
    keys = server.command("KEYS", "*")
    assert isinstance(keys, list)
    assert all(key.count(b"{") == 1 and len(key) < 200 for key in keys)


async def test_apps_on_one_server_do_not_meet(server: Server) -> None:
    staging, production = await Bus.open(server.address, "staging"), await Bus.open(server.address, "production")
    await staging.join("NOD1")  # type: ignore[arg-type]
    await mint(staging)
    assert await production.queues() == []
    assert (await production.claim("f", "W", 1, 1000)).jobs == ()
    await staging.close()
    await production.close()


async def test_a_full_server_refuses_a_mint_and_still_lets_work_end(server: Server) -> None:
    async with running("--maxmemory-policy", "noeviction") as small:
        bus = await Bus.open(small.address)
        await bus.join("NOD1")  # type: ignore[arg-type]
        (id,) = await mint(bus)
        job = await claim_one(bus)
        small.command("CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(BusFull):
            await bus.mint("f", [Mint(id=bus.new_job_id(), payload=b"\x01")])
        answer = await bus.settle("f", "WRK00000000001", [done(job)], count=5)
        assert answer.refused == ()
        assert audit(small, "f").state_of(id) == "done"
        await bus.beat(pump=True)
        await bus.close()
        small.command("DEL", "emq:{~}:wire")
        late = await Bus.open(small.address)  # a node starts on a full server as well
        await late.join("NOD2")  # type: ignore[arg-type]
        await late.beat(pump=True)
        await late.close()


def test_many_mints_and_large_ones_go_in_calls_of_a_size() -> None:
    """One call of them all would keep the server from everybody else."""
    halves = [Mint(id=JobId(f"JOB{number}"), payload=bytes(CALL_BYTES // 2)) for number in range(5)]
    small = [Mint(id=JobId(f"JOB{number}"), payload=b"\xc0") for number in range(5, 5 + 2 * CALL_JOBS)]
    parts = list(minting._parts([*halves, *small]))
    assert [len(part) for part in parts] == [2, 2, CALL_JOBS, CALL_JOBS, 1]
    assert [mint for part in parts for mint in part] == [*halves, *small]


async def test_callers_of_one_turn_share_a_call(bus: Bus, server: Server) -> None:
    server.command("CONFIG", "RESETSTAT")
    mints = [Mint(id=bus.new_job_id(), payload=b"\x01") for _ in range(50)]
    answers = await asyncio.gather(*[bus.mint("f", [one]) for one in mints])
    assert answers == [[Minted(one.id)] for one in mints]
    stats = server.command("INFO", "commandstats")
    assert isinstance(stats, bytes)
    calls = [line for line in stats.decode().splitlines() if line.startswith("cmdstat_fcall:")]
    assert calls
    assert int(calls[0].split("calls=")[1].split(",")[0]) <= 2  # twice where the script was not loaded yet


async def test_who_gives_a_shared_call_up_takes_nobody_along(bus: Bus) -> None:
    mints = [Mint(id=bus.new_job_id(), payload=b"\x01") for _ in range(2)]
    gone, other = [asyncio.create_task(bus.mint("f", [one])) for one in mints]
    await asyncio.sleep(0)
    gone.cancel()
    assert await other == [Minted(mints[1].id)]
    assert gone.cancelled()


@pytest.mark.parametrize("lanes", [1, 100])
async def test_a_small_pending_job_costs_at_most_four_hundred_bytes(lanes: int) -> None:
    async with running(driven=False) as fresh:
        bus = await Bus.open(fresh.address)
        await bus.join("NOD1")  # type: ignore[arg-type]
        await mint(bus, count=lanes)
        before = int(str((await bus.server())["memory_bytes"]))
        for start in range(0, 20_000, 500):
            mints = [
                Mint(id=bus.new_job_id(), payload=bytes(32), lane=f"L{(start + index) % lanes}") for index in range(500)
            ]
            await bus.mint("f", mints)
        used = int(str((await bus.server())["memory_bytes"])) - before
        assert used / 20_000 <= 400
        await bus.close()


async def test_a_request_keeps_its_first_answer_for_as_long_as_its_key_holds(bus: Bus, server: Server) -> None:
    def one(key: str, body: str = "") -> Mint:
        unique = Unique("order-7", until="done")
        return Mint(id=bus.new_job_id(), payload=b"\x01", unique=unique, once=Unique(key, 60_000, body))

    first = one("k1", "body")
    assert await bus.mint("f", [first]) == [Minted(first.id)]
    assert await bus.mint("f", [one("k2")]) == [Minted(first.id, duplicate=True)]
    assert await bus.mint("f", [one("k1", "another")]) == [Conflict(first.id)]
    await settle(bus, [done(await claim_one(bus))])  # the order may come again
    assert await bus.mint("f", [one("k1", "body")]) == [Minted(first.id, duplicate=True)]
    assert await bus.mint("f", [one("k2")]) == [Minted(first.id, duplicate=True)]
    again = one("k3")
    assert await bus.mint("f", [again]) == [Minted(again.id)]
    server.clock.advance(60_001)
    await settle(bus, [done(await claim_one(bus))])
    later = one("k1", "another")
    assert await bus.mint("f", [later]) == [Minted(later.id)]
    audit(server, "f")
