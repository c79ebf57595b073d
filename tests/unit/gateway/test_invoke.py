"""POST /functions/{name}, on a real server and a real bus."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from echod.model.job import Done, Error
from echofn.manifest import Off
from unit.gateway.kit import ERRORS, FUNCTIONS, OLDER, VERSION, Rig, Valkey, function, hold, publish, serving, until


async def test_a_payload_becomes_a_job(rig: Rig) -> None:
    answer = await rig.call("hello.greet", {"name": "Ada"})
    body = answer.json()
    assert answer.status_code == 202
    assert set(body) == {"id", "function", "state", "url"}
    assert (len(body["id"]), body["id"][:3], body["function"], body["state"]) == (14, "JOB", "hello.greet", "pending")
    assert answer.headers["Location"] == body["url"] == f"/jobs/{body['id']}"
    assert answer.headers["Echo-Job"] == body["id"]
    job = await rig.claim("hello.greet")
    assert (job.id, job.payload, job.lane) == (body["id"], msgspec.msgpack.encode({"name": "Ada"}), "-")


async def test_msgpack_is_taken_as_it_is(rig: Rig) -> None:
    packed = msgspec.msgpack.encode({"raw": b"\x00\xff"})
    answer = await rig.http.post(
        "/functions/hello.any", content=packed, headers={"Content-Type": "application/msgpack"}
    )
    assert answer.status_code == 202
    assert (await rig.claim("hello.any")).payload == packed


async def test_bytes_where_the_type_is_text_are_422_by_either_door(rig: Rig) -> None:
    """As base64, which is what a schema sees of bytes, they fit; the worker, to which they are bytes, could not read
    them."""
    as_msgpack = {"Content-Type": "application/msgpack"}
    body = msgspec.msgpack.encode({"name": b"abc"})
    answer = await rig.http.post("/functions/hello.greet", content=body, headers=as_msgpack)
    orders = msgspec.msgpack.encode([{"function": "hello.greet", "payload": {"name": b"abc"}}])
    many = (await rig.http.post("/jobs", content=orders, headers=as_msgpack)).json()
    for problem in (answer.json(), many["jobs"][0]["problem"]):
        assert problem["status"] == 422
        assert problem["detail"].startswith("$.name: got bytes (a bin of msgpack), which fit only where the type is")


async def test_an_empty_body_is_null(rig: Rig) -> None:
    assert (await rig.http.post("/functions/hello.any")).status_code == 202
    assert (await rig.claim("hello.any")).payload == b"\xc0"


@pytest.mark.parametrize("body", [b"", b"null"])
async def test_a_call_without_a_payload_gets_that_of_the_annotation(rig: Rig, body: bytes) -> None:
    answer = await rig.http.post(
        "/functions/shop.usual", content=body, headers={"Content-Type": "application/json"} if body else {}
    )
    assert answer.status_code == 202
    job = await rig.claim("shop.usual")
    assert (msgspec.msgpack.decode(job.payload), job.lane) == ({"name": "Bo", "at": b"x"}, "Bo")
    assert (await rig.call("shop.usual", {"name": "Ada"})).status_code == 202
    assert msgspec.msgpack.decode((await rig.claim("shop.usual")).payload) == {"name": "Ada"}


async def test_a_function_that_is_off_here_says_why(server: Valkey) -> None:
    off = (Off("m.f", "queue", "m.py", 4, "env=prod", "m"), Off("m.f", "cron", "m.py", 5, "enabled=False"))
    async with serving(server, off=off) as rig:
        answer = await rig.call("m.f", None)
        assert answer.status_code == 404
        assert (
            answer.json()["detail"] == "m.f is off here: @queue (m.py:4) has env=prod, @cron (m.py:5) has enabled=False"
        )
        listed = (await rig.http.get("/functions")).json()["off"]
        first = {"function": "m.f", "kind": "queue", "module": "m", "file": "m.py", "line": 4, "why": "env=prod"}
        assert listed[0] == first
        page = (await rig.http.get("/", headers={"Accept": "text/html"})).text
        assert "2 annotations are off here" in page
        assert "<code>@queue</code> of m.f: <code>env=prod</code>" in page


async def test_an_empty_body_for_a_function_that_needs_more_is_422(rig: Rig) -> None:
    answer = await rig.http.post("/functions/hello.greet")
    assert answer.status_code == 422
    assert answer.json()["faults"][0]["path"] == "$"


async def test_a_chunked_body_is_read_whole(rig: Rig) -> None:
    async def body() -> AsyncIterator[bytes]:
        for byte in b'{"name": "Ada"}':
            yield bytes([byte])

    answer = await rig.http.post("/functions/hello.greet", content=body(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 202
    assert msgspec.msgpack.decode((await rig.claim("hello.greet")).payload) == {"name": "Ada"}


@pytest.mark.parametrize(
    ("payload", "path"),
    [("a", "$"), ({}, "$"), ({"name": 1}, "$.name"), ({"name": "x", "tags": [1, "2"]}, "$.tags[1]"), (None, "$")],
)
async def test_a_payload_that_does_not_fit_is_422_with_its_path(rig: Rig, payload: object, path: str) -> None:
    answer = await rig.call("hello.greet", payload)
    assert answer.status_code == 422
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["faults"][0]["path"] == path
    assert await nothing_was_queued(rig)


async def test_an_unknown_function_is_404_with_suggestions(rig: Rig) -> None:
    answer = await rig.call("hello.gret", {"name": "x"})
    assert answer.status_code == 404
    assert answer.json()["suggestions"][0] == "hello.greet"
    assert "did you mean hello.greet?" in answer.json()["detail"]
    assert "hello.gret" not in await rig.bus.queues()


@pytest.mark.parametrize(
    ("status", "content_type", "body"),
    [
        (400, "application/json", b"{nope"),
        (400, "application/json", b'"\xff"'),
        (400, "application/json", b"NaN"),
        (400, "application/msgpack", b"\xc1"),
        (415, "text/plain", b"hello"),
        (415, "application/x-www-form-urlencoded", b"name=x"),
        (422, "application/json", b"18446744073709551616"),
        (422, "application/json", b"[" * 5000 + b"]" * 5000),
        (413, "application/json", b'"' + b"x" * 1024 * 1024 + b'"'),
    ],
)
async def test_a_bad_body_is_refused_and_nothing_is_queued(
    rig: Rig, status: int, content_type: str, body: bytes
) -> None:
    answer = await rig.http.post("/functions/hello.any", content=body, headers={"Content-Type": content_type})
    assert answer.status_code == status
    assert answer.json()["status"] == status
    assert await nothing_was_queued(rig)


async def test_without_a_version_503_says_what_to_do(server: Valkey) -> None:
    async with serving(server, deployed=False) as rig:
        answer = await rig.call("hello.greet", {"name": "x"})
        assert answer.status_code == 503
        assert "echod deploy" in answer.json()["detail"]
        assert answer.headers["Retry-After"]


# ---- lanes and keys -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "lane"),
    [
        ({"customer": {"id": "acme"}}, "acme"),
        ({"customer": {"id": 7}}, "7"),
        ({"customer": {"id": None}}, "-"),
        ({"customer": {}}, "-"),
        ({}, "-"),
        (None, "-"),
        ({"customer": {"id": "🦊 {}:#/%?*\n../"}}, "🦊 {}:#/%?*\n../"),
        ({"customer": {"id": "x" * 10_000}}, "x" * 10_000),
    ],
)
async def test_the_lane_is_walked_from_the_payload(rig: Rig, payload: object, lane: str) -> None:
    job = await rig.mint("shop.pack", payload)
    assert (await rig.claim("shop.pack")).lane == lane
    assert (await rig.http.get(f"/jobs/{job}")).json()["lane"] == lane


async def test_equal_looking_lanes_are_kept_apart(rig: Rig) -> None:
    composed, decomposed = "é", "e\u0301"
    for lane in (composed, decomposed):
        await rig.mint("shop.pack", {"customer": {"id": lane}})
    assert {(await rig.claim("shop.pack")).lane for _ in range(2)} == {composed, decomposed}


async def test_an_object_for_a_lane_is_422(rig: Rig) -> None:
    answer = await rig.call("shop.pack", {"customer": {"id": {"a": 1}}})
    assert answer.status_code == 422
    assert answer.json()["faults"][0]["path"] == "$.customer.id"


async def test_a_caller_can_name_the_lane(rig: Rig) -> None:
    await rig.mint("shop.pack", {"customer": {"id": "acme"}}, Echo_Lane="Zoë")
    assert (await rig.claim("shop.pack")).lane == "Zoë"


async def test_the_same_key_and_body_is_the_same_job_and_another_body_a_conflict(rig: Rig) -> None:
    first, again = [await rig.mint("hello.greet", {"name": "C"}, Idempotency_Key="k1") for _ in range(2)]
    assert first == again
    conflict = await rig.call("hello.greet", {"name": "D"}, Idempotency_Key="k1")
    assert conflict.status_code == 409
    assert conflict.json()["job"] == first
    assert await rig.mint("hello.greet", {"name": "C"}, Idempotency_Key="k2") != first
    assert await rig.mint("hello.any", {"name": "C"}, Idempotency_Key="k1") != first


async def test_a_key_holds_after_its_job_ended(rig: Rig) -> None:
    first = await rig.mint("hello.any", 1, Idempotency_Key="k")
    await rig.run("hello.any")
    answer = await rig.call("hello.any", 1, Idempotency_Key="k")
    assert (answer.status_code, answer.json()["id"], answer.json()["state"]) == (202, first, "done")


async def test_a_key_holds_for_a_day(rig: Rig) -> None:
    first = await rig.mint("hello.any", 1, Idempotency_Key="k")
    await rig.run("hello.any")
    rig.valkey.clock.advance(23 * 3_600_000)
    assert await rig.mint("hello.any", 1, Idempotency_Key="k") == first
    rig.valkey.clock.advance(2 * 3_600_000)
    assert await rig.mint("hello.any", 1, Idempotency_Key="k") != first


async def test_a_key_holds_for_as_long_as_its_caller_needs_it(rig: Rig) -> None:
    first = await rig.mint("hello.any", 1, Idempotency_Key="k", Echo_Key_For="90s")
    assert await rig.mint("hello.any", 1, Idempotency_Key="k", Echo_Key_For="90s") == first
    rig.valkey.clock.advance(90_001)
    assert await rig.mint("hello.any", 1, Idempotency_Key="k", Echo_Key_For="90s") != first
    alone = await rig.call("hello.any", 1, Echo_Key_For="90s")
    assert (alone.status_code, alone.json()["detail"]) == (
        400,
        "Echo-Key-For: expected Idempotency-Key beside it, got none",
    )


async def test_of_a_job_that_is_gone_its_key_tells_no_state_and_nobody_waits_for_it(rig: Rig) -> None:
    first = await rig.mint("hello.any", 1, Idempotency_Key="k")
    await rig.run("hello.any")
    await rig.bus.purge("hello.any", [first], ["done"])
    for headers in ({}, {"Prefer": "wait=30"}):
        async with asyncio.timeout(15):
            answer = await rig.call("hello.any", 1, Idempotency_Key="k", **headers)
        assert (answer.status_code, answer.json()["id"], answer.json()["state"]) == (202, first, None)


async def test_fifty_posts_of_one_key_at_once_are_one_job(rig: Rig) -> None:
    ids = await asyncio.gather(*(rig.mint("hello.any", 1, Idempotency_Key="k") for _ in range(50)))
    assert len(set(ids)) == 1
    assert (await rig.bus.stats(["hello.any"]))["hello.any"].pending == 1


@pytest.mark.parametrize("key", ["a b", "{x}:y", "../", "🦊", "*", "x" * 255, "%0a"])
async def test_any_key_is_kept_apart_from_others(rig: Rig, key: str) -> None:
    first = await rig.mint("hello.any", 1, Idempotency_Key=key)
    assert await rig.mint("hello.any", 1, Idempotency_Key=key) == first
    assert await rig.mint("hello.any", 1, Idempotency_Key=key[:-1] + "_") != first


async def test_unique_by_payload_answers_the_job_that_is_there(rig: Rig) -> None:
    first = await rig.mint("shop.once", {"a": 1, "b": 2})
    assert await rig.mint("shop.once", {"a": 1, "b": 2}) == first
    assert await rig.mint("shop.once", {"a": 2}) != first
    await rig.run("shop.once")
    assert await rig.mint("shop.once", {"a": 1, "b": 2}) != first


async def test_unique_by_a_path_answers_the_job_that_is_there(rig: Rig) -> None:
    first = await rig.mint("shop.keyed", {"order": 7, "try": 1})
    assert await rig.mint("shop.keyed", {"order": 7, "try": 2}) == first
    assert await rig.mint("shop.keyed", {"order": 8}) != first
    assert await rig.mint("shop.keyed", {}) != await rig.mint("shop.keyed", {})


async def test_a_request_has_its_key_beside_what_the_function_is_unique_by(rig: Rig) -> None:
    first = await rig.mint("shop.keyed", {"order": 7}, Idempotency_Key="k1")
    assert await rig.mint("shop.keyed", {"order": 7}, Idempotency_Key="k2") == first
    await rig.run("shop.keyed")
    rig.valkey.clock.advance(60_001)  # the order may come again
    assert await rig.mint("shop.keyed", {"order": 7}, Idempotency_Key="k1") == first
    assert await rig.mint("shop.keyed", {"order": 7}, Idempotency_Key="k2") == first  # a duplicate's answer is kept too
    assert await rig.mint("shop.keyed", {"order": 7}, Idempotency_Key="k3") != first
    assert (await rig.call("shop.keyed", {"order": 8}, Idempotency_Key="k1")).status_code == 409


async def test_a_callers_own_unique_key_holds_until_the_job_is_done(rig: Rig) -> None:
    first = await rig.mint("hello.any", 1, Echo_Unique="nightly")
    assert await rig.mint("hello.any", 2, Echo_Unique="nightly") == first
    assert await rig.mint("hello.any", 2, Echo_Unique="other") != first
    await rig.run("hello.any")
    assert await rig.mint("hello.any", 1, Echo_Unique="nightly") != first
    by_path = await rig.mint("shop.keyed", {"order": 1})
    assert await rig.mint("shop.keyed", {"order": 1}, Echo_Unique="mine") != by_path


async def test_a_lower_priority_number_runs_first(rig: Rig) -> None:
    late = await rig.mint("hello.any", 1, Echo_Priority="5")
    early = await rig.mint("hello.any", 1, Echo_Priority="-5")
    usual = await rig.mint("hello.any", 1)
    assert [(await rig.claim("hello.any")).id for _ in range(3)] == [early, usual, late]


async def test_a_full_queue_is_429_with_when_to_come_back(rig: Rig) -> None:
    for _ in range(2):
        await rig.mint("shop.small")
    answer = await rig.call("shop.small", None)
    assert answer.status_code == 429
    assert int(answer.headers["Retry-After"]) >= 1
    await rig.run("shop.small")
    await rig.mint("shop.small")


# ---- time and version ---------------------------------------------------------------------------------------------


async def test_a_delayed_job_is_scheduled(rig: Rig) -> None:
    answer = await rig.call("hello.any", 1, Echo_Delay="5m")
    assert answer.json()["state"] == "scheduled"
    job = (await rig.http.get(answer.headers["Location"])).json()
    assert (job["state"], job["reason"]) == ("scheduled", "delay")
    due, minted = (datetime.fromisoformat(job[name]) for name in ("due", "minted"))
    assert due - minted == timedelta(minutes=5)


async def test_a_job_at_an_instant_is_due_then(rig: Rig) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    job = (await rig.http.get(f"/jobs/{await rig.mint('hello.any', 1, Echo_At=at.isoformat())}")).json()
    assert (job["state"], job["reason"]) == ("scheduled", "at")
    assert datetime.fromisoformat(job["due"]) == at


async def test_an_instant_that_has_passed_is_now(rig: Rig) -> None:
    for headers in ({"Echo_At": "2020-01-01T00:00:00Z"}, {"Echo_Delay": "0s"}):
        answer = await rig.call("hello.any", 1, **headers)
        assert answer.json()["state"] == "pending"
        assert (await rig.http.get(answer.headers["Location"])).json()["state"] == "pending"


@pytest.mark.parametrize(
    ("header", "value", "status"),
    [
        ("Echo-Delay", "soon", 400),
        ("Echo-At", "tomorrow", 400),
        ("Echo-Durable", "fsync", 501),
        ("Echo-Durable", "maybe", 400),
        ("Echo-Version", "DEP99999999999", 422),
        ("Echo-Version", "../../etc/passwd", 422),
        ("Echo-Version", "x" * 10_000, 422),
        ("Echo-Version", "", 422),
        ("Idempotency-Key", "x" * 256, 400),
        ("Echo-Key-For", "90s", 400),
        ("Echo-Unique", "", 400),
        ("Echo-Unique", "x" * 256, 400),
        ("Echo-Priority", "high", 400),
        ("Echo-Priority", "1.5", 400),
        ("Echo-Priority", "1000001", 400),
    ],
)
async def test_a_header_that_cannot_be_honoured_is_refused(rig: Rig, header: str, value: str, status: int) -> None:
    answer = await rig.http.post("/functions/hello.any", headers={header: value})
    assert answer.status_code == status
    assert len(answer.json()["detail"]) < 500
    assert await nothing_was_queued(rig)


async def test_a_pinned_version_is_checked_by_its_own_schema_and_kept_with_the_job(rig: Rig) -> None:
    old = (function("hello.greet", schema={"type": "integer"}), function("gone.by"))
    await publish(rig.bus, old, version=OLDER)
    await publish(rig.bus, FUNCTIONS)
    await rig.registry.refresh()
    assert (await rig.call("hello.greet", {"name": "x"}, Echo_Version=OLDER)).status_code == 422
    taken = await rig.call("hello.greet", 7, Echo_Version=OLDER)
    assert (taken.status_code, taken.headers["Echo-Version"]) == (202, OLDER)
    job = taken.json()["id"]
    assert (await rig.http.get(f"/jobs/{job}")).json()["version"] == OLDER
    assert (await rig.claim("hello.greet")).version == OLDER
    gone = await rig.call("gone.by", None, Echo_Version=OLDER)  # its job would wait for ever
    assert gone.status_code == 404
    assert f"gone.by is in {OLDER} but not in the active version, {VERSION}" in gone.json()["detail"]
    assert not (await rig.bus.jobs("gone.by"))[0]
    missing = await rig.call("hello.any", None, Echo_Version=OLDER)
    assert missing.status_code == 404
    await rig.mint("hello.any", None, Echo_Version=VERSION)


# ---- waiting ------------------------------------------------------------------------------------------------------


async def test_a_caller_who_waits_gets_the_result(rig: Rig) -> None:
    waiting = asyncio.create_task(rig.call("hello.greet", {"name": "Ada"}, Prefer="wait=20"))
    job = await rig.run("hello.greet", {"hello": "Ada", "raw": b"\x00", "n": 2**64 - 1})
    answer = await waiting
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.json() == {"hello": "Ada", "raw": "AA==", "n": 2**64 - 1}
    assert answer.headers["Preference-Applied"] == "wait=20"
    assert answer.headers["Location"] == f"/jobs/{job.id}"
    assert (answer.headers["Echo-Job"], answer.headers["Echo-Version"]) == (job.id, VERSION)
    assert len(rig.desk.waiting) == 0


@pytest.mark.parametrize(
    ("result", "shown"), [(None, None), ("x", "x"), (0, 0), (float("nan"), None), (b"", ""), ([], [])]
)
async def test_any_result_is_answered_as_json(rig: Rig, result: object, shown: object) -> None:
    waiting = asyncio.create_task(rig.call("hello.any", 1, Prefer="wait=20"))
    await rig.run("hello.any", result)
    assert (await waiting).json() == shown


async def test_a_job_that_ended_badly_is_500_with_its_id_message_and_cause(rig: Rig) -> None:
    waiting = asyncio.create_task(rig.call("hello.any", 1, Prefer="wait=20"))
    job = await rig.fail("hello.any", Error("ValueError", "no such order", "Traceback …", "error"))
    answer = await waiting
    body = answer.json()
    assert answer.status_code == 500
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert (body["job"], body["url"], body["cause"], body["state"]) == (job.id, f"/jobs/{job.id}", "error", "dead")
    assert body["detail"] == "ValueError: no such order"
    assert body["error"]["traceback"] == "Traceback …"
    assert answer.headers["Location"] == f"/jobs/{job.id}"


async def test_a_job_that_was_cancelled_while_waited_for_is_500(rig: Rig) -> None:
    waiting = asyncio.create_task(rig.call("hello.any", 1, Prefer="wait=20"))
    await until(lambda: len(rig.desk.waiting) == 1)
    job = await rig.first("hello.any")
    assert (await rig.http.post(f"/jobs/{job}/cancel")).status_code == 200
    answer = await waiting
    assert (answer.status_code, answer.json()["state"]) == (500, "cancelled")


async def test_a_job_that_is_tried_again_is_waited_for_until_it_ends(rig: Rig) -> None:
    waiting = asyncio.create_task(rig.call("hello.any", 1, Prefer="wait=1"))
    await rig.fail("hello.any", Error("ValueError", "not yet"), retry=True)
    assert (await waiting).status_code == 202


async def test_a_job_that_does_not_end_in_time_is_202_as_without_waiting(rig: Rig) -> None:
    answer = await rig.call("hello.any", 1, Prefer="wait=1")
    assert answer.status_code == 202
    assert answer.headers["Preference-Applied"] == "wait=1"
    assert answer.headers["Location"] == answer.json()["url"]
    assert len(rig.desk.waiting) == 0


async def test_who_waits_under_a_key_that_is_taken_waits_for_its_job(rig: Rig) -> None:
    first = await rig.mint("hello.any", 1, Idempotency_Key="k")
    waiting = asyncio.create_task(rig.call("hello.any", 1, Idempotency_Key="k", Prefer="wait=20"))
    await until(lambda: len(rig.desk.waiting) == 1)
    await rig.run("hello.any", "done")
    answer = await waiting
    assert (answer.status_code, answer.json(), answer.headers["Echo-Job"]) == (200, "done", first)
    again = await rig.call("hello.any", 1, Idempotency_Key="k", Prefer="wait=20")
    assert (again.status_code, again.json()) == (200, "done")


async def test_many_wait_at_once_and_each_gets_its_own_result(rig: Rig) -> None:
    waiting = [asyncio.create_task(rig.call("hello.any", n, Prefer="wait=30")) for n in range(40)]
    for _ in range(40):
        job = await rig.claim("hello.any")

        await rig.settle("hello.any", Done(hold(job), rig.record(job), job.payload))
    assert [answer.json() for answer in await asyncio.gather(*waiting)] == list(range(40))


async def test_a_caller_who_leaves_leaves_nothing_behind(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    waiting = asyncio.create_task(rig.call("hello.any", 1, Prefer="wait=60"))
    await until(lambda: len(rig.desk.waiting) == 1)
    waiting.cancel()
    await until(lambda: len(rig.desk.waiting) == 0)
    assert (await rig.http.get("/healthz")).status_code == 200
    assert "request.failed" not in capsys.readouterr().out
    assert (await rig.bus.stats(["hello.any"]))["hello.any"].pending == 1


# ---- names --------------------------------------------------------------------------------------------------------


async def test_a_name_may_hold_anything_that_is_percent_encoded(rig: Rig) -> None:
    answer = await rig.http.post("/functions/odd%20name%2F%7Bx%7D%3A%23%3F%25%F0%9F%A6%8A")
    assert answer.status_code == 202
    assert answer.json()["function"] == "odd name/{x}:#?%🦊"
    job = await rig.claim("odd name/{x}:#?%🦊")
    assert (await rig.http.get(f"/jobs/{job.id}")).json()["function"] == "odd name/{x}:#?%🦊"


@pytest.mark.parametrize(
    "name", ["", "a%0Ab", "%7B%7D", "..%2F..%2Fetc", "%F0%9F%A6%8A", "x" * 10_000, "*", "hello.greet%00", "HELLO.GREET"]
)
async def test_any_other_name_is_404_and_makes_no_queue(rig: Rig, name: str) -> None:
    answer = await rig.http.post(f"/functions/{name}")
    assert answer.status_code == 404
    assert len(answer.json()["detail"]) < 500
    assert sorted(await rig.bus.queues()) == sorted(found.name for found in FUNCTIONS)


async def test_a_name_that_is_not_utf_8_is_400(rig: Rig) -> None:
    assert (await rig.http.post("/functions/%FF")).status_code == 400


async def test_load_errors_show_in_every_answers_header(server: Valkey) -> None:
    async with serving(server, errors=ERRORS) as rig:
        assert (await rig.call("hello.any", 1)).headers["Echo-Load-Errors"] == "1; broken.py:4:7"
        assert (await rig.call("no.such", 1)).headers["Echo-Load-Errors"] == "1; broken.py:4:7"


async def test_load_errors_are_no_strangers_business(server: Valkey) -> None:
    async with serving(server, errors=ERRORS, token="s3cret") as rig:
        known = await rig.call("hello.any", 1, Authorization="Bearer s3cret")
        assert known.headers["Echo-Load-Errors"] == "1; broken.py:4:7"
        for path in ("/functions", "/hooks/none", "/healthz", "/readyz", "/login", "/nowhere"):
            for method in ("GET", "POST"):
                for accept in ("application/json", "text/html"):
                    answer = await rig.http.request(method, path, headers={"Accept": accept})
                    assert "Echo-Load-Errors" not in answer.headers, (method, path)


async def nothing_was_queued(rig: Rig) -> bool:
    stats = await rig.bus.stats([found.name for found in FUNCTIONS])
    return all(queue.pending == queue.scheduled == 0 for queue in stats.values())
