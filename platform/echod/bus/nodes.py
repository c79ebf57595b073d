"""A node on the bus: its leased number, and its beat."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Sequence

import msgspec

from echod.bus.answers import Active, BeatAnswer, NodeRow, TickAnswer, Told
from echod.bus.clock import NODE_LEASE_MS, monotonic_ms
from echod.bus.driving import driven_ms
from echod.bus.timing import Timing, roll
from echod.errors import BusAway, BusError, BusUnfit, LeaseGone
from echod.model.ids import JobId, NodeId, VersionId

BEAT_LIMIT = 500
NOTHING = Told()


class Nodes(Timing):
    """join, beat, leave, and the ids a node may make."""

    def __init__(self, app: str, *, driven: bool) -> None:
        super().__init__(app, driven=driven)
        self._node: tuple[NodeId, int, bytes] | None = None
        self.on_beat_failed: Callable[[], None] = lambda: None
        self.expect_word: Callable[[], Callable[[], None]] = lambda: lambda: None  # as News.expect_word
        self.on_unheard: Callable[[], None] = lambda: None  # the bell has rung, and nobody has popped it yet

    async def join(self, node: NodeId, *, info: bytes = b"") -> None:
        """Lease a node number. Raises BusUnfit when none is free.

        Who is alone deletes verbs that another version of this program has left; a straggler's are loaded again.
        """
        sent_ms = monotonic_ms()
        now_ms, number = await self.run("join", node=node, lease_ms=NODE_LEASE_MS, info=base64.b64encode(info))
        self.clock.hear(now_ms, sent_ms)
        self.ids.lease(number, sent_ms)
        self._node = (node, number, info)
        if len(await self.nodes()) == 1:
            with contextlib.suppress(BusUnfit):  # an ACL
                ours = {script.function for script in self.scripts.values()}
                for name in await self.libraries() - ours:
                    await self._delete(name)

    async def _delete(self, library: bytes) -> None:
        try:
            await self.link.command("FUNCTION", "DELETE", library)
        except BusError as error:
            if "Library not found" not in str(error):  # else another app's node was here first
                raise

    async def leave(self) -> None:
        """Give the number back; no ids are made from here on."""
        if self._node is None:
            return
        node, number, _ = self._node
        self._node = None
        self.ids.drop()
        await self.run("leave", node=node, number=number)

    def new_job_id(self) -> JobId:
        """Raises LeaseGone past the lease."""
        return self.ids.job_id()

    def reserve(self, count: int) -> int:
        """The first of `count` snowflakes in a row, for a run's children. Raises LeaseGone past the lease."""
        return self.ids.reserve(count)

    async def beat(self, *, pump: bool, running: Sequence[VersionId] = (), told: Told = NOTHING) -> BeatAnswer:
        """Renew the lease and hear the news; a pump's also ticks and trims every queue.

        `running`: versions that this node has workers of; they stay stored. `told`: for whoever asks for `nodes`.
        Raises LeaseGone before a join.
        """
        if self._node is None:
            raise LeaseGone("expected a node that joined; call join first")
        try:
            return await self._beat(pump, running, told)
        except BusAway:
            self.on_beat_failed()
            raise
        except LeaseGone:
            # A pause longer than the lease: another node may have the number. We get another one.
            self.ids.drop()
            node, _, info = self._node
            await self.join(node, info=info)
            return await self._beat(pump, running, told)

    async def _beat(self, pump: bool, running: Sequence[VersionId], told: Told) -> BeatAnswer:
        """All queues, a few hundred in a call: one for all of thousands would keep everybody else waiting."""
        answer, cursor, said = None, None, self.expect_word()
        while cursor != b"0":
            part, cursor = await self._beat_part(pump, running, told, cursor or b"0")
            answer = part if answer is None else answer.and_more(part)
        assert answer is not None
        said()
        return answer

    async def _beat_part(
        self, pump: bool, running: Sequence[VersionId], told: Told, cursor: bytes
    ) -> tuple[BeatAnswer, bytes]:
        """From `cursor` on, and the cursor of what follows."""
        assert self._node is not None
        node, number, _ = self._node
        sent_ms = monotonic_ms()
        (
            now_ms,
            rank,
            nodes,
            active,
            queues,
            due,
            more,
            promoted,
            recovered,
            unsent,
            stepped,
            listed,
            following,
        ) = await self.run(
            "beat",
            node=node,
            number=number,
            lease_ms=NODE_LEASE_MS,
            pump=int(pump),
            limit=BEAT_LIMIT,
            roll=roll(),
            expected_ms=self.steps.expected_ms() if pump else 0,
            running=msgspec.msgpack.encode(running),
            told=msgspec.msgpack.encode(told),
            channel=self.wait_channel,
            cursor=cursor,
        )
        self.clock.hear(now_ms, sent_ms)
        self.ids.lease(number, sent_ms)
        if listed:
            self.on_unheard()
        if pump:
            self.steps.ticked(now_ms, sent_ms)
        names = {name: await self.name_of(name.decode()) for name, _ in queues}
        next_in_ms = {names[name]: soon for name, soon in queues if soon is not None}
        tick = TickAnswer(
            now_ms,
            tuple([await self.due_occurrence(entry) for entry in due]),
            min(next_in_ms.values(), default=None),
            bool(more),
            promoted,
            recovered,
            stepped,
        )
        return BeatAnswer(
            now_ms,
            rank,
            nodes,
            _active(*active) if active else None,
            tick,
            tuple(sorted(names.values())),
            next_in_ms,
            tuple(names[name] for name in unsent),
        ), following

    async def nodes(self) -> list[NodeRow]:
        """Nodes whose lease goes on.

        After the clock went back this has those that had died, too, for one lease from the first beat
        (include/nodes.lua): whoever waits for nodes waits for one too many rather than for one too few.
        """
        time, setting, flat = await self.link.commands(
            [("TIME",), ("GET", self.keys.clock), ("HGETALL", self.keys.nodes)]
        )
        now_ms = min(driven_ms(time, setting), self.clock.now_ms())  # ours may not have heard of a step yet
        rows = [_node(int(flat[index]), flat[index + 1]) for index in range(0, len(flat), 2)]
        return sorted((row for row in rows if row.lease_ends_ms > now_ms), key=lambda row: row.number)


_entry = msgspec.msgpack.Decoder()


def _active(version: bytes, generation: bytes, at_ms: bytes | None) -> Active:
    return Active(VersionId(version.decode()), int(generation), int(at_ms) if at_ms else None)


def _node(number: int, raw: bytes) -> NodeRow:
    id, ends_ms, joined_ms, pump, info, *more = _entry.decode(raw)
    told = msgspec.convert(more[1], Told) if len(more) > 1 else NOTHING
    return NodeRow(id, number, int(ends_ms), int(joined_ms), bool(pump), base64.b64decode(info), told)
