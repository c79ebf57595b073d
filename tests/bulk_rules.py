"""The bus machine's rules for what an operator does to many jobs at once: picked from the bus, told by the model."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import rule

from audit import open_books
from echod.bus.bulk import Filter
from echod.bus.rows import STATE_LETTERS, lane_key, pack, utf8
from echod.model.ids import JobId
from echod.model.job import State

if TYPE_CHECKING:
    from echod.bus import Bus
    from model import Model
    from server import Server

T = TypeVar("T")
LANES = st.sampled_from(["-", "a", "b", "ü"])
ENDED: tuple[State, ...] = ("done", "dead", "cancelled")
CHILD_MS = 30_000


class BulkRules:
    """For a machine with one queue `f`."""

    server: Server
    bus: Bus
    model: Model
    sequence: int

    if TYPE_CHECKING:

        def do(self, work: Coroutine[Any, Any, T]) -> T: ...
        def twice(self, verb: str, twice: bool, **arguments: Any) -> Any: ...
        def now_ms(self) -> int: ...
        def born_ms(self, id: str) -> int: ...
        def judged_anew(self, before_ms: int) -> None: ...
        def revived(self, ids: list[JobId], now_ms: int, dues: list[int]) -> list[list[Any]]: ...
        def settled_instant(self) -> int: ...

    def picked(self, states: tuple[State, ...], lane: str | None, limit: int) -> list[JobId]:
        """All that the bus picks, some at a time; the model knows which they are."""
        found, upto, cursor = list[JobId](), "", ""
        while True:
            page = self.do(self.bus.pick("f", Filter(states, lane=lane), upto=upto, cursor=cursor, limit=limit))
            found += page.ids
            upto, cursor = page.upto, page.cursor
            if not cursor:
                break
        meant = {
            id for id, job in self.model.jobs.items() if job.state in states and (lane is None or job.lane == lane)
        }
        assert len(found) == len(set(found))
        assert set(found) == meant
        if states == ("pending",) and lane is not None:
            assert found == self.model.pending(lane)
        return found

    @rule(
        lane=st.one_of(st.none(), LANES),
        scheduled=st.booleans(),
        limit=st.sampled_from([1, 3, 100]),
        twice=st.booleans(),
    )
    def drain(self, lane: str | None, scheduled: bool, limit: int, twice: bool) -> None:
        ids = self.picked(("pending", "scheduled") if scheduled else ("pending",), lane, limit)
        self.sequence += 1
        before_ms = self.now_ms()
        reply = self.twice("drain", twice, call=f"t{self.sequence}", ids=pack(ids))
        assert [id.decode() for id in reply] == ids
        for id in ids:
            self.model.drain(id, before_ms)

    @rule(source=LANES, to=LANES, scheduled=st.booleans(), most=st.sampled_from([1, 100]), twice=st.booleans())
    def move(self, source: str, to: str, scheduled: bool, most: int, twice: bool) -> None:
        ids = self.picked(("pending", "scheduled") if scheduled else ("pending",), source, 100)[:most]
        key, written = lane_key(to)
        self.sequence += 1
        before_ms = self.now_ms()
        call = f"t{self.sequence}"
        reply = self.twice("move", twice, lane=key, lane_name=utf8(written), ids=pack(ids), call=call)
        assert [id.decode() for id in reply] == ids
        arrived = source != to and any(self.model.jobs[id].state == "pending" for id in ids)
        for id in ids:
            self.model.move(id, to, before_ms)
        if arrived and self.model.wait_ms:
            self.model.judge(to, before_ms)
        self.judged_anew(before_ms)

    @rule(
        states=st.lists(st.sampled_from(ENDED), min_size=1, unique=True),
        limit=st.sampled_from([1, 100]),
        twice=st.booleans(),
    )
    def purge(self, states: list[State], limit: int, twice: bool) -> None:
        self.settled_instant()
        ids = self.picked(tuple(states), None, limit)
        letters = "".join(STATE_LETTERS[state] for state in states)
        now_ms, ended = self.now_ms(), open_books(self.server, "f").ended_ms()
        # A child that young may be sent again by who does not know that it is there.
        young = {id for id in ids if self.model.jobs[id].parent and now_ms - ended[id] <= CHILD_MS}
        gone = [id for id in ids if id not in young]
        reply = self.twice("purge", twice, states=letters, ids=pack(ids))
        assert [id.decode() for id in reply] == gone
        for id in gone:
            self.model.purge(id)

    @rule(limit=st.sampled_from([1, 100]), apart_ms=st.sampled_from([0, 700]), twice=st.booleans())
    def redrive_all(self, limit: int, apart_ms: int, twice: bool) -> None:
        start_ms = self.settled_instant()
        ids = self.picked(("dead",), None, limit)
        self.sequence += 1
        # From well in the future on: which of them are due already is no question of milliseconds.
        dues = [start_ms + 400 + apart_ms * number if apart_ms else 0 for number in range(len(ids))]
        reply = self.twice(
            "redrive", twice, call=f"t{self.sequence}", jobs=pack([list(pair) for pair in zip(ids, dues, strict=True)])
        )
        assert reply == self.revived(ids, start_ms, dues)
