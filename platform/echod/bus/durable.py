"""Calls that are answered once what they wrote is on the server's disk: a few connections of their own, coalesced.

A WAITAOF blocks the connection that it is sent on, by a second with `appendfsync everysec`; so it never goes on the one
that carries the calls. What comes in while a connection waits goes with the next: one fsync confirms all of it.

With `everysec` a WAITAOF alone is not believed: Redis from 7.2.2 to 7.4 and Valkey up to at least 9.1 answer one before
the fsync where the last was less than a second ago (redis/redis#13793). The server begins an fsync a second after the
last, unless one is under way; so after that second it has begun one, and its INFO says when none is left.

WAITAOF speaks of what was written on its own connection. A call that is sent again on another may find everything
done and write nothing, and would be confirmed at once; so a write of our own goes before each WAITAOF. And a connection
that broke between a call and its WAITAOF confirms nothing: the server behind the next may have come back without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import hiredis
import msgspec

from echod.bus import link
from echod.bus.address import Address
from echod.bus.faults import means_another_server, translate
from echod.bus.scripts import Script
from echod.bus.wire import Argument, Wire
from echod.errors import BusAway, BusError, EchodError, NotDurable

CONNECTIONS = 4
GATHER_S = 0.002  # an fsync takes longer
FSYNC_S = 5.0
EVERY_S = 1.05  # the server begins a sync of what it wrote a second after the last
LOOK_S = 0.005
MARK_S = 60
MOST_CALLS = 2_000  # at once
_SETTINGS = "appendfsync", "no-appendfsync-on-rewrite"
_CHILDREN = "aof_rewrite", "rdb_bgsave", "module_fork"


class Outcome(msgspec.Struct, frozen=True):
    """A script's reply, and whether what it wrote is on disk."""

    reply: Any
    is_confirmed: bool


class _Call(msgspec.Struct):
    script: Script
    keys: tuple[str, str]
    arguments: list[Argument]
    resent: list[Argument]
    deadline: float
    outcome: asyncio.Future[Outcome]
    may_have_run: bool = False

    def command(self, wire: Wire) -> tuple[Argument, ...]:
        arguments = self.resent if self.may_have_run else self.arguments
        return (*self.script.call(wire.as_plain), *self.keys, *arguments)


class Durable:
    """See the module. `mark`: the key of the write that goes before each WAITAOF."""

    def __init__(self, address: Address, mark: str) -> None:
        self._address, self._mark = address, mark
        self._waiting: list[_Call] = []
        self._idle: list[Wire | None] = [None] * CONNECTIONS
        self._tasks: set[asyncio.Task[None]] = set()

    async def script(
        self, script: Script, keys: tuple[str, str], arguments: list[Argument], resent: list[Argument]
    ) -> Outcome:
        """A script's reply. Raises NotDurable before it is sent where there is no append-only file; else as Link."""
        loop = asyncio.get_running_loop()
        call = _Call(script, keys, arguments, resent, loop.time() + link.CALL_TIMEOUT_S, loop.create_future())
        self._waiting.append(call)
        self._begin()
        return await call.outcome

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for wire in self._idle:
            if wire is not None:
                wire.abort("closed by us")
        self._idle = []
        for call in self._waiting:
            _fail([call], BusAway("closed by us"))

    def _begin(self) -> None:
        if self._waiting and self._idle:
            self._spawn(self._turns(self._idle.pop()))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="bus-durable")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _turns(self, wire: Wire | None) -> None:
        """Turn after turn of one connection, for as long as something waits."""
        while self._waiting:
            await asyncio.sleep(GATHER_S)
            calls, self._waiting = self._waiting[:MOST_CALLS], self._waiting[MOST_CALLS:]
            if calls:
                wire = await self._turn(wire, calls)
        self._idle.append(wire)

    async def _turn(self, wire: Wire | None, calls: list[_Call]) -> Wire | None:
        """Send these calls, and answer them when they are on disk; the connection, where it still stands."""
        try:
            if wire is None or wire.closed.done():
                wire = await link.connect(self._address, Wire)
            before = await _check_append_only(wire)
            replies = await _sent(wire, calls)
            is_confirmed = await self._is_on_disk(wire, before)
        except EchodError as error:
            if means_another_server(error):
                self._leave(wire, error)
            elif isinstance(error, BusAway):
                if wire is not None:
                    wire.abort("given up")
                self._send_again(calls, error)
                return None
            _fail(calls, error)
            return wire
        except BaseException:
            if wire is not None:
                wire.abort("given up")
            _fail(calls, BusAway("closed by us"))
            raise
        for call, reply in zip(calls, replies, strict=True):
            if not call.outcome.done():
                if isinstance(reply, hiredis.ReplyError):
                    refused = translate(reply)
                    if means_another_server(refused):
                        self._leave(wire, refused)
                    call.outcome.set_exception(refused)
                else:
                    call.outcome.set_result(Outcome(reply, is_confirmed))
        return wire

    def _leave(self, wire: Wire | None, error: EchodError) -> None:
        """Connect anew for whatever comes next: the address may lead elsewhere by now."""
        for each in (wire, *self._idle):
            if each is not None:
                each.abort(str(error))

    def _send_again(self, calls: list[_Call], error: BusAway) -> None:
        now = asyncio.get_running_loop().time()
        _fail([call for call in calls if now >= call.deadline], error)
        self._waiting += [call for call in calls if now < call.deadline]

    async def _is_on_disk(self, wire: Wire, before: _Disk) -> bool:
        try:
            return await self._is_synced(wire, before)
        except (BusError, TimeoutError):
            return False

    async def _is_synced(self, wire: Wire, before: _Disk) -> bool:
        loop = asyncio.get_running_loop()
        written_s, until_s = loop.time(), loop.time() + FSYNC_S
        patience_s = link.CALL_TIMEOUT_S + FSYNC_S
        wire.send("SET", self._mark, 1, "EX", MARK_S, timeout_s=patience_s)
        settings = wire.send("CONFIG", "GET", *_SETTINGS, timeout_s=patience_s)
        reply = await wire.send("WAITAOF", 1, 0, int(FSYNC_S * 1000), timeout_s=patience_s)
        if not isinstance(reply, list) or not reply[0]:
            return False
        told: Any = await settings
        flat: list[bytes] = [] if isinstance(told, hiredis.ReplyError) else told  # an ACL may forbid it
        settled = dict(zip(flat[::2], flat[1::2], strict=True))
        if settled.get(b"appendfsync") == b"always":
            return True
        syncs_beside_children = settled.get(b"no-appendfsync-on-rewrite") == b"no"
        while loop.time() < until_s:
            await asyncio.sleep(written_s + EVERY_S - loop.time())
            # Whoever asks and hears of no sync under way knows that one begins before the next answer, unless one has
            # begun since; whoever hears so again, that it has ended.
            wire.send("SET", self._mark, 1, "EX", MARK_S, timeout_s=patience_s)
            await _quiet(wire, until_s, lambda disk: syncs_beside_children or not disk.has_child)
            ended = await _quiet(wire, until_s)
            if ended.put_off == before.put_off:
                return ended.is_ok
            before, written_s = ended, loop.time()
        return False


class _Disk(msgspec.Struct, frozen=True):
    """What a server tells of its append-only file."""

    pending: int  # syncs that wait or are under way
    put_off: int  # how often a sync was, by a second: a write that waited for none, a new file whose old one is synced
    has_child: bool  # that writes a file too; a server may be set not to sync beside one
    is_ok: bool  # the last write and the last sync were


async def _disk(wire: Wire) -> _Disk:
    reply = await wire.send("INFO", "persistence", timeout_s=link.CALL_TIMEOUT_S + FSYNC_S)
    if isinstance(reply, hiredis.ReplyError):
        raise translate(reply)
    told = dict(line.split(":", 1) for line in bytes(reply).decode().splitlines() if ":" in line)
    return _Disk(
        pending=int(told.get("aof_pending_bio_fsync", 0)),
        put_off=int(told.get("aof_delayed_fsync", 0)) + int(told.get("aof_rewrites", 0)),
        has_child=any(told.get(f"{kind}_in_progress") == "1" for kind in _CHILDREN),
        is_ok=told.get("aof_last_write_status") == "ok",
    )


async def _quiet(wire: Wire, until_s: float, counts: Callable[[_Disk], bool] = lambda _: True) -> _Disk:
    """What the server tells when no sync is under way, where it counts. Raises TimeoutError."""
    loop = asyncio.get_running_loop()
    while (disk := await _disk(wire)).pending or not counts(disk):
        if loop.time() > until_s:
            raise TimeoutError
        await asyncio.sleep(LOOK_S)
    return disk


async def _check_append_only(wire: Wire) -> _Disk:
    """Ask before anything is written: what cannot be promised must not be minted."""
    reply = await wire.send("WAITAOF", 1, 0, 1, timeout_s=link.CALL_TIMEOUT_S)
    if isinstance(reply, hiredis.ReplyError):
        if "appendonly" in str(reply):
            raise NotDurable("expected a bus with an append-only file, got one without: nothing was minted")
        raise translate(reply)
    return await _disk(wire)


async def _sent(wire: Wire, calls: list[_Call]) -> list[Any]:
    """The calls' replies, errors among them; a script that the server lost is loaded, once."""

    async def sent(calls: list[_Call]) -> list[Any]:
        trips = [wire.send(*call.command(wire), timeout_s=link.CALL_TIMEOUT_S) for call in calls]
        try:
            return await asyncio.gather(*trips)
        except BusAway:
            for call in calls:
                call.may_have_run = True
            raise

    replies = await sent(calls)
    lost = [index for index, reply in enumerate(replies) if link.is_lost(reply)]
    if lost:
        for index in {calls[index].script.name: index for index in lost}.values():
            await link.load(wire, calls[index].script, replies[index], link.CALL_TIMEOUT_S)
        for index, reply in zip(lost, await sent([calls[index] for index in lost]), strict=True):
            replies[index] = reply
    return replies


def _fail(calls: list[_Call], error: EchodError) -> None:
    for call in calls:
        if not call.outcome.done():
            call.outcome.set_exception(error)
