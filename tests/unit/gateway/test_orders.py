"""POST /jobs: many orders in one request; each is taken or refused as a single call would be."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from doing import impatient
from unit.gateway.kit import Rig


async def post(rig: Rig, orders: object, *, packed: bool = False, **headers: str) -> httpx.Response:
    kind = "application/msgpack" if packed else "application/json"
    body = msgspec.msgpack.encode(orders) if packed else msgspec.json.encode(orders)
    sent = {key.replace("_", "-"): value for key, value in headers.items()}
    return await rig.http.post("/jobs", content=body, headers={"Content-Type": kind, **sent})


async def minted(rig: Rig) -> int:
    return len((await rig.http.get("/jobs?limit=200")).json()["jobs"])


def problems(answer: httpx.Response) -> dict[int, str]:
    """By index, the slug of each order that was refused."""
    told = enumerate(answer.json()["jobs"])
    return {n: each["problem"]["type"].removeprefix("urn:echod:problem:") for n, each in told if "problem" in each}


@pytest.mark.parametrize("packed", [False, True])
async def test_many_orders_are_many_jobs_in_their_order(rig: Rig, packed: bool) -> None:
    orders: list[dict[str, Any]] = [{"function": "hello.any", "payload": {"n": n}} for n in range(300)]
    orders[7] = {"function": "shop.pack", "payload": {"customer": {"id": "acme"}}}
    orders[8] = {"function": "shop.usual"}
    orders[9] = {"function": "hello.any", "payload": b"\xff" if packed else "x", "lane": "a", "priority": -3.0}
    orders[10] = {"function": "hello.any", "delay": "1h"}
    orders[11] = {"function": "hello.any", "delay": 60}
    orders[12] = {"function": "hello.any", "at": "2026-01-01T00:00:00+01:00"}
    answer = await post(rig, orders, packed=packed)
    assert answer.status_code == 202
    body = answer.json()
    assert (len(body["jobs"]), body["minted"], body["refused"]) == (300, 300, 0)
    assert len({job["id"] for job in body["jobs"]}) == 300
    assert body["jobs"][7]["function"] == "shop.pack"
    assert [job["state"] for job in body["jobs"][9:13]] == ["pending", "scheduled", "scheduled", "pending"]
    for number in (0, 255, 256, 299):
        job = (await rig.http.get(body["jobs"][number]["url"])).json()
        assert job["payload"] == {"n": number}
    assert (await rig.http.get(body["jobs"][7]["url"])).json()["lane"] == "acme"
    assert (await rig.http.get(body["jobs"][8]["url"])).json()["payload"]["name"] == "Bo"
    assert (await rig.http.get(body["jobs"][9]["url"])).json()["lane"] == "a"


async def test_an_order_that_is_refused_says_why_and_the_others_stand(rig: Rig) -> None:
    orders = [
        {"function": "hello.greet", "payload": {"name": "x"}},
        {"function": "hello.greet", "payload": {"name": 1}},
        {"function": "hello.gret", "payload": {}},
        {"function": "shop.pack", "payload": {"customer": {"id": {}}}},
        {"function": "hello.any", "delay": "1h", "at": "2026-01-01T00:00:00Z"},
        {"function": "hello.any", "delay": "soon"},
        {"function": "hello.any", "at": "tomorrow"},
        {"function": "hello.any", "version": "DEP0000000000x"},
        {"function": "hello.any", "payload": 2**64},
        {"function": "hello.any"},
        *({"function": "shop.small"} for _ in range(3)),
    ]
    answer = await post(rig, orders)
    assert answer.status_code == 207
    assert problems(answer) == {
        1: "invalid-payload",
        2: "unknown-function",
        3: "invalid-payload",
        4: "invalid-parameter",
        5: "invalid-parameter",
        6: "invalid-parameter",
        7: "unknown-version",
        8: "invalid-payload",
        12: "full",
    }
    told = answer.json()
    assert (told["minted"], told["refused"]) == (4, 9)
    assert told["jobs"][1]["problem"]["faults"][0]["path"] == "$.name"
    assert told["jobs"][2]["problem"]["suggestions"][0] == "hello.greet"
    assert await minted(rig) == 4


async def test_sent_again_each_order_with_a_key_is_answered_with_its_first_job(rig: Rig) -> None:
    orders: list[dict[str, Any]] = [{"function": "hello.any", "payload": n, "key": f"k{n}"} for n in range(300)]
    first = (await post(rig, orders)).json()["jobs"]
    await rig.run("hello.any")
    again = await post(rig, [*orders, {"function": "hello.any", "payload": 1, "key": "k0"}])
    assert [job["id"] for job in again.json()["jobs"][:300]] == [job["id"] for job in first]
    assert sorted(job["state"] for job in again.json()["jobs"][:300])[:2] == ["done", "pending"]
    assert problems(again) == {300: "key-conflict"}
    single = await rig.call("hello.any", 3, Idempotency_Key="k3")
    assert single.json()["id"] == first[3]["id"]  # a key is the same by either way
    twice = await post(rig, [{"function": "hello.any", "key": "same"}, {"function": "hello.any", "key": "same"}])
    assert len({job["id"] for job in twice.json()["jobs"]}) == 1


async def test_an_orders_key_holds_for_as_long_as_it_says(rig: Rig) -> None:
    order = {"function": "hello.any", "payload": 1, "key": "k", "key_for": "90s"}
    [first] = (await post(rig, [order])).json()["jobs"]
    assert [each["id"] for each in (await post(rig, [order])).json()["jobs"]] == [first["id"]]
    rig.valkey.clock.advance(90_001)
    [later] = (await post(rig, [order])).json()["jobs"]
    assert later["id"] != first["id"]
    refused = await post(rig, [{**order, "key_for": "2d"}, {"function": "hello.any", "key_for": 90}])
    assert problems(refused) == {0: "invalid-parameter", 1: "invalid-parameter"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"function": "hello.any"}, "array"),
        ([], "length >= 1"),
        ([{"function": "hello.any"}] * 1001, "length <= 1000"),
        ([{"function": "hello.any"}, {"payload": 1}], r"$[1]"),
        ([{"function": "hello.any", "urgent": True}], "urgent"),
        ([{"function": "hello.any", "lane": 5}], "$[0].lane"),
        ([{"function": "hello.any", "key": ""}], "$[0].key"),
        ([{"function": "hello.any", "priority": 1_000_001}], "$[0].priority"),
        ([{"function": "hello.any", "priority": 2.5}], "$[0].priority"),
    ],
)
async def test_a_body_of_another_form_is_refused_whole(rig: Rig, body: object, said: str) -> None:
    answer = await post(rig, body)
    assert answer.status_code == 422
    assert said in answer.json()["detail"]
    assert await minted(rig) == 0


async def test_what_goes_for_one_job_alone_is_said_in_its_order(rig: Rig) -> None:
    for header in ("Idempotency_Key", "Echo_Key_For", "Echo_Lane", "Echo_Delay", "Echo_Durable"):
        answer = await post(rig, [{"function": "hello.any"}], **{header: "x"})
        assert answer.status_code == 400
        assert header.replace("_", "-") in answer.json()["detail"]
    assert await minted(rig) == 0


async def test_a_body_over_its_bound_is_413(rig: Rig) -> None:
    orders = [{"function": "hello.any", "payload": "x" * 900_000}] * 4
    assert (await post(rig, orders)).status_code == 202
    assert (await post(rig, orders * 2)).status_code == 413
    large = await post(rig, [{"function": "hello.any", "payload": "x" * (1024 * 1024)}, {"function": "hello.any"}])
    assert problems(large) == {0: "too-large"}


async def test_few_calls_of_the_bus_mint_them(rig: Rig) -> None:
    def calls() -> int:
        told = str(rig.valkey.command("INFO", "commandstats"))
        return int(told.split("cmdstat_fcall:calls=")[1].split(",")[0])

    before = calls()
    assert (await post(rig, [{"function": "hello.any", "payload": n} for n in range(1000)])).status_code == 202
    assert calls() - before < 20


async def test_without_a_bus_all_of_it_is_503(rig: Rig) -> None:
    with impatient(rig.bus), rig.valkey.paused():
        answer = await post(rig, [{"function": "hello.any"}, {"function": "shop.small"}])
    assert answer.status_code == 503
