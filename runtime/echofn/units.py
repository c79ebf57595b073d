"""Durations, sizes and rates as people write them, as whole numbers.

Light on purpose: it imports next to nothing, so that `import echofn` stays cheap. What is refused is a ValueError that
says "expected …, got …".
"""

from __future__ import annotations

from echofn.quoting import quoted

TYPE_CHECKING = False  # as `typing` has it, without importing it
if TYPE_CHECKING:
    from datetime import timedelta

_DURATIONS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SIZES = {
    "b": 1,
    **dict.fromkeys(("kb", "kib"), 1024),
    **dict.fromkeys(("mb", "mib"), 1024**2),
    **dict.fromkeys(("gb", "gib"), 1024**3),
}
_MAX_DIGITS = 15
MAX_DURATION_MS = (
    36_525 * 86_400_000
)  # a century: longer is a slip of the keyboard, and instants must stay exact in a double
MAX_SIZE_BYTES = 1024**5

_DURATION_TEXT = 'a duration like "250ms", "30s", "5m", "2h", "1d", "1w", or seconds'  # in a header, on a command line
_DURATION = _DURATION_TEXT.replace("or seconds", "a timedelta, or seconds")
_SIZE = 'a size like "64MB", "512kB", "1GB", or a number of bytes'
_RATE = 'a rate like "100/s", "5/m", "10/h", "3/10s"'


def duration_ms(value: str | int | float | timedelta) -> int:
    """Milliseconds of a duration: "250ms" "30s" "5m" "2h" "1d" "1w", a timedelta, or a number of seconds.

    Never negative; whatever is above zero is at least 1. Raises ValueError.
    """
    if isinstance(value, str):
        scaled = _scaled(value, _DURATIONS, bare=1_000)
        if scaled is None:
            raise _unexpected(_DURATION_TEXT, value)
    elif isinstance(value, bool):
        raise _unexpected(_DURATION, value)
    elif isinstance(value, int):
        scaled = value * 1_000
    else:
        seconds = value if isinstance(value, float) else _seconds(value)
        if not -1e15 < seconds < 1e15:  # NaN fails this too
            raise _unexpected(_DURATION, value)
        scaled = round(seconds * 1_000) or (1 if seconds > 0 else 0)
    if not 0 <= scaled <= MAX_DURATION_MS:
        raise _unexpected("a duration from 0 to 100 years", value)
    return scaled


def size_bytes(value: str | int) -> int:
    """Bytes of a size: "64MB", "512kB", "1GiB" (all in steps of 1024), or a number of bytes. Raises ValueError."""
    if isinstance(value, str):
        scaled = _scaled(value, _SIZES, bare=1, fold=True)
    elif type(value) is int:  # a bool is an int to isinstance
        scaled = value
    else:
        scaled = None
    if scaled is None:
        raise _unexpected(_SIZE, value)
    if not 0 <= scaled <= MAX_SIZE_BYTES:
        raise _unexpected("a size from 0 to 1024 TB", value)
    return scaled


def rate(value: object) -> tuple[int, int]:
    """(count, period in ms) of "100/s", "5/m", "10/h", "3/10s". Both are at least 1. Raises ValueError."""
    count_text, slash, period_text = value.partition("/") if isinstance(value, str) else ("", "", "")
    count_text, period_text = count_text.strip(), period_text.strip()
    if not slash or not _is_digits(count_text) or not int(count_text):
        raise _unexpected(_RATE, value)
    period_ms = _DURATIONS.get(period_text)
    if period_ms is None and not _is_digits(period_text):
        period_ms = _scaled(period_text, _DURATIONS, bare=1)
    if not period_ms or period_ms > MAX_DURATION_MS:
        raise _unexpected(_RATE, value)
    return int(count_text), period_ms


def rate_text(count: int, period_ms: int) -> str:
    """The shortest spelling of a rate: "100/s", "3/10s". `rate` reads it back."""
    period = duration_text(period_ms)
    return f"{count}/{period[1:] if period[0] == '1' and not period[1].isdigit() else period}"


def duration_text(value_ms: int) -> str:
    """The shortest spelling of a duration: 90_000 is "90s", 86_400_000 is "1d". `duration_ms` reads it back."""
    for unit in ("w", "d", "h", "m", "s"):
        if value_ms and value_ms % _DURATIONS[unit] == 0:
            return f"{value_ms // _DURATIONS[unit]}{unit}"
    return f"{value_ms}ms"


def _seconds(value: object) -> float:
    """By duck typing: importing datetime for an isinstance would cost every handler that uses none."""
    total_seconds = getattr(value, "total_seconds", None)
    if total_seconds is None:
        raise _unexpected(_DURATION, value)
    return float(total_seconds())


def _scaled(text: str, units: dict[str, int], *, bare: int, fold: bool = False) -> int | None:
    """`text` as a whole number of the smallest unit, rounded up; None where it is no number with a unit of `units`.

    By whole numbers: 0.1 s is 100 ms and not 100.00000000000001.
    """
    text = text.strip()
    end = len(text)
    while end and not (text[end - 1].isdigit() or text[end - 1] == "."):
        end -= 1
    number, unit = text[:end], text[end:].strip()
    factor = units.get(unit.lower() if fold else unit) if unit else bare
    whole, point, fraction = number.partition(".")
    if factor is None or not _is_digits(whole) or (point and not _is_digits(fraction)):
        return None
    part = -(-int(fraction) * factor // 10 ** len(fraction)) if point else 0
    return int(whole) * factor + part


def _is_digits(text: str) -> bool:
    """ASCII digits only: int() alone would take Arabic ones, signs and underscores."""
    return 0 < len(text) <= _MAX_DIGITS and text.isascii() and text.isdigit()


def _unexpected(expected: str, value: object) -> ValueError:
    return ValueError(f"expected {expected}, got {quoted(value, 60)}")
