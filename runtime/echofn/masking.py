"""What people must not see in what they do see: values of secrets, and what `redact=` names in a payload.

Values are known, so text is searched for them, in the spellings that logs and tracebacks have. One shorter than
`SHORTEST` is not searched for: it would be found everywhere. Where a path leads, a value of any length is masked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import isfinite
from typing import Any, cast
from urllib.parse import quote, quote_plus, urlencode

import msgspec

from echofn import codec, request
from echofn.delivery import is_request
from echofn.quoting import quoted

MASK = "[redacted]"
ALL = "[redacted: redact= leads to more than can be looked for]"  # instead of whatever may hold one of so many values
SHORTEST = 6  # characters
LEAST_CARRIED = 16  # of a secret in data that is kept: what is shorter may be a word that the data has anyway
_MOVES = 1_000  # of a seam; only a value that repeats itself asks for more
_MOST_DIGITS = 40  # of a text that may be meant as a number
MAX_STEPS = 32
MAX_PATH = 512
_SAFE = ("", "/", "!#$%&'()*+,/:;=?@[]~")  # of what is written as it is in an address: urlencode, quote, requests
_PERCENT = re.compile("%[0-9A-F]{2}")
_between_quotes = re.compile('[^"]{1,256}').findall
_words_of = re.compile(
    r"""[^\s"'<>{}\[\],;:&=]{1,256}"""
).findall  # a longer one in pieces: all of them recur where it does
_MOST_WORDS = 250  # of a body, each of which costs every line of the run
_MOST_SPELLINGS = 5_000  # of what redact= leads to: each costs every line of the run, and making them stops a node
_MOST_CHARACTERS = 64 * 1024  # of the same, lines of a long text counted again
_MOST_LOOKS = 20_000_000  # spellings times texts: half a second
_is_plain = re.compile(r"[\w.~-]*", re.ASCII).fullmatch
ROOTS = ("json", "headers", "query", "params")  # of paths into a webhook's request

Steps = tuple[str, ...]


class Mask:
    """Values to be replaced wherever they are found."""

    __slots__ = ("_carried", "_numbers", "_spellings", "is_all")

    def __init__(self, values: Iterable[object] = (), also: Mask | None = None, *, is_bounded: bool = False) -> None:
        """`is_bounded`: where these are too many, or too long, whatever is shown is masked instead (`is_all`)."""
        texts = {text for value in values for text in _texts(value) if len(text) >= SHORTEST}
        found: set[str] = set()
        numbers: set[float] = set()
        self.is_all = is_bounded and (len(texts) > _MOST_SPELLINGS or sum(map(len, texts)) > _MOST_CHARACTERS)
        for text in () if self.is_all else texts:
            found.update(spelling for spelling in _spellings(text) if len(spelling) >= SHORTEST)
            numbers.update(number for number in _numbers(text) if _digits(number) >= SHORTEST)
            if is_bounded and len(found) > _MOST_SPELLINGS:
                self.is_all = True
                break
        found.update(str(each) for number in numbers for each in _kinds(number))
        if also is not None:
            found.update(also._spellings)
            numbers |= also._numbers
        if self.is_all:
            found.clear()
            numbers.clear()
        self._spellings: tuple[str, ...] = tuple(sorted(found, key=len, reverse=True))
        self._numbers: frozenset[float] = frozenset(numbers)
        self._carried: tuple[bytes, ...] | None = None  # as data has those that are long enough

    def text(self, text: str) -> str:
        """The text without them. Mask before cutting: a part of a value is not found."""
        if self.is_all:
            return ALL if text.strip() else text
        for spelling in self._spellings:
            if spelling in text:
                text = text.replace(spelling, MASK)
        return text

    def seam(self, text: str) -> int:
        """Where a text that goes on can be cut by now: no value lies across, and none that may go on begins before."""
        at = min((_begun(text, each) for each in self._spellings), default=len(text))
        for _ in range(_MOVES):
            found = (text.find(each, max(at - len(each) + 1, 0), at + len(each) - 1) for each in self._spellings)
            if (start := next((start for start in found if start >= 0), None)) is None:
                break
            at = start
        return at

    def unended(self, text: str) -> str:
        """The text without them, and without the beginning of one that it breaks off in."""
        at = self.seam(text)
        return self.text(text) if len(text) - at < SHORTEST else self.text(text[:at]) + MASK

    def unbegun(self, data: bytes) -> bytes:
        """Text of which the beginning is missing, without the rest of one that it may begin with."""
        back = data.decode("utf-8", "surrogateescape")[::-1]
        at = min((_begun(back, each[::-1]) for each in self._spellings), default=len(back))
        if len(back) - at < SHORTEST:
            return data
        return MASK.encode() + back[:at][::-1].encode("utf-8", "surrogateescape")

    def value(self, value: Any) -> Any:
        """Builtins without them, keys and bytes included."""
        if self.is_all:
            return value if value is None or isinstance(value, bool) else ALL
        match value:
            case str():
                return self.text(value)
            case bytes():
                return self.text(value.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
            case int() | float() if not isinstance(value, bool):
                return MASK if value in self._numbers else value
            case dict():
                held = cast("dict[object, object]", value)
                return {self.value(key): self.value(item) for key, item in held.items()}
            case list():
                items = cast("list[object]", value)
                return [self.value(item) for item in items]
            case _:
                return value

    def looks(self, value: Any) -> int:
        """What `value` costs, in searches of a short text."""
        sizes = (len(leaf) if isinstance(leaf, (str, bytes)) else 0 for leaf in _within(value))
        return len(self._spellings) * sum(1 + size // 100 for size in sizes)

    def is_in(self, data: bytes) -> bool:
        """Whether one of at least `LEAST_CARRIED` characters, as text or as a number, is in MessagePack or in text."""
        if self.is_all:
            return True
        if self._carried is None:
            texts = [text.encode("utf-8", "replace") for text in self._spellings if len(text) >= LEAST_CARRIED]
            numbers = [each for number in self._numbers for each in _kinds(number) if _is_carried(each)]
            self._carried = (*texts, *map(msgspec.msgpack.encode, numbers))
        return any(each in data for each in self._carried)


def steps(path: str) -> Steps:
    """A path's steps: `card.number`, `items.0.sku`, `items[0].sku`. Raises ValueError for one that names nothing."""
    if len(path) <= MAX_PATH:
        parts = tuple(path.replace("[", ".").replace("]", "").split("."))
        if all(parts) and len(parts) <= MAX_STEPS:
            return parts
    raise ValueError(f"expected a path like 'tenant', 'order.customer' or 'items[0].sku', got {quoted(path, 60)}")


def covers(redact: Iterable[str], path: str) -> bool:
    """Whether `path` leads to something masked, into a payload or into a request's body."""
    own = _bare(steps(path))
    return any(own[: len(each)] == each for each in (_bare(steps(one)) for one in redact))


def leaves(payload: Any, redact: Sequence[str]) -> list[object]:
    """The values that `redact` names in a payload; everything within an object or a list."""
    found: list[object] = []
    for part, within in _parts(payload, redact):
        found += [leaf for path in within for value in _at(part, path) for leaf in _within(value)]
    return found


def shown(value: Any, payload: Any, redact: Sequence[str]) -> Any:
    """A payload, or its job's result, as people may see it: masked where paths lead, and where those values recur."""
    try:
        mask = Mask(leaves(payload, redact), is_bounded=True)
        hidden = _request(value, redact) if is_request(value) else _hidden(value, _into_payload(redact))
        return ALL if mask.looks(hidden) > _MOST_LOOKS else mask.value(hidden)
    except RecursionError:
        return MASK


def _request(value: dict[str, Any], redact: Sequence[str]) -> dict[str, Any]:
    """A webhook's request. Its body is spelled anew, as it may say the same thing twice."""
    value = dict(value)
    for root in ROOTS[1:]:
        value[root] = _hidden(value[root], [path[1:] for path in map(_lower, redact) if path[0] == root and path[1:]])
    within = _into_body(redact)
    if within and value["body"]:
        try:
            body = _body(value)
        except ValueError:
            value["body"] = MASK.encode()
        else:
            hidden = _hidden(body, within)
            is_form = request.media_type(value["headers"].get("content-type", "")) == request.FORM
            value["body"] = (urlencode(hidden) if is_form else json.dumps(hidden)).encode()
    return value


def _parts(payload: Any, redact: Sequence[str]) -> Iterator[tuple[Any, list[Steps]]]:
    """What paths lead into, with those that do."""
    if not is_request(payload):
        yield payload, _into_payload(redact)
        return
    for root in ROOTS[1:]:
        yield payload[root], [path[1:] for path in map(_lower, redact) if path[0] == root and path[1:]]
    if within := _into_body(redact):
        try:
            yield _body(payload, _Pairs), within
        except ValueError:
            yield _words(payload), [()]


class _Pairs(tuple[tuple[str, Any], ...]):
    """An object with every value of a key that it says twice: whoever reads it takes the one or the other."""


def _words(payload: dict[str, Any]) -> list[str]:
    """What a body that cannot be read may say: where a path leads is not known, so every text and word is hidden."""
    body = payload["body"]
    try:
        text = request.text_of(body, payload["headers"].get("content-type", ""))
    except ValueError:
        text = body.decode("utf-8", "replace")
    kinds = [{part for part in parts(text) if len(part) >= SHORTEST} for parts in (_between_quotes, _words_of)]
    return [part for kind in kinds for part in sorted(kind, key=len, reverse=True)[:_MOST_WORDS]]


def _body(payload: dict[str, Any], objects: Callable[[list[tuple[str, Any]]], Any] = dict) -> Any:
    try:
        return request.decoded(payload["body"], payload["headers"].get("content-type", ""), objects)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _into_payload(redact: Sequence[str]) -> list[Steps]:
    """Paths as they stand; one that was written for a webhook's body also without its `json.`."""
    return list(dict.fromkeys(each for path in map(steps, redact) for each in (path, _bare(path))))


def _into_body(redact: Sequence[str]) -> list[Steps]:
    """Every path but those that can only be meant for another part of the request."""
    return [_bare(path) for path in map(steps, redact) if path[0] not in ROOTS[1:]]


def _bare(path: Steps) -> Steps:
    return path[1:] if path[0] == "json" and len(path) > 1 else path


def _lower(path: str) -> Steps:
    taken = steps(path)
    return tuple(step.lower() for step in taken) if taken[0] == "headers" else taken


def _key(value: Any, step: str) -> Any:
    """The key or index that a step is in a container; None where it has no such thing."""
    if isinstance(value, dict):
        held = cast("dict[object, object]", value)
        return (
            step if step in held else next((key for key in held if not isinstance(key, str) and str(key) == step), None)
        )
    if isinstance(value, list) and step.isascii() and step.isdigit() and len(step) <= 9:
        items = cast("list[object]", value)
        return index if (index := int(step)) < len(items) else None
    return None


def _at(value: Any, path: Steps) -> Iterator[Any]:
    for at, step in enumerate(path):
        if isinstance(value, _Pairs):
            for key, each in value:
                if key == step:
                    yield from _at(each, path[at + 1 :])
            return
        if (key := _key(value, step)) is None:
            return
        value = value[key]
    yield value


def _hidden(value: Any, paths: Iterable[Steps]) -> Any:
    for path in paths:
        value = _without(value, path)
    return value


def _without(value: Any, path: Steps) -> Any:
    """A copy with the mask at the path; what is not there, or null, stays."""
    if not path:
        return None if value is None else MASK
    if (key := _key(value, path[0])) is None:
        return value
    copy: Any = value.copy()
    copy[key] = _without(value[key], path[1:])
    return copy


def _within(value: Any) -> Iterator[object]:
    if isinstance(value, dict):
        held = cast("dict[object, object]", value)
        for item in held.values():
            yield from _within(item)
    elif isinstance(value, _Pairs):
        for _, item in value:
            yield from _within(item)
    elif isinstance(value, list):
        items = cast("list[object]", value)
        for item in items:
            yield from _within(item)
    else:
        yield value


def _begun(text: str, value: str) -> int:
    """Where the longest end of a text begins that the value goes on from; the text's length where there is none."""
    head, at = value[:SHORTEST], max(len(text) - len(value) + 1, 0)
    while (at := text.find(head, at)) >= 0:
        if value.startswith(text[at:]):
            return at
        at += 1
    sizes = range(min(SHORTEST, len(text) + 1) - 1, 0, -1)
    return len(text) - next((size for size in sizes if text.endswith(head[:size])), 0)


def _texts(value: object) -> Iterator[str]:
    """What is looked for of a value; of a long text also each line."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        yield str(value)
    if isinstance(value, str):
        text = value.strip()
        yield from {text, *map(str.strip, text.splitlines())}


def _numbers(text: str) -> Iterator[float]:
    """The numbers that `int` and `float` make of a text."""
    if len(text) <= _MOST_DIGITS and not text.strip("+-_.0123456789eE"):
        for kind in (int, float):
            try:
                number = kind(text)
            except ValueError:
                continue
            if isfinite(number):
                yield number


def _kinds(number: float) -> list[float]:
    """The number as a float and, if it is a whole one, as an int: they are equal, and written differently."""
    return [float(number), int(number)] if number == int(number) else [number]


def _digits(number: float) -> int:
    return len(str(number).removesuffix(".0"))


def _is_carried(number: float) -> bool:
    """Whether data is searched for it: MessagePack gives one of so many digits eight bytes of its own."""
    return _digits(number) >= LEAST_CARRIED and (isinstance(number, float) or -(2**63) <= number < 2**64)


def _spellings(text: str) -> Iterator[str]:
    """How a text is written: as it is, in quotes, as bytes, in JSON, in JSON within JSON, in an address."""
    yield text
    if _is_plain(text):
        return  # all of them are the same
    encoded = text.encode("utf-8", "replace")
    once = [json.dumps(text, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)]
    yield from once
    yield from (json.dumps(each, ensure_ascii=ascii_only)[1:-1] for each in once for ascii_only in (True, False))
    for apart in ("'", "\\'"):  # which of the two Python writes depends on what stands around
        pieces = text.split("'")
        yield apart.join(repr(piece)[1:-1] for piece in pieces)
        yield apart.join(ascii(piece)[1:-1] for piece in pieces)
        yield apart.join(repr(piece)[2:-1] for piece in encoded.split(b"'"))
    for safe in _SAFE:
        for spelled in (quote(encoded, safe), quote_plus(encoded, safe)):
            yield spelled
            yield _PERCENT.sub(lambda found: found[0].lower(), spelled)
    if not text.isascii():
        try:
            narrow = text.encode("latin-1")
        except UnicodeEncodeError:
            return
        yield from (narrow.decode("utf-8", errors) for errors in ("backslashreplace", "replace", "surrogateescape"))


def leaves_of(packed: bytes, redact: Sequence[str]) -> list[object]:
    """The same of a payload as it is stored; nothing where it cannot be read."""
    try:
        return leaves(codec.decode(packed), redact)
    except Exception:
        return []
