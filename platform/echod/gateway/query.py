"""What a query may say: parameters once and within bounds, and the filter that reading and acting have in common."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from starlette.requests import Request

from echod.bus.bulk import Filter
from echod.gateway.desk import shortened
from echod.gateway.problems import Problem
from echod.gateway.views import View
from echod.model.job import State
from echofn.units import duration_ms

LONGEST_CAUSE, LONGEST_TEXT = 100, 200
SPAN_PATTERN = "^([1-9][0-9]{0,4}(ms|s|m|h)|[1-9][0-9]{0,3}d|[1-9][0-9]{0,2}w)$"
SINCE_PATTERN = SPAN_PATTERN.replace(")$", ")?$")
FILTER: Mapping[str, View] = {
    "lane": {"type": "string"},
    "cause": {"type": "string", "maxLength": LONGEST_CAUSE},
    "match": {"type": "string", "maxLength": LONGEST_TEXT},
    "older": {"type": "string", "pattern": SINCE_PATTERN},
    "newer": {"type": "string", "pattern": SINCE_PATTERN},
}
# Of an action, which would be of all if one were empty: see check_known.
FILTER_OF_ACTIONS: Mapping[str, View] = {
    name: {**view, "pattern": SPAN_PATTERN} if "pattern" in view else {**view, "minLength": 1}
    for name, view in FILTER.items()
}
_DURATION = re.compile(SINCE_PATTERN, re.ASCII)


async def check_known(request: Request, names: Collection[str]) -> None:
    """Refuse what no such call asks for, and a filter that is empty or in the body: the action would be of all."""
    for name, value in request.query_params.multi_items():
        if name in ("function", *FILTER) and not value:
            raise Problem("invalid-parameter", f"{name}: expected some text, got none; leave it out if all are meant")
        if name not in names:
            expected = f"expected {', '.join(sorted(names))}" if names else "expected no parameter"
            raise Problem("invalid-parameter", f"{shortened(name)}: {expected}, got another")
    if "lane" in names and await request.body():  # a form's, or of `curl -d`
        raise Problem("invalid-body", f"expected {', '.join(sorted(names))} in the query and no body, got one")


def one_of(request: Request, name: str, allowed: tuple[str, ...]) -> str | None:
    """A query parameter out of a closed set; None when it was not given."""
    text = once(request, name)
    if text is not None and text not in allowed:
        raise Problem("invalid-parameter", f"{name}: expected one of {', '.join(allowed)}, got {shortened(text)!r}")
    return text


def once(request: Request, name: str) -> str | None:
    """A query parameter that may be given once; None when it was not, or is empty."""
    texts = request.query_params.getlist(name)
    if len(texts) > 1:
        raise Problem("invalid-parameter", f"{name}: expected it once, got it {len(texts)} times")
    return texts[0] if texts and texts[0] else None


def number(request: Request, name: str, default: int, lowest: int, highest: int) -> int:
    """A whole query parameter within bounds."""
    text = once(request, name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 12 and lowest <= int(text) <= highest):
        raise Problem("invalid-parameter", f"{name}: expected {lowest} to {highest}, got {shortened(text)!r}")
    return int(text)


def text(request: Request, name: str, longest: int) -> str:
    """A query parameter of at most so many characters; '' when it was not given."""
    found = once(request, name) or ""
    if len(found) > longest:
        raise Problem("invalid-parameter", f"{name}: expected at most {longest} characters, got {len(found)}")
    return found


def age_ms(request: Request, name: str) -> int | None:
    """A query parameter that is a duration; None when it was not given."""
    found = once(request, name)
    if found is None:
        return None
    if not _DURATION.fullmatch(found):
        raise Problem(
            "invalid-parameter", f"{name}: expected a duration such as 30s, 15m, 1h, got {shortened(found)!r}"
        )
    return duration_ms(found)


def filtered(request: Request, states: tuple[State, ...]) -> Filter:
    """Jobs by lane, by their error and by age, as FILTER has it."""
    older_ms, newer_ms = age_ms(request, "older"), age_ms(request, "newer")
    if older_ms is not None and newer_ms is not None and older_ms > newer_ms:
        detail = "older: expected at most what newer says, got more: no job is both"
        raise Problem("invalid-parameter", detail)
    return Filter(
        states,
        lane=once(request, "lane"),
        cause=text(request, "cause", LONGEST_CAUSE),
        match=text(request, "match", LONGEST_TEXT),
        older_ms=older_ms,
        newer_ms=newer_ms,
    )
