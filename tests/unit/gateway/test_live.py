"""The stream of open pages: one reader, and none while nobody watches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from echod.errors import BusAway
from echod.gateway import live
from echod.gateway.live import Live
from echod.gateway.sse import Event
from echod.gateway.views import View
from server import PATIENCE_S
from unit.gateway.kit import until


@pytest.fixture(autouse=True)
def quick_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "TURN_S", 0.005)


class Bus:
    """What the pictures are made from; counts how often it is looked at."""

    def __init__(self) -> None:
        self.looks = 0
        self.pending = 0
        self.occurrences: list[View] = []
        self.away = False

    async def picture(self) -> View:
        self.looks += 1
        await asyncio.sleep(0)
        if self.away:
            raise BusAway("gone")
        return {"functions": [{"pending": self.pending}], "occurrences": [*self.occurrences], "now": str(self.looks)}


async def following(stream: AsyncGenerator[Event | None, None]) -> Event:
    async with asyncio.timeout(PATIENCE_S):
        while (event := await anext(stream)) is None:
            pass
        return event


async def test_a_page_is_sent_the_present_at_once_then_only_changes() -> None:
    bus = Bus()
    stream = Live(bus.picture).events()
    first = await following(stream)
    assert first.name == "functions"
    looks = bus.looks
    follow = asyncio.create_task(following(stream))
    await until(lambda: bus.looks >= looks + 5)  # turns in which nothing but `now` changed
    assert not follow.done()
    bus.pending = 3
    assert (await follow).data["functions"] == [{"pending": 3}]  # type: ignore[index]
    await stream.aclose()


async def test_all_pages_share_one_reader_and_the_last_one_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "TURN_S", 3600.0)  # until all have opened
    bus = Bus()
    shared = Live(bus.picture)
    streams = [shared.events() for _ in range(50)]
    for stream in streams:
        await following(stream)
    assert bus.looks == 1
    for stream in streams[1:]:
        await stream.aclose()
    assert shared._reader is not None
    reader = shared._reader
    assert reader is not None
    await streams[0].aclose()
    assert shared._reader is None
    await asyncio.wait_for(asyncio.wait({reader}), PATIENCE_S)
    assert reader.cancelled()


async def test_an_occurrence_is_news_once_and_again_when_its_job_moves() -> None:
    bus = Bus()
    stream = Live(bus.picture).events()
    await following(stream)
    bus.occurrences = [{"job": "JOB1", "state": "pending"}]
    events = [await following(stream), await following(stream)]
    assert [event.name for event in events] == ["occurrence", "functions"]
    assert events[0].data == {"job": "JOB1", "state": "pending"}
    bus.occurrences = [{"job": "JOB1", "state": "done"}]
    assert (await following(stream)).data == {"job": "JOB1", "state": "done"}
    await stream.aclose()


async def test_a_slow_page_skips_pictures_and_delays_nobody() -> None:
    bus = Bus()
    shared = Live(bus.picture)
    slow, quick = shared.events(), shared.events()
    await following(slow)
    await following(quick)
    for pending in range(1, 20):
        bus.pending = pending
        assert (await following(quick)).data["functions"] == [{"pending": pending}]  # type: ignore[index]
    assert (await following(slow)).data["functions"] == [{"pending": 19}]  # type: ignore[index]
    await slow.aclose()
    await quick.aclose()


async def test_the_stream_outlives_a_bus_that_is_away() -> None:
    bus = Bus()
    bus.away = True
    stream = Live(bus.picture).events()
    follow = asyncio.create_task(following(stream))
    await until(lambda: bus.looks >= 3)
    bus.away = False
    assert (await follow).name == "functions"
    await stream.aclose()


async def test_closing_ends_every_stream() -> None:
    shared = Live(Bus().picture)
    stream = shared.events()
    await following(stream)
    shared.close()
    async with asyncio.timeout(PATIENCE_S):
        assert [event async for event in stream if event is not None] == []
    assert shared._reader is None
