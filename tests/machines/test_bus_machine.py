"""The real bus against a small model of it, under random histories that Hypothesis finds and the audit judges.

The model knows nothing of rings, rows or scores: jobs with a state, lanes with a virtual time. After every step the
books must balance and both must agree on where every job is. ECHOD_SOAK=1 looks longer.

What is drawn never depends on what the bus holds: time runs while the machine does, so two runs of one history may
differ in which instants had come, and Hypothesis must be able to draw the same again.
"""

from __future__ import annotations

import asyncio
import collections
import os
from collections.abc import Coroutine
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from audit import audit, open_books
from bulk_rules import BulkRules
from echod.bus import Bus
from echod.bus.clock import StepWatch
from echod.bus.rows import hold_row, mint_row, pack, verdict_row
from echod.errors import BusError
from echod.model.ids import JobId, NodeId
from echod.model.job import Cancelled, Child, Dead, Delay, Done, Error, Hold, Mint, Release, Retry, RunRecord
from echofn.manifest import Constant, Policy
from key_rules import KeyRules, Keys, Owned
from lane_rules import LaneRules
from model import Model
from recurrence_rules import Recurrence, RecurrenceRules, Recurring
from server import Server

T = TypeVar("T")
SOAK = os.environ.get("ECHOD_SOAK") == "1"
EXAMPLES = int(os.environ.get("ECHOD_EXAMPLES", 1000)) if SOAK else 0
LANES = st.sampled_from(["-", "a", "b", "ü"])
ERROR = Error("E", "m")
RETRIES, BACKOFF_MS, LEASE_MS = 2, 3000, 10_000
YEAR_MS = 366 * 86_400_000
ENDED = {"done", "dead", "cancelled"}


class BusMachine(BulkRules, Owned, Recurring, RuleBasedStateMachine):
    """One queue, two claimers, a driven clock: what becomes of jobs."""

    server: ClassVar[Server]
    batch: ClassVar[int | None] = None
    wait_ms: ClassVar[int] = 0
    limited: ClassVar[bool] = False
    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.server.command("FLUSHALL")
        self.server.clock.advance(-self.server.clock.offset_ms)
        self.bus = self.do(self.open())
        self.model = Model(RETRIES, self.batch, self.wait_ms)
        self.keys = Keys(self.model)
        self.recurrences: dict[str, Recurrence] = {}
        self.children: dict[str, tuple[int, Child]] = {}
        self.logs: dict[str, int] = {}
        self.generation = 1
        self.sequence = 0
        self.ids: list[JobId] = []
        self.latest_ms = 0
        self.years = 0

    async def open(self) -> Bus:
        bus = await Bus.open(self.server.address)
        await bus.join(NodeId("NOD1"))
        await bus.configure("f", self.policy(), 1)
        run = bus.run

        async def noted(verb: str, queue: str | None = None, /, **arguments: Any) -> Any:
            self.sent = (verb, queue, arguments)
            return await run(verb, queue, **arguments)

        bus.run = noted  # type: ignore[method-assign]
        return bus

    def again(self) -> Any:
        """The last call, sent once more as after a lost reply."""
        verb, queue, arguments = self.sent
        return self.do(self.bus.run(verb, queue, **arguments))

    def policy(self) -> Policy:
        return Policy(retries=RETRIES, backoff=Constant(BACKOFF_MS), batch=self.batch, batch_wait_ms=self.wait_ms)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def now_ms(self) -> int:
        reply = self.server.command("TIME")
        assert isinstance(reply, list)
        return int(reply[0]) * 1000 + int(reply[1]) // 1000

    def twice(self, verb: str, twice: bool, **arguments: Any) -> Any:
        """A call, and where asked for the same once more: the answer is the same."""
        reply = self.do(self.bus.run(verb, "f", **arguments))
        if twice:
            again = self.do(self.bus.run(verb, "f", **arguments))
            assert again[: len(reply)] == reply, f"{verb} sent again answered {again}, first {reply}"
        return reply

    def born_ms(self, id: str) -> int:
        """Since when a job waits: when the call was that brought it into its lane."""
        row = open_books(self.server, "f").rows[id]
        return int(row.get(b"w", row[b"m"]))

    def claimed(self, reply: Any, count: int) -> list[Hold]:
        """The holds of a claim's reply, which must be what the model serves, turn by turn."""
        turns: dict[int, list[str]] = {}
        for number, job in enumerate(reply[2], start=1):
            turns.setdefault(job[10] if self.batch else number, []).append(job[0].decode())
        assert list(turns.values()) == self.model.claim(count, reply[0])
        holds = [Hold(JobId(job[0].decode()), int(job[1]), f"h{self.sequence}") for job in reply[2]]
        for hold in holds:
            self.model.hold(hold)
        return holds

    def judged_anew(self, before_ms: int) -> None:
        """A call that answers no instant, while a lane's came: the bus knows on which side of it that was."""
        after_ms = self.now_ms()
        books = open_books(self.server, "f")
        for lane in self.model.seats:
            came = any(before_ms < instant_ms <= after_ms for instant_ms in self.model.instants(lane, before_ms))
            if came and not self.model.is_at(lane, books):
                self.model.place(lane, after_ms)

    @initialize()
    def recurrence(self) -> None:
        self.recur("r", "x", b"", 1, False)
        self.recur("ü r", "x", b"", None, False)

    @rule(
        lane=LANES,
        count=st.integers(1, 3),
        priority=st.integers(-1, 1),
        in_ms=st.sampled_from([0, 0, 2000]),
        twice=st.booleans(),
    )
    def mint(self, lane: str, count: int, priority: int, in_ms: int, twice: bool) -> None:
        mints = [
            Mint(id=self.bus.new_job_id(), payload=b"", lane=lane, priority=priority, in_ms=in_ms or None)
            for _ in range(count)
        ]
        rows = pack([mint_row(one, self.bus.token) for one in mints])
        before_ms = self.now_ms()
        reply = self.twice("mint", twice, queue="f", outside=0, resend=0, first_ms=0, mints=rows)
        assert reply == [1] * count
        now_ms = self.born_ms(mints[0].id)
        for one in mints:
            self.ids.append(one.id)
            self.model.mint(one.id, lane, priority, before_ms + in_ms if in_ms else None, now_ms)

    @rule(target=claims, count=st.integers(1, 5), twice=st.booleans())
    def claim(self, count: int, twice: bool) -> list[Hold]:
        self.sequence += 1
        reply = self.twice(
            "claim",
            twice,
            claimer="W",
            sequence=self.sequence,
            want=count,
            lease_ms=LEASE_MS,
            holder=f"h{self.sequence}",
            popped=0,
            begun=pack([]),
        )
        return self.claimed(reply, count)

    @rule(
        holds=claims,
        kind=st.sampled_from(["done", "retry", "dead", "delay", "release", "cancelled"]),
        count=st.integers(0, 3),
        twice=st.booleans(),
        first_only=st.booleans(),
        drawn=st.lists(st.tuples(LANES, st.sampled_from([None, "k"])), max_size=2),
    )
    def settle(
        self,
        holds: list[Hold],
        kind: str,
        count: int,
        twice: bool,
        first_only: bool,
        drawn: list[tuple[str, str | None]],
    ) -> None:
        if not holds:
            return
        holds = holds[:1] if first_only else holds
        now_ms = self.now_ms()
        children = {hold.id: self.new_children(hold.id, drawn) for hold in holds}
        record = RunRecord("w", "DEP1", now_ms, now_ms + 1)
        make = {
            "done": lambda hold: Done(hold, record, children=children[hold.id]),
            "retry": lambda hold: Retry(hold, record, ERROR, 1000),
            "dead": lambda hold: Dead(hold, record, ERROR),
            "delay": lambda hold: Delay(hold, record, 1000),
            "release": lambda hold: Release(hold),
            "cancelled": lambda hold: Cancelled(hold, record),
        }[kind]
        self.sequence += 1
        reply = self.twice(
            "settle",
            twice,
            claimer="V",
            sequence=self.sequence,
            want=count,
            lease_ms=LEASE_MS,
            holder=f"h{self.sequence}",
            popped=0,
            begun=pack([]),
            verdicts=pack([verdict_row(make(hold)) for hold in holds]),
        )
        refused = [id.decode() for id in reply[1]]
        assert refused == [hold.id for hold in holds if not self.model.is_held(hold)]
        for hold in holds:
            if self.model.is_held(hold):
                self.model.settle(hold.id, kind, now_ms + 1000, reply[0])
                if kind == "done":
                    self.children |= {child.mint.id: (reply[0], child) for child in children[hold.id]}
            else:
                self.model.counts["refused"] += 1
        self.claimed(reply, count)

    @rule(
        count=st.integers(1, 4),
        kind=st.sampled_from(["done", "done", "dead", "retry"]),
        drawn=st.lists(st.tuples(LANES, st.sampled_from([None, "k"])), max_size=2),
    )
    def some_run(self, count: int, kind: str, drawn: list[tuple[str, str | None]]) -> None:
        """Claimed and ended at once, as most are: what follows from that is met more often."""
        self.settle(self.claim(count, False), kind, 0, False, False, drawn)

    @rule(holds=claims, begun=st.booleans(), twice=st.booleans())
    def extend(self, holds: list[Hold], begun: bool, twice: bool) -> None:
        rows = pack([hold_row(hold) for hold in holds])
        arguments = {"lease_ms": LEASE_MS, "holds": rows, "begun": rows if begun else pack([])}
        _, lost, stopping = self.do(self.bus.run("extend", "f", **arguments))
        if twice:
            assert self.do(self.bus.run("extend", "f", **arguments))[1:] == [lost, stopping]
        assert [id.decode() for id in lost] == [hold.id for hold in holds if not self.model.is_held(hold)]
        assert {id.decode() for id in stopping} == {
            hold.id for hold in holds if self.model.is_held(hold) and self.model.jobs[hold.id].cancelling
        }
        for hold in holds:
            if self.model.is_held(hold):
                self.model.jobs[hold.id].begun |= begun

    @rule(ms=st.sampled_from([500, 1500, 4000, 12_000]), stepped=st.booleans())
    def time_passes(self, ms: int, stepped: bool) -> None:
        self.server.clock.advance(ms)
        if not stepped:
            self.bus.steps = StepWatch()

    @rule()
    def time_goes_back(self) -> None:
        self.server.clock.advance(-2000)

    @precondition(lambda self: self.years < 2)
    @rule(by_beat=st.booleans())
    def a_year_passes(self, by_beat: bool) -> None:
        """What had ended is kept no longer, and everything that was its own is gone with it."""
        self.years += 1
        ended = [id for id, job in self.model.jobs.items() if job.state in ENDED]
        self.server.clock.advance(YEAR_MS)
        self.bus.steps = StepWatch()
        for id in ended:
            del self.model.jobs[id]
        self.tick(by_beat)

    @rule(by_beat=st.booleans())
    def time_is_looked_at(self, by_beat: bool) -> None:
        self.tick(by_beat)

    def tick(self, by_beat: bool) -> None:
        """The bus decides what was due; the model says what may come of it."""
        answer = self.do(self.bus.beat(pump=True)).tick if by_beat else self.do(self.bus.tick("f"))
        after = audit(self.server, "f")
        for id, job in self.model.jobs.items():
            state = after.state_of(id)
            if job.state == "scheduled" and state == "pending":
                assert job.due_ms is not None
                assert job.due_ms <= answer.now_ms, f"{id} was promoted {job.due_ms - answer.now_ms} ms early"
                self.model.to_lane(id, answer.now_ms)
            elif job.state == "active" and state != "active":
                self.model.lost(id, answer.now_ms + BACKOFF_MS, answer.now_ms)
        self.model.ticked(answer.now_ms)
        # Ties in a lane go by id, lanes join in the order in which the script met their jobs: taken over from the bus.
        self.model.take_over_seats(after)
        self.occurred(answer)

    @rule(which=st.integers(0, 99), twice=st.booleans())
    def cancel(self, which: int, twice: bool) -> None:
        if not self.ids:
            return
        id = self.ids[which % len(self.ids)]
        before_ms = self.now_ms()
        assert self.twice("cancel", twice, id=id).decode() == self.model.cancel(id, before_ms)
        self.judged_anew(before_ms)

    @rule(which=st.integers(0, 99), twice=st.booleans())
    def redrive(self, which: int, twice: bool) -> None:
        if not self.ids:
            return
        id = self.ids[which % len(self.ids)]
        self.sequence += 1
        now_ms = self.settled_instant()
        reply = self.twice("redrive", twice, call=f"t{self.sequence}", jobs=pack([[id, 0]]))
        assert reply == self.revived([id], now_ms, [0])

    @rule()
    def beat_of_no_pump(self) -> None:
        self.do(self.bus.beat(pump=False))

    @rule(holds=claims, twice=st.booleans())
    def progress(self, holds: list[Hold], twice: bool) -> None:
        for hold in holds:
            for _ in range(1 + twice):
                assert self.do(self.bus.progress("f", hold, 0.5)) == self.model.is_held(hold)

    @rule()
    def the_bell_is_handed_on(self) -> None:
        self.do(self.bus.ring("f"))

    @rule()
    def look(self) -> None:
        """What pages and `doctor` are told."""
        states = collections.Counter(job.state for job in self.model.jobs.values())
        stats = self.do(self.bus.stats(["f"]))["f"]
        assert (stats.pending, stats.scheduled, stats.active) == tuple(
            states[state] for state in ("pending", "scheduled", "active")
        )
        assert (stats.dead, stats.done) == (states["dead"], states["done"] + states["cancelled"])
        assert self.do(self.bus.run("check", "f", sample=1000)) == [len(self.model.jobs), []]
        listed, cursor = self.do(self.bus.jobs("f", limit=1000))
        assert cursor is None
        assert {job.id: job.state for job in listed} == {id: job.state for id, job in self.model.jobs.items()}
        lanes = {row.lane: (row.place, row.pending) for row in self.do(self.bus.lanes("f")) if row.place != "idle"}
        assert lanes == {lane: (self.model.place_of(lane), len(self.model.pending(lane))) for lane in self.model.seats}
        if not self.years:
            metrics = self.do(self.bus.metrics("f", 3 * 3_600_000))
            assert (metrics.minted, metrics.done) == (self.model.counts["minted"], self.model.counts["done"])

    @invariant()
    def the_books_balance(self) -> None:
        books = audit(self.server, "f")
        assert {id: books.state_of(id) for id in books.rows} == {id: job.state for id, job in self.model.jobs.items()}
        self.model.compare(books)
        self.compare_owned(books, self.now_ms())
        self.compare_recurrences(books)
        assert books.totals == {name: count for name, count in self.model.counts.items() if count}

    def teardown(self) -> None:
        try:
            self.do(self.bus.close())
        except BusError:
            pass
        self.loop.close()


class LaneMachine(LaneRules, BusMachine):
    """And of their lanes."""


class BatchMachine(LaneMachine):
    """The same of a queue with batches: a turn serves up to three jobs of a lane, and a lane with fewer waits."""

    batch, wait_ms = 3, 1250


class LimitMachine(LaneMachine):
    """The same under limits of queue and lanes, of code's and by hand, that come, change and go while jobs run."""

    limited = True


class LimitedBatchMachine(BatchMachine):
    limited = True


class KeyMachine(KeyRules, BusMachine):
    """Unique keys, children on their way, output: what belongs to jobs, whatever becomes of them."""


class RuleMachine(RecurrenceRules, BusMachine):
    """Recurrences from code and without, run and filled by hand."""


class WholeMachine(KeyRules, RecurrenceRules, LaneRules, BusMachine):
    """Everything at once; and once more with batches and limits."""


class WholeLimitedMachine(WholeMachine):
    batch, wait_ms = 3, 1250
    limited = True


# How many histories of each CI looks at, and of how many steps.
LOOKS: dict[type[BusMachine], tuple[int, int]] = {
    LaneMachine: (20, 30),
    BatchMachine: (20, 30),
    LimitMachine: (20, 30),
    LimitedBatchMachine: (20, 30),
    KeyMachine: (30, 45),
    RuleMachine: (25, 45),
    WholeMachine: (15, 40),
    WholeLimitedMachine: (15, 40),
}


@pytest.mark.parametrize("machine", LOOKS)
def test_the_bus_keeps_its_promises_under_any_history(shared_server: Server, machine: type[BusMachine]) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    machine.server = shared_server
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES or LOOKS[machine][0],
            stateful_step_count=80 if SOAK else LOOKS[machine][1],
            phases=(Phase.generate, Phase.shrink) if SOAK else (Phase.generate,),
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
