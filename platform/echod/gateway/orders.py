"""POST /jobs: many orders in one request, each validated as POST /functions/{name} validates its own, minted together.

A body whose form is wrong is refused whole, with the path. An order that cannot be taken is answered in its place with
its problem, and the others stand: 202 when all were minted, 207 when some were not. Each order may carry a key of its
own; sent again, it is answered with its first job.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from echod.errors import EchodError
from echod.gateway.desk import Desk, answer
from echod.gateway.invoke import function_of, state_of
from echod.gateway.payloads import body_of, payload_in, stored
from echod.gateway.problems import Problem, of
from echod.gateway.shapes import Count, JobText, ProblemShape
from echod.gateway.views import View, placed_view
from echod.gateway.wishes import at_ms
from echod.model.job import Mint, Minted, State
from echod.policy import calls
from echofn.children import wait_ms
from echofn.codec import NIL
from echofn.frames import FURTHEST_PRIORITY, MAX_KEY
from echofn.manifest import Function
from echofn.units import duration_ms

MOST_ORDERS = 1_000
MAX_ORDERS_BYTES = 4 * 1024 * 1024
_TURN = 32  # orders between two looks at who else wants something of the loop
_ELSEWHERE = (
    "Idempotency-Key",
    "Echo-Key-For",
    "Echo-Lane",
    "Echo-Delay",
    "Echo-At",
    "Echo-Unique",
    "Echo-Priority",
    "Echo-Version",
)
Key = Annotated[str, Meta(min_length=1, max_length=MAX_KEY)]


class OrderShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job to mint, with what the headers of a single call say: `key` is its Idempotency-Key, `key_for` how long it
    names its job if that is less than a day, `delay` as "5m" or in seconds, `at` an RFC 3339 instant."""

    function: Annotated[str, Meta(min_length=1)]
    payload: Any = None
    lane: str | None = None
    delay: str | Annotated[float, Meta(ge=0)] | None = None
    at: str | None = None
    unique: Key | None = None
    key: Key | None = None
    key_for: str | Annotated[float, Meta(gt=0)] | None = None
    priority: Annotated[int, Meta(ge=-FURTHEST_PRIORITY, le=FURTHEST_PRIORITY)] | None = None
    version: str | None = None


Orders = Annotated[list[OrderShape], Meta(min_length=1, max_length=MOST_ORDERS)]


class OrderTold(msgspec.Struct):
    """What became of one order: a job as in Accepted, or a problem alone."""

    id: JobText | msgspec.UnsetType = msgspec.UNSET
    function: str | msgspec.UnsetType = msgspec.UNSET
    state: State | msgspec.UnsetType | None = msgspec.UNSET
    url: str | msgspec.UnsetType = msgspec.UNSET
    problem: ProblemShape | msgspec.UnsetType = msgspec.UNSET


class OrdersTaken(msgspec.Struct):
    """For each order, in their order, its job or its problem."""

    jobs: list[OrderTold]
    minted: Count
    refused: Count


class _Placed(msgspec.Struct, frozen=True):
    """An order as a mint of its function's queue."""

    queue: str
    mint: Mint
    is_later: bool


async def enqueue(desk: Desk, request: Request) -> Response:
    """POST /jobs: an answer for each order, in their order."""
    for header in _ELSEWHERE:
        if header in request.headers:
            raise Problem("bad-header", f"{header}: expected none, as each order says that itself; see /openapi.json")
    if "Echo-Durable" in request.headers:
        raise Problem("bad-header", "Echo-Durable: expected none for many orders; call those functions one by one")
    value, is_json = body_of(await request.body(), request.headers)
    try:
        _make_priorities_whole(value)
        orders = msgspec.convert(value, Orders)
    except msgspec.ValidationError as error:
        raise Problem("invalid-parameter", f"expected a list of orders: {error}") from None
    placed = await _placed(desk, orders, is_json=is_json)
    views = await _minted(desk, placed)
    refused = sum("problem" in view for view in views)
    body = {"jobs": views, "minted": len(views) - refused, "refused": refused}
    return answer(body, status=207 if refused else 202)


def _make_priorities_whole(value: object) -> None:
    """A whole float is an integer in JSON Schema, and to the JSON decoder, but not where a value is converted."""
    for order in cast("list[object]", value) if isinstance(value, list) else ():
        fields = cast("dict[object, object]", order) if isinstance(order, dict) else {}
        priority = fields.get("priority")
        if isinstance(priority, float) and priority.is_integer():
            fields["priority"] = int(priority)


async def _placed(desk: Desk, orders: Sequence[OrderShape], *, is_json: bool) -> list[_Placed | Problem]:
    """Each order as what is to be minted, or why it cannot be."""
    functions: dict[tuple[str, str | None], tuple[str, Function]] = {}
    placed: list[_Placed | Problem] = []
    for number, order in enumerate(orders):
        if number % _TURN == _TURN - 1:
            await asyncio.sleep(0)
        try:
            named = (order.function, order.version)
            if named not in functions:
                functions[named] = await function_of(desk, *named)
                calls.check_callable(functions[named][1])
            placed.append(_place(desk, order, *functions[named], is_json=is_json))
        except EchodError as error:
            problem = of(error)
            if problem.status == 503:  # no fault of the order's
                raise
            placed.append(problem)
    return placed


def _place(desk: Desk, order: OrderShape, version: str, function: Function, *, is_json: bool) -> _Placed:
    now_ms = desk.bus.clock.now_ms()
    given = payload_in(order.payload, is_json=is_json)
    payload = stored(function.default_payload) if given.packed == NIL else given
    desk.schemas.check(version, function, payload.seen, len(payload.packed), payload.value)
    in_ms = due_ms = None
    try:
        if order.delay is not None and order.at is not None:
            raise ValueError("expected delay or at, got both")
        in_ms = None if order.delay is None else wait_ms(order.delay)
        due_ms = None if order.at is None else at_ms(order.at, now_ms)
    except ValueError as error:
        raise Problem("invalid-parameter", f"{'at' if order.delay is None else 'delay'}: {error}") from None
    call = calls.Call(
        key_ms=_key_ms(order),
        value=payload.value,
        packed=payload.packed,
        lane=order.lane,
        in_ms=in_ms,
        at_ms=due_ms,
        priority=order.priority,
        unique=order.unique,
        key=order.key,
        digest=hashlib.sha256(given.packed).hexdigest() if order.key is not None else "",
        version=order.version,
    )
    mint = calls.mint_of(function, call, desk.bus.new_job_id())
    return _Placed(function.name, mint, bool(in_ms) or (due_ms is not None and due_ms > now_ms))


def _key_ms(order: OrderShape) -> int:
    if order.key_for is None:
        return calls.KEY_MS
    try:
        if order.key is None:
            raise ValueError("expected key beside it, got none")
        return calls.key_ms(duration_ms(order.key_for))
    except ValueError as error:
        raise Problem("invalid-parameter", f"key_for: {error}") from None


async def _minted(desk: Desk, placed: Sequence[_Placed | Problem]) -> list[View]:
    """The answers: a job, or {"problem": …}. One call of the bus for up to 256 orders of a function."""
    by_queue: dict[str, list[Mint]] = {}
    for each in placed:
        if isinstance(each, _Placed):
            by_queue.setdefault(each.queue, []).append(each.mint)
    told = await asyncio.gather(*(_told(desk, queue, mints) for queue, mints in by_queue.items()))
    said = {id: outcome for outcomes in told for id, outcome in outcomes.items()}
    return list(await asyncio.gather(*(_view(desk, each, said) for each in placed)))


async def _told(desk: Desk, queue: str, mints: list[Mint]) -> dict[str, Minted | EchodError]:
    """What became of each mint, by the id that it was asked under."""

    async def again(mint: Mint) -> Minted | EchodError:
        """A mint that was not made, as a single one: under a fresh id where its own was taken, else with its error."""
        try:
            return await desk.bus.mint_outside(queue, mint)
        except EchodError as error:
            if of(error).status == 503:
                raise
            return error

    said = await desk.bus.mint(queue, mints, outside=True)
    told: dict[str, Minted | EchodError] = {}
    refused: list[Mint] = []
    for mint, outcome in zip(mints, said, strict=True):
        if isinstance(outcome, Minted):
            told[mint.id] = outcome
        else:
            refused.append(mint)
    told.update(zip((mint.id for mint in refused), await asyncio.gather(*map(again, refused)), strict=True))
    return told


async def _view(desk: Desk, each: _Placed | Problem, said: dict[str, Minted | EchodError]) -> View:
    if isinstance(each, Problem):
        return {"problem": each.view()}
    outcome = said[each.mint.id]
    if isinstance(outcome, EchodError):
        return {"problem": of(outcome).view()}
    state = await state_of(desk, each.queue, outcome, is_later=each.is_later)
    return placed_view(outcome.id, each.queue, state)
