"""GET /functions/{name}/logs: what a function's jobs wrote, newest runs, filtered; live as server-sent events.

Lines of all jobs have one order, by the server's time in their streams, and a stream of them is resumed at a place in
that order. Looking is bounded: in jobs (the thousand that wrote last), in lines and in bytes; an answer says when there
was more.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator
from itertools import islice

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from echod.bus.answers import Entry, Writer
from echod.errors import BusError
from echod.gateway.desk import Desk, answer, shortened
from echod.gateway.guard import withdrawn
from echod.gateway.problems import Problem
from echod.gateway.query import LONGEST_TEXT, age_ms, number, one_of, text
from echod.gateway.sse import MEDIA_TYPE, PING_S, Event, pausing, streamed
from echod.gateway.views import View, log_view
from echod.model.ids import JobId

MOST_LINES = 1000
_MOST_LOOKED, _MOST_BYTES = 50_000, 8 * 1024 * 1024  # of lines looked at; of text in one answer
_TRIP_JOBS, _TRIP_LINES = 8, 200
_LAST = 2**64 - 1  # the last entry of a millisecond
_FOLLOW_S = (0.2, 1.0)  # shortest and longest pause between two looks
_PLACE = re.compile(r"(\d{1,15})-(\d{1,10})\.(JOB[0-9A-Za-z]{11})", re.ASCII)
Place = tuple[int, int, str]
Newest = tuple[list["Entry"], bool, int]


class Wanted(msgspec.Struct, frozen=True):
    """Which lines: at most `since_ms` old, of jobs of which a run failed, with `grep` in them; `limit` of them."""

    since_ms: int | None
    failed: bool
    grep: str
    limit: int

    def fits(self, entry: Entry) -> bool:
        return self.grep in entry.line.text


async def logs(desk: Desk, request: Request) -> Response:
    """GET /functions/{name}/logs?since=1h&failed=1&grep=text&limit=200."""
    name = await desk.known(request.path_params["name"])
    wanted = _wanted(request)
    if MEDIA_TYPE in request.headers.get("accept", ""):
        place = _place(request.headers.get("last-event-id", ""))
        if place is not None:
            wanted = msgspec.structs.replace(wanted, limit=MOST_LINES)
        first = await _newest(desk, name, wanted)  # before the answer begins: a bus that is away is said by its status
        events = _followed(desk, name, wanted, place, first)
        return streamed(request, events, lambda: withdrawn(request, desk.keyring, "read"))
    lines, truncated, _ = await _newest(desk, name, wanted)
    return answer({"lines": [_view(entry) for entry in lines], "truncated": truncated})


def _wanted(request: Request) -> Wanted:
    return Wanted(
        age_ms(request, "since"),
        one_of(request, "failed", ("0", "1")) == "1",
        text(request, "grep", LONGEST_TEXT),
        number(request, "limit", 200, 1, MOST_LINES),
    )


def _place(text: str) -> Place | None:
    """Where a stream was left, out of its Last-Event-ID."""
    if not text:
        return None
    found = _PLACE.fullmatch(text)
    if found is None:
        raise Problem("bad-header", f"Last-Event-ID: expected an id of this log, got {shortened(text, 40)!r}")
    return int(found[1]), int(found[2]), found[3]


async def _newest(desk: Desk, name: str, wanted: Wanted) -> Newest:
    """The newest lines, oldest first; whether some were left out; and the server's time up to which they are complete.

    Jobs are looked at from who wrote last on, until none can have a line that is newer than those found.
    """
    now_ms, writers = await desk.bus.writers(name)
    since_ms = 0 if wanted.since_ms is None else max(0, now_ms - wanted.since_ms)
    waiting = iter([each for each in writers if each.at_ms >= since_ms and (each.failed or not wanted.failed)])
    found: list[Entry] = []
    looked, is_more = 0, False
    while some := list(islice(waiting, _TRIP_JOBS)):
        if len(found) == wanted.limit and found[0].place[0] > some[0].at_ms:
            break
        if looked > _MOST_LOOKED:
            is_more = True
            break
        async for page in _pages(desk, name, some, since_ms):
            looked += len(page)
            found += [entry for entry in page if entry.place[0] < now_ms and wanted.fits(entry)]
        found.sort(key=lambda entry: entry.place)
        is_more |= len(found) > wanted.limit
        del found[: -wanted.limit]
    kept = list(_bounded(found))
    return kept, is_more or len(kept) < len(found), now_ms


async def _pages(desk: Desk, name: str, writers: list[Writer], since_ms: int) -> AsyncGenerator[list[Entry]]:
    """All lines of some jobs since then, a page at a time: the first of each in one trip."""
    jobs = [writer.id for writer in writers]
    firsts = await desk.bus.newest_lines(name, jobs, since_ms=since_ms, count=_TRIP_LINES)
    for job, page in zip(jobs, firsts, strict=True):
        yield page
        while len(page) == _TRIP_LINES:
            [page] = await desk.bus.newest_lines(name, [job], since_ms=since_ms, count=_TRIP_LINES, before=page[-1].id)
            yield page


def _bounded(entries: list[Entry]) -> Iterator[Entry]:
    """The newest of them whose text fits an answer, oldest first."""
    size, start = 0, len(entries)
    while start and (size := size + len(entries[start - 1].line.text)) <= _MOST_BYTES:
        start -= 1
    return iter(entries[start:])


class _Reader:
    """What is added from an instant on. The log of a job that may yet fail is remembered from its first line on."""

    def __init__(self, desk: Desk, name: str, wanted: Wanted, from_ms: int) -> None:
        self._bus, self._name, self._wanted = desk.bus, name, wanted
        self._from_ms = from_ms  # everything before this instant of the server was told
        self._undecided: dict[JobId, str] = {}  # where the logs of jobs that run were left

    async def turn(self) -> list[Entry]:
        """The lines that came since the last turn, in order. Raises BusError, and changes nothing then."""
        now_ms, writers = await self._bus.writers(self._name, since_ms=self._from_ms)
        wrote = {writer.id for writer in writers}
        writers += await self._bus.writers_of(self._name, [job for job in self._undecided if job not in wrote])
        ready = [writer.id for writer in writers if writer.failed or not self._wanted.failed]
        after = {writer.id: self._undecided.get(writer.id, f"{self._from_ms - 1}-{_LAST}") for writer in writers}
        found: list[Entry] = []
        for start in range(0, len(ready), _TRIP_JOBS):
            some = ready[start : start + _TRIP_JOBS]
            while some:
                lasts = [after[job] for job in some]
                pages = await self._bus.lines_after(self._name, some, lasts, before_ms=now_ms, count=_TRIP_LINES)
                for page in filter(None, pages):
                    after[page[-1].job] = page[-1].id
                    found += [entry for entry in page if self._wanted.fits(entry)]
                some = [job for job, page in zip(some, pages, strict=True) if len(page) == _TRIP_LINES]
        waiting = {writer.id for writer in writers if not (writer.failed or writer.ended)}
        self._undecided = {job: after[job] for job in waiting} if self._wanted.failed else {}
        self._from_ms = now_ms
        return sorted(found, key=lambda entry: entry.place)


async def _followed(
    desk: Desk, name: str, wanted: Wanted, place: Place | None, first: Newest
) -> AsyncGenerator[Event | None, None]:
    """The newest lines, or those after `place`; then what is added, for as long as somebody reads."""
    loop = asyncio.get_running_loop()
    lines, is_more, now_ms = first
    if place is not None:
        missed = bool(lines) and is_more and lines[0].place > place
        lines = [entry for entry in lines if entry.place > place]
        if missed:
            yield Event("truncated", {"from": f"{lines[0].id}.{lines[0].job}"})
    reader = _Reader(desk, name, wanted, now_ms)
    pause, spoke = _FOLLOW_S[0], loop.time()
    while not desk.closing.is_set():
        for entry in lines:
            yield Event("log", _view(entry), id=f"{entry.id}.{entry.job}")
        pause = _FOLLOW_S[0] if lines else min(pause * 1.5, _FOLLOW_S[1])
        if lines:
            spoke = loop.time()
        elif loop.time() - spoke >= PING_S:
            spoke = loop.time()
            yield None
        await pausing(desk.closing, pause)
        try:
            lines = await reader.turn()
        except BusError:  # away: the stream stays, and goes on where it was
            lines = []


def _view(entry: Entry) -> View:
    return {**log_view(entry.id, entry.line), "job": entry.job}
