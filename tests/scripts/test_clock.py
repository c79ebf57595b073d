"""A driven clock: moved, stopped, let go; every estimate follows, what is due falls due, what runs keeps its lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from doing import claim_one, mint
from echod.bus import Bus
from echod.errors import BusUnfit, Refused
from echod.model.job import Mint, Minted, Unique
from server import PATIENCE_S, Server

HOUR = 3_600_000


@pytest.fixture
async def driven(server: Server) -> AsyncIterator[Bus]:
    bus = await Bus.open(server.address, driven=True)
    await bus.join("NOD00000000001")  # type: ignore[arg-type]
    yield bus
    await bus.close()


async def test_a_move_is_in_the_scripts_and_in_this_hosts_estimate(driven: Bus) -> None:
    before = await driven.drive()
    moved = await driven.drive("to", before.now_ms + HOUR)
    assert moved.now_ms == before.now_ms + HOUR
    assert (await driven.tick("f")).now_ms - moved.now_ms < HOUR
    assert 0 <= driven.clock.now_ms() - moved.now_ms < HOUR


async def test_a_key_of_a_fixed_time_is_over_by_this_clock_and_leaves_the_next_no_end(
    server: Server, driven: Bus
) -> None:
    (first,) = await mint(driven, unique=Unique("k", HOUR))
    now_ms = (await driven.drive()).now_ms
    one = Mint(id=driven.new_job_id(), payload=b"\x01", unique=Unique("k"))
    assert await driven.mint("f", [one]) == [Minted(first, duplicate=True)]
    await driven.drive("to", now_ms + 2 * HOUR)
    assert await driven.mint("f", [one]) == [Minted(one.id)]
    assert server.command("PTTL", "emq:{f}:unique:k") == -1


async def test_time_that_was_skipped_is_no_outage_to_a_new_pump(server: Server, driven: Bus) -> None:
    now_ms = (await driven.beat(pump=True)).now_ms
    await driven.drive("to", now_ms + HOUR)
    other = await Bus.open(server.address, driven=True)
    await other.join("NOD00000000002")  # type: ignore[arg-type]
    assert (await other.beat(pump=True)).tick.stepped_ms == 0
    await other.close()


async def test_a_move_is_no_step_to_the_pumps_that_hear_of_it(server: Server, driven: Bus) -> None:
    pump = await Bus.open(server.address, driven=True)
    await pump.join("NOD00000000002")  # type: ignore[arg-type]
    now_ms = (await pump.tick("f")).now_ms
    heard = asyncio.Event()
    pump.on("clock", lambda *_: heard.set())
    await driven.drive("to", now_ms + HOUR)
    await asyncio.wait_for(heard.wait(), PATIENCE_S)
    assert (await pump.tick("f")).stepped_ms == 0
    await pump.close()


async def test_it_moves_forward_only_and_the_same_move_again_moves_nothing(driven: Bus) -> None:
    await driven.drive("freeze")
    at_ms = (await driven.drive()).now_ms
    assert (await driven.drive("to", at_ms - HOUR)).now_ms == at_ms
    for _ in range(2):
        assert (await driven.drive("to", at_ms + 5)).now_ms == at_ms + 5


async def test_a_frozen_clock_stands_still_in_every_process_until_it_is_let_go(server: Server, driven: Bus) -> None:
    other = await Bus.open(server.address, driven=True)
    heard = asyncio.Event()
    other.on("clock", lambda *_: heard.set())
    try:
        frozen = await driven.drive("freeze")
        await asyncio.wait_for(heard.wait(), PATIENCE_S)
        server.clock.advance(HOUR)  # the server's own clock runs on, under it
        assert (await driven.tick("f")).now_ms == driven.clock.now_ms() == other.clock.now_ms() == frozen.now_ms
        heard.clear()
        moved = await driven.drive("to", frozen.now_ms + 7)
        await asyncio.wait_for(heard.wait(), PATIENCE_S)
        assert (moved.frozen, other.clock.now_ms()) == (True, frozen.now_ms + 7)
        heard.clear()
        thawed = await driven.drive("thaw")
        await asyncio.wait_for(heard.wait(), PATIENCE_S)
        assert (thawed.now_ms, thawed.frozen, other.clock.frozen) == (frozen.now_ms + 7, False, False)
        server.clock.advance(1_000)
        assert 1_000 <= (await driven.tick("f")).now_ms - thawed.now_ms < HOUR  # which passed while it stood
    finally:
        await other.close()


async def test_what_is_due_by_then_is_promoted_and_the_next_event_is_named(driven: Bus) -> None:
    await driven.drive("freeze")
    now_ms = driven.clock.now_ms()
    assert await driven.next_event() is None
    await mint(driven, queue="f", in_ms=HOUR)
    await mint(driven, queue="g", in_ms=2 * HOUR)
    assert await driven.next_event() == (now_ms + HOUR, ("f",))
    await driven.drive("to", now_ms + HOUR)
    assert (await driven.tick("f")).promoted == 1
    assert await driven.next_event() == (now_ms + 2 * HOUR, ("g",))


async def test_a_running_job_and_a_node_keep_their_leases_when_the_clock_is_moved(driven: Bus) -> None:
    await mint(driven)
    job = await claim_one(driven)
    await driven.drive("to", driven.clock.now_ms() + 24 * HOUR)
    answer = await driven.tick("f")
    assert (answer.recovered, answer.stepped_ms) == (0, 0)
    assert not (await driven.extend("f", [job])).lost
    assert len(await driven.nodes()) == 1


async def test_only_a_driven_bus_is_driven_and_it_is_unfit_for_everybody_else(server: Server, bus: Bus) -> None:
    with pytest.raises(Refused, match="echod dev --clock"):
        await bus.drive("to", bus.clock.now_ms() + HOUR)
    assert server.command("EXISTS", bus.keys.clock) == 0
    other = await Bus.open(server.address, driven=True)
    await other.close()
    with pytest.raises(BusUnfit, match="--clock"):
        await Bus.open(server.address)


async def test_a_year_beyond_sense_is_refused(driven: Bus) -> None:
    with pytest.raises(Refused, match="20 years"):
        await driven.drive("to", driven.clock.now_ms() + 30 * 366 * 24 * HOUR)
