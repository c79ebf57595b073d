"""The text of a cron rule: our own check in front of the parser, and the one spelling that equal rules share.

The parser takes what can only be a slip (`*/90`, `L/2`, full-width digits, `٥L`); here each is refused with what was
expected. A list's order, names, zeros in front and a step of 1 do not tell two rules apart, so the canonical text drops
them; what a field *starts* with does (daylight saving, day of month or of week) and is kept.
"""

from __future__ import annotations

import string
from typing import NamedTuple

from echod.errors import Refused

MAX_LENGTH = 1000  # every value of every field, listed, is shorter
ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_ALLOWED = frozenset(string.ascii_letters + string.digits + "*,-/#@ ")


class Field(NamedTuple):
    """One field of a rule: its name for people, its bounds, the names of its values from `low` on."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    @property
    def expected(self) -> str:
        return f"{self.low}-{self.high}" + (f" or {self.names[0]}-{self.names[-1]}" if self.names else "")


SECOND = Field("second", 0, 59)
MINUTE = Field("minute", 0, 59)
HOUR = Field("hour", 0, 23)
DAY = Field("day of month", 1, 31)
MONTH = Field("month", 1, 12, ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"))
WEEKDAY = Field("day of week", 0, 7, ("sun", "mon", "tue", "wed", "thu", "fri", "sat"))
FIELDS = (SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY)


def canonical(rule: str) -> str:
    """The one spelling of a rule: five fields, or six with seconds first. Raises Refused."""
    if len(rule) > MAX_LENGTH:
        raise Refused(f"expected a cron rule of at most {MAX_LENGTH} characters, got {len(rule)}")
    strange = next((character for character in rule if character not in _ALLOWED), None)
    if strange is not None:
        raise _refused(rule, f"expected letters, digits, spaces and * , - / #, got {strange!r}")
    parts = _expand(rule).split()
    if len(parts) not in (5, 6):
        raise _refused(rule, f"expected five fields, or six with seconds first, got {len(parts)}")
    fields = FIELDS if len(parts) == 6 else FIELDS[1:]
    try:
        texts = [_field(field, part) for field, part in zip(fields, parts, strict=True)]
    except Refused as error:
        raise _refused(rule, str(error)) from None
    return " ".join(texts[1:] if len(texts) == 6 and texts[0] == "0" else texts)


def _expand(rule: str) -> str:
    text = rule.strip()
    if not text.startswith("@"):
        return text
    if text not in ALIASES:
        raise _refused(rule, f"expected one of {', '.join(ALIASES)}, got {text!r}")
    return ALIASES[text]


def _field(field: Field, text: str) -> str:
    """A field, canonical. Whether it starts with `*` is kept: two rules of cron hang on it."""
    items = [_item(field, item) for item in text.split(",")]
    starts_with_star = text.startswith("*")
    return ",".join(
        sorted(dict.fromkeys(items), key=lambda item: (item.startswith("*") != starts_with_star, _order(item)))
    )


def _order(item: str) -> tuple[int, str]:
    digits = item[: len(item) - len(item.lstrip(string.digits))]
    return (int(digits) if digits else 99, item)


def _item(field: Field, item: str) -> str:
    """One item of a list, canonical."""
    if not item:
        raise Refused(f"{field.name}: expected {field.expected} between the commas, got nothing")
    base, slash, step = item.partition("/")
    if slash:
        return _stepped(field, item, base, step)
    if base == "*":
        return base
    if field is DAY and base.upper() in ("L", "LW"):
        return base.upper()
    if field is WEEKDAY and base[:-1] and base[-1] in "Ll":
        return f"{_value(field, base[:-1]) % 7}L"
    if field is WEEKDAY and "#" in base:
        day, _, nth = base.partition("#")
        if nth not in ("1", "2", "3", "4", "5"):
            raise Refused(f"{field.name}: expected a number from 1 to 5 after '#', got {_shown(item)}")
        return f"{_value(field, day) % 7}#{nth}"
    if "-" in base:
        low, high = _range(field, base)
        return str(low) if low == high else f"{low}-{high}"
    value = _value(field, base)
    return str(value % 7 if field is WEEKDAY else value)


def _stepped(field: Field, item: str, base: str, step_text: str) -> str:
    if base == "*":
        low, high = field.low, 6 if field is WEEKDAY else field.high
    elif "-" in base:
        low, high = _range(field, base)
    else:
        low, high = _value(field, base), field.high
    step = int(step_text) if _is_number(step_text) else 0
    if not 1 <= step <= high - low:
        # a larger step meets the first value only: `*/90` would be hourly without a word
        raise Refused(f"{field.name}: expected a step from 1 to {high - low} in {_shown(base)}, got {_shown(item)}")
    if step > 1:
        return f"{base if base == '*' else low if '-' not in base else f'{low}-{high}'}/{step}"
    return "*" if base == "*" else f"{low}-{high}"


def _range(field: Field, text: str) -> tuple[int, int]:
    low_text, _, high_text = text.partition("-")
    low, high = _value(field, low_text), _value(field, high_text)
    if low > high:
        raise Refused(f"{field.name}: expected a range from low to high, got {_shown(text)}")
    return low, high


def _value(field: Field, text: str) -> int:
    if text.lower() in field.names:
        return field.low + field.names.index(text.lower())
    if not _is_number(text) or not field.low <= int(text) <= field.high:
        raise Refused(f"{field.name}: expected {field.expected}, got {_shown(text)}")
    return int(text)


def _is_number(text: str) -> bool:
    return 1 <= len(text) <= 4 and text.isascii() and text.isdigit()


def _refused(rule: str, why: str) -> Refused:
    return Refused(f"cron {_shown(rule)}: {why}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:59] + "…")
