"""POST /functions/{name}: a body becomes a job.

What can be refused is refused before the bus is asked: name, headers, body, schema, lane. A 2xx means minted. A caller
who waits (`Prefer: wait`) is answered with the job's result when it ends in time, and with the same 202 as ever when
not; a caller who leaves takes the waiter along, the job stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Coroutine, Mapping
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from echod.errors import BusAway, BusError, UnknownFunction
from echod.gateway.desk import Desk, answer, shortened
from echod.gateway.payloads import payload_of, stored
from echod.gateway.problems import Problem
from echod.gateway.views import error_view, placed_view, value_of
from echod.gateway.wishes import Wishes, wishes_of
from echod.model.ids import JobId, VersionId
from echod.model.job import Job, Mint, Minted
from echod.policy import calls
from echofn.codec import NIL
from echofn.manifest import Function, Manifest

_MANIFEST_S = 0.8

T = TypeVar("T")


async def invoke(desk: Desk, request: Request) -> Response:
    """Mint a job of the function in the path, and wait for it where asked."""
    now_ms = desk.bus.clock.now_ms()
    pinned = request.headers.get("echo-version")
    version, function = await function_of(desk, request.path_params["name"], pinned)
    calls.check_callable(function)
    wishes = wishes_of(request.headers, now_ms)
    given = payload_of(await request.body(), request.headers)
    payload = stored(function.default_payload) if given.packed == NIL else given
    desk.schemas.check(version, function, payload.seen, len(payload.packed), payload.value)
    call = calls.Call(
        value=payload.value,
        packed=payload.packed,
        lane=wishes.lane,
        in_ms=wishes.in_ms,
        at_ms=wishes.at_ms,
        priority=wishes.priority,
        unique=wishes.unique,
        key=wishes.key,
        key_ms=wishes.key_ms,
        digest=hashlib.sha256(given.packed).hexdigest() if wishes.key is not None else "",
        version=wishes.version,
    )
    mint = calls.mint_of(function, call, desk.bus.new_job_id(), wait=desk.bus.wait_channel if wishes.wait_s else "")
    is_later = bool(wishes.in_ms) or (wishes.at_ms is not None and wishes.at_ms > now_ms)
    if wishes.fsync:
        request.state.work.end()  # from here on it is the disk that takes its time
    if wishes.wait_s:
        return await _waited(desk, request, function.name, mint, is_later, wishes)
    minted = await desk.bus.mint_outside(function.name, mint, fsync=wishes.fsync)
    return await accepted(desk, function.name, minted, is_later, _pinned(mint))


async def function_of(desk: Desk, name: str, pinned: str | None) -> tuple[str, Function]:
    """The function to mint for and the version whose word counts: the active one, or the one that Echo-Version pins."""
    active = desk.active()
    if pinned is None or pinned == active.version:
        return active.version, desk.function(name)
    manifest = await _manifest(desk, VersionId(pinned)) if _is_version(pinned) else None
    if manifest is None:
        raise Problem(
            "unknown-version", f"Echo-Version: no version {shortened(pinned)!r} is stored; GET /versions lists them"
        )
    function = next((each for each in manifest.functions if each.name == name), None)
    if function is None:
        raise UnknownFunction.near(name, [each.name for each in manifest.functions])
    if desk.registry.function(name) is None:  # its queue is nobody's: the job would wait for ever
        said = f"{name} is in {pinned} but not in the active version, {active.version}, so nothing runs its jobs"
        raise UnknownFunction(f"{said}; activate a version that has it")
    return pinned, function


async def _manifest(desk: Desk, version: VersionId) -> Manifest | None:
    """A stored version's manifest, or BusAway within a second: the bus takes longer over what may be large."""
    try:
        async with asyncio.timeout(_MANIFEST_S):
            return await desk.registry.manifest(version)
    except TimeoutError:
        raise BusAway(f"the bus did not answer within {_MANIFEST_S} s") from None


def _is_version(text: str) -> bool:
    return len(text) == 14 and text.startswith("DEP") and text.isascii() and text.isalnum()


async def _waited(desk: Desk, request: Request, queue: str, mint: Mint, is_later: bool, wishes: Wishes) -> Response:
    wait_s = wishes.wait_s
    applied = {"Preference-Applied": f"wait={wait_s}"}
    with desk.waiting.expected(mint.id) as event:
        minted = await desk.bus.mint_outside(queue, mint, fsync=wishes.fsync)
        told = minted.id == mint.id
        job = await ended_within(desk, request, minted.id, queue, event, wait_s, told=told)
    if job is None:
        return await accepted(desk, queue, minted, is_later, applied | _pinned(mint))
    return _result(job, applied)


async def ended_within(
    desk: Desk, request: Request, id: JobId, queue: str, event: asyncio.Event, wait_s: int, *, told: bool
) -> Job | None:
    """A job once it ended, or None in time. Raises ClientDisconnect when the caller hangs up before that."""
    request.state.work.end()  # from here on it is the job that takes its time
    waiting = desk.waiting.ended(id, queue, event, wait_s, told=told)
    return await unless_gone(waiting, disconnected(request))


async def unless_gone(work: Coroutine[object, object, T], gone: Coroutine[object, object, None]) -> T:
    """What `work` comes to. Raises ClientDisconnect where `gone` returns before that; `work` has ended then."""
    doing, leaving = asyncio.ensure_future(work), asyncio.ensure_future(gone)
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise ClientDisconnect
        return doing.result()
    finally:
        leaving.cancel()
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)


async def disconnected(request: Request) -> None:
    """Return when the caller has hung up; its body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def accepted(
    desk: Desk, queue: str, minted: Minted, is_later: bool, headers: Mapping[str, str] | None = None
) -> Response:
    """202: the job is there."""
    state = await state_of(desk, queue, minted, is_later=is_later)
    told = {"Location": f"/jobs/{minted.id}", "Echo-Job": minted.id, **(headers or {})}
    return answer(placed_view(minted.id, queue, state), status=202, headers=told)


def _pinned(mint: Mint) -> dict[str, str]:
    """The version that a job runs on, where its caller named it."""
    return {"Echo-Version": mint.version} if mint.version else {}


async def state_of(desk: Desk, queue: str, minted: Minted, *, is_later: bool) -> str | None:
    """Of a job that was just minted. One that was there before may have come any way since; None: it is gone, since a
    key of a fixed time may outlive its job."""
    if minted.duplicate:
        with contextlib.suppress(BusError):
            job = await desk.bus.job(minted.id, queue=queue)
            return job.state if job else None
    return "scheduled" if is_later else "pending"


def _result(job: Job, headers: dict[str, str]) -> Response:
    """The end of a job as the answer to its caller."""
    version = (job.history[-1].version if job.history else "") or job.version
    headers = {**headers, "Location": f"/jobs/{job.id}", "Echo-Job": job.id}
    if version:
        headers["Echo-Version"] = version
    if job.state == "done":
        return answer(None if job.result is None else value_of(job.result), headers=headers)
    error = None if job.error is None else error_view(job.error)
    cause = job.error.cause if job.error else job.state
    said = f"{job.error.type}: {job.error.message}" if job.error else f"the job was {job.state}"
    raise Problem(
        "job-failed",
        said,
        headers=headers,
        job=job.id,
        url=f"/jobs/{job.id}",
        state=job.state,
        cause=cause,
        error=error,
    )
