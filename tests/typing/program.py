# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""A program as others write it; `test_client` has it checked."""

from dataclasses import dataclass
from typing import Any, assert_type

import echod
from echofn import Context, queue


@dataclass
class Order:
    id: int


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


def of_a_thread(client: echod.Client) -> None:
    assert_type(client.enqueue(pack, Order(1)), echod.Job[str])
    assert_type(client.enqueue(pack, Order(1)).result(timeout=3), str)
    assert_type(client.enqueue(weigh, Order(1), delay="5m", priority=3).result(), float)
    assert_type(client.enqueue(ping).result(), int)
    assert_type(client.enqueue(beat).result(), bytes)
    assert_type(client.enqueue("shop.pack", {"id": 1}).result(), Any)
    assert_type(client.enqueue_many(weigh, [Order(1)])[0].result(), float)
    client.repeat("nightly", pack, cron="0 2 * * *", tz="Europe/Berlin", payload=Order(1))
    client.repeat("nightly", weigh, every="1h", payload=Order(1), missed="all", cap=3)
    client.repeat("nightly", pack, every="1h")  # with the payload that is its own
    client.repeat("hourly", ping, every="1h")
    client.repeat("hourly", "shop.pack", every="1h", payload={"id": 1})

    client.enqueue(pack, 7)  # type: ignore
    client.enqueue(pack, {"id": 1})  # type: ignore
    client.enqueue(weigh, "text")  # type: ignore
    client.enqueue(pack, Order(1), delya="5m")  # type: ignore
    client.enqueue(pack, Order(1), priority="high")  # type: ignore
    client.enqueue_many(pack, [1, 2])  # type: ignore
    client.repeat("nightly", pack, corn="0 2 * * *")  # type: ignore
    client.repeat("nightly", pack, every="1h", missed="never")  # type: ignore
    client.repeat("nightly", pack, every="1h", payload={"id": 1})  # type: ignore
    client.repeat("nightly", weigh, every="1h", payload="text")  # type: ignore
    client.repeat("hourly", ping, every="1h", payload=5)  # type: ignore


async def of_a_loop(client: echod.AsyncClient) -> None:
    assert_type(await (await client.enqueue(pack, Order(1))).result(), str)
    assert_type(await (await client.enqueue(weigh, Order(1))).result(), float)
    assert_type(await (await client.enqueue(beat)).result(), bytes)

    assert_type(await client.repeat("nightly", pack, cron="0 2 * * *", payload=Order(1)), echod.Schedule)
    await client.repeat("hourly", beat, every="1h")

    await client.enqueue(weigh, 1.5)  # type: ignore
    await client.repeat("nightly", pack, cron="0 2 * * *", payload=7)  # type: ignore
    await client.repeat("nightly", pack, corn="0 2 * * *")  # type: ignore
    await client.enqueue(pack, Order(1), until="done")  # type: ignore
