"""The bus, as the rest of echod sees it: one object per process, one method per verb.

It owns three connections: one that carries the calls, one that is parked on the bell, one that hears the news. It
decides nothing: what is due, whose lease ended, who is served next is decided by the scripts, on the server's clock.
It loses nothing that was acknowledged; what was under way when the server went is unknown until it is sent again,
which every verb allows.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Literal, assert_never, cast

import msgspec

from echod.bus import address as addresses
from echod.bus.bulk import Bulk
from echod.bus.clock import monotonic_ms
from echod.bus.driving import Driving, driven_ms
from echod.bus.durable import Durable
from echod.bus.link import Link
from echod.bus.logs import Logs
from echod.bus.minting import Minting
from echod.bus.news import News
from echod.bus.nodes import Nodes
from echod.bus.occurring import Occurring
from echod.bus.operating import Operating
from echod.bus.park import Park
from echod.bus.reading import Reading
from echod.bus.tokens import Tokens
from echod.bus.versions import Versions
from echod.bus.working import Working
from echod.errors import BusAway, BusFull, BusReadOnly, BusUnfit, KeyConflict, QueueFull, Unconfirmed
from echod.model.job import Conflict, Full, Mint, Minted, Stale, Taken

WIRE = 1  # the version of rows and scripts; nodes of another one are kept out
OLDEST_SERVER = (7, 2)
MINT_TRIES = 3
_message = msgspec.msgpack.Decoder()
Callback = Callable[..., object]


def check_kind(info: Mapping[str, str]) -> None:
    """Whether a server's INFO is of one that we can use. Raises BusUnfit."""
    version = info.get("redis_version", "0.0")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_SERVER:
        raise BusUnfit(f"expected a Valkey or Redis server of version 7.2 or newer, got {version}; upgrade the server")
    mode = info.get("server_mode") or info.get("redis_mode")  # as Valkey says, and as Redis
    if mode == "cluster":
        raise BusUnfit(
            "expected a server of its own, got one in Cluster mode: echod does not follow its redirections yet; "
            "use a primary with replicas"
        )
    if mode == "sentinel":
        raise BusUnfit("expected the server that keeps the jobs, got a Sentinel; give the primary's address")


class Bus(Minting, Occurring, Working, Logs, Nodes, Operating, Bulk, Versions, Tokens, Reading, Driving):
    """See the module. Made by `Bus.open`."""

    def __init__(self, address: addresses.Address, app: str, *, driven: bool = False) -> None:
        super().__init__(app, driven=driven)
        self.wait_channel = self.keys.wait(secrets.token_urlsafe(9))
        self._listeners: dict[str, list[Callback]] = {}
        self.link = Link(address, self._link_changed)
        self.durable = Durable(address, self.keys.fsync)
        self._park = Park(
            address,
            self.keys.wake,
            unblock=lambda client: self.link.command("CLIENT", "UNBLOCK", client),
            give_back=self._ring_escaped,
            listed=lambda: self.link.command("LLEN", self.keys.wake),
        )
        self._news = News(address, [self.keys.news, self.wait_channel], self._heard, lambda: self._emit("hearing"))
        self.on_beat_failed = self._kick
        self.on_unheard = self._park.doubt
        self.expect_word = self._news.expect_word

    @classmethod
    async def open(cls, address: str, app: str = "", *, driven: bool = False) -> Bus:
        """Connect. Raises BusAway where nothing answers, BusUnfit where it cannot be used.

        `driven`: the clock can be moved (`dev --clock` and tests only). A bus that was ever driven is unfit for others:
        its time may be another than the server's.
        """
        bus = cls(addresses.parse(address), app, driven=driven)
        try:
            await bus.link.open()
            await bus._check_server()
            await bus._news.open()
        except BaseException:
            await bus.close()
            raise
        return bus

    async def close(self) -> None:
        await super().close()
        await self.durable.close()
        await self._park.close()
        await self._news.close()
        await self.link.close()

    @property
    def connected(self) -> bool:
        """Whether the calls' connection stood when last looked at."""
        return self.link.connected

    async def ring_wait(self, timeout_s: float) -> str | None:
        """Wait on the bell: the queue that rang, or None.

        Who gets a queue claims from it, or hands it on with `ring`.
        """
        escaped = await self._park.pop(timeout_s)
        if escaped is None:
            return None
        queue = await self.name_of(escaped)
        self.popped.add(queue)
        return queue

    async def ring(self, queue: str) -> None:
        self.popped.discard(queue)
        await super().ring(queue)

    def on(self, kind: str, callback: Callback) -> Callable[[], None]:
        """Call back on news; the answer ends it.

        switched(version, generation) · warm(version, call)
        · due(queue, in_ms) · cancel(queue, id) · queues(queue) · ended(id) · tokens()
        · clock(now_ms, frozen) · connected() · lost() · hearing(), again after its connection was lost
        """
        self._listeners.setdefault(kind, []).append(callback)
        return lambda: self._listeners[kind].remove(callback)

    async def mint_outside(self, queue: str, mint: Mint, *, fsync: bool = False) -> Minted:
        """Mint one job from outside, under a fresh id where its own was taken; with `fsync` return when it is on disk.

        Raises KeyConflict, QueueFull, or BusAway when it cannot be known whether it was minted; with `fsync` also
        NotDurable and, for a job that is minted and not known to be on disk, Unconfirmed.
        """
        for _ in range(MINT_TRIES):
            [said] = await self.mint(queue, [mint], outside=True, fsync=fsync)
            match said:
                case Minted(is_confirmed=False):
                    raise Unconfirmed(said.id)
                case Minted():
                    return said
                case Conflict():
                    text = "Idempotency-Key: expected the body it was first used with, got another"
                    raise KeyConflict(f"{text}; it names {said.id}", said.id)
                case Full():
                    raise QueueFull(f"{queue} has {said.pending} jobs waiting, its max_pending; try again later")
                case Stale():
                    raise BusAway(
                        "it cannot be known any more whether the job was minted; look for it, or send it again"
                    )
                case Taken():
                    mint = msgspec.structs.replace(mint, id=self.new_job_id())
                case _:
                    assert_never(said)
        raise BusAway("the bus took none of several fresh ids; send the request again")

    async def listen(self, queue: str, id: str) -> Literal["listening", "ended", "unknown"]:
        """Have the end of a job told on our channel, whoever minted it: listeners of "ended" hear of it."""
        said = (await self.run("listen", queue, id=id, channel=self.wait_channel)).decode()
        return cast('Literal["listening", "ended", "unknown"]', said)

    async def _check_server(self) -> None:
        check_kind(await self.info("server"))
        sent_ms = monotonic_ms()
        if self.driven:
            await self.link.command("SETNX", self.keys.clock, "+0")
        time, setting = await self.link.commands([("TIME",), ("GET", self.keys.clock)])
        if setting is not None and not self.driven:
            raise BusUnfit(
                "expected a bus on its server's own clock, got one that `echod dev --clock` drives; "
                "start with --clock, or with another --state"
            )
        self.clock.hear(driven_ms(time, setting), sent_ms)
        self.clock.frozen = setting is not None and setting[:1] == b"="
        wire = await self.link.command("GET", self.keys.wire)
        if wire is None:
            # A server that takes no writes just now can be looked at all the same; the next node marks it.
            with contextlib.suppress(BusFull, BusReadOnly):
                await self.link.command("SETNX", self.keys.wire, WIRE)
                wire = await self.link.command("GET", self.keys.wire)
        if wire is not None and int(wire) != WIRE:
            raise BusUnfit(
                f"expected a bus of wire version {WIRE}, got {int(wire)}; run the echod that wrote it, or another app"
            )

    def _link_changed(self, up: bool) -> None:
        if not up:
            self.steps.outage()
        self._emit("connected" if up else "lost")

    def _kick(self) -> None:
        self._park.kick()
        self._news.kick()

    async def _ring_escaped(self, escaped: str) -> Any:
        return await self.ring(await self.name_of(escaped))

    def _heard(self, channel: bytes, data: bytes) -> None:
        if channel == self.wait_channel.encode():
            if data:  # else the beat's word
                self._emit("ended", data.decode())
            return
        kind, *rest = _message.decode(data)
        if kind in {"due", "cancel", "queues"}:
            rest[0] = self._names.get(rest[0], rest[0])
        if kind == "clock":
            self.heard_clock(*rest)
        self._emit(kind, *rest)

    def _emit(self, kind: str, *values: object) -> None:
        for callback in list(self._listeners.get(kind, ())):
            callback(*values)
