"""Logs: what jobs wrote, by job and by function.

A line's place is its stream's entry, whose time is the server's: lines of many jobs have one order by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from echod.bus.answers import Entry, LogLine, Writer
from echod.bus.core import Core
from echod.bus.rows import blob, own_word, pack
from echod.model.ids import JobId

_line = msgspec.msgpack.Decoder(LogLine).decode


class Logs(Core):
    """log, and the questions about what was logged."""

    async def log(self, queue: str, id: str, lines: Sequence[LogLine], *, call: str | None = None) -> int:
        """Append to a job's log, the first MiB of each run; how many lines were kept. One caller a job.

        `call`: the caller's own word for these lines; sent again under it after a BusAway they are there once.
        """
        packed = pack([[line.attempt, blob(pack(line))] for line in lines])
        return int(await self.run("log", queue, id=id, token=call or own_word(), lines=packed))

    async def logs(self, queue: str, id: str, *, after: str = "", limit: int = 1000) -> list[tuple[str, LogLine]]:
        """Lines after the entry `after`, oldest first, at most `limit`."""
        key = f"{self.base(queue)}log:{id}"
        entries = await self.link.command("XRANGE", key, f"({after}" if after else "-", "+", "COUNT", limit)
        return [(entry_id.decode(), _line(fields[1])) for entry_id, fields in entries]

    async def writers(self, queue: str, *, since_ms: int = 0, limit: int = 1000) -> tuple[int, list[Writer]]:
        """The server's time, and the jobs that wrote since, who wrote last first.

        Whatever is written later has that time or a later one.
        """
        base = self.base(queue)
        time, flat = await self.link.commands(
            [
                ("TIME",),
                ("ZRANGE", f"{base}logged", "+inf", since_ms, "BYSCORE", "REV", "LIMIT", 0, limit, "WITHSCORES"),
            ]
        )
        wrote = {JobId(id.decode()): int(float(at)) for id, at in zip(flat[::2], flat[1::2], strict=True)}
        return int(time[0]) * 1000 + int(time[1]) // 1000, await self._stand(queue, wrote)

    async def writers_of(self, queue: str, jobs: Sequence[JobId]) -> list[Writer]:
        """These jobs as they stand now, without those that are gone."""
        return await self._stand(queue, dict.fromkeys(jobs, 0))

    async def _stand(self, queue: str, wrote: dict[JobId, int]) -> list[Writer]:
        base = self.base(queue)
        rows = await self.link.commands([("HMGET", f"{base}job:{id}", "m", "s", "f") for id in wrote])
        return [
            Writer(id, at_ms, state == b"x" or int(failures or 0) > 0, state in (b"d", b"x", b"c"))
            for (id, at_ms), (minted, state, failures) in zip(wrote.items(), rows, strict=True)
            if minted
        ]

    async def newest_lines(
        self, queue: str, jobs: Sequence[JobId], *, since_ms: int, count: int, before: str = ""
    ) -> list[list[Entry]]:
        """Of each job up to `count` lines since then (and before an entry), newest first; in one trip."""
        end = f"({before}" if before else "+"
        return await self._read(queue, jobs, [("XREVRANGE", end, since_ms, count)] * len(jobs))

    async def lines_after(
        self, queue: str, jobs: Sequence[JobId], after: Sequence[str], *, before_ms: int, count: int
    ) -> list[list[Entry]]:
        """Of each job up to `count` lines after its entry and before that time, oldest first; in one trip."""
        return await self._read(queue, jobs, [("XRANGE", f"({each}", before_ms - 1, count) for each in after])

    async def _read(
        self, queue: str, jobs: Sequence[JobId], ranges: Sequence[tuple[str, str, str | int, int]]
    ) -> list[list[Entry]]:
        key = f"{self.base(queue)}log:"
        found: list[list[tuple[bytes, list[Any]]]] = await self.link.commands(
            [
                (verb, key + job, start, end, "COUNT", count)
                for job, (verb, start, end, count) in zip(jobs, ranges, strict=True)
            ]
        )
        return [
            [Entry(job, entry.decode(), _line(fields[1])) for entry, fields in entries]
            for job, entries in zip(jobs, found, strict=True)
        ]
