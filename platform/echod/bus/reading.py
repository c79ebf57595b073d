"""Looking: jobs, lists, counts, metrics, the server. Nothing here writes."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec

from echod.bus.answers import LaneRow, Limits, Metrics, MinutePoint, QueueStats
from echod.bus.bulk import SCAN, Filter, filter_arguments
from echod.bus.core import Core
from echod.bus.rows import job
from echod.errors import BusAway, BusError, BusUnfit
from echod.model.job import Job

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
MINUTES_KEPT_MS = 2 * HOUR_MS
SERIES_MINUTES = 60
COUNTS_REMEMBERED = 100_000  # of all queues: a day and a half of fifty that are looked at each minute
_BRIEF = tuple(b"l ln s r d m w a f st e oc pa v z er x pg bh".split())  # as jobs.lua answers them
_COUNTERS = frozenset(
    ("minted", "done", "failed", "retried", "dead", "cancelled", "timeouts", "lost", "missed", "skipped", "refused")
)
_limits = msgspec.msgpack.Decoder(Limits)
_NONE = msgspec.msgpack.encode({})
_QUEUE_SET = {"c": "concurrency", "r": "rate", "lc": "lane_concurrency", "lr": "lane_rate", "w": "lane_weight"}
_LANE_SET = {ord("w"): "weight", ord("p"): "paused", ord("c"): "concurrency", ord("r"): "rate"}
_paths = msgspec.msgpack.Decoder(tuple[str, ...])
_HISTOGRAMS = {"D": "duration", "W": "wait", "L": "late"}
Counts = dict[str, int]
ANY = Filter()


class Reading(Core):
    """job, jobs, stats, metrics, server."""

    def __init__(self, app: str, *, driven: bool) -> None:
        super().__init__(app, driven=driven)
        self._past: dict[str, Counts] = {}  # minutes and hours that are over, whose counts no longer change

    async def job(self, id: str, *, queue: str | None = None) -> Job | None:
        """A job's record; without `queue`, asked of all queues in one trip."""
        known = queue or self.place_of(id)
        queues = [known] if known else await self.queues()
        found = await self.link.commands([("HGETALL", f"{self.base(each)}job:{id}") for each in queues])
        for each, flat in zip(queues, found, strict=True):
            if flat:
                self.remember_place(id, each)
                return job(id, dict(zip(flat[::2], flat[1::2], strict=True)), each)
        return None if queue or not known else await self._search(id, known)

    async def redacted(self, queue: str) -> tuple[str, ...]:
        """What the last version that had this function hid of its payloads."""
        [packed] = await self.link.commands([("HGET", f"{self.base(queue)}meta", "redact")])
        return _paths.decode(packed) if packed else ()

    async def _search(self, id: str, but: str) -> Job | None:
        for each in await self.queues():
            if each != but and (found := await self.job(id, queue=each)):
                return found
        return None

    async def jobs(
        self, queue: str, wanted: Filter = ANY, *, limit: int = 50, cursor: str | None = None
    ) -> tuple[list[Job], str | None]:
        """Records without payload and result, newest first, and where to go on (None: that was all).

        A call looks at a bounded stretch, so a page may be short although there is more: go on while there is a cursor.
        """
        found, after = await self.run(
            "jobs", queue, **filter_arguments(wanted), before=cursor or "", limit=limit, scan=SCAN
        )
        jobs = [
            job(id.decode(), {name: value for name, value in zip(_BRIEF, row, strict=True) if value is not None}, queue)
            for id, row in found
        ]
        return jobs, after.decode() or None

    async def stats(self, queues: Sequence[str]) -> dict[str, QueueStats]:
        """Counts by state, per queue, in one trip."""
        script = self.scripts["stats"]
        replies = await self.link.scripts([(script, (self.base(each), self.keys.everywhere), []) for each in queues])
        return {
            queue: QueueStats(
                pending, active, scheduled, dead, done, bool(paused), oldest, _limits.decode(limits or _NONE),
                _set_by(hand), text_of(capped), capped_ms,
            )
            for queue, (pending, active, scheduled, dead, done, paused, oldest, limits, hand, capped, capped_ms)
            in zip(queues, replies, strict=True)
        }  # fmt: skip

    async def metrics(self, queue: str, window_ms: int) -> Metrics:
        """Counters and histograms of the last `window_ms`: by minutes up to two hours, by hours beyond."""
        now_ms = self.clock.now_ms()
        minute = now_ms // MINUTE_MS
        series = [f"m:{minute - back}" for back in range(SERIES_MINUTES - 1, -1, -1)]
        if window_ms <= MINUTES_KEPT_MS:
            window = [f"m:{minute - back}" for back in range(max(-(-window_ms // MINUTE_MS), 1))]
        else:
            window = [f"h:{now_ms // HOUR_MS - back}" for back in range(-(-window_ms // HOUR_MS))]
        counts = await self._counts(queue, {*series, *window}, now_ms)
        return _summed(
            window_ms, [counts[name] for name in window], tuple(_point(name, counts[name]) for name in series)
        )

    async def _counts(self, queue: str, names: set[str], now_ms: int) -> dict[str, Counts]:
        base = self.base(queue)
        past = {name: self._past[base + name] for name in names if base + name in self._past}
        missing = [name for name in names if name not in past]
        replies = await self.link.commands([("HGETALL", base + name) for name in missing])
        fresh = {
            name: {flat[index].decode(): int(flat[index + 1]) for index in range(0, len(flat), 2)}
            for name, flat in zip(missing, replies, strict=True)
        }
        if len(self._past) > COUNTS_REMEMBERED:
            self._past.clear()
        for name, found in fresh.items():
            if _is_over(name, now_ms):
                self._past[base + name] = found
        return past | fresh

    async def totals(self, queues: Sequence[str]) -> dict[str, Counts]:
        """Counters since each queue began; they only grow, and survive restarts."""
        replies = await self.link.commands([("HGETALL", f"{self.base(queue)}totals") for queue in queues])
        return {
            queue: {flat[index].decode(): int(flat[index + 1]) for index in range(0, len(flat), 2)}
            for queue, flat in zip(queues, replies, strict=True)
        }

    async def lanes(self, queue: str, *, limit: int = 200) -> list[LaneRow]:
        """Lanes with work, the next to be served first, then those that wait, then idle ones that an operator set.

        At most `limit` of each kind.
        """
        found = await self.run("lanes", queue, limit=limit)
        return [
            LaneRow(
                (written or key).decode("utf-8", "surrogatepass"), pending, weight, place.decode(), text_of(why),
                until_ms, active, concurrency, tuple(rate) if rate else None, started,
                tuple(_LANE_SET[each] for each in set_by),
            )
            for key, written, place, pending, weight, why, until_ms, active, concurrency, rate, started, set_by in found
        ]  # fmt: skip

    async def server(self) -> dict[str, object]:
        """What the /bus page and `echod doctor` tell: version, memory, persistence, eviction policy, clients."""
        info = await self.info()
        return {
            "server": info.get("server_name", "redis"),
            "version": info.get("valkey_version") or info.get("redis_version", ""),
            "tcp_port": int(info.get("tcp_port", 0)),  # 0: none, as the embedded server
            "uptime_s": int(info.get("uptime_in_seconds", 0)),
            "memory_bytes": int(info.get("used_memory", 0)),
            "memory_limit_bytes": int(info.get("maxmemory", 0)),
            "policy": info.get("maxmemory_policy", ""),
            "append_only": info.get("aof_enabled") == "1",
            "append_bytes": int(info.get("aof_current_size", 0)),
            "append_ok": info.get("aof_last_write_status", "ok") == "ok",
            "rewrite_ok": info.get("aof_last_bgrewrite_status", "ok") == "ok",
            "snapshot_ok": info.get("rdb_last_bgsave_status", "ok") == "ok",
            "role": info.get("role", ""),
            "replicas": int(info.get("connected_slaves", 0)),
            "clients": int(info.get("connected_clients", 0)),
            "commands": int(info.get("total_commands_processed", 0)),
        }

    async def info(self, *sections: str) -> dict[str, str]:
        """INFO, of these sections or of all."""
        raw: bytes = await self.link.command("INFO", *sections)
        return dict(line.split(":", 1) for line in raw.decode().splitlines() if ":" in line and line[0] != "#")

    async def settings(self, *names: str) -> dict[str, str]:
        """The server's settings of these names; none where it keeps them to itself, as some providers do."""
        try:
            flat: list[bytes] = await self.link.command("CONFIG", "GET", *names)
        except BusAway:
            raise
        except BusError:
            return {}
        return {flat[index].decode(): flat[index + 1].decode() for index in range(0, len(flat), 2)}

    async def check(self, queue: str, sample: int) -> tuple[int, list[tuple[str, str]]]:
        """How many jobs of a sample were looked at, and what is not in its one place: (what is wrong, which)."""
        looked, faults = await self.run("check", queue, sample=sample)
        return looked, [(what.decode(), which.decode(errors="replace")) for what, which in faults]

    async def loaded_scripts(self) -> tuple[int, int]:
        """How many of this version's verbs the server has, and how many there are; others are loaded when used."""
        there: frozenset[bytes] = frozenset()
        with contextlib.suppress(BusUnfit):  # an ACL
            there = await self.libraries()
        return sum(script.function in there for script in self.scripts.values()), len(self.scripts)


def _set_by(hand: bytes | None) -> tuple[str, ...]:
    """Which limits an operator set, lifted ones too."""
    return tuple(sorted(_QUEUE_SET[name] for name in msgspec.msgpack.decode(hand))) if hand else ()


def text_of(word: bytes | None) -> Any:
    """A word of a script's, of a closed set."""
    return word.decode() if word else None


def _is_over(name: str, now_ms: int) -> bool:
    """Whether that minute or hour ended long enough ago that no clock's difference counts into it."""
    unit_ms = MINUTE_MS if name[0] == "m" else HOUR_MS
    return (int(name[2:]) + 1) * unit_ms < now_ms - 5_000


def _point(name: str, counts: Counts) -> MinutePoint:
    return MinutePoint(
        int(name[2:]) * MINUTE_MS, counts.get("minted", 0), counts.get("done", 0), counts.get("failed", 0)
    )


def _summed(window_ms: int, parts: list[Counts], series: tuple[MinutePoint, ...]) -> Metrics:
    totals: Counts = {}
    histograms: dict[str, dict[int, int]] = {name: {} for name in _HISTOGRAMS.values()}
    for part in parts:
        for name, value in part.items():
            if name in _COUNTERS:
                totals[name] = totals.get(name, 0) + value
            elif name[0] in _HISTOGRAMS:
                buckets = histograms[_HISTOGRAMS[name[0]]]
                buckets[int(name[1:])] = buckets.get(int(name[1:]), 0) + value
    values: dict[str, Any] = {**totals, **histograms}
    return Metrics(window_ms=window_ms, series=series, **values)
