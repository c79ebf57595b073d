"""Jobs, their logs, cancel and redrive, on a real server and a real bus."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any, cast

import httpx
import msgspec
import pytest

from doing import mint
from echod.bus import waiting
from echod.bus.answers import LogLine
from echod.model.ids import JobId, VersionId
from echod.model.job import Done, Error
from echofn.manifest import CronTrigger, QueueTrigger
from server import PATIENCE_S
from unit.gateway.kit import FUNCTIONS, Rig, Valkey, function, hold, publish, until

ODD_IDS = [
    "x",
    "JOB",
    "JOB0000000000!",
    "JOB000000000000",
    "{x}:%23%3F*",
    "%F0%9F%A6%8A",
    "..%2F..%2F",
    "a%0Ab",
    "x" * 10_000,
]


HIDING = (
    function("pay.charge", QueueTrigger(), redact=("card.number",)),
    function("pay.daily", CronTrigger("d", "0 6 * * *", payload=msgspec.msgpack.encode({"key": 1})), redact=("key",)),
)


async def test_what_a_function_redacts_is_hidden_while_there_is_one_and_after(rig: Rig) -> None:
    payload = {"card": {"number": 4111_1111, "cvc": 1}}
    await publish(rig.bus, HIDING, version=VersionId("DEP00000000002"))
    await rig.registry.refresh()
    id = await rig.mint("pay.charge", payload)
    claimed = await rig.claim("pay.charge")
    assert msgspec.msgpack.decode(claimed.payload) == payload
    await rig.settle("pay.charge", Done(hold(claimed), rig.record(claimed), msgspec.msgpack.encode({"of": 4111_1111})))
    triggers = (await rig.http.get("/functions/pay.daily")).json()["triggers"]
    assert triggers[0]["payload"] == {"key": "[redacted]"}
    for functions in (HIDING, FUNCTIONS):  # no version has it any more; its queue remembers
        await publish(rig.bus, functions, version=VersionId("DEP00000000003"))
        await rig.registry.refresh()
        job = (await rig.http.get(f"/jobs/{id}")).json()
        assert job["payload"] == {"card": {"number": "[redacted]", "cvc": 1}}
        assert job["result"] == {"of": "[redacted]"}
        assert "41111111" not in (await rig.http.get(f"/jobs/{id}", headers={"Accept": "text/html"})).text


async def test_a_job_is_shown_through_its_life(rig: Rig) -> None:
    id = await rig.mint("hello.greet", {"name": "Ada"})
    job = (await rig.http.get(f"/jobs/{id}")).json()
    assert (job["id"], job["function"], job["lane"], job["state"], job["reason"]) == (
        id,
        "hello.greet",
        "-",
        "pending",
        None,
    )
    assert (job["attempts"], job["failures"], job["payload"], job["result"], job["error"]) == (
        0,
        0,
        {"name": "Ada"},
        None,
        None,
    )
    assert (job["started"], job["ended"], job["occurrence"], job["parent"], job["history"]) == (
        None,
        None,
        None,
        None,
        [],
    )
    claimed = await rig.claim("hello.greet")
    assert (await rig.http.get(f"/jobs/{id}")).json()["state"] == "active"
    await rig.settle("hello.greet", Done(hold(claimed), rig.record(claimed), msgspec.msgpack.encode({"ok": True})))
    job = (await rig.http.get(f"/jobs/{id}")).json()
    assert (job["state"], job["result"], job["attempts"]) == ("done", {"ok": True}, 1)
    assert job["started"] < job["ended"]
    [run] = job["history"]
    assert set(run) >= {
        "attempt",
        "worker",
        "started",
        "ended",
        "outcome",
        "cause",
        "wait_ms",
        "cpu_s",
        "peak_bytes",
        "cold",
    }
    assert (run["attempt"], run["worker"], run["outcome"], run["cpu_s"], run["cold"]) == (
        1,
        "WRK1",
        "done",
        0.0015,
        True,
    )


async def test_a_dead_job_shows_its_error(rig: Rig) -> None:
    id = await rig.mint("hello.any", 1)
    await rig.fail("hello.any", Error("ValueError", "no <b>", "Traceback …", "signal:SEGV"))
    job = (await rig.http.get(f"/jobs/{id}")).json()
    assert job["state"] == "dead"
    assert job["error"] == {
        "type": "ValueError",
        "message": "no <b>",
        "traceback": "Traceback …",
        "cause": "signal:SEGV",
    }


async def test_an_unknown_job_is_404_on_every_route(rig: Rig) -> None:
    for method, verb in (("GET", ""), ("GET", "/logs"), ("POST", "/cancel"), ("POST", "/redrive")):
        for id in (*ODD_IDS, "JOB0KHTOWnGLuC"):
            answer = await rig.http.request(method, f"/jobs/{id}{verb}")
            assert answer.status_code == 404, (method, id)
            assert answer.json()["type"].endswith("unknown-job"), (method, id)
            assert len(answer.json()["detail"]) < 300


async def test_a_job_is_looked_for_in_the_queue_that_is_named(rig: Rig) -> None:
    id = await rig.mint("hello.any", 1)
    assert (await rig.http.get(f"/jobs/{id}?function=hello.any")).status_code == 200
    assert (await rig.http.get(f"/jobs/{id}?function=hello.greet")).status_code == 404


# ---- lists --------------------------------------------------------------------------------------------------------


async def test_jobs_of_all_functions_are_listed_newest_first_in_all_states(rig: Rig) -> None:
    done = await rig.mint("hello.any", 1)
    await rig.run("hello.any")
    dead = await rig.mint("shop.pack", 1)
    await rig.fail("shop.pack", Error("E", "m"))
    later = await rig.mint("hello.any", 2, Echo_Delay="1h")
    waiting = await rig.mint("hello.greet", {"name": "x"})
    body = (await rig.http.get("/jobs")).json()
    assert [(job["id"], job["state"]) for job in body["jobs"]] == [
        (waiting, "pending"),
        (later, "scheduled"),
        (dead, "dead"),
        (done, "done"),
    ]
    assert body["cursor"] is None


@pytest.mark.parametrize("query", ["", "&function=hello.any", "&state=pending", "&lane=-"])
async def test_a_list_goes_on_where_its_cursor_points_without_a_gap_or_a_repeat(rig: Rig, query: str) -> None:
    minted = [
        await rig.mint(name, None)
        for _ in range(8)
        for name in ("hello.any", "shop.pack", "odd%20name%2F%7Bx%7D%3A%23%3F%25%F0%9F%A6%8A")
    ]
    expected = minted[::-1] if "function" not in query else minted[::3][::-1]
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        body = (await rig.http.get(f"/jobs?limit=5{query}&cursor={cursor}")).json()
        assert len(body["jobs"]) <= 5
        seen += [job["id"] for job in body["jobs"]]
        cursor = body["cursor"]
    assert seen == expected


async def test_lists_are_filtered_by_function_state_and_lane(rig: Rig) -> None:
    await rig.mint("shop.pack", {"customer": {"id": "{a}:#/%?*\n🦊"}})
    await rig.mint("shop.pack", {"customer": {"id": "b"}})
    await rig.mint("hello.any", 1)

    async def count(**query: str) -> int:
        return len((await rig.http.get("/jobs", params=query)).json()["jobs"])

    assert await count() == 3
    assert await count(function="shop.pack") == 2
    assert await count(lane="{a}:#/%?*\n🦊") == 1
    assert await count(lane="b", function="hello.any") == 0
    assert await count(state="pending") == 3
    assert await count(state="done") == 0
    assert await count(function="", state="", lane="") == 3


async def test_a_bad_parameter_is_422_and_says_what_was_expected(rig: Rig) -> None:
    for query in (
        "state=alive",
        *(f"limit={limit}" for limit in ("0", "201", "-1", "ten", "1.5", "٥", "9" * 5000)),
        *(f"cursor={cursor}" for cursor in ("x", "JOB0000000000!", "x" * 10_000, "%00")),
    ):
        answer = await rig.http.get(f"/jobs?{query}")
        assert answer.status_code == 422, query
        assert "expected" in answer.json()["detail"]
        assert len(answer.json()["detail"]) < 300


async def test_a_list_of_an_unknown_function_is_404_with_suggestions(rig: Rig) -> None:
    answer = await rig.http.get("/jobs?function=hello.gret")
    assert (answer.status_code, answer.json()["suggestions"][0]) == (404, "hello.greet")


async def test_the_morgue_lists_the_dead_with_their_errors(rig: Rig) -> None:
    await rig.mint("hello.any", 1)
    dead = await rig.fail("hello.any", Error("ValueError", "no", "", "timeout"))
    await rig.mint("hello.any", 2)
    [job] = (await rig.http.get("/morgue")).json()["jobs"]
    assert (job["id"], job["error"]["cause"]) == (dead.id, "timeout")


async def test_the_morgue_is_read_by_what_a_redrive_takes(rig: Rig, server: Valkey) -> None:
    async def fail(name: str, payload: object, error: Error) -> str:
        await rig.mint(name, payload)
        return (await rig.fail(name, error)).id

    old = await fail("hello.any", 1, Error("OSError", "disk is FULL", "", "error"))
    server.clock.advance(3_600_000)
    wall = await fail("hello.any", 2, Error("OSError", "no route", "", "wall:network"))
    lane = await fail("shop.pack", {"customer": {"id": "Bo"}}, Error("KeyError", "x", "line 7", "error"))
    await rig.mint("hello.any", 3)
    await rig.run("hello.any")

    async def read(**query: str) -> list[str]:
        answer = await rig.http.get("/morgue", params=query)
        assert answer.status_code == 200, answer.text
        return [job["id"] for job in answer.json()["jobs"]]

    assert await read() == [lane, wall, old]
    assert await read(function="hello.any") == [wall, old]
    assert await read(lane="Bo") == [lane]
    assert await read(cause="wall") == [wall]
    assert await read(match="full") == [old]
    assert await read(match="LINE 7", lane="Bo") == [lane]
    assert await read(older="30m") == [old]
    assert await read(newer="30m") == [lane, wall]
    assert await read(newer="30m", cause="error", function="hello.any") == []
    for query in ({"lane": "Bo"}, {"cause": "wall"}, {"match": "full"}, {"older": "30m"}, {"newer": "30m"}):
        meant = await rig.http.post("/morgue/redrive", params={**query, "dry_run": "1"})
        assert meant.json()["matched"] == len(await read(**query))


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("older=soon", "older: expected a duration such as 30s"),
        ("newer=1", "newer: expected a duration such as 30s"),
        ("older=2h&newer=1h", "older: expected at most what newer says"),
        (f"cause={'x' * 101}", "cause: expected at most 100 characters"),
        (f"match={'x' * 201}", "match: expected at most 200 characters"),
        ("match=a&match=b", "match: expected it once"),
        ("lane=a&lane=b", "lane: expected it once"),
        ("limit=0", "limit: expected 1 to 200"),
        ("cursor=x", "cursor: expected one that a list answered"),
    ],
)
async def test_a_filter_of_the_morgue_that_cannot_be_is_named(rig: Rig, query: str, says: str) -> None:
    answer = await rig.http.get(f"/morgue?{query}")
    assert (answer.status_code, says in answer.json()["detail"]) == (422, True), answer.text


async def test_a_dead_job_behind_thousands_that_are_not_is_found_by_one_request(rig: Rig) -> None:
    await rig.mint("hello.any", 1)
    dead = await rig.fail("hello.any", Error("ValueError", "no"))
    await mint(rig.bus, "hello.any", 2100)
    [job] = (await rig.http.get("/morgue")).json()["jobs"]
    assert job["id"] == dead.id


# ---- cancel, redrive ----------------------------------------------------------------------------------------------


async def test_a_waiting_job_is_cancelled_at_once_and_asking_again_says_the_same(rig: Rig) -> None:
    id = await rig.mint("hello.any", 1)
    for _ in range(2):
        answer = await rig.http.post(f"/jobs/{id}/cancel")
        assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")
    assert (await rig.http.get(f"/jobs/{id}")).json()["state"] == "cancelled"


async def test_a_running_job_is_asked_to_stop(rig: Rig) -> None:
    id = await rig.mint("hello.any", 1)
    await rig.claim("hello.any")
    answer = await rig.http.post(f"/jobs/{id}/cancel")
    assert (answer.status_code, answer.json()["cancelling"]) == (202, True)
    assert (await rig.http.get(f"/jobs/{id}")).json()["cancelling"] is True


async def test_an_ended_job_cannot_be_cancelled(rig: Rig) -> None:
    id = await rig.mint("hello.any", 1)
    await rig.run("hello.any")
    answer = await rig.http.post(f"/jobs/{id}/cancel")
    assert (answer.status_code, answer.json()["state"]) == (409, "done")


async def test_a_dead_job_is_redriven_with_its_id_and_history(rig: Rig) -> None:
    id = await rig.mint("hello.any", 1)
    await rig.fail("hello.any", Error("E", "m"))
    answer = await rig.http.post(f"/jobs/{id}/redrive")
    assert (answer.status_code, answer.json()["id"], answer.json()["state"]) == (200, id, "pending")
    job = (await rig.http.get(f"/jobs/{id}")).json()
    assert (job["state"], job["failures"], len(job["history"])) == ("pending", 0, 1)
    assert (await rig.run("hello.any")).id == id


@pytest.mark.parametrize("state", ["pending", "done"])
async def test_a_job_that_is_not_dead_cannot_be_redriven(rig: Rig, state: str) -> None:
    id = await rig.mint("hello.any", 1)
    if state == "done":
        await rig.run("hello.any")
    answer = await rig.http.post(f"/jobs/{id}/redrive")
    assert (answer.status_code, answer.json()["state"]) == (409, state)


# ---- logs ---------------------------------------------------------------------------------------------------------


def line(number: int, text: str | None = None) -> LogLine:
    return LogLine(1_774_746_000_000 + number, 1, "stdout", "info", "", text or f"line {number}")


async def following(answer: httpx.Response) -> AsyncIterator[tuple[str, str, Any]]:
    """(event, id, data) as they come."""
    name = id = ""
    async for text in answer.aiter_lines():
        field, _, value = text.partition(": ")
        match field:
            case "event":
                name = value
            case "id":
                id = value
            case "data":
                yield name, id, msgspec.json.decode(value)
                name = id = ""


async def test_a_log_as_json_is_what_is_kept(rig: Rig) -> None:
    id = await rig.mint("hello.any", 1)
    await rig.bus.log("hello.any", id, [line(1), line(2, "<b>\x1b[31m\n🦊")])
    lines = (await rig.http.get(f"/jobs/{id}/logs", headers={"Accept": "application/json"})).json()
    assert [(entry["text"], entry["stream"], entry["attempt"]) for entry in lines] == [
        ("line 1", "stdout", 1),
        ("<b>\x1b[31m\n🦊", "stdout", 1),
    ]
    assert lines[0]["at"] == "2026-03-29T01:00:00.001Z"


async def test_a_log_is_followed_live_and_ends_with_its_job(rig: Rig) -> None:
    id = await rig.mint("hello.any", 1)
    await rig.bus.log("hello.any", id, [line(1)])
    async with rig.http.stream("GET", f"/jobs/{id}/logs") as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        assert answer.headers["Cache-Control"] == "no-store"
        events = following(answer)
        assert (await anext(events))[2]["text"] == "line 1"
        await rig.bus.log("hello.any", id, [line(2)])
        assert (await anext(events))[2]["text"] == "line 2"
        job = await rig.claim("hello.any")
        await rig.bus.log("hello.any", id, [line(3)])
        await rig.settle("hello.any", Done(hold(job), rig.record(job)))
        rest = [(name, data.get("text", data.get("state"))) async for name, _, data in events]
    assert rest == [("log", "line 3"), ("end", "done")]


def looks(rig: Rig) -> int:
    """How often a log was read."""
    found = re.search(rb"cmdstat_xrange:calls=(\d+)", cast("bytes", rig.valkey.command("INFO", "commandstats")))
    return int(found[1]) if found else 0


async def test_the_last_lines_that_come_after_the_verdict_are_followed_too(rig: Rig) -> None:
    """A supervisor writes a run's output up to a fifth of a second after its settle."""
    id = await rig.mint("hello.any", 1)
    await rig.run("hello.any")
    before = looks(rig)
    async with rig.http.stream("GET", f"/jobs/{id}/logs") as answer:
        events = following(answer)
        await until(lambda: looks(rig) > before)
        await rig.bus.log("hello.any", id, [line(1)])
        rest = [(name, data.get("text", data.get("state"))) async for name, _, data in events]
    assert rest == [("log", "line 1"), ("end", "done")]


async def test_a_log_is_resumed_after_the_last_line_that_came(rig: Rig) -> None:
    id = await rig.mint("hello.any", 1)
    await rig.bus.log("hello.any", id, [line(number) for number in range(5)])
    await rig.run("hello.any")
    async with rig.http.stream("GET", f"/jobs/{id}/logs") as answer:
        seen = [(name, event_id) async for name, event_id, _ in following(answer)]
    async with rig.http.stream("GET", f"/jobs/{id}/logs", headers={"Last-Event-ID": seen[2][1]}) as answer:
        rest = [(name, event_id) async for name, event_id, _ in following(answer)]
    assert len(seen) == 6
    assert rest == seen[3:]


@pytest.mark.parametrize("last", ["x", "1-0; DROP", "$", "+", "9" * 60, "\xff"])
async def test_a_bad_last_event_id_is_400(rig: Rig, last: str) -> None:
    id = await rig.mint("hello.any", 1)
    answer = await rig.http.get(f"/jobs/{id}/logs", headers={"Last-Event-ID": last.encode("latin-1")})  # type: ignore[dict-item]
    assert answer.status_code == 400


async def test_a_log_of_thousands_of_lines_arrives_whole_and_in_order(rig: Rig) -> None:
    id = await rig.mint("hello.any", 1)
    for start in range(0, 3000, 500):
        await rig.bus.log("hello.any", id, [line(number) for number in range(start, start + 500)])
    await rig.run("hello.any")
    async with rig.http.stream("GET", f"/jobs/{id}/logs") as answer:
        texts = [data["text"] async for name, _, data in following(answer) if name == "log"]
    assert texts == [f"line {number}" for number in range(3000)]


async def test_a_head_of_a_log_does_not_hang(rig: Rig) -> None:
    id = await rig.mint("hello.any", 1)
    answer = await rig.http.head(f"/jobs/{id}/logs")
    assert (answer.status_code, answer.content) == (200, b"")


async def test_a_page_that_closes_its_log_stops_the_reading(rig: Rig) -> None:
    id = await rig.mint("hello.any", 1)
    before = len(asyncio.all_tasks())
    async with rig.http.stream("GET", f"/jobs/{id}/logs") as answer:
        assert answer.status_code == 200
    await until(lambda: len(asyncio.all_tasks()) <= before)


async def test_progress_is_shown(rig: Rig) -> None:
    id = await rig.mint("hello.any", 1)
    job = await rig.claim("hello.any")
    await rig.bus.progress("hello.any", hold(job), 0.4, "half way")
    assert (await rig.http.get(f"/jobs/{JobId(id)}")).json()["progress"] == [0.4, "half way"]


async def test_a_job_is_waited_for_and_told_at_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the news of it: nobody looks for it meanwhile."""
    monkeypatch.setattr(waiting, "_CHECK_S", 3600.0)
    id = await rig.mint("hello.any", 1)
    looked = asyncio.ensure_future(rig.http.get(f"/jobs/{id}", headers={"Prefer": "wait=60"}))
    await until(lambda: len(rig.desk.waiting))
    job = await rig.claim("hello.any")
    listening = rig.valkey.command("HGET", f"emq:{{hello.any}}:job:{id}", "wt")
    async with asyncio.timeout(PATIENCE_S):
        while not listening:
            await asyncio.sleep(0.002)
            listening = rig.valkey.command("HGET", f"emq:{{hello.any}}:job:{id}", "wt")
    assert not looked.done()
    await rig.settle("hello.any", Done(hold(job), rig.record(job), msgspec.msgpack.encode(7)))
    async with asyncio.timeout(30):  # half of what it waits without news
        answer = await looked
    assert (answer.json()["state"], answer.json()["result"]) == ("done", 7)
    assert answer.headers["Preference-Applied"] == "wait=60"
    assert len(rig.desk.waiting) == 0


async def test_who_waits_too_short_a_time_sees_the_job_as_it_stands(rig: Rig) -> None:
    id = await rig.mint("hello.any", 1)
    answer = await rig.http.get(f"/jobs/{id}", headers={"Prefer": "wait=1"})
    assert (answer.status_code, answer.json()["state"]) == (200, "pending")
    await rig.run("hello.any", 7)
    answer = await rig.http.get(f"/jobs/{id}", headers={"Prefer": "wait=30"})
    assert answer.json()["state"] == "done"
    assert "Preference-Applied" not in answer.headers


async def test_a_function_that_nobody_has_is_told_and_not_remembered(rig: Rig) -> None:
    """Whoever may read could have filled a gateway's memory, a name a request."""
    id = await rig.mint("hello.any", 1)
    name = "hello.eny"
    for path, told in (
        (f"/jobs/{id}", "job"),
        (f"/jobs/{id}/logs", "job"),
        ("/jobs", "function"),
        ("/morgue", "function"),
    ):
        answer = await rig.http.get(path, params={"function": name})
        assert (answer.status_code, answer.json()["type"]) == (404, f"urn:echod:problem:unknown-{told}"), path
        assert told == "job" or "hello.any" in answer.json()["suggestions"]
        assert name not in rig.bus._bases
    assert (await rig.http.get(f"/jobs/{id}", params={"function": "hello.any"})).status_code == 200


async def test_a_long_log_is_answered_whole_and_its_page_says_that_it_goes_on(rig: Rig) -> None:
    id = await rig.mint("hello.any", 1)
    await rig.bus.log("hello.any", id, [line(n) for n in range(1_000)])
    page = (await rig.http.get(f"/jobs/{id}", headers={"Accept": "text/html"})).text
    assert ("line 999" in page, "first 1000 lines" in page) == (True, False)
    await rig.bus.log("hello.any", id, [line(n) for n in range(1_000, 2_500)])
    lines = (await rig.http.get(f"/jobs/{id}/logs", headers={"Accept": "application/json"})).json()
    assert [entry["text"] for entry in lines] == [f"line {n}" for n in range(2_500)]
    page = (await rig.http.get(f"/jobs/{id}", headers={"Accept": "text/html"})).text
    assert ("line 999" in page, "line 1000" in page, "first 1000 lines" in page) == (True, False, True)
    assert f"<code>echod logs {id}</code>" in page
