"""What the recurrence machine knows of each recurrence that stands, and its judgement of every instant that came.

A recurrence is a chain of instants: each follows from the one before by the rule that stood then, and each that is
behind has exactly one outcome. `look` reads the rows and explains what moved since it looked last: by the rule, by a
switch to another version, or not at all. What an operator does the rules write down beforehand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from audit import Books, Row, audit
from echod.bus.answers import RecurrenceRow
from echod.policy.recurring import rule_of, stored, text_of, zone_of
from echod.registry.schedules import GONE
from echofn.manifest import Recurring

if TYPE_CHECKING:
    from echod.bus import Bus
    from server import Server

T = TypeVar("T")
QUEUE, OWN = "shop.tick", "own"  # and what is registered at run time
OPEN = frozenset({"pending", "scheduled", "active"})


class Stood(msgspec.Struct):
    """A recurrence from its beginning until it is forgotten."""

    trigger: Recurring
    revision: int
    next_ms: int
    is_own: bool = False
    last_ms: int | None = None  # the newest instant that is behind
    behind: int = 0  # how many are
    made: dict[int, str] = {}  # the jobs that they became, by instant
    slept: int = 0  # how many of those behind fell into pauses
    paused: bool = False
    spoiled: bool = False
    gone_ms: int | None = None


def origin(row: Row) -> tuple[str, int] | None:
    """Recurrence and instant of a job that no hand has made."""
    if b"oc" not in row:
        return None
    name, due_ms, manual = msgspec.msgpack.decode(row[b"oc"])
    return None if manual else (name if isinstance(name, str) else name.decode(), int(due_ms))


def goes_on(stood: Stood, trigger: Recurring, since_ms: int) -> int:
    """When a rule is due that was changed, or comes back, at `since_ms`: from the last due on, where there was one.

    One that was gone begins anew, without an instant twice, unless one had come by then that has no outcome yet.
    """
    rule = rule_of(trigger)
    waits = stood.next_ms <= (since_ms if stood.gone_ms is None else stood.gone_ms)
    if stood.last_ms is None:
        return rule.next_after(stood.next_ms - 1 if waits else since_ms)
    return rule.next_after(stood.last_ms if waits or stood.gone_ms is None else max(stood.last_ms, since_ms))


class Judgement:
    """Of one queue's recurrences."""

    server: Server
    bus: Bus  # of the machine itself, and of no pump
    version: dict[str, Recurring] | None  # what the active version's code has; None: not even the function
    registered: Recurring | None
    stood: dict[str, Stood]
    known: set[str]  # every job that was seen
    books: Books

    if TYPE_CHECKING:

        def do(self, work: Coroutine[Any, Any, T]) -> T: ...

    def rows(self) -> dict[str, RecurrenceRow]:
        return {row.name: row for row in self.do(self.bus.recurrences(QUEUE, gone=True))}

    def look(self, *, resumed: str | None = None, registered_ms: tuple[int, ...] = ()) -> None:
        """Explain all that moved; `registered_ms`: between which instants the one of run time was written."""
        before, self.books = self.books, audit(self.server, QUEUE)
        fresh: dict[str, dict[int, str]] = defaultdict(dict)
        for id, row in sorted(self.books.rows.items()):
            if (made_for := origin(row)) is not None and id not in self.known:
                name, due_ms = made_for
                assert due_ms not in fresh[name], f"two jobs for {made_for}"
                fresh[name][due_ms] = id
        self.known |= self.books.rows.keys()
        rows = self.rows()
        active, _ = self.do(self.bus.active())
        assert active is not None
        assert active.since_ms is not None
        for name in sorted({*rows, *self.stood}):
            self._explain(name, rows.get(name), registered_ms if name == OWN else (active.since_ms,))
            stood = self.stood.get(name)
            assert stood or not fresh[name], f"{name} stands no more, and has made {fresh[name]}"
            if stood is not None:
                came = self._count(name, stood, rows[name], fresh[name])
                stood.slept += came if name == resumed else 0
        outlasted = [id for id in self.unended(before, "skip") if id in self.books.rows]
        if any(self.books.state_of(id) in OPEN for id in outlasted):
            assert not fresh["skip"], "a job beside one that has not ended"
        assert "allow" not in rows or rows["allow"].skipped == self.stood["allow"].slept

    def _explain(self, name: str, row: RecurrenceRow | None, since_ms: tuple[int, ...]) -> None:
        """What a switch, or who registered it, may have made of it."""
        stood = self.stood.get(name)
        wanted = self.registered if name == OWN else (self.version or {}).get(name)
        if row is None:
            assert stood is not None
            assert stood.gone_ms is not None, f"{name} was forgotten as it stood"
            del self.stood[name]
        elif stood is None:
            assert wanted is not None, f"{name} came of nothing"
            assert row.policy == stored(wanted)
            assert row.due_ms is not None
            assert row.due_ms in [rule_of(wanted).next_after(each) for each in since_ms], f"{name} begins at another"
            self.stood[name] = Stood(wanted, row.revision, row.due_ms, name == OWN)
        elif row.revision != stood.revision:
            assert wanted is not None, f"{name} was written by nobody"
            assert row.policy == stored(wanted)
            is_same = (text_of(wanted), zone_of(wanted)) == (text_of(stood.trigger), zone_of(stood.trigger))
            if not is_same or stood.gone_ms is not None:
                assert row.due_ms in [goes_on(stood, wanted, each) for each in since_ms], f"{name} does not go on"
                stood.next_ms = row.due_ms or 0
            stood.trigger, stood.revision, stood.spoiled, stood.gone_ms = wanted, row.revision, False, None
        elif row.gone_ms is not None and stood.gone_ms is None:
            assert wanted is None
            assert not stood.is_own, f"{name} is of no version, and went with one"
            assert [row.gone_ms] == list(since_ms)
            stood.gone_ms = row.gone_ms

    def _count(self, name: str, stood: Stood, row: RecurrenceRow, fresh: dict[int, str]) -> int:
        """Each instant from the next to the row's has exactly one outcome; how many they are."""
        rule, came = rule_of(stood.trigger), list[int]()
        assert row.due_ms is not None
        while stood.next_ms < row.due_ms:
            came.append(stood.next_ms)
            stood.next_ms = rule.next_after(stood.next_ms)
        assert stood.next_ms == row.due_ms, f"{name} is due at an instant that does not follow"
        stood.last_ms = came[-1] if came else stood.last_ms
        assert not (came and stood.paused), f"{name} went on although it is paused"
        assert not (came and stood.spoiled), f"{name} went on although it cannot be read"
        assert fresh.keys() <= set(came), f"{name} has jobs for instants that were not due: {fresh}"
        stood.behind += len(came)
        stood.made |= fresh
        assert len(stood.made) + row.missed + row.skipped == stood.behind, f"{name}: an instant without outcome, or two"
        assert (row.last_ms, row.paused, row.is_own) == (stood.last_ms, stood.paused, stood.is_own)
        assert row.error == "" or stood.spoiled or row.error == GONE, f"{name}: {row.error}"
        return len(came)

    def unended(self, books: Books, name: str) -> list[str]:
        """Its jobs that have not ended, but for those by hand, and for what was before it was forgotten."""
        made = self.stood[name].made.values() if name in self.stood else ()
        return [id for id in made if id in books.rows and books.state_of(id) in OPEN]
