"""The bus machine's rules for what belongs to jobs: unique keys, children on their way, output, who listens."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import rule

from audit import open_books
from echod.bus.keys import escape
from echod.bus.rows import mint_row, pack
from echod.model.ids import JobId
from echod.model.job import Child, Mint, Unique, Until

if TYPE_CHECKING:
    from audit import Books
    from echod.bus import Bus
    from model import Model
    from server import Server

T = TypeVar("T")
LANES = st.sampled_from(["-", "a", "b", "ü"])
KEYS = st.sampled_from(["k", "l/m"])
UNTIL: st.SearchStrategy[Until] = st.sampled_from(["done", "done", "started", 1500, 3_600_000])
ENDED = ("done", "dead", "cancelled")
UNSENT_MS, CHILD_MS = 1000, 30_000
NEAR_MS = 5  # a key ends by the instant at which its call began, and by the one that the script read


class Key(msgspec.Struct):
    """Whose a unique key is. `ends_ms`: of a fixed time; else it is its job's for as long as the job says so."""

    owner: str
    mode: str  # d until done, s until started, t a fixed time, k while its row is kept
    body: str = ""
    ends_ms: int = 0


class Keys:
    """All unique keys of a queue, by the states of its jobs."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._keys: dict[str, Key] = {}
        self._ended: dict[str, Key] = {}  # of a fixed time that was over

    def owner(self, name: str, now_ms: int) -> Key | None:
        """Who has a key now."""
        key = self._keys.get(name)
        if key is None or (key.mode == "t" and key.ends_ms > now_ms):
            return key
        job = self._model.jobs.get(key.owner)
        has_ended = job is None or job.state in ENDED
        is_over = (
            job is None if key.mode == "k" else has_ended or (key.mode == "s" and job is not None and job.attempts)
        )
        return None if key.mode == "t" or is_over else key

    def take(self, name: str, key: Key) -> None:
        self._keys[name] = key
        self._ended.pop(name, None)

    def may_end(self, before_ms: int, after_ms: int) -> bool:
        """Whether one of a fixed time ends in the meantime: then what a call saw is not for us to know."""
        return any(
            key.mode == "t" and before_ms - NEAR_MS <= key.ends_ms <= after_ms + NEAR_MS for key in self._keys.values()
        )

    def compare(self, books: Books, now_ms: int, latest_ms: int) -> None:
        """The bus has those keys, no other, and each with what the next request will be compared with.

        One of a fixed time that had ended before the clock went back the server may have still, or again: it shows none
        that is over, and forgets it some time later.
        """
        self._keys |= {name: key for name, key in self._ended.items() if escape(name) in books.unique}
        for name, key in list(self._keys.items()):
            if self.owner(name, now_ms) is None or (key.mode == "t" and key.ends_ms <= latest_ms + NEAR_MS):
                if key.mode == "t":
                    self._ended[name] = key
                    if escape(name) in books.unique:
                        continue
                del self._keys[name]
        found = {
            name: Key(row[b"o"].decode(), row[b"m"].decode(), row[b"b"].decode(), int(row.get(b"x", 0)))
            for name, row in books.unique.items()
        }
        assert found == {escape(name): key for name, key in self._keys.items()}


class Owned:
    """What belongs to jobs, for a machine with one queue `f`."""

    server: Server
    bus: Bus
    model: Model
    keys: Keys
    ids: list[JobId]
    sequence: int
    latest_ms: int
    children: dict[str, tuple[int, Child]]  # in `out`, since when
    logs: dict[str, int]

    if TYPE_CHECKING:

        def do(self, work: Coroutine[Any, Any, T]) -> T: ...
        def now_ms(self) -> int: ...
        def born_ms(self, id: str) -> int: ...

    def settled_instant(self) -> int:
        """Now; and not within a moment of an instant at which a key or a guard ends: who reads the clock there?"""
        now_ms = self.now_ms()
        guards = [ended_ms + CHILD_MS for ended_ms in open_books(self.server, "f").ended_ms().values()]
        if self.keys.may_end(now_ms, now_ms + 100) or any(-NEAR_MS <= at_ms - now_ms <= 100 for at_ms in guards):
            self.server.clock.advance(200)
        return self.now_ms()

    def revived(self, ids: list[JobId], now_ms: int, dues: list[int]) -> list[list[Any]]:
        """What a redrive answers: one whose key is another's by now stays where it is."""
        redriven, refused = list[bytes](), list[list[bytes]]()
        for id, due_ms in zip(ids, dues, strict=True):
            job = self.model.jobs.get(id)
            if job is None or job.state != "dead":
                continue
            unique = job.unique if job.unique and job.unique.until == "done" else None
            if unique and (owner := self.keys.owner(unique.key, now_ms)):
                refused.append([id.encode(), owner.owner.encode()])
                continue
            if unique:
                self.keys.take(unique.key, Key(id, "d", unique.body))
            self.model.redrive(id, now_ms if due_ms else self.born_ms(id), due_ms)
            redriven.append(id.encode())
        return [redriven, refused]

    def mint_one(self, mint: Mint, before_ms: int, answered_ms: int, books: Books) -> Any:
        """What the bus must answer to a mint with keys, or of a child; the model has it afterwards."""
        if mint.id in self.model.jobs:
            return 1
        asked = [key for key in (mint.once, mint.unique) if key is not None]
        for unique in asked:
            if key := self.keys.owner(unique.key, before_ms):
                if unique.body and key.body != unique.body:
                    return [3, key.owner.encode()]
                if mint.once is not None and unique is mint.unique:
                    self.take(mint.once, key.owner, books, before_ms, answered_ms)
                return [2, key.owner.encode()]
        row = books.rows[mint.id]
        for unique in asked:
            self.take(unique, mint.id, books, before_ms, answered_ms)
        due_ms = before_ms + mint.in_ms if mint.in_ms else None
        self.model.mint(mint.id, mint.lane, mint.priority, due_ms, int(row.get(b"w", row[b"m"])))
        self.model.jobs[mint.id].parent = mint.parent
        if mint.unique is not None and not isinstance(mint.unique.until, int):
            self.model.jobs[mint.id].unique = mint.unique
        self.ids.append(mint.id)
        return 1

    def take(self, unique: Unique, id: str, books: Books, before_ms: int, answered_ms: int) -> None:
        if isinstance(unique.until, int):
            ends_ms = int(books.unique[escape(unique.key)][b"x"])
            assert before_ms <= ends_ms - unique.until <= answered_ms
            self.keys.take(unique.key, Key(id, "t", unique.body, ends_ms))
        else:
            self.keys.take(unique.key, Key(id, unique.until[0], unique.body))

    def new_children(self, parent: JobId, drawn: list[tuple[str, str | None]]) -> tuple[Child, ...]:
        """What a run that is done would send."""
        return tuple(
            Child("f", Mint(
                id=self.bus.new_job_id(), payload=b"", lane=lane, parent=parent, unique=Unique(key) if key else None
            ))
            for lane, key in drawn
        )  # fmt: skip

    def compare_owned(self, books: Books, now_ms: int) -> None:
        """Keys, children on their way and logs are those of the model."""
        self.latest_ms = max(self.latest_ms, now_ms)
        self.keys.compare(books, now_ms, self.latest_ms)
        assert {id: int(child[:13]) for id, child in books.out.items()} == {
            id: since_ms for id, (since_ms, _) in self.children.items()
        }
        self.logs = {id: lines for id, lines in self.logs.items() if lines and id in self.model.jobs}
        assert books.logs == self.logs


class KeyRules(Owned):
    """Mints with keys, children on their way, output, listeners."""

    if TYPE_CHECKING:

        def some_run(self, count: int, kind: str, drawn: list[tuple[str, str | None]]) -> None: ...

    @rule(
        lane=LANES,
        name=KEYS,
        until=UNTIL,
        body=st.sampled_from(["", "x", "y"]),
        once=st.one_of(st.none(), st.sampled_from(["q"])),
        in_ms=st.sampled_from([0, 0, 0, 2000]),
        twice=st.booleans(),
    )
    def mint_keyed(
        self, lane: str, name: str, until: Until, body: str, once: str | None, in_ms: int, twice: bool
    ) -> None:
        before_ms = self.settled_instant()
        mint = Mint(
            id=self.bus.new_job_id(),
            payload=b"",
            lane=lane,
            in_ms=in_ms or None,
            unique=Unique(name, until, body),
            once=None if once is None else Unique(once, 3_600_000, body),
        )
        rows = pack([mint_row(mint, self.bus.token)])
        arguments = {"queue": "f", "outside": 0, "first_ms": before_ms, "mints": rows}
        reply = self.do(self.bus.run("mint", "f", resend=0, **arguments))
        answered_ms = self.now_ms()
        if twice:  # a duplicate's answer cannot be told from that of a first arrival that was trimmed since
            again = self.do(self.bus.run("mint", "f", resend=1, **arguments))
            assert again == reply or (again == [6] and reply != [1]), f"sent again answered {again}, first {reply}"
        assert reply == [self.mint_one(mint, before_ms, answered_ms, open_books(self.server, "f"))]

    @rule(name=KEYS)
    def one_with_a_key_dies(self, name: str) -> None:
        self.mint_keyed("-", name, "done", "", None, 0, False)
        self.some_run(4, "dead", [])

    @rule(lane=LANES)
    def a_child_runs(self, lane: str) -> None:
        """And ends while it is not known everywhere that it was sent."""
        self.some_run(1, "done", [(lane, None)])
        self.children_are_sent(False, False, False)
        self.some_run(4, "done", [])

    @rule(swept=st.booleans(), dies=st.booleans(), twice=st.booleans())
    def children_are_sent(self, swept: bool, dies: bool, twice: bool) -> None:
        """By the supervisor at once, or by a pump after a while; whoever does it may die before it has cleared them."""
        before_ms = self.settled_instant()
        if not self.children:
            return
        sent = [child for _, child in self.children.values()]
        if swept:
            sent, _ = self.do(self.bus.sweep_out("f"))
            after_ms = self.now_ms()
            for since_ms, child in self.children.values():
                # Of a clock that went back nothing is known: at once.
                old, older = (not 0 <= at_ms - since_ms < UNSENT_MS for at_ms in (before_ms, after_ms))
                assert old != older or (child in sent) == old, f"{child.mint.id} was swept too early, or is left"
        before_ms = self.now_ms()
        for _ in range(1 + twice):
            gone = self.do(self.bus.mint_children("f", [child.mint for child in sent]))
            assert gone == [child.mint.id for child in sent]
        books, answered_ms = open_books(self.server, "f"), self.now_ms()
        for child in sent:
            self.mint_one(child.mint, before_ms, answered_ms, books)
        if not dies:
            self.do(self.bus.clear_out("f", gone))
            for id in gone:
                del self.children[id]

    # ---- what a run leaves ----------------------------------------------------------------------------------------

    @rule(which=st.integers(0, 99), lines=st.integers(1, 2), twice=st.booleans())
    def write_log(self, which: int, lines: int, twice: bool) -> None:
        """Output may come at any time, after the settle too, and after the job is gone."""
        if not self.ids:
            return
        id = self.ids[which % len(self.ids)]
        self.sequence += 1
        arguments = {"id": id, "token": f"t{self.sequence}", "lines": pack([[1, "line"]] * lines)}
        kept = lines if id in self.model.jobs else 0
        assert self.do(self.bus.run("log", "f", **arguments)) == kept
        if twice:
            assert self.do(self.bus.run("log", "f", **arguments)) == 0
        self.logs[id] = self.logs.get(id, 0) + kept

    @rule(which=st.integers(0, 99), channel=st.sampled_from(["c", "d"]), twice=st.booleans())
    def listen(self, which: int, channel: str, twice: bool) -> None:
        if not self.ids:
            return
        id = self.ids[which % len(self.ids)]
        job = self.model.jobs.get(id)
        expected = b"unknown" if job is None else b"ended" if job.state in ENDED else b"listening"
        for _ in range(1 + twice):
            assert self.do(self.bus.run("listen", "f", id=id, channel=channel)) == expected
