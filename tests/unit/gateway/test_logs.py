"""What a function's jobs wrote: newest runs, filtered, and live; on a real server and a real bus."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import httpx
import msgspec
import pytest

from doing import impatient
from echod.bus.answers import LogLine
from echod.errors import BusAway
from echod.model.job import Error, Mint
from server import PATIENCE_S
from unit.gateway.kit import Rig, until

PATH = "/functions/hello.any/logs"
STREAM = {"Accept": "text/event-stream"}
BAD = Error("ValueError", "no", "", "error")


def line(text: str) -> LogLine:
    return LogLine(1_774_746_000_000, 1, "stdout", "info", "", text)


async def wrote(rig: Rig, *texts: str) -> str:
    """A new job that wrote these lines."""
    id = await rig.mint("hello.any", 1)
    await rig.bus.log("hello.any", id, [line(text) for text in texts])
    await asyncio.sleep(0.002)  # the next job's lines are of a later millisecond
    return id


async def texts(rig: Rig, **query: str | int) -> list[str]:
    answer = await rig.http.get(PATH, params=query)
    assert answer.status_code == 200, answer.text
    return [entry["text"] for entry in answer.json()["lines"]]


async def following(answer: httpx.Response) -> AsyncIterator[tuple[str, str, Any]]:
    """(event, id, data) as they come."""
    name = id = ""
    async for text in answer.aiter_lines():
        field, _, value = text.partition(": ")
        if field == "event":
            name = value
        elif field == "id":
            id = value
        elif field == "data":
            yield name, id, msgspec.json.decode(value)
            name = id = ""


async def told(events: AsyncIterator[tuple[str, str, Any]], count: int) -> list[str]:
    async with asyncio.timeout(PATIENCE_S):
        return [(await anext(events))[2]["text"] for _ in range(count)]


def looks(rig: Rig) -> int:
    """How often the list of writers, or another sorted set, was read."""
    found = re.search(rb"cmdstat_zrange:calls=(\d+)", cast("bytes", rig.valkey.command("INFO", "commandstats")))
    return int(found[1]) if found else 0


async def test_lines_of_all_jobs_come_in_the_order_in_which_they_were_written(rig: Rig) -> None:
    first = await wrote(rig, "a1", "a2")
    second = await wrote(rig, "b1")
    await rig.bus.log("hello.any", first, [line("a3")])
    answer = (await rig.http.get(PATH)).json()
    assert [(entry["job"], entry["text"]) for entry in answer["lines"]] == [
        (first, "a1"),
        (first, "a2"),
        (second, "b1"),
        (first, "a3"),
    ]
    assert answer["truncated"] is False


async def test_the_newest_lines_are_kept_and_the_answer_says_that_there_are_more(rig: Rig) -> None:
    for number in range(12):
        await wrote(rig, f"{number}-1", f"{number}-2")
    answer = (await rig.http.get(PATH, params={"limit": 3})).json()
    assert ([entry["text"] for entry in answer["lines"]], answer["truncated"]) == (["10-2", "11-1", "11-2"], True)


async def test_a_line_is_found_behind_hundreds_of_others_of_its_job(rig: Rig) -> None:
    await wrote(rig, "the needle", *(f"hay {number}" for number in range(900)))
    assert await texts(rig, grep="needle") == ["the needle"]
    assert await texts(rig, grep="nothing like it") == []


async def test_only_what_is_young_enough_is_shown(server: Any, rig: Rig) -> None:
    old = await wrote(rig, "old")
    server.clock.advance(3_600_000)
    await wrote(rig, "new")
    await rig.bus.log("hello.any", old, [line("old job, new line")])
    assert await texts(rig, since="30m") == ["new", "old job, new line"]
    assert len(await texts(rig, since="2h")) == 3


async def test_failed_shows_the_jobs_of_which_a_run_failed(rig: Rig) -> None:
    await wrote(rig, "good")
    await rig.run("hello.any")
    await wrote(rig, "dead")
    await rig.fail("hello.any", BAD)
    await wrote(rig, "retried")
    await rig.fail("hello.any", BAD, retry=True)
    await wrote(rig, "waits")
    assert await texts(rig, failed=1) == ["dead", "retried"]
    assert await texts(rig, failed=0) == ["good", "dead", "retried", "waits"]


async def test_what_is_written_is_followed_whichever_job_writes_it(rig: Rig) -> None:
    first = await wrote(rig, "before")
    async with rig.http.stream("GET", PATH, headers=STREAM) as answer:
        events = following(answer)
        assert await told(events, 1) == ["before"]
        await rig.bus.log("hello.any", first, [line("more of the first")])
        assert await told(events, 1) == ["more of the first"]
        await wrote(rig, "a second", "and on")
        assert await told(events, 2) == ["a second", "and on"]


async def test_nothing_is_told_twice_or_lost_while_many_write(rig: Rig) -> None:
    ids = [await rig.mint("hello.any", 1) for _ in range(5)]
    async with rig.http.stream("GET", PATH, headers=STREAM) as answer:
        events = following(answer)
        for round in range(40):
            await asyncio.gather(*(rig.bus.log("hello.any", id, [line(f"{id} {round}")]) for id in ids))
            await asyncio.sleep(0.01)
        got = await told(events, 200)
    assert sorted(got) == sorted(f"{id} {round}" for id in ids for round in range(40))


async def test_a_stream_goes_on_after_the_line_that_came_last(rig: Rig) -> None:
    await wrote(rig, "one", "two")
    async with rig.http.stream("GET", PATH, headers=STREAM) as answer:
        events = following(answer)
        _, place, data = await anext(events)
        assert data["text"] == "one"
    await wrote(rig, "three")
    async with rig.http.stream("GET", PATH, headers={**STREAM, "Last-Event-ID": place}) as answer:
        assert await told(following(answer), 2) == ["two", "three"]


async def test_a_stream_resumed_beyond_its_bound_says_that_lines_are_missing(rig: Rig) -> None:
    await wrote(rig, "first")
    async with rig.http.stream("GET", PATH, headers=STREAM) as answer:
        _, place, _ = await anext(following(answer))
    for start in range(0, 1500, 500):
        await wrote(rig, *(f"line {number}" for number in range(start, start + 500)))
    async with rig.http.stream("GET", PATH, headers={**STREAM, "Last-Event-ID": place}) as answer:
        events = following(answer)
        assert (await anext(events))[0] == "truncated"
        assert (await told(events, 1000))[-1] == "line 1499"


async def test_of_a_job_that_fails_later_the_earlier_lines_are_followed_too(rig: Rig) -> None:
    async with rig.http.stream("GET", PATH, params={"failed": 1}, headers=STREAM) as answer:
        events = following(answer)
        await wrote(rig, "will be good")
        await rig.run("hello.any")
        bad = await wrote(rig, "will be bad")
        before = looks(rig)
        await until(lambda: looks(rig) > before + 2)
        await rig.fail("hello.any", BAD)
        await rig.bus.log("hello.any", bad, [line("last words")])
        assert await told(events, 2) == ["will be bad", "last words"]


@contextlib.contextmanager
def killed(server: Any) -> Iterator[None]:
    """It is there again after the block, for the other tests too."""
    server.kill()
    try:
        yield
    finally:
        server.start()


async def test_a_stream_goes_on_when_the_bus_came_back(server: Any, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    refused, writers = asyncio.Event(), rig.bus.writers

    async def noted(*asked: Any, **how: Any) -> Any:
        try:
            return await writers(*asked, **how)
        except BusAway:
            refused.set()
            raise

    monkeypatch.setattr(rig.bus, "writers", noted)
    await wrote(rig, "before")
    async with rig.http.stream("GET", PATH, headers=STREAM) as answer:
        events = following(answer)
        assert await told(events, 1) == ["before"]
        with impatient(rig.bus), killed(server):
            await until(lambda: not rig.bus.connected)
            refused.clear()
            await asyncio.wait_for(refused.wait(), PATIENCE_S)  # the stream looks, and finds no bus
        await until(lambda: rig.bus.connected)
        await wrote(rig, "after")
        assert await told(events, 1) == ["after"]


async def test_a_stream_of_a_bus_that_is_away_does_not_begin(server: Any, rig: Rig) -> None:
    with impatient(rig.bus), killed(server):
        await until(lambda: not rig.bus.connected)
        answer = await rig.http.get(PATH, headers=STREAM)
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:echod:problem:bus-away")


async def test_a_trimmed_job_leaves_the_list_of_writers(server: Any, rig: Rig) -> None:
    await wrote(rig, "gone")
    await rig.run("hello.any")
    server.clock.advance(8 * 86_400_000)
    await rig.bus.beat(pump=True)
    assert await texts(rig) == []
    assert server.command("EXISTS", "emq:{hello.any}:logged") == 0


async def test_a_thousand_writers_are_remembered(server: Any, rig: Rig) -> None:
    ids = [rig.bus.new_job_id() for _ in range(1005)]
    await rig.bus.mint("hello.any", [Mint(id=id, payload=b"\x01") for id in ids])
    for id in ids:
        await rig.bus.log("hello.any", id, [line("x")])
    assert server.command("ZCARD", "emq:{hello.any}:logged") == 1000


@pytest.mark.parametrize(
    "query",
    [
        {"since": "soon"},
        {"since": "-1h"},
        {"since": "0.5"},
        {"since": "83540w"},
        {"failed": "yes"},
        {"limit": 0},
        {"limit": 1001},
        {"grep": "x" * 201},
    ],
)
async def test_a_question_that_cannot_be_taken_is_refused(rig: Rig, query: dict[str, Any]) -> None:
    answer = await rig.http.get(PATH, params=query)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:echod:problem:invalid-parameter")
    assert next(iter(query)) in answer.json()["detail"]


async def test_an_unknown_function_has_no_log_and_a_gone_one_has(rig: Rig) -> None:
    answer = await rig.http.get("/functions/hello.ani/logs")
    assert (answer.status_code, answer.json()["suggestions"][0]) == (404, "hello.any")
    [id] = [await rig.mint("hello.any", 1)]
    await rig.bus.log("hello.any", id, [line("still here")])
    rig.registry._functions.pop("hello.any")
    assert await texts(rig) == ["still here"]


@pytest.mark.parametrize("place", ["x", "1-0", "1-0.JOBx", "\xff", "9" * 40])
async def test_a_place_that_is_none_is_refused(rig: Rig, place: str) -> None:
    answer = await rig.http.get(PATH, headers={**STREAM, "Last-Event-ID": place.encode("latin-1")})  # type: ignore[dict-item]
    assert answer.status_code == 400
