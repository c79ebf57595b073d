"""cancel, logs, lists, stats, versions: what an operator does and sees."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from audit import audit
from doing import bury, claim, claim_one, counted, dead, done, hold, mint, settle
from echod.bus import Bus, reading
from echod.bus.answers import LogLine
from echod.bus.bulk import Filter
from echod.bus.clock import StepWatch
from echod.bus.rows import blob, pack
from echod.errors import QueueFull, Refused
from echod.model.ids import JobId, NodeId, VersionId
from echod.model.job import Mint
from echofn.manifest import Policy
from server import PATIENCE_S, Server


async def test_a_pending_job_is_cancelled_at_once(bus: Bus, server: Server) -> None:
    one, other = await mint(bus, count=2, lane="a")
    assert await bus.cancel("f", one) == "cancelled"
    assert await bus.cancel("f", one) == "cancelled"
    books = audit(server, "f")
    assert (books.state_of(one), books.lanes) == ("cancelled", {"a": [other]})
    assert await counted(bus, "cancelled") == 1


async def test_the_last_job_of_a_lane_takes_the_lane_with_it(bus: Bus, server: Server) -> None:
    (one,) = await mint(bus, lane="a")
    await bus.cancel("f", one)
    assert audit(server, "f").ring == {}


async def test_a_scheduled_job_is_cancelled_at_once(bus: Bus, server: Server) -> None:
    (one,) = await mint(bus, in_ms=5000)
    assert await bus.cancel("f", one) == "cancelled"
    assert audit(server, "f").schedule == {}


async def test_a_running_job_is_asked_to_stop_and_all_hear_of_it(bus: Bus) -> None:
    heard: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    bus.on("cancel", lambda queue, id: heard.put_nowait((queue, id)))
    (one,) = await mint(bus)
    job = await claim_one(bus)
    assert await bus.cancel("f", one) == "cancelling"
    assert await asyncio.wait_for(heard.get(), PATIENCE_S) == ("f", one)
    assert (await bus.job(one)).cancelling  # type: ignore[union-attr]
    assert (await bus.extend("f", [hold(job)])).cancelling == (one,)


async def test_what_ended_or_never_was_cannot_be_cancelled(bus: Bus) -> None:
    (one,) = await mint(bus)
    await settle(bus, [done(await claim_one(bus))])
    assert await bus.cancel("f", one) == "ended"
    assert await bus.cancel("f", await bury(bus)) == "ended"
    assert await bus.cancel("f", bus.new_job_id()) == "unknown"


async def test_a_log_comes_back_line_by_line(bus: Bus) -> None:
    (id,) = await mint(bus)
    lines = [LogLine(1_000_000 + n, 1, "stdout", "info", "", f"line {n} ü\n") for n in range(5)]
    assert await bus.log("f", id, lines) == 5
    entries = await bus.logs("f", id)
    assert [line for _, line in entries] == lines
    assert [line for _, line in await bus.logs("f", id, after=entries[2][0])] == lines[3:]


async def test_a_log_is_bounded_per_run_and_keeps_the_first(bus: Bus) -> None:
    (id,) = await mint(bus)
    big = "x" * 100_000
    kept = 0
    for number in range(15):
        kept += await bus.log("f", id, [LogLine(number, 1, "stdout", "info", "", big)])
    assert kept == 10
    assert await bus.log("f", id, [LogLine(0, 1, "stdout", "info", "", "small")]) == 0
    assert await bus.log("f", id, [LogLine(0, 2, "stdout", "info", "", "the next run")]) == 1


async def test_a_log_is_bounded_per_job_and_a_line_may_fill_what_is_left(bus: Bus) -> None:
    id, other = await mint(bus, count=2)

    async def log(attempt: int, size: int, id: str = id) -> int:
        lines = pack([[attempt, blob(bytes(size - 16))]])  # what a line itself costs
        return int(await bus.run("log", "f", id=id, token=f"{attempt} {size}", lines=lines))

    assert await log(1, 1024 * 1024, other) == 1
    for attempt in range(1, 9):
        assert await log(attempt, 1024 * 1024 - 17) == 1
        assert await log(attempt, 18) == 0
        assert await log(attempt, 17) == 0, "no line after one that was left out"
    assert await log(9, 8 * 17 + 1) == 0
    assert await log(10, 8 * 17) == 1
    assert await log(11, 17) == 0


async def test_of_who_wrote_last_a_thousand_are_known(bus: Bus, server: Server) -> None:
    server.command("ZADD", "emq:{f}:logged", *(each for n in range(1000) for each in (n, f"JOB{n}")))
    (id,) = await mint(bus)
    await bus.log("f", id, [LogLine(1, 1, "stdout", "info", "", "x")])
    assert server.command("ZCARD", "emq:{f}:logged") == 1000
    assert server.command("ZRANGE", "emq:{f}:logged", 0, 0) == [b"JOB1"]


async def test_a_log_sent_again_is_not_doubled_and_a_gone_job_gets_none(bus: Bus) -> None:
    (id,) = await mint(bus)
    packed = pack([[1, blob(pack(LogLine(1, 1, "stdout", "info", "", "once")))]])
    assert await bus.run("log", "f", id=id, token="t", lines=packed) == 1
    assert await bus.run("log", "f", id=id, token="t", lines=packed) == 0
    assert len(await bus.logs("f", id)) == 1
    assert await bus.run("log", "f", id=bus.new_job_id(), token="t", lines=packed) == 0


async def test_output_that_comes_after_the_settle_counts_for_the_archive(bus: Bus, server: Server) -> None:
    """It mostly does: runs are settled within milliseconds, output is written in batches."""
    (id,) = await mint(bus)
    await settle(bus, [done(await claim_one(bus))])
    before = int(audit(server, "f").meta["ab"])
    await bus.log("f", id, [LogLine(1, 1, "stdout", "info", "", "x" * 100_000)])
    assert int(audit(server, "f").meta["ab"]) >= before + 100_000
    server.command("HSET", "emq:{f}:meta", "keep_bytes", 50_000)
    server.clock.advance(10_001)
    await bus.beat(pump=True)
    assert "ab" not in audit(server, "f").meta


async def test_an_archived_job_counts_with_payload_output_and_result(bus: Bus, server: Server) -> None:
    (id,) = await mint(bus, payload=b"\xc5\x27\x10" + bytes(10_000))
    job = await claim_one(bus)
    await bus.log("f", id, [LogLine(1, 1, "stdout", "info", "", "x" * 5_000)])
    await settle(bus, [done(job, result=bytes(20_000))])
    assert 35_000 < int(audit(server, "f").meta["ab"]) < 39_000


async def test_output_of_a_job_that_was_cancelled_or_died_counts_where_it_lies(bus: Bus, server: Server) -> None:
    buried = await bury(bus)
    (cancelled,) = await mint(bus)
    await bus.cancel("f", cancelled)
    for id in (buried, cancelled):
        await bus.log("f", id, [LogLine(1, 1, "stdout", "info", "", "x")])
        audit(server, "f")


async def test_a_list_is_newest_first_in_all_states_and_goes_on_at_its_cursor(bus: Bus) -> None:
    ids = await mint(bus, count=5)
    await settle(bus, [done(await claim_one(bus)), dead(await claim_one(bus))])
    page, cursor = await bus.jobs("f", limit=3)
    assert [job.id for job in page] == ids[:1:-1]
    page, cursor = await bus.jobs("f", limit=3, cursor=cursor)
    assert [(job.id, job.state) for job in page] == [(ids[1], "dead"), (ids[0], "done")]
    assert cursor is None


async def test_a_list_is_filtered_by_state_and_lane(bus: Bus) -> None:
    dead_id = await bury(bus)
    await mint(bus)
    (odd,) = await mint(bus, lane="Ümlaut")
    found, _ = await bus.jobs("f", Filter(("dead",)))
    assert [job.id for job in found] == [dead_id]
    found, _ = await bus.jobs("f", Filter(lane="Ümlaut"))
    assert [(job.id, job.lane) for job in found] == [(odd, "Ümlaut")]
    found, _ = await bus.jobs("f", Filter(("done", "cancelled")))
    assert found == []


async def test_stats_count_by_state(bus: Bus, server: Server) -> None:
    await bury(bus)
    await mint(bus, count=4)
    await mint(bus, in_ms=5000)
    await settle(bus, [done(job) for job in await claim(bus, 2)])
    await claim(bus, 1)
    await bus.pause("f")
    stats = (await bus.stats(["f", "unknown"]))["f"]
    assert (stats.pending, stats.active, stats.scheduled, stats.dead, stats.done, stats.paused) == (1, 1, 1, 1, 2, True)
    first_ms = stats.oldest_ms
    server.clock.advance(5000)
    await mint(bus, lane="younger")
    assert (await bus.stats(["f"]))["f"].oldest_ms == first_ms is not None
    assert abs(stats.oldest_ms - server.clock.now_ms()) < 60_000
    assert (await bus.stats([])) == {}


async def test_a_job_is_found_without_its_queues_name(bus: Bus, server: Server) -> None:
    (id,) = await mint(bus, "g")
    other = await Bus.open(server.address)
    record = await other.job(id)
    assert record is not None
    assert record.function == "g"
    assert await other.job(bus.new_job_id()) is None
    assert await other.job(id, queue="f") is None
    await other.close()


async def test_metrics_survive_in_minutes_and_hours(bus: Bus, server: Server) -> None:
    await mint(bus, count=3)
    server.clock.advance(61_000)
    await bus.tick("f")
    await mint(bus, count=2)
    metrics = await bus.metrics("f", 3_600_000)
    assert metrics.minted == 5
    assert len(metrics.series) == 60
    assert sum(point.minted for point in metrics.series) == 5
    assert (await bus.metrics("f", 24 * 3_600_000)).minted == 5


async def test_counts_of_the_past_are_remembered_some_at_most_and_read_anew(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "COUNTS_REMEMBERED", 30)
    await mint(bus)
    for _ in range(3):
        assert (await bus.metrics("f", 3_600_000)).minted == 1
        assert len(bus._past) <= 60


async def test_totals_only_grow_whatever_is_trimmed(bus: Bus, server: Server) -> None:
    await mint(bus, count=3)
    await settle(bus, [done(job) for job in await claim(bus, 2)])
    server.clock.advance(9 * 86_400_000)
    await bus.beat(pump=True)
    totals = await bus.totals(["f", "unknown"])
    assert (totals["f"]["minted"], totals["f"]["done"], totals["unknown"]) == (3, 2, {})


async def test_lanes_with_work_are_listed_as_people_wrote_them(bus: Bus) -> None:
    from echod.bus.answers import LaneRow

    await bus.set("f", {"weight": 7}, lane="a")
    for lane, count in (("Ümlaut", 2), ("a", 1), ("held", 1)):
        await mint(bus, count=count, lane=lane)
    await bus.pause("f", lane="held")
    rows = {row.lane: row for row in await bus.lanes("f")}
    assert rows["a"] == LaneRow("a", 1, 7, by_hand=("weight",))
    assert rows["Ümlaut"] == LaneRow("Ümlaut", 2)
    assert rows["held"] == LaneRow("held", 1, place="held", why="paused", by_hand=("paused",))


async def test_a_version_is_stored_in_pieces_and_switched_to_by_one_write(bus: Bus, server: Server) -> None:
    first, second = VersionId("DEP00000000001"), VersionId("DEP00000000002")
    heard: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
    bus.on("switched", lambda version, generation: heard.put_nowait((version, generation)))
    assert await bus.active() == (None, b"")
    with pytest.raises(Refused):
        await bus.activate(first)
    await bus.put_version(first, [b"\x00" * 500_000, b"rest"], b"manifest")
    assert await bus.get_version(first) == ([b"\x00" * 500_000, b"rest"], b"manifest")
    assert await bus.get_manifest(second) is None
    assert (await bus.activate(first)).generation == 1
    assert (await bus.activate(first)).generation == 1  # sent again
    await bus.put_version(second, [], b"")
    active = await bus.activate(second, errors=b"\x93")
    assert (active.version, active.generation) == (second, 2)
    assert await bus.active() == (active, b"\x93")
    assert (await bus.activate(first)).generation == 3
    assert [version for version, _ in await bus.versions()] == [first, second]
    assert [await asyncio.wait_for(heard.get(), PATIENCE_S) for _ in range(3)] == [(first, 1), (second, 2), (first, 3)]
    assert (await bus.beat(pump=False)).active == (await bus.active())[0]
    assert [version for version, _ in await bus.switches(10)] == [first, second, first]
    [(_, switched_ms)] = await bus.switches(1)
    assert 0 <= (await bus.versions())[0][1] - switched_ms <= 2  # versions are kept apart by a millisecond each


async def test_a_switch_that_is_sent_again_does_not_undo_anothers(bus: Bus) -> None:
    for number in (1, 2):
        await bus.put_version(numbered(number), [], b"m")
    await activated(bus, 0)
    first = await bus.run("activate", version=numbered(1), errors=b"", lease_ms=60_000, call=b"one")
    again = await bus.run(
        "activate", version=numbered(1), errors=b"", lease_ms=60_000, call=b"another"
    )  # active already
    await bus.activate(numbered(2))
    for call in (b"one", b"another"):
        assert await bus.run("activate", version=numbered(1), errors=b"", lease_ms=60_000, call=call) == first == again
    active, _ = await bus.active()
    assert active is not None
    assert (active.version, active.generation) == (numbered(2), 3)
    for _ in range(30):  # what is remembered of calls is bounded
        await bus.activate(numbered(2))
    assert len(msgspec.msgpack.decode(await bus.link.command("HGET", bus.keys.active, "calls"))) == 20
    assert (await bus.activate(numbered(1))).generation == 4  # a new call is no resend


def numbered(number: int) -> VersionId:
    return VersionId(f"DEP{number:011d}")


async def activated(bus: Bus, number: int) -> None:
    await bus.put_version(numbered(number), [b"x", b"y"], b"m")
    await bus.activate(numbered(number))


async def stored(bus: Bus) -> set[bytes]:
    """The versions of which anything is stored."""
    keys = await bus.link.command("KEYS", bus.keys.piece("*", "*"))
    return {key.split(b":")[-2] for key in keys}


async def test_versions_are_kept_that_are_active_among_the_ten_before_or_run_by_a_node(
    bus: Bus, server: Server
) -> None:
    other = await Bus.open(server.address)
    try:
        await other.join(NodeId("NOD00000000002"))
        await activated(bus, 0)
        await activated(bus, 1)
        await other.beat(pump=False, running=(numbered(1),))
        for number in range(2, 20):
            await activated(bus, number)
        kept = [1, *range(9, 20)]
        assert [version for version, _ in await bus.versions()] == [numbered(number) for number in reversed(kept)]
        assert await stored(bus) == {numbered(number).encode() for number in kept}
        await other.beat(pump=False)  # it ended there
        await activated(bus, 20)
        assert await stored(bus) == {numbered(number).encode() for number in range(10, 21)}
    finally:
        await other.close()


async def test_what_a_killed_deployer_stored_is_collected_an_hour_later(bus: Bus, server: Server) -> None:
    await bus.put_version(numbered(1), [b"x", b"y"], b"m")
    await bus.link.command("SET", bus.keys.piece(numbered(2), 0), b"half")
    await bus.link.command("ZADD", bus.keys.uploads, bus.clock.now_ms(), numbered(2))
    await activated(bus, 3)
    assert await stored(bus) == {numbered(number).encode() for number in (1, 2, 3)}
    server.clock.advance(3_600_001)
    await activated(bus, 4)
    assert await stored(bus) == {numbered(number).encode() for number in (3, 4)}
    assert await bus.link.command("EXISTS", bus.keys.uploads) == 0


async def test_a_version_that_was_stored_once_more_and_not_switched_to_stays(bus: Bus, server: Server) -> None:
    await activated(bus, 1)
    await activated(bus, 2)
    await bus.put_version(numbered(1), [b"x", b"y"], b"m")
    server.clock.advance(3_600_001)
    await bus.beat(pump=True)
    assert await stored(bus) == {numbered(1).encode(), numbered(2).encode()}
    assert await bus.link.command("EXISTS", bus.keys.uploads) == 0


async def test_versions_are_collected_some_at_a_time_and_those_of_dead_nodes_too(bus: Bus, server: Server) -> None:
    await activated(bus, 0)
    await bus.link.command("ZADD", bus.keys.versions, *(each for n in range(1, 41) for each in (n, numbered(n))))
    dead = {"running": pack([numbered(n) for n in range(1, 41)]), "told": pack([]), "channel": "c", "cursor": "0"}
    await bus.run("join", node="NODdead", lease_ms=1000, info=b"")
    await bus.run("beat", node="NODdead", number=1, lease_ms=1000, pump=0, limit=1, roll=0, expected_ms=0, **dead)  # type: ignore[arg-type]
    for later_ms, left in ((0, 41), (1001, 21), (0, 11)):
        server.clock.advance(later_ms)
        bus.steps = StepWatch()  # no step
        await bus.beat(pump=True)
        assert await bus.link.command("ZCARD", bus.keys.versions) == left


async def test_a_pumps_beat_collects_what_nobody_runs_any_more(bus: Bus, server: Server) -> None:
    other = await Bus.open(server.address)
    try:
        await other.join(NodeId("NOD00000000002"))
        for number in range(3):
            await activated(bus, number)
            await other.beat(pump=False, running=[numbered(each) for each in range(3)])
        for number in range(3, 14):
            await activated(bus, number)
        await bus.put_version(numbered(1), [b"x", b"y"], b"m")  # on its way to be switched to again
        await other.beat(pump=False)
        assert await stored(bus) == {numbered(number).encode() for number in range(14)}
        await bus.beat(pump=True)
        assert await stored(bus) == {numbered(number).encode() for number in range(1, 14)} - {numbered(2).encode()}
        await bus.activate(numbered(1))
    finally:
        await other.close()


async def test_the_version_that_is_active_is_a_new_generation_only_with_other_errors(bus: Bus, server: Server) -> None:
    await activated(bus, 1)
    for errors, generation in ((b"", 1), (b"broken", 2), (b"broken", 2), (b"", 3)):
        assert (await bus.activate(numbered(1), errors=errors)).generation == generation
        assert (await bus.active())[1] == errors
    assert len(await bus.switches(9)) == 1


async def test_versions_are_in_the_order_of_their_switches_within_a_millisecond_too(bus: Bus, server: Server) -> None:
    with server.clock.stopped():
        for number in (2, 3, 1):
            await activated(bus, number)
        assert [version for version, _ in await bus.versions()] == [numbered(1), numbered(3), numbered(2)]


async def test_two_hundred_switches_are_kept(bus: Bus, server: Server) -> None:
    server.command("RPUSH", bus.keys.switches, *[b"x"] * 200)
    await activated(bus, 1)
    assert server.command("LLEN", bus.keys.switches) == 200


async def test_a_policy_takes_back_what_the_one_before_said(bus: Bus) -> None:
    await bus.configure("f", Policy(max_pending=1, redact=("secret",)), 1)
    assert await bus.redacted("f") == ("secret",)
    await mint(bus)
    with pytest.raises(QueueFull):
        await bus.mint_outside("f", Mint(id=bus.new_job_id(), payload=b""))
    await bus.configure("f", Policy(), 2)
    assert await bus.redacted("f") == ()
    await bus.mint_outside("f", Mint(id=bus.new_job_id(), payload=b""))


async def test_a_version_that_lacks_a_piece_is_not_switched_to(bus: Bus) -> None:
    await activated(bus, 1)
    await bus.put_version(numbered(2), [b"x", b"y"], b"m")
    await bus.link.command("DEL", bus.keys.piece(numbered(2), 1))
    with pytest.raises(Refused, match="not stored whole"):
        await bus.activate(numbered(2))
    active, _ = await bus.active()
    assert active is not None
    assert (active.version, active.generation) == (numbered(1), 1)


async def test_the_servers_state_is_told(bus: Bus) -> None:
    state = await bus.server()
    assert state["policy"] == "noeviction"
    assert isinstance(state["memory_bytes"], int)
    assert JobId(bus.new_job_id()).startswith("JOB")


async def test_who_listens_is_told_of_an_end_whoever_minted_the_job(bus: Bus, server: Server) -> None:
    (job,) = await mint(bus)
    heard: list[str] = []
    other = await Bus.open(server.address)
    try:
        for each in (bus, other):
            each.on("ended", heard.append)
            assert await each.listen("f", job) == "listening"
            assert await each.listen("f", job) == "listening"  # sent again
        claimed = await claim_one(bus)
        await settle(bus, [done(claimed)])
        async with asyncio.timeout(PATIENCE_S):
            while len(heard) < 2:
                await asyncio.sleep(0.002)
        assert heard == [job, job]
        assert await bus.listen("f", job) == "ended"
        assert await bus.listen("f", JobId("JOB00000000000")) == "unknown"
        audit(server, "f")
    finally:
        await other.close()


async def test_at_most_eight_listen_to_a_job_the_last_that_asked(bus: Bus, server: Server) -> None:
    (job,) = await mint(bus)
    for number in range(10):
        await bus.run("listen", "f", id=job, channel=f"c{number}")
    assert server.command("HGET", f"emq:{{f}}:job:{job}", "wt") == b"\n".join(b"c%d" % n for n in range(9, 1, -1))


async def test_there_is_nothing_to_hear_of_a_job_that_ended_in_any_way(bus: Bus) -> None:
    buried, (cancelled,) = await bury(bus), await mint(bus)
    await bus.cancel("f", cancelled)
    for id in (buried, cancelled):
        assert await bus.listen("f", id) == "ended"


async def test_a_check_finds_what_is_not_in_its_one_place(bus: Bus, server: Server) -> None:
    ids = await mint(bus, count=4)
    assert await bus.check("f", 100) == (4, [])
    server.command("ZADD", "emq:{f}:ring", 1, "ghost")
    assert await bus.check("f", 100) == (4, [("an empty lane in the ring", "ghost")])
    server.command("ZREM", "emq:{f}:ring", "ghost")
    server.command("ZADD", "emq:{f}:dead", 1, ids[0])
    server.command("ZREM", "emq:{f}:lane:-", ids[1])
    server.command("DEL", f"emq:{{f}}:job:{ids[2]}")
    server.command("SADD", "emq:{f}:held", "-")
    looked, faults = await bus.check("f", 100)
    assert looked == 4
    assert {(which, what.split(" whose")[0]) for what, which in faults} >= {
        (ids[0], "a job in dead and lane"),
        (ids[1], "a job in no place"),
        (ids[2], "a job without a row"),
    }
    assert any(which == "-" for _, which in faults)
