"""The recurrence machine's pumps: they race, hear late of a switch, die within a turn, and sleep over a question."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import rule

from echod.bus import Bus
from echod.bus.answers import TickAnswer
from echod.model.ids import NodeId, branded
from echod.pump import convergence
from echod.registry.registry import ActiveVersion
from standing import QUEUE, Judgement
from system.test_pump import Node

numbers = count(1_000_000)
NEAR_MS = 100  # what the server's clock and one's own may be apart


async def opened(address: str, place: Path) -> Node:
    bus = await Bus.open(address)
    number = next(numbers)
    await bus.join(NodeId(branded("NOD", number)))
    return Node(bus, place / str(number))


class PumpRules(Judgement):
    """Of a machine with two pumps, and one that sleeps within its turns."""

    place: Path
    nodes: list[Node]
    sleeper: Node
    asleep: TickAnswer | None
    writing: tuple[ActiveVersion, int, tuple[convergence.Step, ...]] | None

    if TYPE_CHECKING:

        def now_ms(self) -> int: ...

    def turn(self, node: Node, *, heard: bool = True) -> None:
        """One pump's, until nothing is left to do now; what a switch changes is seen before anything else is done."""

        async def begin() -> None:
            if heard:
                await node.registry.refresh()
            node.pump.heard(await node.bus.beat(pump=True))

        self.do(begin())
        more = True
        while more:
            is_current = self.is_current(node)
            more = self.do(node.pump.turn()).more
            if not is_current:
                self.look()
        self.look()

    def is_current(self, node: Node) -> bool:
        """Whether it has written what the active version has."""
        active, _ = self.do(self.bus.active())
        return active is not None and node.pump._converged == (active.version, active.generation)

    @rule(both=st.booleans(), first=st.integers(0, 1), heard=st.sampled_from([True, True, False]))
    def pumps_turn(self, both: bool, first: int, heard: bool) -> None:
        nodes = self.nodes if both else [self.nodes[first]]
        until_ms = self.now_ms() - NEAR_MS
        if all(map(self.is_current, nodes)):

            async def race() -> None:
                await asyncio.gather(*(node.settle() for node in nodes))

            self.do(race())
            self.look()
        else:
            for node in nodes:
                self.turn(node, heard=heard)
        if heard:
            self.nothing_is_left(nodes[-1], until_ms)

    def nothing_is_left(self, node: Node, until_ms: int) -> None:
        """All that had come has its outcome, and the rules that stand are the active version's."""
        behind, tries = -1, 3  # a race, or a rule that was written meanwhile, is asked again in a moment
        while min(self.books.repeat.values(), default=until_ms + 1) <= until_ms:
            was, behind = behind, sum(stood.behind for stood in self.stood.values())
            tries -= behind == was  # a long backlog comes in pieces, and the second in rank rests between them
            assert tries, "what had come was left"
            self.turn(node)
        written = {name: stood.trigger for name, stood in self.stood.items() if not (stood.gone_ms or stood.is_own)}
        assert written == (self.version or {})

    @rule(which=st.integers(0, 1), after=st.integers(0, 12))
    def a_pump_dies_and_another_takes_its_place(self, which: int, after: int) -> None:
        """So many steps of the loop into its turn, with what it has sent by then."""

        async def die(node: Node) -> None:
            await node.registry.refresh()
            node.pump.heard(await node.bus.beat(pump=True))
            turning = asyncio.create_task(node.pump.turn())
            for _ in range(after):
                await asyncio.sleep(0)
            turning.cancel()
            await asyncio.gather(turning, return_exceptions=True)
            await node.bus.close()

        self.do(die(self.nodes[which]))
        self.server.command("PING")  # by now the server has taken what was on its way
        self.look()
        self.nodes[which] = self.do(opened(self.server.address, self.place))

    @rule()
    def a_pump_falls_asleep_over_what_is_due(self) -> None:
        """It knows the rules as they are now, and its question waits."""

        async def ask() -> TickAnswer:
            await self.sleeper.registry.refresh()
            await self.sleeper.bus.beat(pump=False)
            answer = await self.sleeper.bus.tick(QUEUE)
            await self.sleeper.pump._occurrences.know(list(answer.due))
            return answer

        self.asleep = self.do(ask())
        self.look()

    def a_switch_is_written(self) -> None:
        """And nothing else is done."""

        async def write() -> None:
            await self.sleeper.registry.refresh()
            assert self.sleeper.registry.active is not None
            await convergence.converge(self.sleeper.bus, self.sleeper.registry.active)

        self.do(write())
        self.look()

    @rule()
    def a_pump_falls_asleep_over_a_switch(self) -> None:
        """It knows what stands, and what to write."""

        async def ask() -> None:
            await self.sleeper.registry.refresh()
            active = self.sleeper.registry.active
            assert active is not None
            assert active.since_ms is not None
            rows, now_ms = await self.sleeper.bus.recurrences(gone=True), self.now_ms()
            way = convergence.steps(active.manifest.functions, active.generation, rows, active.since_ms, now_ms)
            self.writing = active, active.since_ms, way

        self.do(ask())

    @rule()
    def it_wakes_and_writes(self) -> None:
        if self.writing is None:
            return
        (active, since_ms, way), self.writing = self.writing, None

        async def write() -> None:
            for step in way:
                await convergence._take(self.sleeper.bus, step, active.generation, since_ms)

        self.do(write())
        self.look()

    @rule()
    def it_wakes_and_goes_on(self) -> None:
        if self.asleep is None:
            return
        answer, self.asleep = self.asleep, None

        async def go_on() -> None:
            await self.sleeper.bus.beat(pump=False)  # ids are made for a minute
            settle = self.sleeper.pump._occurrences.settle
            await asyncio.gather(*(settle(due, answer.now_ms) for due in answer.due))

        self.do(go_on())
        self.look()
