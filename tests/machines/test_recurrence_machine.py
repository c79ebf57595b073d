"""Recurrences under real pumps and a driven clock, in any history that Hypothesis finds: each instant one outcome.

Rules for each overlap, which cross both changes of the clocks, and one that is registered at run time; versions that
change, drop and bring back each; pauses, backfills and damage; two pumps that race, die and sleep; workers that settle
in every way or lose their leases; time that steps forward by up to a year, and back. What is known of a job before a
turn of the pumps and after it says what its overlap may have done in between. ECHOD_SOAK=1 looks longer.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from audit import audit, open_books
from doing import dead, done, retry
from echod.bus.rows import NEVER_MS
from echod.model.job import Claimed, Delay, Hold, Release
from schedule_rules import ScheduleRules
from server import Server
from standing import OPEN, QUEUE
from system.test_pump import ms

T = TypeVar("T")
SOAK = os.environ.get("ECHOD_SOAK") == "1"
EXAMPLES = int(os.environ.get("ECHOD_EXAMPLES", 300 if SOAK else 8))
START = ms("2026-03-28T23:30:30Z")  # the night of the gap in Berlin
HOUR_MS, DAY_MS = 3_600_000, 86_400_000


class RecurrenceMachine(ScheduleRules, RuleBasedStateMachine):
    """Two pumps, one queue, six recurrences."""

    server: ClassVar[Server]

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.server.command("FLUSHALL")
        self.server.clock.set(START)
        self.place = Path(tempfile.mkdtemp(prefix="echod-machine-"))
        self.books = open_books(self.server, QUEUE)
        self.version, self.versions, self.registered, self.asleep, self.writing = {}, [], None, None, None
        self.stood, self.known, self.filled = {}, set(), {}
        self.held: list[Claimed] = []
        self.redriven: set[str] = set()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def now_ms(self) -> int:
        return self.server.clock.now_ms()

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
        if self.server.clock.now_ms() < START + 366 * DAY_MS:
            self.server.clock.advance(366 * DAY_MS)

    @rule(by_ms=st.sampled_from([2_000, 45 * 60_000, DAY_MS]))
    def time_goes_back(self, by_ms: int) -> None:
        self.server.clock.advance(-by_ms)

    @rule(count=st.integers(1, 3))
    def claim(self, count: int) -> None:
        self.held += self.do(self.bus.claim(QUEUE, "W", count, 15_000)).jobs

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
        self.do(self.bus.settle(QUEUE, "W", [verdict], lease_ms=15_000))

    @rule(which=st.integers(0, 99))
    def cancel(self, which: int) -> None:
        if self.known:
            self.do(self.bus.cancel(QUEUE, sorted(self.known)[which % len(self.known)]))

    @rule(which=st.integers(0, 9))
    def redrive(self, which: int) -> None:
        if ids := sorted(self.books.dead):
            id = ids[which % len(ids)]
            self.redriven.add(id)
            self.do(self.bus.redrive(QUEUE, [id]))

    # ---- judgement ------------------------------------------------------------------------------------------------

    @invariant()
    def the_books_balance_and_overlaps_hold(self) -> None:
        books = self.books = audit(self.server, QUEUE)
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
        self.do(self._close())
        self.do(self.loop.shutdown_default_executor())
        self.loop.close()
        shutil.rmtree(self.place)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of pumps that died in mid-call
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
