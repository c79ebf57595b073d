"""Handlers as authors write them, and what a type checker must say of them: nothing, but on the lines marked so."""
# pyright: strict, reportUnknownArgumentType=false, reportUnknownVariableType=false

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypedDict, assert_type

import msgspec

from echofn import Backoff, Cancel, Context, Fail, Request, Retry, Snooze, cron, every, hmac, lifespan, queue, webhook
from echofn.testing import Bus, Job, fake_context


class Invoice(msgspec.Struct):
    amount: int


@dataclass
class Receipt:
    number: str


class Row(TypedDict):
    sku: str


class Parcel(TypedDict, total=False):
    rows: list[Row]
    first: Row


class Client:
    def get(self, url: str) -> bytes:
        return url.encode()


class State(Protocol):
    http: Client


# ---- a decorated function keeps its signature ------------------------------------------------------------------------


@queue(lane="tenant", retries=5, timeout="30s", workers=(0, 4), fail_on=(ValueError, KeyError))
@cron("0 6 * * mon", tz="Europe/Berlin", payload=Invoice(1), env="prod")
@every("20s", payload={"amount": 2}, enabled=False)
def send(payload: Invoice, ctx: Context) -> Receipt:
    return Receipt(str(ctx.attempt))


@queue
async def bare(payload: int) -> bytes:
    return b""


@queue()
async def both(payload: Row, ctx: Context[State]) -> list[int]:
    assert_type(ctx.state.http.get("/"), bytes)
    print(ctx.state.htpp)  # error: no such part of the state
    return []


@queue(batch=50, batch_wait="200ms")
def store(rows: list[Row], ctx: Context) -> list[ValueError | None]:
    assert_type(ctx.jobs[0].attempt, int)
    assert_type(ctx.jobs[0].enqueue(bare, 1), str)
    ctx.jobs[0].enqueue(both, {"sku": "a"}, delay="5s")
    ctx.jobs[0].enqueue(both, {"sku": 1})  # error: a sku is text
    ctx.jobs[0].enqueue(bare, "1")  # error: the payload is an int
    ctx.jobs[0].enqueue(bare)  # error: the payload is missing
    ctx.jobs[0].enqueue(bare, 1, dealy="5s")  # error: no such wish
    return [None for _ in rows]


@queue
def nothing() -> None: ...


@queue
async def ship(payload: Parcel | Invoice | None, ctx: Context[Any]) -> int:
    return 1


@queue
def weigh(payload: dict[str, float]) -> None: ...


@queue
def usual(payload: int = 5) -> None: ...


@queue
def turned(ctx: Context[Any], payload: Row) -> None: ...


@queue
def alone(ctx: Context[State]) -> None: ...


@queue
def lenient(payload: Invoice | None = None) -> None: ...


@queue
def loose(payload: dict[str, object], ctx: Context) -> None: ...


@queue
def named(payload: Row, *, ctx: Context) -> None: ...


@queue
def named_alone(*, ctx: Context) -> None: ...


@queue
async def named_lenient(payload: Row | None = None, *, ctx: Context) -> None: ...


@queue(batch=5)
def store_turned(ctx: Context, rows: list[Row]) -> None: ...


@queue(batch=5)
async def store_alone(rows: list[Row]) -> None: ...


@queue
def untyped(payload, ctx):  # type: ignore[no-untyped-def] # a handler may be # pyright: ignore
    return payload


@webhook("/hooks/x", verify=hmac("X-Sig", "sha1"), secret="S", lane="json.tenant", retries=1)
def hook(request: Request) -> int:
    assert_type(request.body, bytes)
    assert_type(request.headers["x"], str)
    return 1


def call(ctx: Context[State]) -> None:
    assert_type(send(Invoice(1), ctx), Receipt)
    send({"amount": 1}, ctx)  # error: the payload is an Invoice
    send(Invoice(1))  # error: the context is missing
    send(payload=Invoice(1), ctx=ctx)
    send(invoice=Invoice(1), ctx=ctx)  # error: names are kept, too
    assert_type(hook(Request(body=b"{}")), int)
    assert_type(send.__name__, str)


async def call_async(ctx: Context[State]) -> None:
    assert_type(await bare(1), bytes)
    assert_type(await both({"sku": "a"}, ctx), list[int])
    await both({"sku": 1}, ctx)  # error: a sku is text


@lifespan
async def clients() -> AsyncIterator[dict[str, Client]]:
    yield {"http": Client()}


@lifespan(startup_timeout="1m")
def sync_clients() -> Iterator[dict[str, Client]]:
    yield {"http": Client()}


@lifespan  # error: it has to yield
def no_clients() -> dict[str, Client]:
    return {}


# ---- options ---------------------------------------------------------------------------------------------------------

queue(retrys=1)  # error: no such option
queue(retries="1")  # error: a number
queue(timeout=timedelta(seconds=3), backoff=["1s", 2], unique=True, network=[443])
queue(timeout=b"3s")  # error: a duration is text, a number or a timedelta
queue(backoff="linear")
queue(backoff=Backoff("linear", base="10s"))
queue(backoff=Backoff("cubic"))  # error: no such kind
queue(fail_on=ValueError)
queue(fail_on="ValueError")  # error: classes
queue(fail_on=[ValueError()])  # error: classes, not objects
queue(redact=["card.number"], per_worker=5, processes=1)
queue(isolation="job")
queue(isolation="thread")  # error: no such isolation
queue(env=["staging", "prod"], payload=Invoice(1), enabled=True)
queue(enabled="no")  # error: True or False
queue("tenant")  # error: options have names
cron("0 6 * * *", zone="UTC")  # error: no such option
cron("0 6 * * *", env=1)  # error: a name
cron()  # error: which rule?
every(b"20s")  # error: no such period
lifespan(startup_timeout=b"1m")  # error: a duration
every("20s", anchor=datetime(2026, 1, 1, tzinfo=UTC), name="tick")
webhook("/hooks/x")  # error: how is it verified?
webhook("/hooks/x", verify="githib")  # error: no such sender
webhook("/hooks/x", verify=None, payload=1)  # error: its payload is what is sent

# ---- the context -----------------------------------------------------------------------------------------------------


def fields(ctx: Context) -> None:
    assert_type(ctx.job_id, str)
    assert_type(ctx.function, str)
    assert_type(ctx.attempt, int)
    assert_type(ctx.last_attempt, bool)
    assert_type(ctx.fence, int)
    assert_type(ctx.lane, str)
    assert_type(ctx.due, datetime)
    assert_type(ctx.previous, datetime | None)
    assert_type(ctx.next, datetime | None)
    assert_type(ctx.deadline, datetime)
    assert_type(ctx.version, str)
    assert_type(ctx.env, str)
    assert_type(ctx.state, Any)
    ctx.log.info("%s", ctx.state.anything)
    assert_type(ctx.cancelled, bool)
    ctx.extend("5m")
    ctx.progress(0.5, "half")
    ctx.progress("half")  # error: a number
    ctx.attempt = 2  # error: told, not set
    print(ctx.jobid)  # error: no such field


def enqueue(ctx: Context) -> None:
    assert_type(ctx.enqueue(send, Invoice(1), delay="5s", lane="a"), str)
    ctx.enqueue(bare, 1, at=datetime.now(UTC), unique="k", priority=-1)
    ctx.enqueue(both, Row(sku="a"))
    ctx.enqueue(both, {"sku": "a"}, lane="b")
    ctx.enqueue(turned, {"sku": "a"})
    ctx.enqueue(ship, {"rows": [{"sku": "a"}], "first": {"sku": "b"}})
    ctx.enqueue(ship, Invoice(1))
    ctx.enqueue(ship, None)
    ctx.enqueue(weigh, {"a": 1, "b": 2.5})
    ctx.enqueue(usual)
    ctx.enqueue(usual, 6)
    ctx.enqueue(store, Row(sku="a"))
    ctx.enqueue(store, {"sku": "a"})
    ctx.enqueue(store, "a row")  # error: each payload is a Row
    ctx.enqueue(turned, Row(sku="a"))
    ctx.enqueue(loose, {"sku": "a", "count": 1})
    ctx.enqueue(nothing)
    ctx.enqueue(alone, delay=3)
    ctx.enqueue(lenient)
    ctx.enqueue(lenient, Invoice(1))
    ctx.enqueue(untyped, [1, "2"])
    ctx.enqueue(named, {"sku": "a"})
    ctx.enqueue(named_alone)
    ctx.enqueue(named_lenient)
    ctx.enqueue(named_lenient, {"sku": "a"})
    ctx.enqueue(store_turned, {"sku": "a"})
    ctx.enqueue(store_alone, {"sku": "a"}, lane="b")
    ctx.enqueue("other.function", {"any": "thing"})
    ctx.enqueue("other.function")
    ctx.enqueue(send, "an invoice")  # error: the payload is an Invoice
    ctx.enqueue(send, {"amount": 1})  # error: the payload is an Invoice
    ctx.enqueue(bare, "1")  # error: the payload is an int
    ctx.enqueue(both, {"sku": 1})  # error: a sku is text
    ctx.enqueue(both, {"sku": "a", "count": 1})  # error: a Row has no count
    ctx.enqueue(both, {})  # error: the sku is missing
    ctx.enqueue(store, {"sku": 1})  # error: a sku is text
    ctx.enqueue(ship, {"rows": [{"sku": 1}]})  # error: a sku is text
    ctx.enqueue(ship, {"row": []})  # error: no such key
    ctx.enqueue(weigh, {"a": "1"})  # error: a weight is a number
    ctx.enqueue(usual, "6")  # error: the payload is an int
    ctx.enqueue(turned, 1)  # error: the payload is a Row
    ctx.enqueue(loose, [1])  # error: the payload is a dict
    ctx.enqueue(bare)  # error: the payload is missing
    ctx.enqueue(lenient, 1)  # error: the payload is an Invoice, or nothing
    ctx.enqueue(bare, 1, dealy="5s")  # error: no such wish
    ctx.enqueue(bare, 1, lane=5)  # error: a lane is text
    ctx.enqueue(named, {"sku": 1})  # error: a sku is text
    ctx.enqueue(named)  # error: the payload is missing
    ctx.enqueue(named_alone, 5)  # error: it takes no payload
    ctx.enqueue(named_lenient, {"skus": "a"})  # error: no such key
    ctx.enqueue(store_turned, {"sku": 1})  # error: a sku is text
    ctx.enqueue(store_alone, {})  # error: the sku is missing
    ctx.enqueue(store_alone)  # error: the payload is missing
    ctx.enqueue(5)  # error: neither a function nor a name


# ---- verdicts --------------------------------------------------------------------------------------------------------


def verdicts() -> None:
    raised: list[Exception] = [Retry(after="10s"), Retry("why", after=5), Snooze(timedelta(minutes=1)), Fail("no")]
    raised.append(Cancel())
    Snooze()  # error: for how long?
    Retry(after=b"5s")  # error: a duration
    Fail(5)  # error: a reason is text


# ---- in tests --------------------------------------------------------------------------------------------------------


def in_tests(bus: Bus) -> None:
    assert_type(bus.enqueue(both, {"sku": "a"}, delay="5s"), Job)
    assert_type(bus.enqueue(send, Invoice(1)).state, str)
    assert_type(bus.enqueue("other.function", [1]), Job)
    assert_type(bus.post("/hooks/x", {"tenant": "a"}, headers={"X-Sig": "…"}), Job)
    bus.enqueue(nothing)
    bus.enqueue(store, {"sku": "a"})
    bus.enqueue(both, {"sku": 1})  # error: a sku is text
    bus.enqueue(send, {"amount": 1})  # error: the payload is an Invoice
    bus.enqueue(bare)  # error: the payload is missing
    bus.enqueue(bare, 1, dealy="5s")  # error: no such wish
    ctx = fake_context(state={"http": Client()})
    assert_type(ctx.enqueue(both, {"sku": "a"}), str)
    assert_type(ctx.enqueued[0].function, str)
    send(Invoice(1), ctx)
    ctx.enqueue(both, {"sku": 1})  # error: a sku is text
    ctx.enqueue(bare, "1")  # error: the payload is an int
