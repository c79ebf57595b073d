"""Time: the tick of a queue, and recurrences.

The bus decides when; these only carry the question.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Literal, cast

from echod.bus.answers import DueOccurrence, Filled, RecurrenceRow, TickAnswer
from echod.bus.clock import monotonic_ms
from echod.bus.core import Core
from echod.bus.keys import escape
from echod.bus.rows import lane_key, own_word, pack, utf8
from echod.bus.wire import Argument
from echod.model.ids import JobId
from echod.model.job import NO_LANE, Minted, Taken
from echofn.manifest import Overlap

FEW, MOST_READ = 8, 8 * 1024 * 1024  # rules, bytes of rules: in one trip
_FIELDS = ("rule", "tz", "trigger", "rev", "gen", "next", "last", "missed", "skipped", "paused", "err", "own", "gone")
TICK_LIMIT = 200
BACKFILL_LIMIT = 200
Written = Literal["same", "created", "changed", "older", "taken", "moved"]
Removed = Literal["removed", "absent", "older", "taken"]


def roll() -> float:
    """One throw for a tick's backoffs."""
    return random.random()


class Timing(Core):
    """tick, recur, unrecur, a recurrence's states, and what is minted of it by hand."""

    async def tick(self, queue: str, limit: int = TICK_LIMIT) -> TickAnswer:
        """One turn of a queue: promoted, recovered, its due recurrences, `limit` of each at most; its next event."""
        sent_ms = monotonic_ms()
        now_ms, due, next_in_ms, more, promoted, recovered, stepped = await self.run(
            "tick", queue, limit=limit, roll=roll(), expected_ms=self.steps.expected_ms()
        )
        self.steps.ticked(now_ms, sent_ms)
        self.clock.hear(now_ms, sent_ms)
        return TickAnswer(
            now_ms,
            tuple([await self.due_occurrence(entry) for entry in due]),
            next_in_ms,
            bool(more),
            promoted,
            recovered,
            stepped,
        )

    async def due_occurrence(self, entry: list[bytes]) -> DueOccurrence:
        queue, name, revision, due_ms = entry
        return DueOccurrence(
            await self.name_of(queue.decode()), name.decode("utf-8", "surrogatepass"), int(revision), int(due_ms)
        )

    async def recur(
        self,
        queue: str,
        name: str,
        *,
        rule: str,
        tz: str,
        trigger: bytes,
        payload: bytes,
        next_ms: int | None,
        generation: int | None,
        last_ms: int | None = None,
        lane: str = NO_LANE,
        priority: int = 0,
        overlap: Overlap = "allow",
    ) -> Written:
        """Write a recurrence. `next_ms` counts where the rule or its zone is new; else the due stands.

        It was computed from the last due `last_ms` (0: none yet, None: any): "moved" where that is another by now.
        `generation` None: registered at run time, nobody's code; its name must not be code's, nor the other way round.
        """
        key, original = lane_key(lane)
        reply = await self.run(
            "recur",
            queue,
            queue=utf8(queue),
            name=utf8(name),
            rule=utf8(rule),
            tz=utf8(tz),
            trigger=trigger,
            payload=payload,
            next_ms="" if next_ms is None else next_ms,
            last_ms="" if last_ms is None else last_ms,
            generation="" if generation is None else generation,
            lane=key,
            lane_name=utf8(original),
            priority=priority,
            overlap=overlap,
            call=own_word(),
        )
        return cast("Written", reply.decode())

    async def unrecur(self, queue: str, name: str, generation: int | None) -> Removed:
        """Remove a recurrence; what it minted stays. `generation` as in `recur`."""
        of = "" if generation is None else generation
        reply = await self.run("unrecur", queue, name=utf8(name), generation=of, call=own_word())
        return cast("Removed", reply.decode())

    async def park_recurrence(self, queue: str, name: str, revision: int, error: str) -> bool:
        """A rule that cannot compute its next: looked at again in a minute, its error on the page."""
        return await self._state(queue, name, "park", revision=revision, error=error) == "ok"

    async def pause_recurrence(self, queue: str, name: str) -> bool:
        return await self._state(queue, name, "pause") == "ok"

    async def resume_recurrence(
        self,
        queue: str,
        name: str,
        next_ms: int | None,
        *,
        skipped: int = 0,
        last_ms: int | None = None,
        revision: int = 0,
    ) -> Literal["ok", "unknown", "stale"]:
        """On from `next_ms`; `skipped` instants fell into the pause, of which `last_ms` is the newest. "stale": its
        rule is not of the `revision` (0: any) that these were computed by."""
        return await self._state(
            queue, name, "resume", next_ms=next_ms, skipped=skipped, last_ms=last_ms, revision=revision
        )

    async def _state(
        self,
        queue: str,
        name: str,
        action: str,
        *,
        revision: int = 0,
        error: str = "",
        next_ms: int | None = None,
        skipped: int = 0,
        last_ms: int | None = None,
    ) -> Literal["ok", "unknown", "stale"]:
        reply = await self.run(
            "recurrence",
            queue,
            name=utf8(name),
            action=action,
            revision=revision,
            error=utf8(error),
            next_ms="" if next_ms is None else next_ms,
            skipped=skipped,
            last_ms="" if last_ms is None else last_ms,
            call=own_word(),
        )
        return cast('Literal["ok", "unknown", "stale"]', reply.decode())

    async def run_now(self, queue: str, name: str, job: JobId, *, lane: str = NO_LANE) -> Minted | Taken | None:
        """Mint a recurrence's job by hand; its due does not move. Taken: another job has this id, ask with a fresh one.
        None: no such recurrence.
        """
        key, original = lane_key(lane)
        reply = await self.run("run_now", queue, name=utf8(name), id=job, lane=key, lane_name=utf8(original))
        if reply[0] != 1:
            return Taken(job) if reply[0] == 5 else None
        self.remember_place(job, queue)
        return Minted(job)

    async def backfill(
        self, queue: str, name: str, jobs: Sequence[tuple[int, JobId]], *, lane: str = NO_LANE
    ) -> list[Filled] | None:
        """Mint a job by hand for each due instant, once while its row is kept. None: no such recurrence."""
        key, original = lane_key(lane)
        filled, wanted = list[Filled](), list(jobs)
        while len(filled) < len(wanted):
            some = wanted[len(filled) : len(filled) + BACKFILL_LIMIT]
            # By the nulls these keys are apart from what is unique by a payload.
            instants = [[due_ms, id, escape(f"backfill\0{name}\0{due_ms}")] for due_ms, id in some]
            reply: list[bytes] = await self.run(
                "backfill", queue, name=utf8(name), lane=key, lane_name=utf8(original), instants=pack(instants)
            )
            if not reply:
                return None
            for (due_ms, id), raw in zip(some, reply, strict=False):  # a large payload fills a call with fewer
                if not raw:
                    wanted[len(filled)] = (due_ms, self.ids.job_id())
                    break
                owner = JobId(raw.decode())
                filled.append(Filled(due_ms, owner, owner == id))
                self.remember_place(owner, queue)
        return filled

    async def recurrences(
        self, queue: str | None = None, *, gone: bool = False, names: Sequence[str] | None = None
    ) -> list[RecurrenceRow]:
        """Stored recurrences, of one queue (or of its `names` only) or of all.

        With `gone` those too that the active version lacks.
        """
        if queue is not None and names is not None:
            wanted = [(queue, utf8(name)) for name in names]
        else:
            queues = await self.queues() if queue is None else [queue]
            members = await self.link.commands([("SMEMBERS", f"{self.base(each)}rules") for each in queues])
            wanted = [(each, name) for each, found in zip(queues, members, strict=True) for name in sorted(found)]
        rows = await self._rules([self.base(each).encode() + b"repeat:" + name for each, name in wanted])
        found = [_recurrence(each, name, row) for (each, name), row in zip(wanted, rows, strict=True) if row]
        return [row for row in found if gone or row.gone_ms is None]

    async def _rules(self, keys: list[bytes]) -> list[dict[str, bytes]]:
        """What the rows of recurrences have of the fields, some MB a trip: a rule holds a payload of up to 1 MiB, and
        the server answers a trip as a whole before it serves anybody else."""
        sizes: list[int] = [0] * len(keys)
        if len(keys) > FEW:
            sizes = await self.link.commands([("HSTRLEN", key, "trigger") for key in keys])
        rows, trip, read = list[dict[str, bytes]](), list[tuple[Argument, ...]](), 0
        for number, (key, size) in enumerate(zip(keys, sizes, strict=True), start=1):
            trip.append(("HMGET", key, *_FIELDS))
            read += size
            if read >= MOST_READ or number == len(keys):
                for values in await self.link.commands(trip):
                    pairs = zip(_FIELDS, values, strict=True)
                    rows.append({field: value for field, value in pairs if value is not None})
                trip, read = [], 0
        return rows


def _recurrence(queue: str, name: bytes, row: dict[str, bytes]) -> RecurrenceRow:
    def text(field: str) -> str:
        return row.get(field, b"").decode("utf-8", "surrogatepass")

    def number(field: str) -> int | None:
        """A field that is no number is as one that is not there: one bad row must not hide the others."""
        return int(row[field]) if row.get(field, b"").isdigit() else None

    values: dict[str, Any] = {
        "paused": "paused" in row,
        "missed": number("missed") or 0,
        "skipped": number("skipped") or 0,
    }
    return RecurrenceRow(
        queue=queue,
        name=name.decode("utf-8", "surrogatepass"),
        rule=text("rule"),
        tz=text("tz"),
        revision=number("rev") or 0,
        generation=number("gen") or 0,
        next_ms=None if values["paused"] or "err" in row else number("next"),
        last_ms=number("last"),
        due_ms=number("next"),
        policy=row.get("trigger", b""),
        error=text("err"),
        is_own="own" in row,
        gone_ms=number("gone"),
        **values,
    )
