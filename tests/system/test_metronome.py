"""The metronome on a real bell."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from echod.bus import Bus
from echod.metronome.metronome import Metronome
from echod.model.ids import NodeId
from echod.model.job import Mint
from server import Server

WITHIN_S = 15  # a bell that is not heard by itself is heard at the next beat, after 20 s


class Crew:
    """Takes what it is offered, while it has room."""

    def __init__(self, *, room: bool = True) -> None:
        self.room = asyncio.Event()
        self.is_free = room
        self.offered: asyncio.Queue[str] = asyncio.Queue()
        if room:
            self.room.set()

    def has_room(self) -> bool:
        return self.is_free

    def offer(self, queue: str) -> None:
        self.offered.put_nowait(queue)


@pytest.fixture
async def other(server: Server) -> AsyncIterator[Bus]:
    bus = await Bus.open(server.address)
    await bus.join(NodeId("NOD00000000002"))
    yield bus
    await bus.close()


async def mint(bus: Bus, queue: str = "shop.tick") -> None:
    await bus.mint(queue, [Mint(id=bus.new_job_id(), payload=b"\xc0")])


async def cancelled(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_ring_is_offered_at_once(bus: Bus, other: Bus) -> None:
    crew = Crew()
    running = asyncio.create_task(Metronome(bus, crew).run())
    for number in range(5):
        await mint(other, f"shop.f{number}")
        assert await asyncio.wait_for(crew.offered.get(), WITHIN_S) == f"shop.f{number}"
    await cancelled(running)


async def test_a_node_without_room_leaves_the_ring_to_one_that_has(bus: Bus, other: Bus) -> None:
    full, free = Crew(room=False), Crew()
    running = [asyncio.create_task(Metronome(bus, full).run()), asyncio.create_task(Metronome(other, free).run())]
    await mint(bus)
    assert await asyncio.wait_for(free.offered.get(), WITHIN_S) == "shop.tick"
    assert full.offered.empty()
    await cancelled(*running)


async def test_a_ring_for_which_the_room_went_meanwhile_is_handed_on(bus: Bus, other: Bus) -> None:
    late = Crew()
    late.is_free = False  # its room went while it was parked
    running = asyncio.create_task(Metronome(bus, late).run())
    await _parked(bus)
    late.room.clear()
    await mint(bus)
    assert await other.ring_wait(WITHIN_S) == "shop.tick"
    assert late.offered.empty()
    await cancelled(running)


async def test_a_ring_waits_for_room_where_there_is_no_other_node(bus: Bus) -> None:
    crew = Crew(room=False)
    running = asyncio.create_task(Metronome(bus, crew).run())
    await mint(bus)
    crew.is_free = True
    crew.room.set()
    assert await asyncio.wait_for(crew.offered.get(), WITHIN_S) == "shop.tick"
    await cancelled(running)


async def test_an_ended_metronome_swallows_no_ring(bus: Bus, other: Bus) -> None:
    for _ in range(10):
        crew = Crew()
        running = asyncio.create_task(Metronome(bus, crew).run())
        await _parked(bus)
        minting = asyncio.create_task(mint(other))
        await cancelled(running)
        await minting
        if crew.offered.empty():
            assert await other.ring_wait(WITHIN_S) == "shop.tick"
        claim = await other.claim("shop.tick", "WRK2", 10, 15_000)
        assert len(claim.jobs) >= 1


async def _parked(bus: Bus) -> None:
    """Until the bus's pop blocks on the server."""
    async with asyncio.timeout(60):
        while b"cmd=blpop" not in await bus.link.command("CLIENT", "LIST"):
            pass
