"""A client's way over HTTP. Every request may be sent again, and is: an order carries a key by which it is known.

An answer that was lost, and one that says to come back (503 or 429 with Retry-After), is asked for again until
`patience_s` is over; what can be known by then is raised.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from urllib.parse import quote

import msgspec

from echod.client.connection import Broken, Connections, Reply
from echod.client.orders import Order, Record, Repeat, Schedule, Ticket
from echod.errors import (
    BusAway,
    EchodError,
    InvalidPayload,
    InvalidSchedule,
    KeyConflict,
    NameTaken,
    NotCallable,
    NothingListens,
    QueueFull,
    Refused,
    UnknownFunction,
)

ATTEMPT_S = 10.0  # for one answer
_PAUSE_S = (0.05, 1.0)  # shortest and longest between two sends
_LOOK_S = (0.02, 1.0)  # and between two looks at a job
_AGAIN = frozenset({502, 503, 504})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ticket = msgspec.json.Decoder(Ticket).decode
_record = msgspec.json.Decoder(Record).decode
_schedule = msgspec.json.Decoder(Schedule).decode
_JSON = {"Content-Type": "application/json"}
_MSGPACK = {"Content-Type": "application/msgpack"}


class HttpDoor:
    """See the module."""

    def __init__(self, url: str, token: str | None, patience_s: float) -> None:
        self._ways = Connections(url, token)
        self._patience_s = patience_s

    async def close(self) -> None:
        self._ways.close()

    async def enqueue(self, order: Order) -> Ticket:
        """A job, once, however often it had to be sent."""
        headers = {**_MSGPACK, "Idempotency-Key": order.key}
        at = None if order.at_ms is None else (_EPOCH + timedelta(milliseconds=order.at_ms)).isoformat()
        wishes = {
            "Echo-Lane": order.lane,
            "Echo-Delay": None if order.in_ms is None else f"{order.in_ms}ms",
            "Echo-At": at,
            "Echo-Unique": order.unique,
            "Echo-Priority": None if order.priority is None else str(order.priority),
            "Echo-Durable": "fsync" if order.durable else None,
        }
        headers |= {name: value for name, value in wishes.items() if value is not None}
        reply = await self._sure("POST", f"/functions/{quote(order.function, safe='')}", order.payload, headers)
        return _ticket(reply.body)

    async def record(self, id: str, function: str | None) -> Record:
        where = f"?function={quote(function, safe='')}" if function else ""
        return _record((await self._sure("GET", f"/jobs/{quote(id, safe='')}{where}")).body)

    async def ended(self, id: str, function: str | None, timeout_s: float | None) -> Record | None:
        """The record of a job that ended, or None in time: looked at ever more slowly."""
        loop = asyncio.get_running_loop()
        end = None if timeout_s is None else loop.time() + timeout_s
        pause = _LOOK_S[0]
        while True:
            record = await self.record(id, function)
            left = pause if end is None else end - loop.time()
            if record.has_ended or left <= 0:
                return record if record.has_ended else None
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 1.3, _LOOK_S[1])

    async def cancel(self, id: str, function: str | None) -> bool:
        where = f"?function={quote(function, safe='')}" if function else ""
        reply = await self._answered("POST", f"/jobs/{quote(id, safe='')}/cancel{where}")
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

    async def _sure(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Reply:
        """An answer that is no refusal. Raises what a problem says."""
        return self._taken(await self._answered(method, path, body, headers))

    async def _answered(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Reply:
        """An answer that does not ask to come back, or the last of them. Raises NothingListens."""
        loop = asyncio.get_running_loop()
        end, pause = loop.time() + self._patience_s, _PAUSE_S[0]
        while True:
            wait_s, last = pause, None
            try:
                left = max(end - loop.time(), 0.1)
                last = await self._ways.ask(method, path, body, headers or {}, min(ATTEMPT_S, left))
                after_s = _retry_after_s(last)
                if after_s is None:
                    return last
                wait_s = max(after_s, pause)
            except Broken as error:
                trouble = NothingListens(f"no answer from {self._ways.url} ({error}); is echod running there?")
                if loop.time() + wait_s >= end:
                    raise trouble from None
            if last is not None and loop.time() + wait_s >= end:
                return last
            await asyncio.sleep(wait_s * random.uniform(1.0, 1.2))
            pause = min(pause * 2, _PAUSE_S[1])

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


def _members(reply: Reply) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(reply.body)
    except msgspec.DecodeError:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _slug(members: Mapping[str, Any]) -> str:
    return str(members.get("type", "")).removeprefix("urn:echod:problem:")


def _error_of(reply: Reply, url: str) -> EchodError:
    """The error that a problem tells of: the same that the bus's own way raises."""
    members = _members(reply)
    text = str(members.get("detail") or members.get("title") or f"HTTP {reply.status} from {url}")
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
        case _ if reply.status in _AGAIN:
            return BusAway(text)
        case _ if reply.status < 500:
            return Refused(text)
        case _:
            return EchodError(text)
