"""`AsyncClient` and `AsyncJob`: the one core, whichever address it is given."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar, Unpack

from echod.client import signatures
from echod.client.orders import (
    Duration,
    ManyOptions,
    Options,
    Order,
    Record,
    Target,
    Ticket,
    check_options,
    check_text,
    milliseconds,
    order_of,
    payloads_of,
    result_of,
    target_of,
)
from echod.client.repeats import Repeat, RepeatOptions, Schedule, repeat_of
from echod.config import DEFAULT_PORT
from echod.errors import EchodError, InvalidPayload, JobFailed, OrdersRefused, Refused, TimedOut
from echod.model.job import State
from echofn.units import duration_ms, duration_text

R = TypeVar("R")
PATIENCE_S = 30.0
LOOK_S = 1.0  # for one look at a job, whatever `timeout` says: 0 asks whether it has ended
ANSWER_S = 0.25  # for how much longer than `timeout` an answer that is on its way is waited for
BUSES = ("valkey://", "valkeys://", "redis://", "rediss://", "unix://")


class Door(Protocol):
    """A way to an echod: over HTTP, or straight to the bus. Both refuse with the same errors."""

    async def enqueue(self, order: Order) -> Ticket: ...
    async def enqueue_many(self, orders: Sequence[Order]) -> list[Ticket | EchodError]: ...
    async def record(self, id: str, function: str | None) -> Record: ...
    async def ended(self, id: str, function: str | None, timeout_s: float | None) -> Record | None: ...
    async def cancel(self, id: str, function: str) -> bool: ...
    async def repeat(self, wanted: Repeat) -> Schedule: ...
    async def schedules(self, name: str) -> list[str]: ...
    async def cancel_repeat(self, id: str) -> None: ...
    async def close(self) -> None: ...


def door_of(url: str | None, token: str | None, app: str | None, patience_s: float) -> Door:
    """The way that an address names. The bus's is loaded when one is asked for."""
    for option, text in (("url", url), ("token", token), ("app", app)):
        check_text(option, text)
    url = url or os.environ.get("ECHOD_URL") or f"http://127.0.0.1:{DEFAULT_PORT}"
    if url.startswith(BUSES):
        from echod.client.bus import BusDoor

        return BusDoor(url, os.environ.get("ECHOD_APP", "") if app is None else app, patience_s)
    from echod.client.http import HttpDoor

    return HttpDoor(url, token or os.environ.get("ECHOD_TOKEN"), patience_s)


class AsyncJob(Generic[R]):
    """A job, by its id. Its attributes are as of the last `refresh`, `result` or `cancel`."""

    def __init__(self, door: Door, id: str, function: str | None, result_type: Any = Any) -> None:
        self.id = id
        self._door, self._function, self._result_type = door, function, result_type
        self._state: State | None = None
        self.record: Record | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AsyncJob) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self._function or ''} {self.state or ''}>"

    @property
    def function(self) -> str | None:
        """Its function's name, once it is known."""
        return self.record.function if self.record else self._function

    @property
    def state(self) -> State | None:
        """pending, scheduled, active, done, dead or cancelled, as last heard; None before."""
        return self.record.state if self.record else self._state

    async def refresh(self) -> Self:
        """Ask how it stands. Raises Refused for a job that does not exist (any more)."""
        self.record = await self._door.record(self.id, self._function)
        return self

    async def result(self, timeout: Duration | None = None) -> R:
        """Its result, once it has ended; of the handler's own type if the function itself was enqueued.

        Raises JobFailed if it ended badly, and TimeoutError after `timeout` ("5s", seconds), also if nobody answers;
        the job goes on then. 0 asks whether it has ended.
        """
        ended = self.record = await self._ended(timeout)
        if ended.state != "done":
            raise failure_of(ended)
        found: R = result_of(ended, self._result_type)
        return found

    async def _ended(self, timeout: Duration | None) -> Record:
        """Its record, once it ended. Raises TimedOut, also where nobody answers: a door's own patience is longer."""
        if timeout is None:
            ended = await self._door.ended(self.id, self._function, None)
            assert ended is not None
            return ended
        timeout_ms = milliseconds("timeout", timeout, duration_ms)
        try:
            async with asyncio.timeout(max(timeout_ms / 1000 + ANSWER_S, LOOK_S)):
                ended = await self._door.ended(self.id, self._function, timeout_ms / 1000)
        except TimeoutError:
            told = "nothing was heard of it at the end; is echod, or its bus, away?"
            raise TimedOut(f"{self.id} has not ended within {duration_text(timeout_ms)}: {told}") from None
        if ended is None:
            raise TimedOut(f"{self.id} has not ended within {duration_text(timeout_ms)}")
        return ended

    async def cancel(self) -> bool:
        """Cancel it, or ask its run to stop; False when it had ended already, cancelled or otherwise.

        Raises Refused for a job that does not exist (any more).
        """
        record = self.record = await self._door.record(self.id, self._function)
        if record.has_ended:
            return False
        took = await self._door.cancel(self.id, record.function)
        await self.refresh()
        return took


def moved(job: AsyncJob[R], client: AsyncClient) -> AsyncJob[R]:
    """The same job by another client's way."""
    job._door = client._door
    return job


def failure_of(record: Record) -> JobFailed:
    """The error of a job that ended without a result."""
    error = record.error
    if error is None:
        return JobFailed(record.id, record.state, record.state, "", "", "")
    return JobFailed(record.id, record.state, error.cause, error.type, error.message, error.traceback)


class AsyncClient:
    """Calls to one echod from an asyncio program. Made in the loop that uses it; close it, or use `async with`.

    `url`: http://… of a gateway (`ECHOD_URL`, else http://127.0.0.1:8321; `token`: `ECHOD_TOKEN`), or the bus's own
    address: valkey://…, valkeys://…, unix:///path (`app`: `ECHOD_APP`). `timeout` ("30s", seconds): for how long an
    unanswered call is sent again. `package`: the served folder ("acme.jobs") in the names of the modules
    that functions are imported from; else it is what leads up to a part called `functions`, or the first part.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        app: str | None = None,
        timeout: Duration = PATIENCE_S,
        package: str | None = None,
    ) -> None:
        check_text("package", package)
        self._door = door_of(url, token, app, milliseconds("timeout", timeout, duration_ms) / 1000)
        self._package = package

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Hang up, for good."""
        await self._door.close()

    @signatures.async_enqueue
    async def enqueue(
        self, function: Callable[..., Any] | str, payload: Any = None, **options: Unpack[Options]
    ) -> AsyncJob[Any]:
        """Make a job of `function` (itself, or its name): one job, however often the call had to be sent.

        Raises UnknownFunction, InvalidPayload, QueueFull, KeyConflict; BusAway or NothingListens when no answer came.
        """
        check_options("enqueue", options, Options.__optional_keys__)
        target = target_of(function, self._package)
        order = order_of(target, function, payload, **options)
        return self._job(await self._door.enqueue(order), target.result_type)

    @signatures.async_enqueue_many
    async def enqueue_many(
        self, function: Callable[..., Any] | str, payloads: Iterable[Any], **options: Unpack[ManyOptions]
    ) -> list[AsyncJob[Any]]:
        """Make a job for each payload, in their order. All are checked by their type before the first is minted.

        Raises OrdersRefused if some were refused: it says which and why, and has the jobs of the others. Raises
        TypeError for text or a mapping, which is one payload.
        """
        check_options("enqueue_many", options, ManyOptions.__optional_keys__)
        target = target_of(function, self._package)
        orders = [
            _numbered(number, target, function, payload, options)
            for number, payload in enumerate(payloads_of(payloads))
        ]
        if not orders:
            return []
        told = await self._door.enqueue_many(orders)
        errors = {number: each for number, each in enumerate(told) if isinstance(each, EchodError)}
        jobs = [None if isinstance(each, EchodError) else self._job(each, target.result_type) for each in told]
        if errors:
            raise OrdersRefused(errors, jobs)
        return [job for job in jobs if job is not None]

    def job(self, id: str, function: str | None = None) -> AsyncJob[Any]:
        """A job by its id; `function` saves a search over all queues. Raises TypeError for an id that is no text."""
        check_text("id", id, required=True)
        check_text("function", function)
        if function == "":
            raise ValueError("function=: expected a function's name, got ''")
        return AsyncJob(self._door, id, function)

    @signatures.repeat
    async def repeat(self, name: str, function: Callable[..., Any] | str, **options: Unpack[RepeatOptions]) -> Schedule:
        """Register a schedule of a function, or change the one of this name. It belongs to no version: deploys keep it.

        Raises InvalidSchedule, NameTaken if the function's code has a schedule of this name, and what `enqueue` raises.
        """
        check_options("repeat", options, RepeatOptions.__optional_keys__)
        target = target_of(function, self._package)
        return await self._door.repeat(repeat_of(target, function, name, **options))

    async def cancel_repeat(self, name: str) -> bool:
        """Remove a schedule by its name, or by its id ("function/name"); False when there is none.

        Raises Refused if schedules of several functions have the name: give the id then. Raises TypeError for a name
        that is no text.
        """
        check_text("name", name, required=True)
        found = await self._door.schedules(name)
        if len(found) > 1:
            raise Refused(f"expected one schedule called {name!r}, got {', '.join(found)}; name one by its id")
        for id in found:
            await self._door.cancel_repeat(id)
        return bool(found)

    def _job(self, ticket: Ticket, result_type: Any) -> AsyncJob[Any]:
        job: AsyncJob[Any] = AsyncJob(self._door, ticket.id, ticket.function, result_type)
        job._state = ticket.state
        return job


def _numbered(
    number: int, target: Target, function: Callable[..., Any] | str, payload: object, options: ManyOptions
) -> Order:
    """One of many orders. Raises InvalidPayload, which says which it is."""
    try:
        return order_of(target, function, payload, **options)
    except InvalidPayload as error:
        raise InvalidPayload(f"order {number}: {error}", error.faults) from None
