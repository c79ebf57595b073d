"""pick, drain, move, purge, redrive: what an operator does to many jobs at once, reply by reply."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest

from audit import audit, open_books
from doing import LEASE_MS, bury, claim, claim_one, counted, dead, done, hold, mint, retry, run, settle
from echod.bus import Bus
from echod.bus.answers import LogLine
from echod.bus.bulk import Filter, Picked
from echod.bus.rows import mint_row, pack
from echod.errors import BusFull
from echod.model.ids import JobId, VersionId
from echod.model.job import Dead, Error, Mint, Minted, State, Unique
from echofn.manifest import Policy
from server import Server

WAITING = Filter(("pending", "scheduled"))
DEAD = Filter(("dead",))
DAY_MS = 86_400_000


async def picked(bus: Bus, wanted: Filter, **how: Any) -> list[JobId]:
    """All that is meant, call by call."""
    found: list[JobId] = []
    page = await bus.pick("f", wanted, **how)
    found += page.ids
    while page.cursor:
        page = await bus.pick("f", wanted, **{**how, "upto": page.upto, "cursor": page.cursor})
        found += page.ids
    return found


async def died(bus: Bus, *errors: Error) -> list[JobId]:
    """A dead job for each error, all at one instant."""
    ids = await mint(bus, count=len(errors))
    jobs = await claim(bus, len(errors))
    await settle(bus, [Dead(hold(job), run(job), error) for job, error in zip(jobs, errors, strict=True)])
    return ids


# --- pick ---


async def test_jobs_are_picked_by_state_and_lane_in_the_order_of_their_place(bus: Bus) -> None:
    (buried,) = await died(bus, Error("E", "m"))
    later = await mint(bus, in_ms=5000)
    first, second = await mint(bus, count=2, lane="ü", priority=1)
    (urgent,) = await mint(bus, lane="ü", priority=-1)
    (other,) = await mint(bus, lane="b")
    assert await picked(bus, WAITING) == [*later, first, second, urgent, other], "by mint, over all lanes"
    assert await picked(bus, Filter(("pending",), lane="ü")) == [urgent, first, second], "as they would be served"
    assert await picked(bus, Filter(("pending", "scheduled"), lane="-")) == later
    assert await picked(bus, DEAD) == [buried]
    assert await picked(bus, Filter(("done", "cancelled"))) == []


@pytest.mark.parametrize("limit", [1, 2, 7])
async def test_picking_goes_on_at_its_cursor_whatever_was_taken_meanwhile(bus: Bus, limit: int) -> None:
    """Five at one instant and of one priority: the id decides, and the entry that the cursor names may be gone."""
    ids = await died(bus, *[Error("E", "m")] * 5)
    left, cursor = list[JobId](), ""
    while True:
        page = await bus.pick("f", DEAD, cursor=cursor, limit=limit)
        left += page.ids
        await bus.redrive("f", page.ids)
        if not (cursor := page.cursor):
            break
    assert left == ids


async def test_a_long_place_is_looked_through_in_bounded_steps(bus: Bus) -> None:
    for _ in range(12):
        await mint(bus, count=200)
    (wanted,) = await mint(bus, lane="a")
    page = await bus.pick("f", Filter(("pending", "scheduled"), lane="a"))
    assert (page.ids, bool(page.cursor)) == ((), True)
    page = await bus.pick("f", Filter(("pending", "scheduled"), lane="a"), cursor=page.cursor)
    assert page == Picked(page.now_ms, page.upto, (wanted,), "")


async def test_the_dead_are_picked_by_cause_text_and_age(bus: Bus, server: Server) -> None:
    old, wall = await died(
        bus, Error("Timeout", "took 30 s", cause="timeout"), Error("OSError", "no", "", "wall:network")
    )
    server.clock.advance(3_600_000)
    (new,) = await died(bus, Error("ValueError", "Straße %d. [x", "File shop.py", "error"))
    table: Sequence[tuple[dict[str, Any], list[JobId]]] = [
        ({}, [old, wall, new]),
        ({"cause": "timeout"}, [old]),
        ({"cause": "wall"}, [wall]),
        ({"cause": "wall:network"}, [wall]),
        ({"cause": "wal"}, []),
        ({"match": "VALUEERROR: Straße %d. ["}, [new]),
        ({"match": "shop.py"}, [new]),
        ({"match": ".*"}, []),
        ({"older_ms": 3_600_000}, [old, wall]),
        ({"newer_ms": 3_500_000}, [new]),
        ({"older_ms": 1000, "cause": "timeout", "match": "30 s"}, [old]),
    ]
    for asked, right in table:
        assert await picked(bus, Filter(("dead",), **asked)) == right, asked


async def listed(bus: Bus, wanted: Filter) -> list[JobId]:
    return [job.id for job in (await bus.jobs("f", wanted))[0]]


@pytest.mark.parametrize("find", [picked, listed])
async def test_age_counts_from_the_end_or_from_when_a_job_began_to_wait(
    bus: Bus, server: Server, find: Callable[[Bus, Filter], Awaitable[list[JobId]]]
) -> None:
    (again, dying) = await mint(bus, count=2)
    server.clock.advance(3_600_000)
    first, second = await claim(bus, 2)
    await settle(bus, [retry(first, 0), dead(second)])
    half_an_hour = 1_800_000
    for state, id in (("pending", again), ("dead", dying)):
        assert await find(bus, Filter((state,), older_ms=half_an_hour)) == []  # type: ignore[arg-type]
        assert await find(bus, Filter((state,), newer_ms=half_an_hour)) == [id]  # type: ignore[arg-type]


@pytest.mark.parametrize("find", [picked, listed])
async def test_an_error_that_a_job_got_over_is_none_of_it(
    bus: Bus, find: Callable[[Bus, Filter], Awaitable[list[JobId]]]
) -> None:
    await mint(bus)
    await settle(bus, [retry(await claim_one(bus), 0)])
    await settle(bus, [done(await claim_one(bus))])
    assert await find(bus, Filter(("done",), cause="error")) == []
    assert len(await find(bus, Filter(("done",)))) == 1


async def test_pages_of_jobs_that_ended_at_one_instant_have_each_once(bus: Bus, server: Server) -> None:
    with server.clock.stopped():
        ids = await died(bus, *[Error("E", "m")] * 5)
    assert await picked(bus, DEAD, limit=2) == ids


async def test_an_error_without_a_cause_is_of_the_cause_error(bus: Bus, server: Server) -> None:
    id = await bury(bus)
    server.command("HSET", f"emq:{{f}}:job:{id}", "er", pack({"type": "E", "message": "m"}))
    assert await picked(bus, Filter(("dead",), cause="error")) == [id]


async def test_what_came_after_a_sweep_began_is_not_of_it(bus: Bus, server: Server) -> None:
    """A job that fails again at once would be redriven for ever; a queue that is fed would be drained for ever."""
    (first,) = await died(bus, Error("E", "m"))
    (waiting,) = await mint(bus)
    page, before = await bus.pick("f", DEAD), await bus.pick("f", WAITING)
    server.clock.advance(1000)
    await bus.redrive("f", [first])
    for job in await claim(bus, 2):
        if job.id == first:
            await settle(bus, [dead(job)])
    await mint(bus)
    assert await picked(bus, DEAD, upto=page.upto) == []
    assert await picked(bus, DEAD) == [first]
    all_states = Filter(("pending", "scheduled", "active"))
    assert await picked(bus, all_states, upto=before.upto) == [waiting]
    assert len(await picked(bus, all_states)) == 2


async def test_a_clock_that_went_back_hides_nothing_from_a_sweep(bus: Bus, server: Server) -> None:
    (buried,) = await died(bus, Error("E", "m"))
    (waiting,) = await mint(bus)
    server.clock.advance(-60_000)
    assert await picked(bus, DEAD) == [buried]
    assert await picked(bus, WAITING) == [waiting]


# --- drain ---


async def test_a_drain_cancels_what_waits_and_leaves_what_runs(bus: Bus, server: Server) -> None:
    buried = await bury(bus)
    running, one, other = await mint(bus, count=3, lane="a")
    (scheduled,) = await mint(bus, in_ms=5000)
    job = await claim_one(bus)
    assert job.id == running
    asked = [running, one, other, scheduled, buried, bus.new_job_id()]
    assert await bus.drain("f", asked) == (one, other, scheduled)
    books = audit(server, "f")
    assert (books.lanes, books.schedule, list(books.active)) == ({}, {}, [running])
    assert await counted(bus, "cancelled") == 3
    await settle(bus, [done(job)])
    assert audit(server, "f").state_of(running) == "done"


async def test_a_drain_sent_again_answers_the_same_and_counts_once(bus: Bus, server: Server) -> None:
    ids = await mint(bus, count=3)
    first = await bus.run("drain", "f", call="t", ids=pack(ids))
    assert await bus.run("drain", "f", call="t", ids=pack(ids)) == first == [id.encode() for id in ids]
    assert await bus.drain("f", ids) == (), "another drain did not cancel them"
    assert await counted(bus, "cancelled") == 3
    audit(server, "f")


async def test_a_drain_takes_the_lanes_with_it_paused_ones_too(bus: Bus, server: Server) -> None:
    ids = [*await mint(bus, lane="held"), *await mint(bus, lane="open")]
    await bus.pause("f", lane="held")
    assert set(await bus.drain("f", ids)) == set(ids)
    books = audit(server, "f")
    assert (books.ring, books.later, books.held) == ({}, {}, set())


async def test_a_drained_queue_of_many_is_trimmed_to_its_retention(bus: Bus, server: Server) -> None:
    """Settles trim what they add, twice: nobody settles here. A pump's ticks go on until it is done."""
    server.command("HSET", "emq:{f}:meta", "keep_count", 10)
    for _ in range(4):
        await bus.drain("f", await mint(bus, count=150))
    assert len(audit(server, "f").done) == 600, "what ended a moment ago stays"
    server.clock.advance(10_001)
    answer = await bus.beat(pump=True)
    assert answer.tick.more
    ticks = 0
    while (await bus.tick("f")).more:
        ticks += 1
    assert ticks == 4
    assert len(audit(server, "f").done) == 10


# --- move ---


async def test_moved_jobs_stand_by_priority_and_mint_order(bus: Bus, server: Server) -> None:
    (a1,) = await mint(bus, lane="a")
    (b1,) = await mint(bus, lane="b")
    (a2,) = await mint(bus, lane="a")
    (b2,) = await mint(bus, lane="b", priority=-1)
    assert await bus.move("f", [a1, a2], "b") == (a1, a2)
    assert audit(server, "f").lanes == {"b": [b2, a1, b1, a2]}
    assert [job.lane for job in await claim(bus, 4)] == ["b"] * 4


async def test_a_job_keeps_its_priority_and_a_lane_its_turn_where_it_is_moved_to_its_own(
    bus: Bus, server: Server
) -> None:
    await mint(bus, lane="b", count=2)
    (urgent,) = await mint(bus, lane="a", priority=-5)
    await bus.move("f", [urgent], "b")
    before = audit(server, "f")
    assert before.lanes["b"][0] == urgent
    await claim(bus, 1)
    (alone,) = await mint(bus, lane="c")
    before = audit(server, "f")
    await claim(bus, 1)
    assert await bus.move("f", [alone], "c") == (alone,)
    assert audit(server, "f").ring["c"] == before.ring["c"]


async def test_a_move_leaves_what_runs_and_what_ended(bus: Bus, server: Server) -> None:
    buried = await bury(bus)
    running, waiting = await mint(bus, count=2, lane="a")
    (scheduled,) = await mint(bus, lane="a", in_ms=1000)
    await claim_one(bus)
    assert await bus.move("f", [buried, running, waiting, scheduled, bus.new_job_id()], "Ü b") == (waiting, scheduled)
    lanes = [record.lane for id in (buried, running, waiting, scheduled) if (record := await bus.job(id))]
    assert lanes == ["-", "a", "Ü b", "Ü b"]
    server.clock.advance(1500)
    await bus.tick("f")
    assert len(audit(server, "f").lanes) == 1, "the scheduled one came to its new lane"


async def test_a_move_sent_again_answers_the_same(bus: Bus, server: Server) -> None:
    ids = await mint(bus, count=2, lane="ü")
    assert await bus.move("f", ids, "-") == await bus.move("f", ids, "-") == tuple(ids)
    assert audit(server, "f").lanes == {"-": ids}
    record = await bus.job(ids[0])
    assert record is not None
    assert record.lane == "-"


async def test_a_move_sent_again_leaves_what_another_moved_since(bus: Bus, server: Server) -> None:
    ids = await mint(bus, count=2, lane="a")
    sent = {"lane": "b", "lane_name": "", "ids": pack(ids), "call": "t"}
    first = await bus.run("move", "f", **sent)
    await bus.move("f", ids[:1], "c")
    assert await bus.run("move", "f", **sent) == first == [id.encode() for id in ids]
    assert audit(server, "f").lanes == {"c": ids[:1], "b": ids[1:]}


@pytest.mark.parametrize("paused", [True, False])
async def test_a_lane_that_is_moved_to_keeps_its_own_settings(bus: Bus, server: Server, paused: bool) -> None:
    ids = await mint(bus, lane="a")
    await bus.set("f", {"weight": 7}, lane="b")
    if paused:
        await bus.pause("f", lane="b")
    await bus.move("f", ids, "b")
    books = audit(server, "f")
    assert (books.held, list(books.ring)) == (({"b"}, []) if paused else (set(), ["b"]))
    assert len(await claim(bus)) == (0 if paused else 1)


async def test_a_lane_that_gathers_counts_from_the_oldest_that_came(bus: Bus, server: Server) -> None:
    await bus.configure("f", Policy(batch=5, batch_wait_ms=10_000), 1)
    old = await mint(bus, lane="a")
    server.clock.advance(4000)
    await mint(bus, lane="b")
    until_ms = audit(server, "f").later["a"]
    await bus.move("f", old, "b")
    assert audit(server, "f").later == {"b": until_ms}


# --- purge ---


async def ended(bus: Bus) -> dict[State, JobId]:
    """One of each end, and one that waits."""
    one, other = await mint(bus, count=2)
    await settle(bus, [done(await claim_one(bus)), dead(await claim_one(bus))])
    (gone, waits) = await mint(bus, count=2)
    await bus.cancel("f", gone)
    return {"done": one, "dead": other, "cancelled": gone, "pending": waits}


@pytest.mark.parametrize("state", ["done", "dead", "cancelled"])
async def test_a_purge_deletes_rows_of_its_states_with_their_logs(bus: Bus, server: Server, state: State) -> None:
    ids = await ended(bus)
    for id in ids.values():
        await bus.log("f", id, [LogLine(1, 1, "stdout", "info", "", "x")])
    assert await bus.purge("f", list(ids.values()), [state]) == (ids[state],)
    assert set(audit(server, "f").rows) == set(ids.values()) - {ids[state]}
    assert await bus.logs("f", ids[state]) == []
    assert len(await bus.logs("f", ids["pending"])) == 1
    assert server.command("ZSCORE", "emq:{f}:logged", ids[state]) is None


async def test_a_purge_takes_the_log_of_a_job_whose_row_was_gone(bus: Bus, server: Server) -> None:
    """The row that buries it does not know that there is one."""
    (id,) = await mint(bus)
    await bus.log("f", id, [LogLine(1, 1, "stdout", "info", "", "x")])
    server.command("DEL", f"emq:{{f}}:job:{id}")
    assert await claim(bus) == []
    assert open_books(server, "f").logged == {id}
    assert await bus.purge("f", [id], ["dead"]) == (id,)
    books = audit(server, "f")
    assert (books.rows, books.logs, books.logged) == ({}, {}, set())


async def test_a_purge_sent_again_answers_the_same(bus: Bus, server: Server) -> None:
    ids = await ended(bus)
    asked = list(ids.values())
    first = await bus.purge("f", asked, ["done", "dead", "cancelled"])
    assert await bus.purge("f", asked, ["done", "dead", "cancelled"]) == first
    assert (await bus.totals(["f"]))["f"]["purged"] == 3
    assert "ab" not in audit(server, "f").meta


async def test_a_mint_whose_job_was_purged_before_its_reply_came_is_not_minted_again(bus: Bus) -> None:
    sent_ms = bus.clock.now_ms()
    one = Mint(id=bus.new_job_id(), payload=b"\x01")
    again = {"queue": "f", "outside": 0, "resend": 1, "first_ms": sent_ms, "mints": pack([mint_row(one, bus.token)])}
    assert await bus.run("mint", "f", **{**again, "resend": 0}) == [1]
    await bus.cancel("f", one.id)
    assert await bus.purge("f", [one.id], ["cancelled"]) == (one.id,)
    assert await bus.run("mint", "f", **again) == [6]


async def test_a_child_that_ended_before_the_clock_went_back_is_no_younger_than_the_step(
    bus: Bus, server: Server
) -> None:
    (child,) = await mint(bus, parent=bus.new_job_id())
    await bus.cancel("f", child)
    server.clock.advance(-3_600_000)
    await bus.tick("f")
    server.clock.advance(60_000)
    assert await bus.purge("f", [child], ["cancelled"]) == (child,)


async def test_a_young_child_stays_for_the_sweep_that_may_mint_it_again(bus: Bus, server: Server) -> None:
    (child,) = await mint(bus, parent=bus.new_job_id())
    await bus.cancel("f", child)
    assert await bus.purge("f", [child], ["cancelled"]) == ()
    server.clock.advance(30_001)
    assert await bus.purge("f", [child], ["cancelled"]) == (child,)


# --- redrive ---


async def test_a_redriven_job_is_pending_with_its_id_and_history(bus: Bus, server: Server) -> None:
    id = await bury(bus)
    assert (await bus.redrive("f", [id, bus.new_job_id()])).ids == (id,)
    record = await bus.job(id)
    assert record is not None
    assert (record.state, record.failures, record.attempts) == ("pending", 0, 1)
    assert [(entry.attempt, entry.outcome) for entry in record.history] == [(1, "dead")]
    audit(server, "f")
    await settle(bus, [done(await claim_one(bus))])
    record = await bus.job(id)
    assert record is not None
    assert [(entry.attempt, entry.outcome) for entry in record.history] == [(1, "dead"), (2, "done")]
    assert await counted(bus, "done") == 1


async def test_a_redriven_job_has_nothing_of_its_last_run_but_the_history(bus: Bus, server: Server) -> None:
    (id,) = await mint(bus, at_ms=1, version=VersionId("DEP00000000001"))
    await claim_one(bus)
    server.clock.advance(LEASE_MS + 1)
    await bus.tick("f")  # lost before it began
    job = await claim_one(bus)
    assert await bus.progress("f", hold(job), 0.9, "nearly")
    assert await bus.cancel("f", id) == "cancelling"
    await settle(bus, [dead(job)])
    await bus.redrive("f", [id])
    assert set(audit(server, "f").rows[id]) == {b"p", b"m", b"t", b"w", b"a", b"h", b"y", b"er"}


@pytest.mark.parametrize("cause", ["error", "wall:network"])
async def test_a_redrive_looks_at_no_error_and_keeps_its_cause(bus: Bus, server: Server, cause: str) -> None:
    (id,) = await mint(bus)
    await settle(bus, [dead(await claim_one(bus), cause)])
    error = audit(server, "f").rows[id][b"er"]
    server.command("HSET", f"emq:{{f}}:job:{id}", "er", b"\xc1")  # to read it would be an error
    assert (await bus.redrive("f", [id])).ids == (id,)
    server.command("HSET", f"emq:{{f}}:job:{id}", "er", error)
    assert set(audit(server, "f").rows[id]) == {b"p", b"m", b"t", b"w", b"a", b"h", b"y", b"er"}
    record = await bus.job(id)
    assert record is not None
    assert [(entry.outcome, entry.cause) for entry in record.history] == [("dead", cause)]


async def test_a_redrive_sent_again_answers_the_same(bus: Bus, server: Server) -> None:
    id = await bury(bus)
    for _ in range(2):
        assert await bus.run("redrive", "f", call="t", jobs=pack([[id, 0]])) == [[id.encode()], []]
    assert audit(server, "f").lanes == {"-": [id]}
    assert (await bus.redrive("f", [id])).ids == ()


async def test_a_redrive_sent_again_leaves_what_has_died_again(bus: Bus, server: Server) -> None:
    id = await bury(bus)
    first = await bus.run("redrive", "f", call="t", jobs=pack([[id, 0]]))
    await settle(bus, [dead(await claim_one(bus))])
    assert await bus.run("redrive", "f", call="t", jobs=pack([[id, 0]])) == first
    assert audit(server, "f").state_of(id) == "dead"
    assert open_books(server, "f").totals["redriven"] == 1


async def test_a_redriven_job_runs_on_the_active_version(bus: Bus) -> None:
    await mint(bus, version=VersionId("DEP00000000001"))
    job = await claim_one(bus)
    assert job.version == "DEP00000000001"
    await settle(bus, [dead(job)])
    await bus.redrive("f", [job.id])
    assert (await claim_one(bus)).version is None


async def test_redriven_jobs_are_spread_over_instants_of_the_servers_clock(bus: Bus, server: Server) -> None:
    ids = await died(bus, *[Error("E", "m")] * 3)
    start_ms = (await bus.pick("f", DEAD)).now_ms
    due = [start_ms, start_ms + 5000, start_ms + 10_000]
    assert (await bus.redrive("f", ids, due_ms=due)).ids == tuple(ids)
    books = audit(server, "f")
    assert books.lanes == {"-": [ids[0]]}, "the first is due already"
    assert books.schedule == {ids[1]: due[1], ids[2]: due[2]}
    record = await bus.job(ids[1])
    assert record is not None
    assert (record.state, record.reason, record.due_ms, record.failures) == ("scheduled", "delay", due[1], 0)
    server.clock.advance(5100)
    await bus.tick("f")
    assert audit(server, "f").lanes == {"-": ids[:2]}


async def test_a_redriven_job_takes_its_unique_key_back_where_it_is_free(bus: Bus) -> None:
    (first,) = await mint(bus, unique=Unique("k", body="B"))
    await settle(bus, [dead(await claim_one(bus))])
    await bus.redrive("f", [first])
    one = Mint(id=bus.new_job_id(), payload=b"\x01", unique=Unique("k", body="B"))
    assert await bus.mint("f", [one]) == [Minted(first, duplicate=True)], "the body it was minted with is known still"


async def test_a_redrive_is_refused_while_another_owns_the_key_and_names_it(bus: Bus, server: Server) -> None:
    (first,) = await mint(bus, unique=Unique("k"))
    await settle(bus, [dead(await claim_one(bus))])
    (owner,) = await mint(bus, unique=Unique("k"))
    for _ in range(2):
        answer = await bus.redrive("f", [first])
        assert (answer.ids, answer.refused) == ((), ((first, owner),))
    assert audit(server, "f").state_of(first) == "dead"
    await settle(bus, [done(await claim_one(bus))])
    assert (await bus.redrive("f", [first])).ids == (first,)


async def test_of_two_dead_jobs_with_one_key_the_first_is_redriven(bus: Bus) -> None:
    ids = list[JobId]()
    for _ in range(2):
        ids += await mint(bus, unique=Unique("k"))
        await settle(bus, [dead(await claim_one(bus))])
    answer = await bus.redrive("f", ids)
    assert (answer.ids, answer.refused) == ((ids[0],), ((ids[1], ids[0]),))


# --- when memory is out ---


@pytest.fixture
def full(server: Server) -> Iterator[Callable[[], object]]:
    """Take the server's memory away; it has it back afterwards."""
    yield lambda: server.command("CONFIG", "SET", "maxmemory", "1")
    server.command("CONFIG", "SET", "maxmemory", "0")


async def test_what_frees_memory_runs_when_there_is_none_and_the_rest_is_refused(
    bus: Bus, full: Callable[[], object]
) -> None:
    buried = await bury(bus)
    waiting, moving = await mint(bus, count=2)
    full()
    assert await picked(bus, WAITING) == [waiting, moving]
    assert await bus.drain("f", [waiting]) == (waiting,)
    with pytest.raises(BusFull):
        await bus.move("f", [moving], "b")
    with pytest.raises(BusFull):
        await bus.redrive("f", [buried])
    assert await bus.purge("f", [buried, waiting], ["dead", "cancelled"]) == (buried, waiting)


@pytest.mark.parametrize("match", ["the last", "nothing of the kind"])
async def test_long_errors_are_read_some_at_a_time(bus: Bus, server: Server, match: str) -> None:
    """One call that searches sixty megabytes of tracebacks would stop the server for seconds."""
    ids = await died(bus, *[Error("ValueError", "no", "x" * 50_000) for _ in range(20)], Error("E", "the last", ""))
    page = await bus.pick("f", Filter(("dead",), match=match))
    assert (page.ids, page.cursor != "") == ((), True)
    assert await picked(bus, Filter(("dead",), match=match)) == (ids[-1:] if match == "the last" else [])
    listed, cursor = await bus.jobs("f", limit=100)
    assert len(listed) < 10
    found = list(listed)
    while cursor:
        listed, cursor = await bus.jobs("f", limit=100, cursor=cursor)
        found += listed
    assert [job.id for job in found] == sorted(ids, reverse=True)


async def test_a_clock_that_went_back_past_a_purge_keeps_no_mint_from_being_sent_again(
    bus: Bus, server: Server
) -> None:
    (gone,) = await mint(bus)
    await bus.cancel("f", gone)
    assert await bus.purge("f", [gone], ["cancelled"]) == (gone,)
    server.clock.advance(-86_400_000)
    one = Mint(id=bus.new_job_id(), payload=b"\x01")
    mints, first_ms = pack([mint_row(one, bus.token)]), server.clock.now_ms()
    assert await bus.run("mint", "f", queue="f", outside=0, resend=1, first_ms=first_ms, mints=mints) == [1]


@pytest.mark.parametrize("bury_it", [True, False])
async def test_a_purge_of_a_job_whose_row_was_evicted_leaves_nothing_of_it(
    bus: Bus, server: Server, bury_it: bool
) -> None:
    (id,) = await mint(bus)
    (job,) = await claim(bus)
    await bus.log("f", id, [LogLine(1, 1, "stdout", "info", "", "x")])
    await settle(bus, [dead(job) if bury_it else done(job)])
    server.command("DEL", f"emq:{{f}}:job:{id}")
    assert await bus.purge("f", [id], ["dead", "done"]) == (id,)
    books = open_books(server, "f")
    assert [*books.dead, *books.done, *books.logs, *books.logged, *books.index] == []


@pytest.mark.parametrize("ahead_ms", [500, 3_600_000])
async def test_a_purged_job_is_not_minted_again_by_a_host_whose_estimate_is_ahead(
    bus: Bus, server: Server, ahead_ms: int
) -> None:
    """Its last word from the server was long on its way, or came before the server's clock went back."""
    one = Mint(id=bus.new_job_id(), payload=b"\x01")
    first_ms = server.clock.now_ms() + ahead_ms
    again = {"queue": "f", "outside": 0, "resend": 1, "first_ms": first_ms, "mints": pack([mint_row(one, bus.token)])}
    assert await bus.run("mint", "f", **{**again, "resend": 0}) == [1]
    await bus.cancel("f", one.id)
    assert await bus.purge("f", [one.id], ["cancelled"]) == (one.id,)
    assert await bus.run("mint", "f", **again) == [6]
    other = Mint(id=bus.new_job_id(), payload=b"\x01")
    first = {**again, "mints": pack([mint_row(other, bus.token)])}
    assert await bus.run("mint", "f", **first) == [6], "nor can this one be known"
    server.clock.advance(10_001)
    now_ms = server.clock.now_ms()
    assert await bus.run("mint", "f", **{**first, "first_ms": now_ms}) == [1], (
        "which what was purged before bears not on"
    )
