"""Occurrences: callers of one turn of the loop share a call, and each due instant has one outcome whoever asks."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from echod.bus.answers import Occurred, Outcome
from echod.bus.core import Core
from echod.bus.rows import NEVER_MS, blob, lane_key, pack, utf8
from echod.model.ids import JobId
from echod.model.job import NO_LANE

CALL_OCCURRENCES = 64  # 3 to 4 ms of the server, in which it serves nobody else
_OUTCOMES: dict[int, Outcome] = {
    1: "minted",
    2: "already",
    3: "dropped",
    4: "stale",
    5: "unreadable",
    6: "older",
    7: "malformed",
}


def _sent(at_ms: int) -> int:
    """An instant that msgpack has room for. What lies past all counting the script refuses, by however much it does."""
    return min(max(at_ms, -NEVER_MS - 1), NEVER_MS + 1)


class _Batch:
    """Occurrences of one queue, in the order in which they were asked for."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self.answers: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()


class Occurring(Core):
    """occur."""

    def __init__(self, app: str, *, driven: bool) -> None:
        super().__init__(app, driven=driven)
        self._due: dict[str, _Batch] = {}
        self._settling: set[asyncio.Task[None]] = set()

    async def occur(
        self,
        queue: str,
        name: str,
        revision: int,
        due_ms: int,
        *,
        next_ms: int | None,
        job: JobId | None,
        lane: str = NO_LANE,
        drop: Literal["missed", "skipped"] | None = None,
        dropped: int = 0,
        at_ms: int | None = None,
        last_ms: int | None = None,
    ) -> Occurred:
        """Settle the due instant `due_ms`, once: mint `job` by the stored rule, or drop it (`dropped` dues in all, of
        which `last_ms` is the newest).

        `at_ms`: when the job itself is due, where the rule has a jitter. With a `job`, "dropped" is the rule's overlap.
        Raises BusError for all that shared the call; what had its outcome by then answers with it when asked again.
        """
        batch = self._due.get(queue)
        if batch is None:
            batch = self._due[queue] = _Batch()
            asyncio.get_running_loop().call_soon(self._flush_due, queue)
        place = len(batch.rows)
        key, original = lane_key(lane)
        batch.rows.append(
            [
                blob(utf8(name)),
                revision,
                _sent(due_ms),
                False if next_ms is None else _sent(next_ms),
                job or False,
                key,
                blob(utf8(original)) if original else False,
                drop or "missed",
                dropped or 1,
                _sent(due_ms if at_ms is None else at_ms),
                _sent(due_ms if last_ms is None else last_ms),
            ]
        )
        code, *rest = (await asyncio.shield(batch.answers))[place]
        id = JobId(rest[0].decode()) if rest and rest[0] else None
        if id:
            self.remember_place(id, queue)
        return Occurred(_OUTCOMES[code], id)

    def _flush_due(self, queue: str) -> None:
        task = asyncio.create_task(self._settle_due(queue, self._due.pop(queue)))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _settle_due(self, queue: str, batch: _Batch) -> None:
        """One bounded call after another: between two of them the server serves others."""
        answers: list[Any] = []
        try:
            while len(answers) < len(batch.rows):  # large payloads fill a call with fewer, but for one
                rows = pack(batch.rows[len(answers) : len(answers) + CALL_OCCURRENCES])
                answers += await self.run("occur", queue, occurrences=rows)
        except Exception as error:
            batch.answers.set_exception(error)
            batch.answers.exception()  # the callers raise it
        else:
            batch.answers.set_result(answers)
