"""The bus machine's rules for recurrences: written, changed, removed, paused, parked, run and backfilled by hand.

Instants are every five seconds and nobody computes them: what a rule means is the other machine's business.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import rule

from audit import open_books
from key_rules import Key

if TYPE_CHECKING:
    from audit import Books
    from echod.bus import Bus
    from echod.bus.answers import TickAnswer
    from echod.model.ids import JobId
    from key_rules import Keys
    from model import Model
    from server import Server

T = TypeVar("T")
STEP_MS, PARK_MS, WEEK_MS = 5000, 60_000, 7 * 86_400_000
NAMES = st.sampled_from(["r", "ü r"])
AHEAD: st.SearchStrategy[int | None] = st.sampled_from([None, -1, 0, 0, 1])


class Recurrence(msgspec.Struct):
    """A rule as it stands; of what is gone its counts stay for a while."""

    rule: str
    payload: bytes
    is_code: bool
    revision: int = 1
    next_ms: int | None = None
    last_ms: int | None = None
    looked_at_ms: int | None = None  # when the pump looks again; None: never
    paused: bool = False
    parked: bool = False
    gone_ms: int | None = None
    missed: int = 0
    skipped: int = 0


class Recurring:
    """Recurrences of a machine with one queue `f`, and what ticks make of them."""

    server: Server
    bus: Bus
    model: Model
    keys: Keys
    ids: list[JobId]
    recurrences: dict[str, Recurrence]
    generation: int
    retired: int = 0  # the newest revision of what was forgotten

    if TYPE_CHECKING:

        def do(self, work: Coroutine[Any, Any, T]) -> T: ...
        def again(self) -> Any: ...
        def now_ms(self) -> int: ...
        def born_ms(self, id: str) -> int: ...

    def generation_of(self, ahead: int | None) -> int | None:
        return None if ahead is None else max(self.generation + ahead, 1)

    def born(self, id: JobId) -> None:
        self.ids.append(id)
        self.model.mint(id, "-", 0, None, self.born_ms(id))

    def recur(self, name: str, text: str, payload: bytes, ahead: int | None, twice: bool) -> None:
        """By a deploy that is newer than the last, as new or older; or by nobody's code."""
        generation = self.generation_of(ahead)
        next_ms = self.now_ms() // STEP_MS * STEP_MS + STEP_MS
        expected = self.written(name, text, payload, generation, next_ms)
        work = self.bus.recur(
            "f", name, rule=text, tz="UTC", trigger=b"", payload=payload, next_ms=next_ms, generation=generation
        )
        assert self.do(work) == expected
        assert not twice or self.again() == expected.encode()

    def written(self, name: str, text: str, payload: bytes, generation: int | None, next_ms: int) -> str:
        old = self.recurrences.get(name)
        if generation is not None and generation < self.generation:
            return "older"
        if old and old.gone_ms is None and old.is_code != (generation is not None):
            return "taken"
        self.generation = generation or self.generation
        is_back = old is not None and old.gone_ms is not None
        if old is None or (is_back and generation is None):
            self.retired = max(self.retired, old.revision if old else 0)
            revision = self.retired + 1
            self.recurrences[name] = Recurrence(text, payload, generation is not None, revision, next_ms, None, next_ms)
            return "created"
        if not is_back and not old.parked and (old.rule, old.payload) == (text, payload):
            return "same"
        is_new = is_back or old.rule != text
        is_asked_again = is_new or old.parked
        old.rule, old.payload, old.gone_ms, old.parked = text, payload, None, False
        old.revision += 1
        if is_new:
            old.next_ms = next_ms
        if is_asked_again:
            old.looked_at_ms = None if old.paused else old.next_ms
        return "created" if is_back else "changed"

    def removed(self, name: str, generation: int | None, now_ms: int) -> str:
        old = self.recurrences.get(name)
        if generation is not None and generation < self.generation:
            return "older"
        if old and old.gone_ms is None and old.is_code != (generation is not None):
            return "taken"
        self.generation = generation or self.generation
        if old is None or (old.gone_ms is not None and (generation is None or old.gone_ms > now_ms - WEEK_MS)):
            return "absent"
        if generation is not None and old.gone_ms is None:
            old.gone_ms, old.looked_at_ms = now_ms, None
            return "removed"
        self.retired = max(self.retired, old.revision)
        del self.recurrences[name]
        return "absent" if old.gone_ms is not None else "removed"

    def standing(self, name: str) -> Recurrence | None:
        found = self.recurrences.get(name)
        return None if found is None or found.gone_ms is not None else found

    def occurred(self, answer: TickAnswer) -> None:
        """All that was due was answered; each due becomes one job, or is dropped, and who asks again hears the same."""
        due = {
            (name, each.revision, each.next_ms)
            for name, each in self.recurrences.items()
            if each.looked_at_ms is not None and each.looked_at_ms <= answer.now_ms
        }
        assert {(each.recurrence, each.revision, each.due_ms) for each in answer.due} == due
        for each in answer.due:
            found = self.recurrences[each.recurrence]
            assert found.next_ms == each.due_ms
            following_ms = max(each.due_ms, answer.now_ms // STEP_MS * STEP_MS) + STEP_MS
            missed = (following_ms - each.due_ms) // STEP_MS - 1
            if found.last_ms is not None and each.due_ms <= found.last_ms:
                self.settled(found, each.recurrence, each.due_ms, following_ms, "already")
            elif missed:
                self.settled(found, each.recurrence, each.due_ms, following_ms, "dropped", missed)
            else:
                self.settled(found, each.recurrence, each.due_ms, following_ms, "minted")

    def settled(self, found: Recurrence, name: str, due_ms: int, next_ms: int, outcome: str, missed: int = 0) -> None:
        """One `occur`, and the same again, as of a pump that raced."""
        id = None if missed else self.bus.new_job_id()
        drop: Literal["missed"] | None = "missed" if missed else None
        for again in (False, True):
            work = self.bus.occur("f", name, found.revision, due_ms, next_ms=next_ms, job=id, drop=drop, dropped=missed)
            said = self.do(work)
            assert said.outcome in (("already", "stale") if again else (outcome,)), said
            if id and outcome == "minted":
                assert said.id == id
        found.next_ms = found.looked_at_ms = next_ms
        if outcome == "already":
            return
        found.last_ms, found.parked = due_ms, False
        found.missed += missed
        self.model.counts["missed"] += missed
        if outcome == "minted":
            assert id is not None
            self.born(id)

    def compare_recurrences(self, books: Books) -> None:
        assert books.recurrences.keys() == self.recurrences.keys()
        looked_at = {
            name: each.looked_at_ms for name, each in self.recurrences.items() if each.looked_at_ms is not None
        }
        assert books.repeat == looked_at
        for name, each in self.recurrences.items():
            row = books.recurrences[name]
            assert (int(row[b"rev"]), int(row.get(b"missed", 0)), int(row.get(b"skipped", 0))) == (
                each.revision,
                each.missed,
                each.skipped,
            )
            assert (b"own" in row) != each.is_code
            assert (row[b"rule"], row[b"payload"]) == (each.rule.encode(), each.payload)
            if each.gone_ms is None and not each.paused:
                assert int(row[b"next"]) == each.next_ms


class RecurrenceRules(Recurring):
    """All that may become of a rule."""

    @rule(
        name=NAMES,
        text=st.sampled_from(["x", "y"]),
        payload=st.sampled_from([b"", b"\x01"]),
        ahead=AHEAD,
        twice=st.booleans(),
    )
    def is_written(self, name: str, text: str, payload: bytes, ahead: int | None, twice: bool) -> None:
        self.recur(name, text, payload, ahead, twice)

    @rule(name=NAMES, ahead=AHEAD, twice=st.booleans())
    def unrecur(self, name: str, ahead: int | None, twice: bool) -> None:
        generation = self.generation_of(ahead)
        before_ms = self.now_ms()
        expected = self.removed(name, generation, before_ms)
        assert self.do(self.bus.unrecur("f", name, generation)) == expected
        assert not twice or self.again() == expected.encode()

    @rule(name=NAMES, twice=st.booleans())
    def pause_recurrence(self, name: str, twice: bool) -> None:
        found = self.standing(name)
        assert self.do(self.bus.pause_recurrence("f", name)) == (found is not None)
        assert not twice or self.again() == (b"ok" if found else b"unknown")
        if found:
            found.paused, found.looked_at_ms = True, None

    @rule(name=NAMES, skipped=st.integers(0, 2), stale=st.booleans(), twice=st.booleans())
    def resume_recurrence(self, name: str, skipped: int, stale: bool, twice: bool) -> None:
        found, next_ms = self.standing(name), self.now_ms() // STEP_MS * STEP_MS + STEP_MS
        revision = (found.revision if found else 1) + stale
        expected = "unknown" if found is None else "stale" if stale else "ok"
        work = self.bus.resume_recurrence("f", name, next_ms, skipped=skipped, revision=revision)
        assert self.do(work) == expected
        assert not twice or self.again() == expected.encode()
        if found and found.paused and not stale:
            found.paused, found.parked, found.next_ms, found.looked_at_ms = False, False, next_ms, next_ms
            found.skipped += skipped
            self.model.counts["skipped"] += skipped

    @rule(name=NAMES, stale=st.booleans())
    def park_recurrence(self, name: str, stale: bool) -> None:
        found = self.standing(name)
        revision = (found.revision if found else 1) + stale
        before_ms = self.now_ms()
        parked = self.do(self.bus.park_recurrence("f", name, revision, "no next"))
        if found is None or stale or (found.next_ms or 0) > self.now_ms():
            assert not parked
        elif (found.next_ms or 0) <= before_ms:
            assert parked
        if found and parked:
            found.parked = True
        if found and parked and not found.paused:
            found.looked_at_ms = int(open_books(self.server, "f").repeat[name])
            assert before_ms <= found.looked_at_ms - PARK_MS <= self.now_ms()

    @rule(name=NAMES, twice=st.booleans())
    def run_now(self, name: str, twice: bool) -> None:
        id, found = self.bus.new_job_id(), self.standing(name)
        for _ in range(1 + twice):
            minted = self.do(self.bus.run_now("f", name, id))
            assert (minted is not None) == (found is not None)
        if found:
            self.born(id)

    @rule(name=NAMES, back=st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True), twice=st.booleans())
    def backfill(self, name: str, back: list[int], twice: bool) -> None:
        """Instants that everybody knows, each once while its job is kept."""
        found = self.standing(name)
        asked = [(number * STEP_MS, self.bus.new_job_id()) for number in sorted(back)]
        filled = self.do(self.bus.backfill("f", name, asked))
        if found is None:
            assert filled is None
            return
        assert filled is not None
        if twice:
            again = self.do(self.bus.backfill("f", name, asked))
            assert again is not None
            assert [each.id for each in again] == [each.id for each in filled]
        for (due_ms, id), got in zip(asked, filled, strict=True):
            key = f"backfill\0{name}\0{due_ms}"
            owner = self.keys.owner(key, 0)
            assert (got.id, got.is_new) == ((owner.owner, False) if owner else (id, True))
            if owner is None:
                self.born(id)
                self.keys.take(key, Key(id, "k"))

    @rule(name=NAMES, back=st.integers(1, 9))
    def ask_again_for_a_due_that_was(self, name: str, back: int) -> None:
        found = self.recurrences.get(name)
        revision, next_ms = (found.revision, found.next_ms or 0) if found else (1, 0)
        answer = self.do(
            self.bus.occur("f", name, revision, next_ms - back * STEP_MS, next_ms=next_ms, job=self.bus.new_job_id())
        )
        assert answer.outcome in {"already", "stale"}
