"""What an operator does to many jobs at once: pick them by what they are, then drain, move, purge or redrive those ids.

Picking only looks, so it goes on at its cursor; each of the others is given ids and compares what it finds: what was
claimed in between is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from echod.bus.core import Core
from echod.bus.keys import escape
from echod.bus.rows import STATE_LETTERS, ids_of, lane_key, own_word, pack, utf8
from echod.bus.wire import Argument
from echod.model.ids import JobId
from echod.model.job import State

STEP = 250  # jobs that a call picks or changes: a few milliseconds of the server
SCAN = 2000  # entries that a call looks at


class Filter(msgspec.Struct, frozen=True):
    """Which jobs are meant. `states` lie in one place where they can: ended ones, or a lane's pending ones.

    Without states, in a list, in any.
    """

    states: tuple[State, ...] = ()
    lane: str | None = None
    cause: str = ""  # of the error; `wall` means every `wall:…`
    match: str = ""  # text in the error: its type, message or traceback, in any case
    older_ms: int | None = None  # ended, or waiting, for at least so long
    newer_ms: int | None = None  # … for at most so long


class Picked(msgspec.Struct, frozen=True):
    """Some ids that are meant, and where to go on: '' at the end. A stretch without any can have a cursor still."""

    now_ms: int
    upto: str  # what came after the sweep's first call is not of it
    ids: tuple[JobId, ...]
    cursor: str


class Redriven(msgspec.Struct, frozen=True):
    """`refused`: a job whose unique key another one owns by now, with that owner; it stays in the morgue."""

    ids: tuple[JobId, ...]
    refused: tuple[tuple[JobId, JobId], ...] = ()


def filter_arguments(wanted: Filter) -> dict[str, Argument]:
    """A filter as pick.lua and jobs.lua read it."""
    return {
        "states": "".join(STATE_LETTERS[state] for state in wanted.states),
        "lane": "" if wanted.lane is None else escape(wanted.lane),
        "cause": utf8(wanted.cause),
        "match": utf8(wanted.match),
        "older_ms": "" if wanted.older_ms is None else wanted.older_ms,
        "newer_ms": "" if wanted.newer_ms is None else wanted.newer_ms,
    }


class Bulk(Core):
    """pick, drain, move, purge, redrive."""

    async def pick(self, queue: str, wanted: Filter, *, upto: str = "", cursor: str = "", limit: int = STEP) -> Picked:
        """Up to `limit` ids by a filter. `upto` and `cursor`: as the call before answered them."""
        now_ms, bound, ids, after = await self.run(
            "pick",
            queue,
            **filter_arguments(wanted),
            upto=upto,
            cursor=cursor,
            limit=limit,
            scan=SCAN,
        )
        return Picked(now_ms, bound.decode(), ids_of(ids), after.decode())

    async def drain(self, queue: str, ids: Sequence[str]) -> tuple[JobId, ...]:
        """Cancel those that wait, in a lane or the schedule; the others are left as they are."""
        return ids_of(await self.run("drain", queue, ids=pack(list(ids)), call=own_word()))

    async def move(self, queue: str, ids: Sequence[str], lane: str) -> tuple[JobId, ...]:
        """Give those that wait another lane; answers which are of that lane now."""
        key, written = lane_key(lane)
        reply = await self.run("move", queue, lane=key, lane_name=utf8(written), ids=pack(list(ids)), call=own_word())
        return ids_of(reply)

    async def purge(self, queue: str, ids: Sequence[str], states: Sequence[State]) -> tuple[JobId, ...]:
        """Delete those that lie ended in one of these states, logs too; answers which are gone."""
        letters = "".join(STATE_LETTERS[state] for state in states)
        return ids_of(await self.run("purge", queue, states=letters, ids=pack(list(ids))))

    async def redrive(self, queue: str, ids: Sequence[str], *, due_ms: Sequence[int] = ()) -> Redriven:
        """Dead jobs run again: now, or each from its instant of `due_ms` on."""
        jobs = list(zip(ids, due_ms or [0] * len(ids), strict=True))
        redriven, refused = await self.run("redrive", queue, jobs=pack(jobs), call=own_word())
        return Redriven(ids_of(redriven), tuple((JobId(a.decode()), JobId(b.decode())) for a, b in refused))
