"""Functions that the tests of `echofn.testing` load."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

import msgspec

from echofn import Cancel, Context, Fail, Retry, Snooze, cron, every, queue


class Order(msgspec.Struct):
    loaf: str
    count: int = 1


@queue(lane="loaf")
def bake(payload: Order, ctx: Context) -> str:
    ctx.log.info("baking %d", payload.count)
    print("in the oven")
    ctx.progress(1.0, "out of it")
    return f"{payload.count} {payload.loaf}"


@queue
def shop(payload: list[str], ctx: Context) -> int:
    for loaf in payload:
        ctx.enqueue(bake, Order(loaf))
    return len(payload)


@queue(retries=2)
def fail(payload: Any) -> None:
    raise ValueError(f"no {payload}")


@queue(retries=1, backoff=["10s"])
def sour(payload: str, ctx: Context) -> str:
    if ctx.attempt == 1:
        raise Retry("not yet", after="5m") if payload == "asked" else RuntimeError("flat")
    return f"risen at {ctx.attempt} of {ctx.fence}"


@queue
def say(payload: str) -> None:
    raise {"snooze": Snooze("10m"), "fail": Fail("burnt"), "cancel": Cancel("sold out")}[payload]


@queue
async def knead(payload: int) -> int:
    await asyncio.sleep(0)
    return payload + 1


@queue(secrets=["BAKERY_KEY"], redact=["card"])
def pay(payload: dict[str, str]) -> str:
    print(os.environ["BAKERY_KEY"], payload["card"])
    return os.environ["BAKERY_KEY"][:3]


@queue(unique="loaf", max_pending=2)
def once(payload: Order) -> None: ...


@queue
def again(payload: None, ctx: Context) -> None:
    ctx.enqueue(again)


@queue
def interrupted(payload: str) -> None:
    import pytest

    if payload == "fail":
        pytest.fail("said by the handler")
    raise KeyboardInterrupt


@queue(batch=3, batch_wait="10s", backoff=["1s"])
def box(loaves: list[str], ctx: Context) -> list[Any]:
    print("boxed", len(loaves))
    for loaf, job in zip(loaves, ctx.jobs, strict=True):
        job.enqueue(bake, Order(loaf))
    return [
        ValueError("burnt") if loaf == "burnt" and job.attempt == 1 else len(loaves)
        for loaf, job in zip(loaves, ctx.jobs, strict=True)
    ]


@cron("0 6 * * *", tz="Europe/Berlin")
def open_shop(payload: None, ctx: Context) -> str:
    return ctx.due.isoformat()


@every("1h", missed="all", name="hourly")
def ring(payload: None, ctx: Context) -> str:
    logging.getLogger("bell").info("dong")
    return ctx.due.isoformat()


@every("1h", missed="skip", name="skipping")
def lazy() -> None: ...


@every("1h", env="prod", payload="oat")
@queue(payload="rye", fail_on=ValueError)
def stock(payload: str, ctx: Context) -> str:
    if payload == "stones":
        raise ValueError(payload)
    return f"{payload} for {ctx.env}"


def plain(number: int) -> int:
    return number
