"""Numbers, spans and instants as people read them.

`static/echod.js` spells `count`, `span`, `rate`, `share`, `until` and `ago` the same way; a browser test holds the two
together over one table.
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

NONE = "–"
STATES = {
    "pending": "Waiting",
    "scheduled": "Scheduled",
    "active": "Running",
    "done": "Done",
    "dead": "Failed for good",
    "cancelled": "Cancelled",
}
REASONS = {
    "delay": "asked to start later",
    "at": "asked to start at a set time",
    "retry": "waiting to be tried again",
    "snooze": "put off by its own code",
}
OUTCOMES = {
    "done": "Done",
    "retry": "Failed, retried",
    "dead": "Failed for good",
    "delay": "Snoozed",
    "release": "Handed back",
    "cancelled": "Cancelled",
    "lost": "Worker lost",
}


def count(number: float | None) -> str:
    """1,234 up to 9,999; then three digits and k, M, B."""
    if number is None:
        return NONE
    if number < 10_000:
        return f"{int(number):,}"
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            scaled = number / size
            digits = 0 if scaled >= 100 else 1
            return f"{floor_to(scaled, digits)}{unit}"
    raise AssertionError("unreachable: 10,000 is at least 1e3")


def floor_to(value: float, digits: int) -> str:
    """Cut, not rounded: 999,999 must not read 1000k."""
    scale = 10**digits
    return f"{int(value * scale) / scale:.{digits}f}"


def short_of(value: float) -> str:
    """One decimal, unless it is 0: what was counted in whole milliseconds is not shown finer."""
    return floor_to(value, 1).removesuffix(".0")


def span(ms: float | None) -> str:
    """A length of time: "4.2 ms", "420 ms", "4.2 s", "42 s", "4m 12s", "3h 20m", "2d 4h"."""
    if ms is None:
        return NONE
    if ms < 1:
        return "<1 ms"  # the bus counts whole milliseconds: 0 is no less true than 0.9
    if ms < 10:
        return f"{short_of(ms)} ms"
    if ms < 1000:
        return f"{int(ms)} ms"
    if ms < 10_000:
        return f"{short_of(ms / 1000)} s"
    seconds = int(ms // 1000)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60}m {seconds % 60}s"
    if seconds < 86_400:
        return f"{seconds // 3600}h {seconds % 3600 // 60}m"
    return f"{count(seconds // 86_400)}d {seconds % 86_400 // 3600}h"


def rate(per_second: float | None) -> str:
    """Per second from 1/s on, per minute below."""
    if per_second is None:
        return NONE
    if per_second >= 1:
        return f"{count(per_second) if per_second >= 10 else floor_to(per_second, 1)}/s"
    per_minute = per_second * 60
    if per_minute >= 10:
        return f"{int(per_minute + 0.001)}/min"
    if per_minute >= 0.1:
        return f"{floor_to(per_minute + 0.001, 1).removesuffix('.0')}/min"
    return "<0.1/min" if per_minute > 0 else "0/min"


def share(part: float, whole: float) -> str:
    """`part` of `whole` in per cent."""
    if whole <= 0:
        return NONE
    percent = part / whole * 100
    if percent == 0:
        return "0%"
    if percent < 0.1:
        return "<0.1%"
    return f"{floor_to(percent, 1)}%" if percent < 10 else f"{int(percent)}%"


def size(number: float | None) -> str:
    """Bytes, in steps of 1024, as the policy counts them."""
    if number is None:
        return NONE
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1024:
            return f"{int(number)} {unit}" if unit == "B" or number >= 10 else f"{floor_to(number, 1)} {unit}"
        number /= 1024
    return f"{floor_to(number, 1)} TB"


def until(ms: float) -> str:
    """How far ahead: "now", "in 12 s", "in 4m 12s"."""
    return "now" if ms <= 0 else f"in {span(max(1000, -(-ms // 1000) * 1000))}"


def ago(ms: float) -> str:
    """How long since, in one unit: "just now", "12 s ago", "3 h ago"."""
    seconds = int(ms // 1000)
    if seconds < 1:
        return "just now"
    for length, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{count(seconds // length)} {unit} ago"
    return f"{seconds} s ago"


def ms_of(instant: str | None) -> float | None:
    """RFC 3339 to milliseconds; None for None, empty and what is no instant."""
    if not instant:
        return None
    try:
        return datetime.fromisoformat(instant).timestamp() * 1000
    except ValueError:
        return None


def zone(name: str) -> tzinfo:
    """The zone, or UTC where this machine does not know it."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return UTC


def wall(instant: str | None, tz: str = "UTC") -> str:
    """ "Mon 7 Dec, 06:00:00" on the wall of a zone, with its short name."""
    ms = ms_of(instant)
    if ms is None:
        return NONE
    at = datetime.fromtimestamp(ms / 1000, zone(tz))
    return f"{at:%a} {at.day} {at:%b}, {at:%H:%M:%S} {at:%Z}"


def clock(instant: str | None) -> str:
    """Time of day in UTC with milliseconds, for log lines."""
    ms = ms_of(instant)
    return NONE if ms is None else f"{datetime.fromtimestamp(ms / 1000, UTC):%H:%M:%S}.{int(ms) % 1000:03d}"


def plural(number: int, one: str, many: str | None = None) -> str:
    """ "1 job", "2 jobs"."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


def cause(text: str | None) -> str:
    """A cause in a sentence's words."""
    if not text:
        return ""
    known = {
        "error": "the handler raised",
        "payload": "the payload did not fit the handler’s type",
        "timeout": "ran out of time and was killed",
        "memory": "ran out of memory",
        "lost": "its worker or node vanished",
        "protocol": "the worker answered out of turn",
    }
    if text in known:
        return known[text]
    kind, _, rest = text.partition(":")
    shapes = {
        "signal": "killed by signal {}",
        "exit": "the process exited with {}",
        "wall": "blocked by the sandbox: {}",
    }
    return shapes[kind].format(rest) if kind in shapes and rest else text
