"""JSON for people: indented, its kinds of value marked by class, escaped, and no more of it than one reads."""

from __future__ import annotations

import json
import re
from typing import Any

from markupsafe import Markup, escape

LIMIT = 20_000  # characters shown: a mebibyte of it would hold up every other request while it is coloured
TOKEN = re.compile(
    r'(?P<key>"(?:[^"\\]|\\.)*")(?=\s*:)|(?P<text>"(?:[^"\\]|\\.)*")'
    r"|(?P<number>-?\d[\d.eE+-]*)|(?P<word>\btrue\b|\bfalse\b|\bnull\b)"
)
_ENCODER = json.JSONEncoder(ensure_ascii=False, indent=2, default=str)


def plain(value: Any, *, indent: int | None = 2) -> str:
    """Indented JSON text, as a person would edit it."""
    return json.dumps(value, ensure_ascii=False, indent=indent, default=str)


def short(value: Any) -> str | None:
    """The whole text where it is not cut on the page, else None."""
    text, cut = _start_of(value)
    return None if cut else text


def pretty(value: Any) -> Markup:
    """The same as HTML, cut at LIMIT with a note."""
    text, cut = _start_of(value)
    parts: list[str] = []
    end = 0
    for found in TOKEN.finditer(text):
        parts += (
            escape(text[end : found.start()]),
            f'<span class="j-{found.lastgroup}">',
            escape(found.group()),
            "</span>",
        )
        end = found.end()
    parts.append(escape(text[end:]))
    if cut:
        parts.append('\n<span class="muted">… cut here; Copy takes all of it</span>')
    return Markup("".join(parts))


def _start_of(value: Any) -> tuple[str, bool]:
    """The first LIMIT characters, and whether there are more: what is left out is not even encoded."""
    parts: list[str] = []
    length = 0
    for part in _ENCODER.iterencode(value):
        parts.append(part)
        length += len(part)
        if length > LIMIT:
            return "".join(parts)[:LIMIT], True
    return "".join(parts), False
