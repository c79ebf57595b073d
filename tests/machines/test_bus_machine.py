"""The real bus against a small model of it, under random histories that Hypothesis finds and the audit judges.

The model knows nothing of rings, rows or scores: jobs with a state, lanes with a virtual time. After every step the
books must balance and both must agree on where every job is. ECHOD_SOAK=1 looks longer.

What is drawn never depends on what the bus holds: time runs while the machine does, so two runs of one history may
differ in which instants had come, and Hypothesis must be able to draw the same again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Any, ClassVar, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from audit import audit, open_books
from bulk_rules import BulkRules
from echod.bus import Bus
from echod.bus.clock import StepWatch
from echod.bus.operating import NO_LIMIT
from echod.bus.rows import hold_row, mint_row, pack, verdict_row
from echod.errors import BusError
from echod.model.ids import JobId, NodeId
from echod.model.job import Cancelled, Dead, Delay, Done, Error, Hold, Mint, Release, Retry, RunRecord
from echofn.manifest import Constant, Policy
from echofn.units import rate_text
from model import Limits, Model
from valkey import Server

T = TypeVar("T")
SOAK = os.environ.get("ECHOD_SOAK") == "1"
LANES = st.sampled_from(["-", "a", "b", "ü"])
NAMES = ["concurrency", "rate", "lane_concurrency", "lane_rate"]
ERROR = Error("E", "m")
RETRIES, BACKOFF_MS, LEASE_MS = 2, 3000, 10_000


def worth(name: str, value: int) -> int | tuple[int, int] | bool | None:
    """Of what is drawn: nothing, lifted, or a limit."""
    if value < 2:
        return None if value == 0 else False
    return (value - 1, 1500) if name.endswith("rate") else value - 1


class BusMachine(BulkRules, RuleBasedStateMachine):
    """One queue, two claimers, a driven clock."""

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
        self.due_ms = 0
        self.sequence = 0
        self.ids: list[JobId] = []
        self.purged_done = 0

    async def open(self) -> Bus:
        bus = await Bus.open(self.server.address)
        await bus.join(NodeId("NOD1"))
        await bus.configure("f", self.policy(), 1)
        return bus

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
            came = any(before_ms < instant_ms <= after_ms for instant_ms in self.model.instants(lane))
            if came and not self.model.is_at(lane, books):
                self.model.place(lane, after_ms)

    @initialize()
    def recurrence(self) -> None:
        self.due_ms = self.now_ms() + 1000
        self.do(
            self.bus.recur("f", "r", rule="x", tz="UTC", trigger=b"", payload=b"", next_ms=self.due_ms, generation=1)
        )

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
    )
    def settle(self, holds: list[Hold], kind: str, count: int, twice: bool, first_only: bool) -> None:
        if not holds:
            return
        holds = holds[:1] if first_only else holds
        now_ms = self.now_ms()
        record = RunRecord("w", "DEP1", now_ms, now_ms + 1)
        make = {
            "done": lambda hold: Done(hold, record),
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
        self.claimed(reply, count)

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

    @rule(by_beat=st.booleans())
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
        for due in answer.due:
            self.occur(due.due_ms, due.revision)

    def occur(self, due_ms: int, revision: int) -> None:
        if due_ms == self.due_ms:
            id = self.bus.new_job_id()
            for _ in range(2):
                answer = self.do(self.bus.occur("f", "r", revision, due_ms, next_ms=due_ms + 5000, job=id))
                assert answer.id == id
            self.ids.append(id)
            self.model.mint(id, "-", 0, None, self.born_ms(id))
            self.due_ms += 5000

    @rule(back=st.integers(1, 9))
    def ask_again_for_a_due_that_was(self, back: int) -> None:
        answer = self.do(
            self.bus.occur("f", "r", 1, self.due_ms - back * 5000, next_ms=self.due_ms, job=self.bus.new_job_id())
        )
        assert answer.outcome in {"already", "stale"}

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
        reply = self.twice("redrive", twice, token=f"t{self.sequence}", jobs=pack([[id, 0]]))
        is_there = id in self.model.jobs
        redriven = [id.encode()] if is_there and self.model.redrive(id, self.born_ms(id)) else []
        assert reply == [redriven, []]

    @rule(lane=st.one_of(st.none(), LANES), paused=st.booleans())
    def pause(self, lane: str | None, paused: bool) -> None:
        before_ms = self.now_ms()
        work = self.bus.pause("f", lane=lane) if paused else self.bus.resume("f", lane=lane)
        self.do(work)
        self.model.pause(lane, paused, before_ms)
        self.judged_anew(before_ms)

    @rule(lane=LANES, weight=st.integers(1, 4))
    def weigh(self, lane: str, weight: int) -> None:
        before_ms = self.now_ms()
        self.do(self.bus.weigh("f", lane, weight))
        self.model.weigh(lane, weight, before_ms)
        self.judged_anew(before_ms)

    @precondition(lambda self: self.limited)
    @rule(name=st.sampled_from(NAMES), value=st.integers(0, 4), twice=st.booleans())
    def limit(self, name: str, value: int, twice: bool) -> None:
        """By hand, of the queue: back to code's, lifted, or so many."""
        before_ms = self.now_ms()
        said = worth(name, value)
        for _ in range(1 + twice):
            self.do(self.bus.set("f", {name: NO_LIMIT if said is False else said}))
        self.model.set_limit(name, said, before_ms)
        self.judged_anew(before_ms)

    @precondition(lambda self: self.limited)
    @rule(name=st.sampled_from(["concurrency", "rate"]), lane=LANES, value=st.integers(0, 4), twice=st.booleans())
    def limit_lane(self, name: str, lane: str, value: int, twice: bool) -> None:
        before_ms = self.now_ms()
        said = worth(name, value)
        for _ in range(1 + twice):
            self.do(self.bus.set("f", {name: NO_LIMIT if said is False else said}, lane=lane))
        self.model.set_lane_limit(name, lane, said, before_ms)
        self.judged_anew(before_ms)

    @precondition(lambda self: self.limited)
    @rule(names=st.sets(st.sampled_from(NAMES)), value=st.integers(2, 4), weight=st.integers(1, 3))
    def code_says(self, names: set[str], value: int, weight: int) -> None:
        """A deploy with other limits."""
        before_ms = self.now_ms()
        said = {name: worth(name, value) for name in names}
        rates = {name: rate_text(*each) for name, each in said.items() if isinstance(each, tuple)}
        weights = {"b": weight} if weight > 1 else {}
        policy = msgspec.structs.replace(self.policy(), **(said | rates), lane_weight=weights or 1)  # type: ignore[arg-type]
        self.do(self.bus.configure("f", policy, 1))
        self.model.code_says(Limits(**said, weights=weights), before_ms)  # type: ignore[arg-type]
        self.judged_anew(before_ms)

    @rule()
    def beat_of_no_pump(self) -> None:
        self.do(self.bus.beat(pump=False))

    @invariant()
    def the_books_balance(self) -> None:
        books = audit(self.server, "f")
        assert {id: books.state_of(id) for id in books.rows} == {id: job.state for id, job in self.model.jobs.items()}
        self.model.compare(books)

    @invariant()
    def every_job_is_counted_once(self) -> None:
        metrics = self.do(self.bus.metrics("f", 3 * 3_600_000))
        assert metrics.minted == len(self.model.jobs) + self.model.purged
        assert metrics.done == sum(job.state == "done" for job in self.model.jobs.values()) + self.purged_done

    def teardown(self) -> None:
        try:
            self.do(self.bus.close())
        except BusError:
            pass
        self.loop.close()


class BatchMachine(BusMachine):
    """The same of a queue with batches: a turn serves up to three jobs of a lane, and a lane with fewer waits."""

    batch, wait_ms = 3, 1250


class LimitMachine(BusMachine):
    """The same under limits of queue and lanes, of code's and by hand, that come, change and go while jobs run."""

    limited = True


class LimitedBatchMachine(BatchMachine):
    limited = True


@pytest.mark.parametrize("machine", [BusMachine, BatchMachine, LimitMachine, LimitedBatchMachine])
def test_the_bus_keeps_its_promises_under_any_history(shared_server: Server, machine: type[BusMachine]) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    machine.server = shared_server
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=1000 if SOAK else 20,
            stateful_step_count=60 if SOAK else 30,
            phases=(Phase.generate, Phase.shrink) if SOAK else (Phase.generate,),
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
