"""Recurrences under real pumps and a driven clock, in any history that Hypothesis finds: each instant one outcome.

One recurrence for each overlap, whose rules cross both changes of the clocks; two pumps; workers that settle in every
way or lose their leases; time that steps forward by up to a year, and back. What is known of a job before a turn of the
pumps and after it says what its overlap may have done in between. ECHOD_SOAK=1 looks longer.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import defaultdict
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from audit import Books, Row, audit
from doing import dead, done, retry
from echod.bus import Bus
from echod.bus.rows import NEVER_MS
from echod.errors import BusError
from echod.model.ids import NodeId, branded
from echod.model.job import Claimed, Delay, Hold, Release
from echod.policy.recurring import rule_of
from echofn.manifest import Constant, CronTrigger, EveryTrigger, Policy, Recurring
from server import Server
from system.test_pump import Node, function, ms

T = TypeVar("T")
SOAK = os.environ.get("ECHOD_SOAK") == "1"
EXAMPLES = int(os.environ.get("ECHOD_EXAMPLES", 300 if SOAK else 8))
START = ms("2026-03-28T23:30:30Z")  # the night of the gap in Berlin
OPEN = frozenset({"pending", "scheduled", "active"})
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
RULES: dict[str, Recurring] = {
    "allow": CronTrigger("allow", "30 2 * * *", "Europe/Berlin", missed="all", cap=3),
    "skip": CronTrigger("skip", "*/30 * * * *", "Europe/Berlin", missed="all", cap=5, overlap="skip", jitter_ms=60_000),
    "queue": CronTrigger("queue", "30 * * * *", "Europe/Berlin", overlap="queue"),
    "replace": EveryTrigger("replace", 20 * 60_000, missed="all", cap=4, overlap="replace", jitter_ms=30_000),
}


def origin(row: Row) -> tuple[str, int] | None:
    """Recurrence and instant of a job that no hand has made."""
    if b"oc" not in row:
        return None
    name, due_ms, manual = msgspec.msgpack.decode(row[b"oc"])
    return None if manual else (name if isinstance(name, str) else name.decode(), int(due_ms))


class RecurrenceMachine(RuleBasedStateMachine):
    """Two pumps, one queue, four recurrences."""

    server: ClassVar[Server]

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.server.command("FLUSHALL")
        self.server.clock.set(START)
        self.place = Path(tempfile.mkdtemp(prefix="echod-machine-"))
        self.nodes = [self.do(self.open(number)) for number in (1, 2)]
        self.bus = self.nodes[0].bus
        self.held: list[Claimed] = []
        self.made: dict[tuple[str, int], str] = {}  # every job of an instant, ever
        self.redriven: set[str] = set()
        self.counted: dict[str, int] = defaultdict(int)  # instants that are behind each recurrence
        self.next_ms: dict[str, int] = {}

    async def open(self, number: int) -> Node:
        bus = await Bus.open(self.server.address)
        await bus.join(NodeId(branded("NOD", number)))
        return Node(bus, self.place / str(number))

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @initialize()
    def deploy(self) -> None:
        policy = Policy(retries=1, backoff=Constant(5000))
        self.do(self.nodes[0].deploy(function(*RULES.values(), policy=policy)))
        for row in self.do(self.bus.recurrences("shop.tick")):
            assert row.next_ms is not None
            self.next_ms[row.name] = row.next_ms

    # ---- steps ----------------------------------------------------------------------------------------------------

    @rule(by_ms=st.sampled_from([1_000, 31_000, 20 * 60_000, HOUR_MS, 6 * HOUR_MS, DAY_MS, 9 * DAY_MS]))
    def time_passes(self, by_ms: int) -> None:
        self.server.clock.advance(by_ms)

    @rule(to=st.sampled_from(["2026-10-24T23:40:00Z", "2026-10-25T00:29:59Z", "2027-03-28T00:59:00Z"]))
    def time_jumps_to_a_night_on_which_the_clocks_change(self, to: str) -> None:
        if ms(to) > self.server.clock.now_ms():
            self.server.clock.set(ms(to))

    @rule()
    def a_year_passes(self) -> None:
        if self.server.clock.now_ms() < START + 3 * 366 * DAY_MS:
            self.server.clock.advance(366 * DAY_MS)

    @rule(by_ms=st.sampled_from([2_000, 45 * 60_000, DAY_MS]))
    def time_goes_back(self, by_ms: int) -> None:
        self.server.clock.advance(-by_ms)

    @rule(both=st.booleans(), first=st.integers(0, 1))
    def pumps_turn(self, both: bool, first: int) -> None:
        before = audit(self.server, "shop.tick")
        known = set(self.made.values())

        async def turn() -> None:
            await asyncio.gather(*(node.settle() for node in (self.nodes if both else [self.nodes[first]])))

        self.do(turn())
        self.judge(before, audit(self.server, "shop.tick"), known)

    @rule(count=st.integers(1, 3))
    def claim(self, count: int) -> None:
        self.held += self.do(self.bus.claim("shop.tick", "W", count, 15_000)).jobs

    @rule(which=st.integers(0, 9), kind=st.sampled_from(["done", "done", "retry", "dead", "delay", "release"]))
    def settle(self, which: int, kind: str) -> None:
        if not self.held:
            return
        job = self.held.pop(which % len(self.held))
        hold = Hold(job.id, job.attempts, job.holder)
        verdict = {
            "done": done(job),
            "retry": retry(job, 5000),
            "dead": dead(job),
            "delay": Delay(hold, done(job).run, 2000),
            "release": Release(hold),
        }[kind]
        self.do(self.bus.settle("shop.tick", "W", [verdict], lease_ms=15_000))

    @rule(which=st.integers(0, 99))
    def cancel(self, which: int) -> None:
        if self.made:
            self.do(self.bus.cancel("shop.tick", sorted(self.made.values())[which % len(self.made)]))

    @rule(which=st.integers(0, 9))
    def redrive(self, which: int) -> None:
        if ids := sorted(audit(self.server, "shop.tick").dead):
            id = ids[which % len(ids)]
            self.redriven.add(id)
            self.do(self.bus.redrive("shop.tick", [id]))

    @rule(name=st.sampled_from(sorted(RULES)))
    def run_by_hand(self, name: str) -> None:
        self.do(self.bus.beat(pump=False))  # ids are made for a minute
        self.do(self.bus.run_now("shop.tick", name, self.bus.new_job_id()))

    # ---- judgement ------------------------------------------------------------------------------------------------

    def judge(self, before: Books, after: Books, known: set[str]) -> None:
        """What a turn of the pumps made of the instants that came."""
        fresh: dict[str, list[str]] = defaultdict(list)
        for id, row in sorted(after.rows.items()):
            if (made_for := origin(row)) is not None and id not in known:
                assert self.made.setdefault(made_for, id) == id, f"two jobs for {made_for}"
                fresh[made_for[0]].append(id)
        for row in self.do(self.bus.recurrences("shop.tick")):
            assert row.next_ms is not None, row.error
            rule, at_ms = rule_of(RULES[row.name]), self.next_ms[row.name]
            came = 0
            while at_ms < row.next_ms:
                at_ms = rule.next_after(at_ms)
                came += 1
            assert at_ms == row.next_ms, f"{row.name} is due at an instant that is none of its rule"
            self.counted[row.name] += came
            self.next_ms[row.name] = row.next_ms
            minted = sum(name == row.name for name, _ in self.made)
            assert minted + row.missed + row.skipped == self.counted[row.name], (
                f"{row.name}: an instant without outcome"
            )
            outlasted = [id for id in self.unended(before, row.name) if id in after.rows and after.state_of(id) in OPEN]
            if row.name == "skip" and outlasted:
                assert not fresh["skip"], "a job beside one that has not ended"
            if row.name == "allow":
                assert row.skipped == 0

    def unended(self, books: Books, name: str) -> list[str]:
        """Jobs of a recurrence that have not ended, but for those by hand."""
        found = [id for id, row in books.rows.items() if (made_for := origin(row)) and made_for[0] == name]
        return [id for id in found if books.state_of(id) in OPEN]

    @invariant()
    def the_books_balance_and_overlaps_hold(self) -> None:
        books = audit(self.server, "shop.tick")
        for name in ("skip", "replace", "queue"):
            found = [id for id in self.unended(books, name) if id not in self.redriven]
            waiting = [id for id in found if books.state_of(id) != "active"]
            match name:
                case "skip":
                    assert len(found) <= 1
                case "replace":
                    assert len(waiting) <= 1
                    assert sum(b"x" not in books.rows[id] for id in found if id not in waiting) <= 1
                case _:
                    assert sum(b"a" not in books.rows[id] for id in waiting) <= 1
        for id, row in books.rows.items():
            behind = row.get(b"bh", b"").decode().split()
            assert (books.schedule.get(id) == NEVER_MS) == bool(behind), f"{id} waits for nobody, or not at its place"
            for other in behind:
                assert books.state_of(other) in OPEN, f"{id} waits for {other}, which has ended"
                assert books.rows[other][b"nx"].decode() == id

    def teardown(self) -> None:
        for node in self.nodes:
            try:
                self.do(node.bus.close())
            except BusError:
                pass
        self.loop.close()


def test_each_instant_has_one_outcome_under_any_history(shared_server: Server) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    RecurrenceMachine.server = shared_server
    run_state_machine_as_test(
        RecurrenceMachine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=60 if SOAK else 30,
            phases=(Phase.generate, Phase.shrink) if SOAK else (Phase.generate,),
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
