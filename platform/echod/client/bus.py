"""A client's way straight to the bus: the same checks as at the gateway, then a mint.

It leases a node number when it first mints, and again when that ran out: a client that mints nothing asks nothing. An
order that got no answer is minted again under its id, and under a key that outlives its row: for as long as there is
patience the bus can tell the two apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import socket
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from echod.bus import Bus
from echod.bus.waiting import Waiting
from echod.client.connection import CLOSED
from echod.client.orders import Order, Record, Ticket, instant_text, known_ms, unknown
from echod.client.repeats import Repeat, Schedule
from echod.errors import (
    BusAbsent,
    BusAway,
    BusError,
    BusFull,
    EchodError,
    InvalidPayload,
    LeaseGone,
    Refused,
    Unconfirmed,
)
from echod.model.ids import JobId, NodeId, branded, is_job_id
from echod.model.job import Job, State, Unique
from echod.policy import calls, nesting
from echod.registry import schedules
from echod.registry.registry import Registry
from echod.registry.schemas import Schemas
from echofn import children, codec
from echofn.manifest import Function

T = TypeVar("T")
UNHEARD_S = 2.0  # where nobody ever listened: it may be just starting
AT_ONCE = 256  # orders of enqueue_many under way
_PAUSE_S = 0.1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class BusDoor:
    """See the module."""

    def __init__(self, address: str, app: str, patience_s: float) -> None:
        self._address, self._app, self._patience_s = address, app, patience_s
        self._opening = asyncio.Lock()
        self._node = NodeId(branded("NOD", secrets.randbits(63)))
        self._schemas = Schemas()
        self._is_closed = False
        self._bus: Bus | None = None
        self._registry: Registry | None = None
        self._waiting: Waiting | None = None
        self._following: asyncio.Task[None] | None = None

    async def close(self) -> None:
        self._is_closed = True
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        if self._waiting is not None:
            self._waiting.close()
        if self._registry is not None:
            self._registry.close()
        if self._bus is not None:
            with contextlib.suppress(BusError):
                await self._bus.leave()
            await self._bus.close()
        self._bus = self._registry = self._waiting = self._following = None

    async def enqueue(self, order: Order) -> Ticket:
        """A job, once. Raises BusAway when the bus did not come back in time."""
        bus = await self._open()
        function = await self._function(order.function)
        call = self._call(function, order, bus.clock.now_ms())
        mint = calls.mint_of(function, call, await self._id(bus))
        if mint.once is None:
            once = Unique(f"client:{order.key}", known_ms(self._patience_s))
            mint = msgspec.structs.replace(mint, once=once)
        mint_it = partial(bus.mint_outside, function.name, mint, fsync=order.durable)
        minted = await self._kept_asking(mint_it, again=(BusAway, BusFull, Unconfirmed))
        is_later = bool(order.in_ms) or (order.at_ms is not None and order.at_ms > bus.clock.now_ms())
        state: State | None = "scheduled" if is_later else "pending"
        if minted.duplicate:
            job = await self._kept_asking(partial(bus.job, minted.id, queue=function.name))
            state = job.state if job else None
        return Ticket(minted.id, function.name, state)

    async def enqueue_many(self, orders: Sequence[Order]) -> list[Ticket | EchodError]:
        """Jobs, or why there is none; those of one turn of the loop share calls. Raises BusAway for all of them."""
        told: list[Ticket | EchodError] = []
        for start in range(0, len(orders), AT_ONCE):
            some = (self.enqueue(order) for order in orders[start : start + AT_ONCE])
            said = await asyncio.gather(*some, return_exceptions=True)
            for each in said:
                if not isinstance(each, Ticket | EchodError):
                    raise each
                told.append(each)
            first = said[0]
            if isinstance(first, BusAway) and all(isinstance(each, BusAway) for each in said):
                if not start:
                    raise first
                told += [first] * (len(orders) - len(told))  # its patience is over
                break
        return told

    async def record(self, id: str, function: str | None) -> Record:
        if not is_job_id(id):
            raise unknown(id)
        bus = await self._open()
        job = await self._kept_asking(lambda: bus.job(id, queue=function))
        if job is None:
            raise unknown(id)
        return _record(job)

    async def ended(self, id: str, function: str | None, timeout_s: float | None) -> Record | None:
        """The record of a job that ended, or None in time."""
        job = await self.record(id, function)
        assert self._waiting is not None
        loop = asyncio.get_running_loop()
        end = loop.time() + (float("inf") if timeout_s is None else timeout_s)
        while not job.has_ended and (left := end - loop.time()) > 0:
            with self._waiting.expected(JobId(id)) as event:
                await self._waiting.ended(JobId(id), job.function, event, min(left, 3600.0), told=False)
            job = await self.record(id, job.function)
        return job if job.has_ended else None

    async def cancel(self, id: str, function: str) -> bool:
        bus = await self._open()
        said = await self._kept_asking(lambda: bus.cancel(function, id))
        if said == "unknown":
            raise unknown(id)
        return said != "ended"

    async def repeat(self, wanted: Repeat) -> Schedule:
        bus = await self._open()
        await self._function(wanted.function)
        assert self._registry is not None
        registry, asked = self._registry, msgspec.convert(msgspec.to_builtins(wanted), schedules.Wanted)
        row, _ = await self._kept_asking(lambda: schedules.register(bus, registry, self._schemas, asked))
        next_due = None if row.next_ms is None else _instant(row.next_ms)
        return Schedule(f"{row.queue}/{row.name}", row.queue, row.name, row.rule, row.tz or "UTC", next_due)

    async def schedules(self, name: str) -> list[str]:
        """Ids of the schedules registered at run time under this name, or this id."""
        bus = await self._open()
        rows = await self._kept_asking(bus.recurrences)
        named = [(row.name, f"{row.queue}/{row.name}") for row in rows if row.is_own]
        return [id for own, id in named if name in (own, id)]

    async def cancel_repeat(self, id: str) -> None:
        bus = await self._open()
        rows = [row for row in await self._kept_asking(bus.recurrences) if f"{row.queue}/{row.name}" == id]
        for row in rows:
            await self._kept_asking(partial(schedules.remove, bus, row))

    async def _open(self) -> Bus:
        """The bus, connected; asked for again while it is away and there is patience left."""
        async with self._opening:
            if self._is_closed:
                raise Refused(CLOSED)
            if self._bus is None:
                bus = await self._kept_asking(lambda: Bus.open(self._address, self._app), absent_s=UNHEARD_S)
                # Of the registry only what is served is asked for: no version's files come to this machine.
                registry = Registry(bus, Path(tempfile.gettempdir()) / "echod-client")
                try:
                    await self._kept_asking(registry.refresh)
                except BaseException:
                    await bus.close()
                    raise
                self._bus, self._registry, self._waiting = bus, registry, Waiting(bus)
                self._following = asyncio.create_task(registry.run(), name="client-registry")
            return self._bus

    async def _kept_asking(
        self,
        ask: Callable[[], Awaitable[T]],
        absent_s: float = float("inf"),
        again: tuple[type[EchodError], ...] = (BusAway, BusFull),
    ) -> T:
        """The answer, asked for while there is patience left; for `absent_s` where nobody listens at all."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            try:
                return await ask()
            except again as error:
                most_s = min(absent_s, self._patience_s) if isinstance(error, BusAbsent) else self._patience_s
                if loop.time() + _PAUSE_S >= began + most_s:
                    raise
            await asyncio.sleep(_PAUSE_S * random.uniform(0.7, 1.3))

    async def _function(self, name: str) -> Function:
        """The function of the active version, which is read anew before it is said that there is none."""
        assert self._registry is not None
        if self._registry.function(name) is None:
            await self._kept_asking(self._active, again=(BusAway, BusFull, _NoVersion))
        function = self._registry.function(name)
        if function is None:
            raise self._registry.unknown(name)
        calls.check_callable(function)
        return function

    async def _active(self) -> None:
        """Read what is served. Raises _NoVersion."""
        assert self._registry is not None
        await self._registry.refresh()
        if self._registry.active is None:
            told = "expected a deployed version, got none; run `echod deploy FOLDER`"
            raise _NoVersion(self._registry.unreadable or told)

    def _call(self, function: Function, order: Order, now_ms: int) -> calls.Call:
        assert self._registry is not None
        assert self._registry.active is not None
        packed = function.default_payload if order.payload == codec.NIL else order.payload
        value = codec.decode(packed)
        if nesting.is_deeper(value, nesting.MAX_DEPTH):
            raise InvalidPayload(f"expected at most {nesting.MAX_DEPTH} levels of nesting, got more")
        if order.at_ms is not None:
            try:
                children.check_instant(order.at_ms, now_ms, instant_text(order.at_ms))
            except ValueError as error:
                raise Refused(f"at=: {error}") from None
        seen = msgspec.to_builtins(value)  # bytes as base64: as the schema has them
        self._schemas.check(self._registry.active.version, function, seen, len(packed), value)
        return calls.Call(
            value=value,
            packed=packed,
            lane=order.lane,
            in_ms=order.in_ms,
            at_ms=order.at_ms,
            priority=order.priority,
            unique=order.unique,
            key=order.key if order.is_keyed else None,
            digest=order.digest if order.is_keyed else "",
        )

    async def _id(self, bus: Bus) -> JobId:
        try:
            return bus.new_job_id()
        except LeaseGone:
            about = {"verb": "client", "roles": ["client"], "host": socket.gethostname(), "pid": os.getpid()}
            await self._kept_asking(lambda: bus.join(self._node, info=msgspec.msgpack.encode(about)))
            return bus.new_job_id()


class _NoVersion(Refused):
    """Nothing was deployed yet: a node may be just starting."""


def _instant(ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=ms)


def _record(job: Job) -> Record:
    return Record(
        id=job.id,
        function=job.function,
        lane=job.lane,
        state=job.state,
        reason=job.reason,
        attempts=job.attempts,
        failures=job.failures,
        due=_instant(job.due_ms),
        minted=_instant(job.minted_ms),
        started=None if job.started_ms is None else _instant(job.started_ms),
        ended=None if job.ended_ms is None else _instant(job.ended_ms),
        error=job.error,
        result=None if job.result is None else msgspec.to_builtins(codec.decode(job.result)),
        version=job.version,
        progress=job.progress,
    )
