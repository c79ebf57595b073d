"""The client over HTTP and the client straight to the bus: the same calls have the same outcome, and the same words."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import echod
from nodes import Node, until

FILES = {
    "shop.py": """
from dataclasses import dataclass

from echofn import cron, queue, webhook


@dataclass
class Order:
    id: int
    tenant: str = "-"


@queue(lane="tenant", retries=0)
def pack(payload: Order) -> int:
    return payload.id


@queue
def same(payload):
    return payload


@queue
def ready(ctx) -> str:
    return "ready"


@queue(lane="tenant")
def tenant(ctx) -> str:
    return ctx.lane


@queue
def label(payload: bytes) -> bytes:
    return payload[::-1]


@queue(unique="id", max_pending=2)
def once(payload: Order) -> int:
    return payload.id


@cron("0 6 1 1 *", name="new-year")
def yearly(payload: int = 3) -> int:
    return payload


@webhook("/hooks/in", verify=None)
def hook(request) -> str:
    return "hooked"


@queue(enabled=False)
@cron("0 6 1 1 *")
def half(payload: int = 3) -> int:
    return payload


@queue(env="prod")
def elsewhere() -> None: ...
"""
}


class Both(NamedTuple):
    """A node, its functions as another program imports them, and the two ways to it."""

    node: Node
    shop: Any
    ways: dict[str, echod.Client]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    node = Node(tmp_path_factory.mktemp("ways"), FILES).start()
    sys.path.insert(0, str(node.folder.parent))
    try:
        import importlib

        shop = importlib.import_module("functions.shop")
        node.ask("POST", "/functions/shop.once/pause")
        with (
            pytest.MonkeyPatch.context() as patch,
            echod.Client(node.url) as http,
            echod.Client(f"unix://{node.state}/valkey.sock") as bus,
        ):
            patch.setattr("echod.client.asynchronous.LOOK_S", 60.0)
            yield Both(node, shop, {"http": http, "bus": bus})
    finally:
        sys.path.remove(str(node.folder.parent))
        for name in [name for name in sys.modules if name == "functions" or name.startswith("functions.")]:
            del sys.modules[name]
        node.close()


Call = Callable[
    [echod.Client, Any, str], Any
]  # by this client, with these functions; a word of its own to tell runs apart


def outcome(both: Both, way: str, call: Call) -> tuple[str, Any]:
    """What a call answers, or the class and the words of its error; ids and the run's own word are as good as any."""
    try:
        said = call(both.ways[way], both.shop, f"{way}-{id(call)}")
    except Exception as error:
        return type(error).__name__, re.sub(r"JOB\w{11}", "JOB…", str(error)).replace(f"{way}-{id(call)}", "own")
    return "", said


def lane_of(client: echod.Client, lane: str, **options: Any) -> str:
    job = client.enqueue("shop.same", 1, lane=lane, **options)
    record = client.job(job.id).refresh().record
    assert record is not None
    return record.lane


def key_of(client: echod.Client, key: str, payload: int = 1) -> bool:
    return client.enqueue("shop.same", payload, key=key).id == client.enqueue("shop.same", 1, key=key).id


def state_of_the_second(client: echod.Client, key: str) -> Any:
    client.enqueue("shop.same", 1, key=key).result("90s")
    return client.enqueue("shop.same", 1, key=key).state


def full(client: echod.Client, shop: Any) -> Any:
    jobs = [client.enqueue(shop.once, shop.Order(number)) for number in (1, 2)]
    try:
        return client.enqueue(shop.once, shop.Order(3))
    finally:
        for job in jobs:
            job.cancel()


def many(client: echod.Client, *arguments: Any, **options: Any) -> Any:
    """Errors by their orders, and whose jobs there are."""
    try:
        return len(client.enqueue_many(*arguments, **options))
    except echod.OrdersRefused as error:
        told = {number: (type(each).__name__, str(each)) for number, each in error.errors.items()}
        return str(error), told, [job is not None for job in error.jobs]


def repeated(client: echod.Client, name: str, function: Any, **options: Any) -> Any:
    made = client.repeat(name, function, **options)
    assert client.cancel_repeat(made.id)
    return made.id, made.rule, made.tz, made.next is not None


FAR = datetime.now(UTC) + timedelta(days=4000)
DEEP = eval("[" * 150 + "]" * 150)
SURROGATE = "\ud800"

TAKEN: dict[str, tuple[Call, Any]] = {
    "a result of a type": (lambda c, f, w: c.enqueue(f.label, b"\x00\xff").result("90s"), b"\xff\x00"),
    "a result of a name": (lambda c, f, w: c.enqueue("shop.label", b"\x00\xff").result("90s"), "/wA="),
    "bytes within": (lambda c, f, w: c.enqueue(f.same, {"a": [b"\x01"]}).result("90s"), {"a": ["AQ=="]}),
    "a cron's by itself": (lambda c, f, w: c.enqueue(f.yearly).result("90s"), 3),
    "a cron's by name": (lambda c, f, w: c.enqueue("shop.yearly").result("90s"), 3),
    "a cron's with a payload": (lambda c, f, w: c.enqueue("shop.yearly", 4).result("90s"), 4),
    "none for none": (lambda c, f, w: c.enqueue(f.ready, None).result("90s"), "ready"),
    "one for a lane": (lambda c, f, w: c.enqueue(f.tenant, {"tenant": "acme"}).result("90s"), "acme"),
    "half off by itself": (lambda c, f, w: c.enqueue(f.half).result("90s"), 3),
    "a lane of two lines": (lambda c, f, w: lane_of(c, "two\nlines"), "two\nlines"),
    "a lane with spaces": (lambda c, f, w: lane_of(c, "  a lane "), "  a lane "),
    "a lane of a control": (lambda c, f, w: lane_of(c, "\x01\x7f"), "\x01\x7f"),
    "a long lane": (lambda c, f, w: lane_of(c, "x" * 9_000), "x" * 9_000),
    "a lane of emoji": (lambda c, f, w: lane_of(c, "🦊 {}:../"), "🦊 {}:../"),
    "no lane": (lambda c, f, w: lane_of(c, ""), "-"),
    "a lane on disk": (lambda c, f, w: lane_of(c, "acme", durable=True), "acme"),
    "a key": (lambda c, f, w: key_of(c, w), True),
    "a key of two lines": (lambda c, f, w: key_of(c, f"{w}\n"), True),
    "the longest key": (lambda c, f, w: key_of(c, w.ljust(255, "k")), True),
    "a key whose job ended": (lambda c, f, w: state_of_the_second(c, f"{w}-ended"), "done"),
    "many": (lambda c, f, w: many(c, "shop.same", range(300)), 300),
    "some of many": (
        lambda c, f, w: many(c, "shop.pack", [{"id": 1}, {"id": "x"}, {"id": 2}, None])[2],
        [True, False, True, False],
    ),
    "a schedule": (
        lambda c, f, w: repeated(c, "own", f.pack, cron="0 2 * * *", tz="Europe/Berlin", payload=f.Order(1)),
        ("shop.pack/own", "0 2 * * *", "Europe/Berlin", True),
    ),
    "a schedule of a cron's": (
        lambda c, f, w: repeated(c, "own", f.yearly, every="90m", missed="all", cap=3, overlap="skip", jitter=5),
        ("shop.yearly/own", "every 90m", "UTC", True),
    ),
    "no schedule": (lambda c, f, w: c.cancel_repeat("nothing"), False),
}

REFUSED: dict[str, tuple[Call, str, str]] = {
    "an unknown function": (lambda c, f, w: c.enqueue("shop.pac", 1), "UnknownFunction", "did you mean shop.pack"),
    "one that is off": (lambda c, f, w: c.enqueue(f.elsewhere), "UnknownFunction", "off here"),
    "a webhook's by itself": (lambda c, f, w: c.enqueue(f.hook, None), "NotCallable", "at /hooks/in; add @queue"),
    "a webhook's by name": (lambda c, f, w: c.enqueue("shop.hook"), "NotCallable", "at /hooks/in; add @queue"),
    "a plain function": (lambda c, f, w: c.enqueue(len, []), "TypeError", "expected a function annotated with @queue"),
    "no function": (
        lambda c, f, w: c.enqueue(7),
        "TypeError",
        "expected a function annotated with @queue, or the name",
    ),
    "a payload": (lambda c, f, w: c.enqueue("shop.pack", {"id": "x"}), "InvalidPayload", "$.id"),
    "a payload by its type": (lambda c, f, w: c.enqueue(f.pack, {"id": "x"}), "InvalidPayload", "shop.pack"),
    "no payload": (lambda c, f, w: c.enqueue("shop.pack"), "InvalidPayload", "null is not"),
    "no payload for a type": (lambda c, f, w: c.enqueue(f.pack), "InvalidPayload", "expected one"),
    "a lane that is an object": (
        lambda c, f, w: c.enqueue("shop.pack", {"id": 1, "tenant": {}}),
        "InvalidPayload",
        "$.tenant",
    ),
    "a deep payload": (lambda c, f, w: c.enqueue("shop.same", DEEP), "InvalidPayload", "levels"),
    "a large payload": (lambda c, f, w: c.enqueue("shop.same", "x" * 2**20), "InvalidPayload", "too large"),
    "NaN": (lambda c, f, w: c.enqueue("shop.same", float("nan")), "InvalidPayload", "finite"),
    "a large number": (lambda c, f, w: c.enqueue("shop.same", 2**70), "InvalidPayload", "64 bits"),
    "a full queue": (lambda c, f, w: full(c, f), "QueueFull", "2 jobs waiting"),
    "an empty key": (lambda c, f, w: c.enqueue("shop.same", 1, key=""), "ValueError", "key=: expected 1 to 255"),
    "a long key": (lambda c, f, w: c.enqueue("shop.same", 1, key="k" * 256), "ValueError", "got 256"),
    "an empty unique": (lambda c, f, w: c.enqueue("shop.same", 1, unique=""), "ValueError", "unique=: expected 1 to"),
    "a long unique": (lambda c, f, w: c.enqueue("shop.same", 1, unique="k" * 256), "ValueError", "unique=:"),
    "a key of another": (lambda c, f, w: key_of(c, f"{w}!", 2), "KeyConflict", "it names JOB…"),
    "a lane of no text": (
        lambda c, f, w: c.enqueue("shop.same", 1, lane=7),
        "TypeError",
        "lane=: expected text, got 7",
    ),
    "a surrogate": (
        lambda c, f, w: c.enqueue("shop.same", 1, lane=SURROGATE),
        "ValueError",
        "lane=: expected text that",
    ),
    "a huge lane": (lambda c, f, w: c.enqueue("shop.same", 1, lane="x" * 10_001), "ValueError", "at most 10,000 bytes"),
    "two lines on disk": (
        lambda c, f, w: c.enqueue("shop.same", 1, lane="a\nb", durable=True),
        "ValueError",
        "durable=:",
    ),
    "no priority": (lambda c, f, w: c.enqueue("shop.same", 1, priority=2**31), "ValueError", "priority"),
    "a long delay": (
        lambda c, f, w: c.enqueue("shop.same", 1, delay="4000d"),
        "ValueError",
        "delay=: expected at most",
    ),
    "a delay of the past": (lambda c, f, w: c.enqueue("shop.same", 1, delay=-1), "ValueError", "delay=: expected"),
    "a far instant": (
        lambda c, f, w: c.enqueue("shop.same", 1, at=FAR),
        "Refused",
        "at=: expected an RFC 3339 instant such as",
    ),
    "no instant": (lambda c, f, w: c.enqueue("shop.same", 1, at="soon"), "ValueError", "at=: expected an instant like"),
    "no zone": (lambda c, f, w: c.enqueue("shop.same", 1, at="2026-01-01T00:00"), "ValueError", "at=: expected"),
    "an option that is none": (lambda c, f, w: c.enqueue("shop.same", 1, dealy=1), "TypeError", "did you mean delay=?"),
    "an unknown job": (lambda c, f, w: c.job("JOB00000000000").refresh(), "Refused", "no job 'JOB…'"),
    "no id": (lambda c, f, w: c.job("").refresh(), "Refused", "no job '': it was never minted"),
    "a long id": (lambda c, f, w: c.job("J" * 99).result(), "Refused", "no job 'JJJ"),
    "a job of no function": (
        lambda c, f, w: c.job(c.enqueue("shop.same", 1).id, ""),
        "ValueError",
        "function=: expected a function's name, got ''",
    ),
    "an id that is none": (lambda c, f, w: c.job("nonsense/x?").cancel(), "Refused", "no job 'nonsense/x?'"),
    "a job of another": (
        lambda c, f, w: c.job(c.enqueue("shop.same", 1).id, "shop.pack").refresh(),
        "Refused",
        "no job 'JOB…'",
    ),
    "a result in no time": (
        lambda c, f, w: c.enqueue("shop.same", 1, delay="1h").result("1ms"),
        "TimedOut",
        "JOB… has not ended within 1ms",
    ),
    "no timeout": (
        lambda c, f, w: c.job("JOB00000000000").result("soon"),
        "ValueError",
        "timeout=: expected a duration",
    ),
    "many of nothing": (
        lambda c, f, w: c.enqueue_many("shop.pac", [1, 2]),
        "OrdersRefused",
        "2 of 2 orders were refused",
    ),
    "many far away": (
        lambda c, f, w: c.enqueue_many("shop.same", [1], at=FAR),
        "OrdersRefused",
        "order 0: at=: expected an",
    ),
    "many of a type": (lambda c, f, w: c.enqueue_many(f.pack, [f.Order(1), 7]), "InvalidPayload", "order 1: "),
    "no rule": (
        lambda c, f, w: c.repeat("own", f.yearly),
        "InvalidSchedule",
        "expected one of cron and every, got none",
    ),
    "two rules": (lambda c, f, w: c.repeat("own", f.yearly, every=9, cron="@daily"), "InvalidSchedule", "got both"),
    "a rule of faults": (
        lambda c, f, w: c.repeat("a/b", "shop.pack", cron="0 0 30 2 *", tz="No/Where", cap=5),
        "InvalidSchedule",
        '$.cap: expected missed="all" beside it',
    ),
    "a rule of no text": (lambda c, f, w: c.repeat("own", f.yearly, cron=5), "TypeError", "cron=: expected text"),
    "a name of no text": (lambda c, f, w: c.repeat(5, f.yearly, every=9), "TypeError", "name=: expected text"),
    "an anchor of no text": (lambda c, f, w: c.repeat("own", f.yearly, every=9, anchor=5), "TypeError", "anchor=:"),
    "no such missed": (
        lambda c, f, w: c.repeat("own", f.yearly, every=9, missed="never"),
        "ValueError",
        "missed=: expected",
    ),
    "no such overlap": (
        lambda c, f, w: c.repeat("own", f.yearly, every=9, overlap="x"),
        "ValueError",
        "overlap=: expected",
    ),
    "a cap of text": (
        lambda c, f, w: c.repeat("own", f.yearly, every=9, cap="5"),
        "TypeError",
        "cap=: expected a whole",
    ),
    "a large cap": (
        lambda c, f, w: c.repeat("own", f.yearly, every=9, missed="all", cap=10**6),
        "InvalidSchedule",
        "$.cap: expected a whole number from 1 to 10,000",
    ),
    "a bad jitter": (lambda c, f, w: c.repeat("own", f.yearly, every=9, jitter="x"), "ValueError", "jitter=: expected"),
    "a long jitter": (
        lambda c, f, w: c.repeat("own", f.yearly, every=9, jitter="8d"),
        "InvalidSchedule",
        "got '8d'",
    ),
    "a name that is none": (lambda c, f, w: c.repeat(None, f.yearly, every=9), "TypeError", "name=: expected text"),
    "no such schedule": (lambda c, f, w: c.cancel_repeat(5), "TypeError", "name=: expected text, got 5 (int)"),
    "a schedule without its payload": (
        lambda c, f, w: c.repeat("own", f.pack, every=9),
        "InvalidPayload",
        "expected one",
    ),
    "a schedule of a webhook's": (lambda c, f, w: c.repeat("own", "shop.hook", every=9), "NotCallable", "/hooks/in"),
    "a schedule of nobody": (lambda c, f, w: c.repeat("own", "shop.pac", every=9), "UnknownFunction", "did you mean"),
    "a schedule of code's name": (
        lambda c, f, w: c.repeat("new-year", f.yearly, every=9),
        "NameTaken",
        "is in the function's own code",
    ),
}


@pytest.mark.parametrize("name", TAKEN)
def test_both_ways_take_the_same(both: Both, name: str) -> None:
    call, wanted = TAKEN[name]
    assert outcome(both, "http", call) == ("", wanted)
    assert outcome(both, "bus", call) == ("", wanted)


@pytest.mark.parametrize("name", REFUSED)
def test_both_ways_refuse_the_same_with_the_same_words(both: Both, name: str) -> None:
    call, kind, words = REFUSED[name]
    over_http = outcome(both, "http", call)
    assert over_http[0] == kind
    assert words in over_http[1]
    assert outcome(both, "bus", call) == over_http


def test_both_ways_tell_the_same_of_each_of_many(both: Both) -> None:
    payloads = [{"id": 1}, {"id": "x"}, None, {"id": 2, "tenant": []}]
    said = {way: many(client, "shop.pack", payloads) for way, client in both.ways.items()}
    assert said["http"] == said["bus"]
    assert [kind for kind, _ in said["http"][1].values()] == ["InvalidPayload"] * 3


def test_both_ways_know_the_key_of_a_job_that_is_gone_and_wait_for_none(both: Both) -> None:
    for way, client in both.ways.items():
        first = client.enqueue("shop.same", 1, key=f"{way} gone")
        first.result("90s")
        both.node.ask("POST", "/functions/shop.same/purge?state=done")
        again = client.enqueue("shop.same", 1, key=f"{way} gone")
        assert (again.id, again.state) == (first.id, None)
        with pytest.raises(echod.Refused, match="keep has trimmed it"):
            again.result()


def test_both_ways_know_a_bus_without_a_version(tmp_path: Path) -> None:
    node = Node(tmp_path).start("start", folder=False, ready=False, ECHOD_TOKEN="secret-0123456789")
    try:
        until(lambda: node.ask("GET", "/readyz")[1]["bus"])
        for url in (node.url, f"unix://{node.state}/valkey.sock"):
            with (
                echod.Client(url, "secret-0123456789", timeout="500ms") as client,
                pytest.raises(
                    echod.Refused, match=r"^expected a deployed version, got none; run `echod deploy FOLDER`"
                ),
            ):
                client.enqueue("shop.same", 1)
    finally:
        node.close()
