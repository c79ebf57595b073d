"""A client's way over HTTP. Every request may be sent again, and is: an order carries a key by which it is known.

An answer that was lost, and one that says to come back (503 or 429 with Retry-After), is asked for again until
`patience_s` is over; what can be known by then is raised.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast
from urllib.parse import quote

import msgspec

from echod.client.connection import Broken, Connections, Reply, Unreachable
from echod.client.orders import Order, Record, Ticket, fits_a_header, instant_text, known_ms, since_boot_s, unknown
from echod.client.repeats import Repeat, Schedule
from echod.errors import (
    BusAway,
    BusFull,
    BusReadOnly,
    BusUnfit,
    EchodError,
    InvalidPayload,
    InvalidSchedule,
    KeyConflict,
    NameTaken,
    NotCallable,
    NotDurable,
    NothingListens,
    QueueFull,
    Refused,
    Unconfirmed,
    UnknownFunction,
)
from echod.model.ids import is_job_id
from echod.policy.calls import KEY_MS
from echofn.units import duration_text

ATTEMPT_S = 10.0  # for one answer
UNHEARD_S = 2.0  # where nobody ever answered: it may be just starting
MOST_WAITS, WAIT_S = 32, 20  # who wait for a job's end at the same time, and for how many seconds in one request
CHUNK_ORDERS, CHUNK_BYTES = 500, 2 * 1024 * 1024  # half of what the gateway takes at once
ON_ITS_WAY_MS = 30_000  # at most, and half of KEPT_MS: a request may lie somewhere before it is read
_PAUSE_S = (0.05, 1.0)  # shortest and longest between two sends
_LOOK_S = (0.02, 1.0)  # and between two looks at a job
_AGAIN = frozenset({502, 503, 504})
_ticket = msgspec.json.Decoder(Ticket).decode
_record = msgspec.json.Decoder(Record).decode
_schedule = msgspec.json.Decoder(Schedule).decode
_OF_THE_BUS = {each.code: each for each in (BusAway, BusReadOnly, BusFull, BusUnfit, NotDurable)}
_OPTIONS = {"Echo-At: ": "at=: ", "at: ": "at=: "}  # what the gateway calls what only it can judge
_JSON = {"Content-Type": "application/json"}
_MSGPACK = {"Content-Type": "application/msgpack"}


class HttpDoor:
    """See the module."""

    def __init__(self, url: str, token: str | None, patience_s: float) -> None:
        self._ways = Connections(url, token)
        self._waits = Connections(url, token, MOST_WAITS)  # for those who wait for a job's end, apart from all others
        self._waiting = 0
        self._was_heard = False  # somebody listens there, or did
        self._patience_s = patience_s
        self._known_ms = min(known_ms(patience_s), KEY_MS)
        self._known_for = duration_text(self._known_ms)

    async def close(self) -> None:
        self._ways.close()
        self._waits.close()

    async def enqueue(self, order: Order) -> Ticket:
        """A job, once, however often it had to be sent."""
        if not all(fits_a_header(text) for text in (order.lane, order.unique, order.key)):
            [told] = await self.enqueue_many([order])  # a body says what a header cannot
            if isinstance(told, EchodError):
                raise told
            return told
        headers = {**_MSGPACK, "Idempotency-Key": order.key}
        wishes = {
            "Echo-Key-For": None if order.is_keyed else self._known_for,
            "Echo-Lane": order.lane,
            "Echo-Delay": None if order.in_ms is None else f"{order.in_ms}ms",
            "Echo-At": None if order.at_ms is None else instant_text(order.at_ms),
            "Echo-Unique": order.unique,
            "Echo-Priority": None if order.priority is None else str(order.priority),
            "Echo-Durable": "fsync" if order.durable else None,
        }
        headers |= {name: value for name, value in wishes.items() if value is not None}
        path, known_ms = f"/functions/{quote(order.function, safe='')}", KEY_MS if order.is_keyed else self._known_ms
        return _ticket((await self._sure("POST", path, order.payload, headers, known_ms)).body)

    async def enqueue_many(self, orders: Sequence[Order]) -> list[Ticket | EchodError]:
        """Jobs, or why there is none; each once, however often it had to be sent. Raises what refuses all of them."""
        told: list[Ticket | EchodError] = []
        for chunk in _chunks(orders):
            try:
                body = msgspec.msgpack.encode([_ordered(order, self._known_for) for order in chunk])
                reply = await self._sure("POST", "/jobs", body, _MSGPACK, self._known_ms)
            except EchodError as error:
                if not told:
                    raise
                told += [error] * (len(orders) - len(told))
                break
            for each in msgspec.json.decode(reply.body)["jobs"]:
                problem = each.get("problem")
                told.append(_error_in(problem, self._ways.url) if problem else msgspec.convert(each, Ticket))
        return told

    async def record(self, id: str, function: str | None) -> Record:
        return await self._record(id, function, 0)

    async def ended(self, id: str, function: str | None, timeout_s: float | None) -> Record | None:
        """The record of a job that ended, or None in time. The gateway answers when it does (Prefer: wait)."""
        loop = asyncio.get_running_loop()
        end = None if timeout_s is None else loop.time() + timeout_s
        pause = _LOOK_S[0]
        self._waiting += 1
        try:
            while True:
                began = loop.time()
                longest = WAIT_S if self._waiting <= MOST_WAITS else 1  # more than may wait take turns
                wait_s = longest if end is None else int(max(0, min(longest, end - began)))
                record = await self._record(id, function, wait_s)
                now = loop.time()
                if record.has_ended or (end is not None and now >= end):
                    return record if record.has_ended else None
                if wait_s and now - began >= wait_s * 0.9:
                    continue
                # Less than a second is left, or it did not wait: looked at ever more slowly.
                await asyncio.sleep(pause if end is None else min(pause, end - now))
                pause = min(pause * 1.3, _LOOK_S[1])
        finally:
            self._waiting -= 1

    async def _record(self, id: str, function: str | None, wait_s: int) -> Record:
        if not is_job_id(id):
            raise unknown(id)  # some ids would make another address
        where = f"?function={quote(function, safe='')}" if function else ""
        path = f"/jobs/{quote(id, safe='')}{where}"
        headers = {"Prefer": f"wait={wait_s}"} if wait_s else {}
        return _record(self._taken(await self._answered("GET", path, b"", headers, wait_s)).body)

    async def cancel(self, id: str, function: str) -> bool:
        where = f"/jobs/{quote(id, safe='')}/cancel?function={quote(function, safe='')}"
        reply = await self._answered("POST", where)
        if reply.status == 409:
            return False
        self._taken(reply)
        return True

    async def repeat(self, wanted: Repeat) -> Schedule:
        return _schedule((await self._sure("POST", "/schedules", msgspec.json.encode(wanted), _JSON)).body)

    async def schedules(self, name: str) -> list[str]:
        """Ids of the schedules registered at run time under this name, or this id."""
        found = msgspec.json.decode((await self._sure("GET", "/schedules")).body)["schedules"]
        return [each["id"] for each in found if each["origin"] == "runtime" and name in (each["name"], each["id"])]

    async def cancel_repeat(self, id: str) -> None:
        reply = await self._answered("DELETE", f"/schedules/{quote(id, safe='')}")
        if reply.status != 404:  # gone: an answer before this one was lost, or somebody else's call came first
            self._taken(reply)

    async def _sure(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        known_ms: int | None = None,
    ) -> Reply:
        """An answer that is no refusal. Raises what a problem says."""
        return self._taken(await self._answered(method, path, body, headers, known_ms=known_ms))

    async def _answered(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        wait_s: int = 0,
        known_ms: int | None = None,
    ) -> Reply:
        """An answer that does not ask to come back, or the last of them. Raises NothingListens.

        `wait_s`: for how long the gateway was asked to hold it back. `known_ms`: for how long it knows what was sent;
        who was stopped or suspended for longer sends nothing again, which would be another job.
        """
        loop = asyncio.get_running_loop()
        ways = self._waits if wait_s else self._ways
        began, pause = loop.time(), _PAUSE_S[0]
        end = began + wait_s + self._patience_s
        forgotten_s = float("inf") if known_ms is None else since_boot_s() + (known_ms - ON_ITS_WAY_MS) / 1000
        while True:
            again_s, last, trouble = pause, None, None
            try:
                left = max(end - loop.time(), 0.1)
                last = await ways.ask(method, path, body, headers or {}, min(ATTEMPT_S + wait_s, left))
                self._was_heard = True
                after_s = _retry_after_s(last)
                if after_s is None:
                    return last
                again_s = max(after_s, pause)
            except Broken as error:
                is_nobody, trouble = isinstance(error, Unreachable) and not self._was_heard, self._trouble(error)
                if loop.time() + again_s >= (min(end, began + UNHEARD_S) if is_nobody else end):
                    raise trouble from None
            if last is not None and loop.time() + again_s >= end:
                return last
            await asyncio.sleep(again_s * random.uniform(1.0, 1.2))
            if since_boot_s() >= forgotten_s:
                if last is not None:
                    return last
                assert trouble is not None
                raise trouble
            pause = min(pause * 2, _PAUSE_S[1])

    def _trouble(self, error: Broken) -> NothingListens:
        if isinstance(error, Unreachable):
            start = "start one with `echod dev FOLDER` or `echod start`, or name another with url= or ECHOD_URL"
            return NothingListens(f"nothing listens at {self._ways.url} ({error}); {start}")
        return NothingListens(f"no answer from {self._ways.url} ({error}); is echod running there?")

    def _taken(self, reply: Reply) -> Reply:
        if reply.status < 300:
            return reply
        raise _error_of(reply, self._ways.url)


def _retry_after_s(reply: Reply) -> float | None:
    """How long to wait before asking again; None for an answer that stands."""
    if reply.status in _AGAIN or (reply.status == 429 and _slug(_members(reply)) != "full"):
        after = reply.headers.get("retry-after", "")
        if after.isascii() and after.isdecimal():
            return float(after)
        return 0.0 if reply.status in {502, 504} else None  # a proxy's: the gateway itself says when
    return None


def _chunks(orders: Sequence[Order]) -> Iterator[Sequence[Order]]:
    """Orders in parts that one request carries."""
    start = size = 0
    for number, order in enumerate(orders):
        own = len(order.payload) + 1024
        if number > start and (number - start == CHUNK_ORDERS or size + own > CHUNK_BYTES):
            yield orders[start:number]
            start, size = number, 0
        size += own
    yield orders[start:]


def _ordered(order: Order, known_for: str) -> dict[str, Any]:
    """An order as POST /jobs takes it; the payload is msgpack already."""
    said = {
        "key_for": None if order.is_keyed else known_for,
        "lane": order.lane,
        "delay": None if order.in_ms is None else f"{order.in_ms}ms",
        "at": None if order.at_ms is None else instant_text(order.at_ms),
        "unique": order.unique,
        "priority": order.priority,
    }
    said = {name: value for name, value in said.items() if value is not None}
    return {"function": order.function, "payload": msgspec.Raw(order.payload), "key": order.key, **said}


def _members(reply: Reply) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(reply.body)
    except msgspec.DecodeError:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _slug(members: Mapping[str, Any]) -> str:
    return str(members.get("type", "")).removeprefix("urn:echod:problem:")


def _error_of(reply: Reply, url: str) -> EchodError:
    return _error_in({**_members(reply), "status": reply.status}, url)


def _error_in(members: Mapping[str, Any], url: str) -> EchodError:
    """The error that a problem tells of: the same that the bus's own way raises."""
    status = int(members.get("status", 500))
    text = str(members.get("detail") or members.get("title") or f"HTTP {status} from {url}")
    match _slug(members):
        case "unknown-function":
            return UnknownFunction(text, members.get("suggestions") or ())
        case "not-callable":
            return NotCallable(text)
        case "invalid-payload":
            return InvalidPayload(text, members.get("faults") or ())
        case "invalid-schedule":
            return InvalidSchedule(members.get("faults") or [{"path": "$", "message": text}])
        case "name-taken":
            return NameTaken(text)
        case "key-conflict":
            return KeyConflict(text, str(members.get("job", "")))
        case "full":
            return QueueFull(text)
        case "unauthenticated" | "out-of-scope":
            return Refused(f"{text}; give token= or set ECHOD_TOKEN to a token of {url} that reaches so far")
        case "unconfirmed":
            return Unconfirmed(str(members.get("job", "")))
        case "no-version":
            return Refused(text)
        case slug if slug in _OF_THE_BUS:
            return _OF_THE_BUS[slug](text)
        case _ if status in _AGAIN:
            return BusAway(text)
        case _ if status < 500:
            return Refused(_as_option(text))
        case _:
            return EchodError(text)


def _as_option(text: str) -> str:
    for name, option in _OPTIONS.items():
        if text.startswith(name):
            return option + text.removeprefix(name)
    return text
