"""join, beat, leave, the bell and ids: what a node is on the bus."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from audit import audit, open_books
from doing import ME, bury, claim, claim_one, commands, dead, done, hold, mint, settle
from echod.bus import Bus
from echod.bus.clock import IdMaker, StepWatch
from echod.bus.rows import pack
from echod.errors import BusUnfit, LeaseGone
from echod.model.ids import EPOCH_MS, NODE_BITS, SEQUENCE_BITS, JobId, NodeId, VersionId, number_of
from echod.model.job import Child, Mint, Release
from echofn.manifest import Policy
from server import PATIENCE_S, Server


def made_ms(id: str) -> int:
    """The bus's millisecond in which an id was made."""
    return (number_of(id) >> (NODE_BITS + SEQUENCE_BITS)) + EPOCH_MS


async def test_nodes_get_numbers_of_their_own_and_keep_them_when_they_join_again(server: Server) -> None:
    buses = [await Bus.open(server.address) for _ in range(3)]
    for index, bus in enumerate(buses):
        await bus.join(NodeId(f"NOD{index}"), info=b"\xff\x80info")
        await bus.join(NodeId(f"NOD{index}"), info=b"\xff\x80info")
    nodes = await buses[0].nodes()
    assert [(node.id, node.number, node.info) for node in nodes] == [(f"NOD{n}", n, b"\xff\x80info") for n in range(3)]
    await buses[1].leave()
    assert [node.id for node in await buses[0].nodes()] == ["NOD0", "NOD2"]
    for bus in buses:
        await bus.close()


async def test_no_number_free_is_a_clear_error(bus: Bus, server: Server) -> None:
    other = await Bus.open(server.address)
    for number in range(1023):  # and the fixture's own
        await bus.run("join", node=f"x{number}", lease_ms=60_000, info=b"")
    with pytest.raises(BusUnfit, match="1024 node numbers"):
        await other.join(NodeId("NODlate"))
    server.clock.advance(60_001)
    await other.join(NodeId("NODlate"))
    await other.close()


async def test_no_two_nodes_make_one_id_whatever_the_clock_does(server: Server) -> None:
    """A step of two hours ends all leases before anyone has beaten; after a step back, a successor makes ids in
    milliseconds in which its predecessor made some.
    """
    buses = [await Bus.open(server.address) for _ in range(5)]
    for index, bus in enumerate(buses[:3]):
        await bus.join(NodeId(f"NOD{index}"))
    made: list[JobId] = []

    def make(*makers: int) -> None:
        made.extend(buses[maker].new_job_id() for _ in range(1500) for maker in makers)

    server.clock.advance(7_200_000)
    await buses[0].beat(pump=True)  # forgets the others, whose leases were over an hour ago by now
    await buses[2].beat(pump=True)
    await buses[1].tick("f")  # hears the time, and makes ids under what it has
    make(0, 1, 2)
    await buses[1].beat(pump=True)
    await buses[3].join(NodeId("NOD3"))
    make(0, 1, 2, 3)
    server.clock.advance(-60_000)
    await buses[0].leave()
    await buses[3].leave()
    await buses[4].join(NodeId("NOD4"))
    make(1, 2, 4)
    assert len(set(made)) == len(made)
    for bus in buses:
        await bus.close()


async def test_numbers_go_round_and_one_whose_lease_is_over_comes_last(server: Server) -> None:
    bus = await Bus.open(server.address)
    joined = [(await bus.run("join", node=f"x{number}", lease_ms=60_000, info=b""))[1] for number in range(1022)]
    assert joined == list(range(1022))
    for number in (7, 1021):
        await bus.run("leave", node=f"x{number}", number=number)
    server.clock.advance(60_001)
    later = [(await bus.run("join", node=f"y{number}", lease_ms=60_000, info=b""))[1] for number in range(5)]
    assert later == [1022, 1023, 7, 1021, 0]
    await bus.close()


def millisecond_of(id: JobId) -> int:
    """The bus millisecond in which an id was made."""
    return (number_of(id) >> (NODE_BITS + SEQUENCE_BITS)) + EPOCH_MS


async def test_ids_are_made_under_a_lease_only(server: Server) -> None:
    bus = await Bus.open(server.address)
    with pytest.raises(LeaseGone):
        bus.new_job_id()
    await bus.join(NodeId("NOD1"))
    first = bus.reserve(10)
    assert bus.reserve(1) == first + 10
    assert abs(made_ms(bus.new_job_id()) - server.clock.now_ms()) < 60_000
    await bus.leave()
    with pytest.raises(LeaseGone):
        bus.new_job_id()
    await bus.close()


async def test_ids_of_a_host_with_a_wrong_clock_are_in_bus_time(bus: Bus, server: Server) -> None:
    server.clock.advance(-86_400_000)
    await bus.beat(pump=False)
    assert abs(made_ms(bus.new_job_id()) - server.clock.now_ms()) < 86_400_000 + 60_000
    server.clock.advance(3 * 86_400_000)
    await bus.beat(pump=False)
    assert abs(made_ms(bus.new_job_id()) - server.clock.now_ms()) < 60_000


async def test_a_node_past_its_lease_makes_no_ids(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    from echod.bus import clock

    before = clock.monotonic_ms()
    monkeypatch.setattr(clock, "monotonic_ms", lambda: before + 60_001)
    with pytest.raises(LeaseGone):
        bus.new_job_id()
    assert isinstance(bus.ids, IdMaker)


async def test_each_beat_renews_what_ids_are_made_under(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    from echod.bus import clock, nodes

    began_ms, passed_ms = clock.monotonic_ms(), 0
    for module in (clock, nodes):
        monkeypatch.setattr(module, "monotonic_ms", lambda: began_ms + passed_ms)
    for _ in range(2):
        passed_ms += 59_000
        await bus.beat(pump=False)
    passed_ms += 59_999
    bus.new_job_id()
    passed_ms += 1
    with pytest.raises(LeaseGone):
        bus.new_job_id()


async def _taken_over(bus: Bus, server: Server) -> Bus:
    """All numbers are given, all leases are over, and another node has the one that was given first: `bus` had it."""
    for number in range(1, 1024):
        await bus.run("join", node=f"x{number}", lease_ms=60_000, info=b"")
    server.clock.advance(60_001)
    other = await Bus.open(server.address)
    await other.join(NodeId("NODother"))
    assert [(node.id, node.number) for node in await other.nodes()] == [("NODother", 0)]
    return other


async def test_who_leaves_late_leaves_the_number_to_who_has_it_by_now(bus: Bus, server: Server) -> None:
    other = await _taken_over(bus, server)
    await bus.leave()
    assert [(node.id, node.number) for node in await other.nodes()] == [("NODother", 0)]
    await other.close()


async def test_a_beat_after_another_took_the_number_leases_a_new_one(bus: Bus, server: Server) -> None:
    """What it makes from then on is of the new one, and it is told of as before."""
    await bus.join(NodeId("NOD00000000001"), info=b"\xffinfo")
    other = await _taken_over(bus, server)
    await bus.beat(pump=False)
    one, again = await other.nodes()
    assert (one.id, one.number) == ("NODother", 0)
    assert (again.id, again.number, again.info) == ("NOD00000000001", 1, b"\xffinfo")
    assert number_of(bus.new_job_id()) >> SEQUENCE_BITS & ((1 << NODE_BITS) - 1) == 1
    await other.close()


async def test_pumps_are_ranked_and_plain_nodes_are_not(server: Server) -> None:
    buses = [await Bus.open(server.address) for _ in range(3)]
    for index, bus in enumerate(buses):
        await bus.join(NodeId(f"NOD{index}"))
    await buses[0].beat(pump=False)
    assert [(await bus.beat(pump=True)).rank for bus in buses[1:]] == [0, 1]
    answer = await buses[2].beat(pump=True)
    assert (answer.rank, answer.nodes) == (1, 3)
    await buses[1].leave()
    assert (await buses[2].beat(pump=True)).rank == 0
    for bus in buses:
        await bus.close()


async def test_a_node_that_died_is_forgotten_an_hour_after_its_lease(bus: Bus, server: Server) -> None:
    """Until then it gets its number back if it comes again."""
    await bus.run("join", node="NODdead", lease_ms=60_000, info=b"")
    for later_ms, numbers in ((3_650_000, [b"0", b"1"]), (11_000, [b"0"])):
        server.clock.advance(later_ms)
        await bus.beat(pump=False)
        assert server.command("HKEYS", "emq:{~}:nodes") == numbers


async def test_a_node_that_died_before_the_clock_went_back_is_dead_one_lease_later(bus: Bus, server: Server) -> None:
    """It was killed while TIME was a year ahead: no pump waits a year for it, and nobody counts it so long."""
    year_ms = 365 * 86_400_000
    dead, slow = [await Bus.open(server.address) for _ in range(2)]
    server.clock.advance(year_ms)
    await dead.join(NodeId("NODdead"))
    await dead.beat(pump=True)
    await slow.join(NodeId("NODslow"))
    await slow.run("join", node="NODlong", lease_ms=300_000, info=b"")
    server.clock.advance(-year_ms)
    assert [node.id for node in await slow.nodes()] == ["NODdead", "NODslow", "NODlong"]  # nobody has said otherwise
    await bus.leave()
    await bus.join(NodeId("NODlate"))
    answer = await bus.beat(pump=True)
    assert (answer.rank, answer.nodes) == (1, 4)
    assert [node.id for node in await bus.nodes()] == ["NODdead", "NODslow", "NODlong", "NODlate"]
    server.clock.advance(40_000)
    await slow.beat(pump=False)  # it lived, and has lost nothing
    server.clock.advance(21_000)
    answer = await bus.beat(pump=True)
    assert (answer.rank, answer.nodes) == (0, 3)
    assert [(node.id, node.number) for node in await bus.nodes()] == [("NODslow", 2), ("NODlong", 3), ("NODlate", 4)]
    server.clock.advance(3_600_000)
    await bus.beat(pump=False)
    assert [node.id for node in await bus.nodes()] == ["NODlate"]
    for _ in range(4):
        server.clock.advance(20_000)
        bus.steps = StepWatch()
        await bus.beat(pump=True)
    assert b"1" not in server.command("HKEYS", "emq:{~}:nodes")
    for each in (dead, slow):
        await each.close()


async def test_a_beat_ticks_all_queues_and_names_the_next_events(bus: Bus, server: Server) -> None:
    await mint(bus, "f", in_ms=1000)
    await mint(bus, "Ü", in_ms=60_000)
    server.clock.advance(2000)
    answer = await bus.beat(pump=True)
    assert answer.tick.promoted == 1
    assert answer.queues == ("f", "Ü")
    assert list(answer.next_in_ms) == ["Ü"]
    assert answer.tick.next_in_ms == answer.next_in_ms["Ü"]
    assert 30_000 < answer.next_in_ms["Ü"] <= 58_000
    audit(server, "f")


async def test_a_beat_of_no_pump_promotes_nothing(bus: Bus, server: Server) -> None:
    await mint(bus, "f", in_ms=1000)
    server.clock.advance(2000)
    assert (await bus.beat(pump=False)).tick.promoted == 0
    assert len(open_books(server, "f").schedule) == 1


# --- the bell ------------------------------------------------------------------------------------------------------


async def test_a_mint_rings_once_however_many_follow(bus: Bus, server: Server) -> None:
    for _ in range(5):
        await mint(bus)
    assert audit(server, "f").wake == ["f"]
    assert await bus.ring_wait(PATIENCE_S) == "f"
    assert audit(server, "f").wake == []


async def test_who_claims_and_leaves_work_rings_again(bus: Bus, server: Server) -> None:
    await mint(bus, count=4)
    assert await bus.ring_wait(PATIENCE_S) == "f"
    for _ in range(2):  # the second without a pop
        await claim(bus, 1)
        assert audit(server, "f").wake == ["f"]
    assert await bus.ring_wait(PATIENCE_S) == "f"
    await claim(bus, 2)
    assert audit(server, "f").wake == []
    assert await bus.ring_wait(0.05) is None
    await mint(bus)
    assert await bus.ring_wait(PATIENCE_S) == "f"


async def test_a_bell_that_is_handed_on_rings_once(bus: Bus, server: Server) -> None:
    await mint(bus)
    await bus.ring("f")  # a node that has not popped it, as one that drains
    assert audit(server, "f").wake == ["f"]
    assert await bus.ring_wait(PATIENCE_S) == "f"
    await bus.ring("f")
    await bus.ring("f")
    assert audit(server, "f").wake == ["f"]


async def test_a_bell_that_a_refusing_server_let_nobody_answer_is_answered_by_the_next_claim(
    bus: Bus, server: Server
) -> None:
    await mint(bus)
    assert await bus.ring_wait(PATIENCE_S) == "f"
    server.command("ACL", "SETUSER", "default", "-fcall", "-evalsha")
    try:
        with pytest.raises(BusUnfit):
            await claim(bus)
    finally:
        server.command("ACL", "SETUSER", "default", "+fcall", "+evalsha")
    await claim_one(bus)
    await mint(bus)
    assert await bus.ring_wait(PATIENCE_S) == "f"


async def test_a_claim_without_a_pop_leaves_the_bell_alone(bus: Bus, server: Server) -> None:
    await mint(bus, count=2)
    await claim(bus, 2)
    await mint(bus)
    assert audit(server, "f").wake == ["f"]


async def test_a_parked_pop_is_woken_by_a_mint(bus: Bus, server: Server) -> None:
    parked = asyncio.create_task(bus.ring_wait(30))
    await _until_parked(server)
    await mint(bus)
    assert await asyncio.wait_for(parked, PATIENCE_S) == "f"


async def test_a_pop_is_ended_although_its_unblock_overtook_it(
    bus: Bus, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go out on two connections: what the server reads first is not ours to say. A node that goes down waits."""
    park = bus._park
    unblock, calls = park._unblock, 0

    async def overtaken(client: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            await unblock(client)

    monkeypatch.setattr(park, "_unblock", overtaken)
    parked = asyncio.create_task(bus.ring_wait(60))
    await _until_parked(server)
    parked.cancel()
    await asyncio.gather(parked, return_exceptions=True)
    await asyncio.wait_for(park.close(), PATIENCE_S / 2)


async def _until_parked(server: Server) -> None:
    while True:
        info = server.command("INFO", "clients")
        assert isinstance(info, bytes)
        if b"blocked_clients:1" in info:
            return
        await asyncio.sleep(0)


async def test_a_paused_queue_does_not_ring_until_it_is_resumed(bus: Bus, server: Server) -> None:
    parked = asyncio.create_task(bus.ring_wait(30))
    await _until_parked(server)
    await bus.pause("f")
    await mint(bus)
    assert audit(server, "f").wake == []
    assert not parked.done()
    await bus.resume("f")
    assert await asyncio.wait_for(parked, PATIENCE_S) == "f"


async def test_a_resumed_lane_rings(bus: Bus, server: Server) -> None:
    await bus.pause("f", lane="a")
    await mint(bus, lane="a")
    assert audit(server, "f").wake == []
    await bus.resume("f", lane="a")
    assert audit(server, "f").wake == ["f"]


async def test_a_node_that_cannot_serve_hands_the_bell_on(bus: Bus, server: Server) -> None:
    await mint(bus)
    assert await bus.ring_wait(PATIENCE_S) == "f"
    await bus.ring("f")
    assert audit(server, "f").wake == ["f"]


async def test_news_that_died_with_its_popper_is_rung_again_by_a_beat(bus: Bus, server: Server) -> None:
    with server.clock.stopped():
        await mint(bus)
        assert server.command("LPOP", "emq:{~}:wake") == b"f"  # popped by a node that was killed then
        await bus.beat(pump=False)
        assert open_books(server, "f").wake == []  # it may be on its way still
        server.clock.advance(1001)
        await bus.beat(pump=False)
    assert audit(server, "f").wake == ["f"]
    await bus.beat(pump=False)
    assert audit(server, "f").wake == ["f"]


async def test_news_that_may_be_in_flight_at_a_beat_is_looked_for_again_a_second_later(
    bus: Bus, server: Server
) -> None:
    """A node killed with the news and started again at once must not wait for its second beat."""
    with server.clock.stopped():
        await mint(bus)
        assert server.command("LPOP", "emq:{~}:wake") == b"f"
        answer = await bus.beat(pump=True)
        again_in_ms = answer.next_in_ms["f"]
        assert 0 < again_in_ms <= 1000
        assert (await bus.tick("f")).next_in_ms == again_in_ms
        server.clock.advance(again_in_ms + 1)
        await bus.tick("f")
    assert audit(server, "f").wake == ["f"]
    assert (await bus.tick("f")).next_in_ms is None


async def test_news_of_a_queue_in_which_nothing_is_left_is_looked_for_again_too(bus: Bus, server: Server) -> None:
    """Else the next mint there would think that somebody was told."""
    (id,) = await mint(bus)
    assert server.command("LPOP", "emq:{~}:wake") == b"f"
    await bus.cancel("f", id)
    await bus.purge("f", [id], ["cancelled"])
    assert 0 < (await bus.beat(pump=True)).next_in_ms["f"] <= 1000


@pytest.mark.parametrize("steps_ms", [[7_200_000], [-7_200_000, 7_200_000]])
async def test_a_step_of_the_clock_takes_neither_its_number_nor_its_version_from_a_node_that_lives(
    bus: Bus, server: Server, steps_ms: list[int]
) -> None:
    """All but the first that beats look as if they had been dead for hours; they have had no chance to say more."""
    versions = [VersionId(f"DEP{number:011}") for number in range(14)]
    slow = await Bus.open(server.address)
    await slow.join(NodeId("NODslow"))
    await slow.beat(pump=False, running=versions[:1])
    await bus.beat(pump=True)
    for version in versions:
        await bus.put_version(version, [b"x"], b"m")
        await bus.activate(version)
    for step_ms in steps_ms:
        server.clock.advance(step_ms)
        for _ in range(2):
            await bus.beat(pump=True)
    await slow.beat(pump=False, running=versions[:1])
    assert [(node.id, node.number) for node in await bus.nodes()][1:] == [("NODslow", 1)]
    assert server.command("EXISTS", f"emq:{{~}}:version:{versions[0]}:manifest") == 1
    for _ in range(7):  # beats that miss no step: now it is dead
        server.clock.advance(20_000)
        bus.steps = StepWatch()
        await bus.beat(pump=True)
    assert server.command("EXISTS", f"emq:{{~}}:version:{versions[0]}:manifest") == 0
    await slow.close()


async def test_a_deploy_after_a_step_of_the_clock_leaves_the_version_that_a_live_node_runs(
    bus: Bus, server: Server
) -> None:
    versions = [VersionId(f"DEP{number:011}") for number in range(15)]
    slow = await Bus.open(server.address)
    await slow.join(NodeId("NODslow"))
    await slow.beat(pump=False, running=versions[:1])
    await bus.beat(pump=True)
    for version in versions:
        await bus.put_version(version, [b"x"], b"m")
    for version in versions[:13]:
        await bus.activate(version)
    server.clock.advance(7_200_000)
    await bus.activate(versions[13])
    await bus.beat(pump=True)
    await bus.activate(versions[14])
    assert await slow.get_version(versions[0]) == ([b"x"], b"m")
    await slow.close()


@pytest.mark.parametrize("pumps", ["gone", "flapping"])
async def test_versions_do_not_pile_up_while_no_pump_runs_or_connections_flap(
    bus: Bus, server: Server, pumps: str
) -> None:
    await bus.beat(pump=True)
    server.clock.advance(30_000)
    for number in range(20):
        if pumps == "flapping":
            server.clock.advance(20_000)
            bus.steps.outage()
            await bus.beat(pump=True)
        version = VersionId(f"DEP{number:011}")
        await bus.put_version(version, [b"x"], b"m")
        await bus.activate(version)
    assert server.command("ZCARD", bus.keys.versions) == 11


@pytest.mark.parametrize("step_ms", [-7_200_000, 7_200_000])
async def test_who_has_not_heard_of_a_step_of_the_clock_sees_nodes_that_have_and_nodes_that_have_not(
    bus: Bus, server: Server, step_ms: int
) -> None:
    other = await Bus.open(server.address)
    await other.join(NodeId("NODother"))
    await bus.beat(pump=True)
    server.clock.advance(step_ms)
    await other.beat(pump=True)
    assert [node.id for node in await bus.nodes()] == ["NOD00000000001", "NODother"]
    await other.close()


async def test_what_lanes_cost_counts_in_what_one_beat_does(bus: Bus, server: Server) -> None:
    """Lanes whose instant has come, and after the clock went back those that are judged anew."""
    queues, lanes = 60, 30
    for number in range(queues):
        queue = f"q{number}"
        assert await bus.configure(queue, Policy(lane_rate="1/h"), 1)
        twice = [f"lane{lane}" for lane in range(lanes)] * 2
        await bus.mint(queue, [Mint(id=bus.new_job_id(), payload=b"", lane=lane) for lane in twice])
        assert len(await claim(bus, 500, queue, lease_ms=36_000_000)) == lanes
    await bus.beat(pump=True)
    idle = commands(server)
    await bus.beat(pump=True)
    idle = commands(server) - idle
    for step_ms in (-3_600_000, 7_201_000):
        server.clock.advance(step_ms)
        more, turns = True, 0
        while more:
            before, turns = commands(server), turns + 1
            more = (await bus.beat(pump=True)).tick.more
            assert commands(server) - before < idle + 12_000, step_ms
        assert turns > 2
    for number in range(queues):
        assert set(audit(server, f"q{number}").ring) == {f"lane{lane}" for lane in range(lanes)}


async def test_news_of_before_the_clock_went_back_is_not_waited_for_until_then(bus: Bus, server: Server) -> None:
    await mint(bus)
    assert server.command("LPOP", "emq:{~}:wake") == b"f"
    server.clock.advance(-3_600_000)
    await bus.beat(pump=True)
    assert audit(server, "f").wake == ["f"]


async def test_a_name_that_is_twice_in_the_list_is_there_once_after_a_beat(bus: Bus, server: Server) -> None:
    await mint(bus)
    server.command("RPUSH", "emq:{~}:wake", "f")
    await bus.beat(pump=False)
    assert audit(server, "f").wake == ["f"]


async def test_a_cancelled_wait_does_not_swallow_the_bell(bus: Bus, server: Server) -> None:
    """Parked, cancelled, and rung in between: the name is handed back or still in the list, and wakes the next wait."""
    for _ in range(20):
        parked = asyncio.create_task(bus.ring_wait(30))
        await _until_parked(server)
        minting = asyncio.create_task(mint(bus))
        await asyncio.sleep(0)
        parked.cancel()
        await asyncio.gather(parked, return_exceptions=True)
        await minting
        assert await bus.ring_wait(PATIENCE_S) == "f"
        await claim(bus, 5)


async def test_an_idle_node_costs_two_calls_a_beat_at_most(bus: Bus, server: Server) -> None:
    """A beat is one call and a park is one; nothing else is sent."""
    parked = asyncio.create_task(bus.ring_wait(60))
    await _until_parked(server)
    before = _calls(server)
    await bus.beat(pump=True)
    assert _calls(server) - before <= 3  # one; on a fresh server a call that misses its verb, and the load
    parked.cancel()
    await asyncio.gather(parked, return_exceptions=True)


def _calls(server: Server) -> int:
    """Commands that clients sent; those inside scripts are left out, and so are ours to ask."""
    info = server.command("INFO", "commandstats")
    assert isinstance(info, bytes)
    names = ("cmdstat_fcall:", "cmdstat_function|load:", "cmdstat_blpop:", "cmdstat_client|id:", "cmdstat_ping:")
    return sum(
        int(line.split("calls=")[1].split(",")[0]) for line in info.decode().splitlines() if line.startswith(names)
    )


async def test_a_new_queue_is_told_to_all(bus: Bus) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    bus.on("queues", heard.put_nowait)
    await mint(bus, "fresh")
    assert await asyncio.wait_for(heard.get(), PATIENCE_S) == "fresh"
    assert (await claim_one(bus, "fresh")).attempts == 1
    assert ME.startswith("WRK")


async def test_queues_in_which_nothing_is_left_cost_a_beat_next_to_nothing(bus: Bus, server: Server) -> None:
    costs = []
    for count in (10, 110):
        for number in range(count):
            await bus.configure(f"f{number}", Policy(), count)
        await bus.beat(pump=True)
        before = commands(server)
        assert len((await bus.beat(pump=True)).queues) == count
        costs.append(commands(server) - before)
    assert costs[1] - costs[0] <= 5 * 100


async def test_a_beat_is_bounded_over_all_its_queues_and_says_that_there_is_more(bus: Bus, server: Server) -> None:
    async def beat(limit: int) -> list[Any]:
        told = {"running": pack([]), "told": pack([]), "channel": "c", "cursor": "0", "roll": 0, "expected_ms": 0}
        return list(
            await bus.run("beat", node="NOD00000000001", number=0, lease_ms=60_000, pump=1, limit=limit, **told)  # type: ignore[arg-type]
        )

    await mint(bus, "f", count=4, in_ms=1000)
    await mint(bus, "g")
    server.clock.advance(1001)
    for promoted, more in ((3, 1), (1, 0)):
        assert (await beat(3))[6:8] == [more, promoted]
    for queue, count in (("f", 4), ("g", 3)):
        await mint(bus, queue, count=count, in_ms=1000)
    server.clock.advance(1001)
    for promoted, more in ((5, 1), (2, 0)):
        assert (await beat(5))[6:8] == [more, promoted]
    await settle(bus, [done(job) for job in await claim(bus, 4, "f")], "f")
    await settle(bus, [dead(job) for job in await claim(bus, 4, "g")], "g")
    server.clock.advance(31 * 86_400_000)
    for archived, buried, more in ((1, 3, 1), (0, 1, 1), (0, 0, 0)):
        assert (await beat(3))[6] == more
        assert (len(audit(server, "f").done), len(audit(server, "g").dead)) == (archived, buried)


@pytest.mark.parametrize("left", ["later", "active", "repeat", "ring", "windows", "out", "done", "dead"])
async def test_a_beat_looks_at_a_queue_in_which_one_thing_alone_is_left(bus: Bus, server: Server, left: str) -> None:
    """Each of these would stay for ever."""
    limits = {"windows": {"lane_rate": "1/m"}, "ring": {"rate": "1/m"}, "later": {"batch": 2, "batch_wait_ms": 1000}}
    await bus.configure("f", Policy(keep_ms=600_000, **limits.get(left, {})), 1)  # type: ignore[arg-type]

    async def end(*children: Child) -> None:
        await mint(bus)
        await settle(bus, [done(await claim_one(bus), children=children)])

    async def trim() -> None:
        server.command("HSET", "emq:{f}:meta", "keep_count", 0)
        server.clock.advance(11_000)
        await bus.beat(pump=True)

    match left:
        case "later":
            await mint(bus)
        case "active":
            await mint(bus)
            await claim_one(bus)
        case "repeat":
            await bus.recur("f", "r", rule="x", tz="UTC", trigger=b"", payload=b"", next_ms=1, generation=1)
        case "ring":
            await mint(bus)
            await settle(bus, [Release(hold(await claim_one(bus)))])
        case "windows":
            await end()
            await trim()
        case "out":
            await end(Child("g", Mint(id=bus.new_job_id(), payload=b"\x01")))
            await trim()
        case "done":
            await end()
        case _:
            await bury(bus)
    books = audit(server, "f")
    places = ("schedule", "later", "active", "repeat", "ring", "held", "windows", "out", "done", "dead")
    assert [place for place in places if getattr(books, place)] == [left]
    if left == "ring":
        assert 50_000 < (await bus.beat(pump=True)).next_in_ms["f"] <= 60_000  # when its window ends
        return
    server.clock.advance(31 * 86_400_000 if left == "dead" else 700_000)
    answer = await bus.beat(pump=True)
    books = open_books(server, "f")
    match left:
        case "later" | "active":
            assert list(books.ring) == ["-"]
        case "repeat":
            assert len(answer.tick.due) == 1
        case "out":
            assert answer.unsent == ("f",)
        case _:
            assert getattr(books, left) == {}


@pytest.mark.parametrize(("count", "parts"), [(512, 3), (1100, 4)])
async def test_a_beat_over_many_queues_is_many_calls(bus: Bus, server: Server, count: int, parts: int) -> None:
    """One call for all of them would keep everybody else waiting: none runs longer than a part of it takes. A hash of
    up to 512 gives all it has at once.
    """
    queues = [f"q{number:04}" for number in range(count)]
    await asyncio.gather(*[mint(bus, queue, in_ms=10_000) for queue in queues])
    before = _calls(server)
    answer = await bus.beat(pump=True)
    assert _calls(server) - before >= parts
    assert answer.queues == tuple(queues)
    assert answer.next_in_ms.keys() == set(queues)
    server.clock.advance(10_000)
    assert (await bus.beat(pump=True)).tick.promoted == len(queues)
