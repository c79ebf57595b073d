"""What a server's state means for the jobs on it, in plain words: what a crash can lose, and what to mend.

`problem`: jobs can be lost, or are refused. `warning`: somebody should look. `advice`: it works, and could be better.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

Level = Literal["fine", "advice", "warning", "problem"]
NEARLY_FULL = 0.95  # of the limit: what is freed in between is filled again by the next mint
FILLS_UP = 0.8
LISTPACK_BYTES = 1024
SKEW_MS = 1000
DISK_FACTOR = 2  # a rewrite of the append-only file writes it a second time, beside the first


class Vitals(msgspec.Struct, frozen=True, kw_only=True):
    """A server as it says it is. None: it was not told (some providers forbid CONFIG)."""

    server: str = ""
    version: str = ""
    role: str = "master"
    uptime_s: int = 0
    replicas: int = 0
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    policy: str = ""
    append_only: bool = False
    append_fsync: str | None = None
    append_bytes: int = 0
    append_ok: bool = True
    rewrite_ok: bool = True
    snapshot_ok: bool = True
    snapshots: str | None = None  # the `save` setting
    listpack_bytes: int | None = None


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at. `do`: what to do about it, empty where it is fine."""

    topic: str
    level: Level
    text: str
    do: str = ""


def worst(findings: Iterable[Finding]) -> Level:
    """The gravest level among them."""
    found = {finding.level for finding in findings}
    order: tuple[Level, ...] = ("problem", "warning", "advice")
    for level in order:
        if level in found:
            return level
    return "fine"


def of_server(vitals: Vitals) -> list[Finding]:
    """Everything about the server itself."""
    return [_role(vitals), *_durability(vitals), *_memory(vitals), *_listpack(vitals)]


def ails(vitals: Vitals) -> list[str]:
    """The problems alone, a line each: what a node shows as long as they last."""
    found = [finding for finding in of_server(vitals) if finding.level == "problem" and finding.topic != "role"]
    return [f"{finding.text}; {finding.do}" for finding in found]


def _role(vitals: Vitals) -> Finding:
    if vitals.role not in ("", "master"):
        return Finding("role", "problem", "a replica: it takes no writes", "give the primary's address with --bus")
    if not vitals.replicas:
        return Finding("role", "fine", "primary, without a replica: when its machine is gone, so are its jobs")
    count = f"{vitals.replicas} replica{'s' if vitals.replicas > 1 else ''}"
    return Finding("role", "fine", f"primary, {count}: a failover loses what they had not received yet")


def _durability(vitals: Vitals) -> Iterator[Finding]:
    if not vitals.append_only:
        lost = "everything on it" if vitals.snapshots == "" else "everything since its last snapshot"
        text = f"no append-only file: a crash of the server loses {lost}; Echo-Durable: fsync is refused"
        yield Finding("durability", "warning", text, "CONFIG SET appendonly yes, and in its file")
    else:
        lost = {
            "always": "nothing that was acknowledged",
            "no": "what the kernel had not written, up to about 30 s when the machine goes down",
        }.get(vitals.append_fsync or "everysec", "nothing but on a slow disk; one of its machine up to about 2 s")
        how = vitals.append_fsync or "its fsync setting not told"
        yield Finding("durability", "fine", f"append-only file ({how}): a crash of the server loses {lost}")
        if vitals.append_fsync == "no":
            yield Finding("durability", "warning", "appendfsync is no", "CONFIG SET appendfsync everysec")
    if not vitals.append_ok:
        yield Finding("durability", "problem", "the last write to the append-only file failed", "look at its disk")
    if not vitals.rewrite_ok:
        text = "the last rewrite of the append-only file failed: the file only grows"
        yield Finding("durability", "warning", text, "look at its disk and memory, then BGREWRITEAOF")
    if not vitals.snapshot_ok:
        yield Finding("durability", "warning", "the last snapshot (BGSAVE) failed", "look at its disk and memory")


def _memory(vitals: Vitals) -> Iterator[Finding]:
    used, limit = vitals.memory_bytes, vitals.memory_limit_bytes
    if not limit:
        text = f"{_size(used)} used, no limit: the kernel ends a server that outgrows its machine"
        yield Finding("memory", "advice", text, "CONFIG SET maxmemory to what it may have")
    elif used >= limit * NEARLY_FULL:
        text = f"the bus is at its memory limit ({_size(used)} of {_size(limit)}): new jobs are refused, others go on"
        yield Finding("memory", "problem", text, "raise maxmemory, or drain what waits")
    else:
        level: Level = "warning" if used >= limit * FILLS_UP else "fine"
        text = f"{_size(used)} of {_size(limit)} used, {_size(limit - used)} left"
        yield Finding("memory", level, text, "raise maxmemory before jobs are refused" if level == "warning" else "")
    if vitals.policy not in ("", "noeviction"):
        text = f"maxmemory-policy is {vitals.policy}: a full server throws jobs away"
        yield Finding("eviction", "problem", text, "CONFIG SET maxmemory-policy noeviction, and in its file")
    elif vitals.policy:
        yield Finding("eviction", "fine", "noeviction: a full server refuses new jobs and throws none away")


def _listpack(vitals: Vitals) -> Iterator[Finding]:
    if vitals.listpack_bytes is not None and vitals.listpack_bytes < LISTPACK_BYTES:
        text = f"hash-max-listpack-value is {vitals.listpack_bytes}: jobs with larger payloads take twice the memory"
        yield Finding("rows", "advice", text, f"CONFIG SET hash-max-listpack-value {LISTPACK_BYTES}")


def of_disk(append_bytes: int, free_bytes: int) -> Finding:
    """Whether the append-only file can be rewritten where it lies."""
    text = f"append-only file {_size(append_bytes)}, {_size(free_bytes)} free beside it"
    if free_bytes < DISK_FACTOR * append_bytes:
        return Finding(
            "disk", "warning", text, "make room: a rewrite needs as much again, and a full disk stops all writes"
        )
    return Finding("disk", "fine", text)


def of_skew(ahead_ms: int) -> Finding:
    """`ahead_ms`: the server's clock minus this host's."""
    if abs(ahead_ms) < SKEW_MS:
        return Finding(
            "clock", "fine", f"the server's and this host's are {abs(ahead_ms)} ms apart; the server's decides"
        )
    which = "ahead of" if ahead_ms > 0 else "behind"
    text = f"the server's is {abs(ahead_ms) / 1000:.1f} s {which} this host's: schedules follow the server's"
    return Finding("clock", "warning", text, "set both by NTP")


def _size(count: int) -> str:
    value, units = float(count), ["bytes", "kB", "MB", "GB"]
    while value >= 1024 and len(units) > 1:
        value, _ = value / 1024, units.pop(0)
    return f"{value:.0f} {units[0]}" if units[0] == "bytes" or value >= 100 else f"{value:.1f} {units[0]}"
