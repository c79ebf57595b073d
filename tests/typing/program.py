# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""A program as others write it; `test_client` has it checked."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypedDict, assert_type

import echod
from echofn import Context, queue


@dataclass
class Order:
    id: int


class Row(TypedDict):
    sku: str


@queue(lane="id")
def pack(payload: Order, ctx: Context) -> str:
    return str(payload.id)


@queue
async def weigh(payload: Order) -> float:
    return 1.0


@queue
def ping() -> int:
    return 1


@queue
async def beat(ctx: Context) -> bytes:
    return b""


@queue
def row(payload: Row) -> str:
    return payload["sku"]


@queue
async def later(payload: Row, ctx: Context) -> str:
    return payload["sku"]


@queue
def turned(ctx: Context, payload: Row) -> int:
    return 1


@queue
async def later_turned(ctx: Context, payload: Row) -> int:
    return 1


@queue
def named(payload: Row, *, ctx: Context) -> float:
    return 1.0


@queue
async def lenient(payload: Row | None = None, *, ctx: Context) -> float:
    return 1.0


@queue(batch=5)
def store(rows: list[Row]) -> None: ...


@queue(batch=5)
def weigh_all(rows: list[Row], ctx: Context) -> list[float]:
    return [1.0 for _ in rows]


@queue(batch=5)
async def store_later(ctx: Context, rows: list[Row]) -> list[int] | None:
    return None


@queue(batch=5)
def weigh_some(rows: list[Row]) -> list[int | Exception]:
    return [ValueError("no weight") for _ in rows]


@queue(batch=5)
async def weigh_later(rows: list[Row], ctx: Context) -> list[str | Exception] | None:
    return None


def of_a_thread(client: echod.Client, rows: Iterator[Row]) -> None:
    assert_type(client.enqueue(pack, Order(1)), echod.Job[str])
    assert_type(client.enqueue(pack, Order(1)).result(timeout="3s"), str)
    assert_type(client.enqueue(weigh, Order(1), delay="5m", priority=3).result(timeout=timedelta(seconds=3)), float)
    assert_type(client.enqueue(ping).result(), int)
    assert_type(client.enqueue(beat).result(), bytes)
    assert_type(client.enqueue(row, {"sku": "a"}).result(), str)
    assert_type(client.enqueue(row, Row(sku="a"), lane="b"), echod.Job[str])
    assert_type(client.enqueue(later, {"sku": "a"}).result(), str)
    assert_type(client.enqueue(turned, {"sku": "a"}).result(), int)
    assert_type(client.enqueue(later_turned, {"sku": "a"}).result(), int)
    assert_type(client.enqueue(named, {"sku": "a"}).result(), float)
    assert_type(client.enqueue(lenient, {"sku": "a"}).result(), float)
    assert_type(client.enqueue(lenient, None).result(), float)
    client.enqueue(store, {"sku": "a"})
    assert_type(client.enqueue(weigh_all, {"sku": "a"}).result(), float)
    assert_type(client.enqueue(store_later, {"sku": "a"}).result(), int)
    assert_type(client.enqueue(weigh_some, {"sku": "a"}).result(), int)
    assert_type(client.enqueue("shop.pack", {"id": 1}).result(), Any)
    assert_type(client.enqueue_many(weigh, [Order(1)])[0].result(), float)
    assert_type(client.enqueue_many(row, [{"sku": "a"}, {"sku": "b"}]), list[echod.Job[str]])
    assert_type(client.enqueue_many(turned, rows), list[echod.Job[int]])
    assert_type(client.enqueue_many(named, ({"sku": "a"},), delay="5m"), list[echod.Job[float]])
    assert_type(client.enqueue_many(weigh_all, rows), list[echod.Job[float]])
    assert_type(client.enqueue_many(weigh_some, rows), list[echod.Job[int]])
    assert_type(client.enqueue_many(ping, [None] * 3), list[echod.Job[int]])
    assert_type(client.enqueue_many(beat, [None], delay="5m"), list[echod.Job[bytes]])
    client.enqueue_many(store, [{"sku": "a"}])
    client.enqueue_many("shop.pack", [1, "2"])
    client.repeat("nightly", pack, cron="0 2 * * *", tz="Europe/Berlin", payload=Order(1))
    client.repeat("nightly", weigh, every="1h", payload=Order(1), missed="all", cap=3)
    client.repeat("nightly", row, every=timedelta(hours=1), anchor="2026-01-01T00:00:00Z", payload={"sku": "a"})
    client.repeat("nightly", turned, every="1h", payload={"sku": "a"})
    client.repeat("nightly", named, every="1h", payload={"sku": "a"}, overlap="skip", jitter="5s")
    client.repeat("nightly", store, every="1h", payload={"sku": "a"})
    client.repeat("hourly", lenient, every="1h")
    client.repeat("hourly", ping, every="1h")
    client.repeat("hourly", "shop.pack", every="1h", payload={"id": 1})
    client.repeat("hourly", "shop.ping", cron="@hourly")

    client.enqueue(pack, 7)  # type: ignore
    client.enqueue(pack, {"id": 1})  # type: ignore
    client.enqueue(pack)  # type: ignore
    client.enqueue(weigh, "text")  # type: ignore
    client.enqueue(ping, 5)  # type: ignore
    client.enqueue(row, {"sku": 1})  # type: ignore
    client.enqueue(row, {})  # type: ignore
    client.enqueue(later, {"sku": "a", "count": 1})  # type: ignore
    client.enqueue(turned, {"sku": 1})  # type: ignore
    client.enqueue(turned)  # type: ignore
    client.enqueue(named, {"sku": 1})  # type: ignore
    client.enqueue(named)  # type: ignore
    client.enqueue(lenient, {"sku": 1})  # type: ignore
    client.enqueue(store, {"sku": 1})  # type: ignore
    client.enqueue(weigh_all, "a row")  # type: ignore
    client.enqueue(7)  # type: ignore
    client.enqueue(pack, Order(1), delya="5m")  # type: ignore
    client.enqueue(pack, Order(1), priority="high")  # type: ignore
    client.enqueue(pack, Order(1)).result(timeout=b"3s")  # type: ignore
    client.enqueue_many(pack, [1, 2])  # type: ignore
    client.enqueue_many(row, [{"sku": 1}])  # type: ignore
    client.enqueue_many(turned, [{"skus": "a"}])  # type: ignore
    client.enqueue_many(store, [{"sku": 1}])  # type: ignore
    client.enqueue_many(row, rows, key="k")  # type: ignore
    client.enqueue_many(row, [None])  # type: ignore
    client.enqueue_many(ping, [1])  # type: ignore
    client.enqueue_many(weigh_some, ["a row"])  # type: ignore
    client.repeat("nightly", pack, corn="0 2 * * *")  # type: ignore
    client.repeat("nightly", pack, every="1h", missed="never", payload=Order(1))  # type: ignore
    client.repeat("nightly", pack, every="1h", payload={"id": 1})  # type: ignore
    client.repeat("nightly", pack, every="1h")  # type: ignore
    client.repeat("nightly", turned, every="1h")  # type: ignore
    client.repeat("nightly", store, every="1h")  # type: ignore
    client.repeat("nightly", weigh, every="1h", payload="text")  # type: ignore
    client.repeat("nightly", row, every="1h", payload={"sku": 1})  # type: ignore
    client.repeat("hourly", ping, every="1h", payload=5)  # type: ignore
    client.repeat("hourly", ping)  # type: ignore
    client.repeat("hourly", ping, every="1h", cron="@hourly")  # type: ignore
    client.repeat("hourly", ping, every="1h", tz="Europe/Berlin")  # type: ignore
    client.repeat("hourly", ping, cron="@hourly", anchor="2026-01-01T00:00:00Z")  # type: ignore
    client.repeat("hourly", "shop.ping")  # type: ignore


async def of_a_loop(client: echod.AsyncClient) -> None:
    assert_type(await (await client.enqueue(pack, Order(1))).result(), str)
    assert_type(await (await client.enqueue(weigh, Order(1))).result("3s"), float)
    assert_type(await (await client.enqueue(beat)).result(), bytes)
    assert_type(await client.enqueue(later_turned, {"sku": "a"}), echod.AsyncJob[int])
    assert_type(await client.enqueue(named, {"sku": "a"}), echod.AsyncJob[float])
    assert_type(await client.enqueue(weigh_all, {"sku": "a"}), echod.AsyncJob[float])
    assert_type(await client.enqueue_many(beat, [None]), list[echod.AsyncJob[bytes]])
    assert_type(await client.enqueue(weigh_later, {"sku": "a"}), echod.AsyncJob[str])
    assert_type(await client.enqueue_many(later, [{"sku": "a"}]), list[echod.AsyncJob[str]])

    assert_type(await client.repeat("nightly", pack, cron="0 2 * * *", payload=Order(1)), echod.Schedule)
    await client.repeat("nightly", row, every="1h", payload={"sku": "a"})
    await client.repeat("hourly", beat, every="1h")

    await client.enqueue(weigh, 1.5)  # type: ignore
    await client.enqueue(later, {"sku": 1})  # type: ignore
    await client.enqueue(named, {})  # type: ignore
    await client.enqueue(pack)  # type: ignore
    await client.enqueue(store_later, {"sku": 1})  # type: ignore
    await client.enqueue_many(row, [{}])  # type: ignore
    await client.repeat("nightly", pack, cron="0 2 * * *", payload=7)  # type: ignore
    await client.repeat("nightly", pack, cron="0 2 * * *")  # type: ignore
    await client.repeat("nightly", pack, corn="0 2 * * *")  # type: ignore
    await client.repeat("hourly", beat)  # type: ignore
    await client.enqueue(pack, Order(1), until="done")  # type: ignore
