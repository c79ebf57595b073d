"""A request's body as a payload: JSON or msgpack in, a checked value and its msgpack out.

Only what any reader can carry goes onto the bus (`policy/nesting.py`). Of two equal keys in one JSON object the last
counts, as everywhere.
"""

from __future__ import annotations

import base64
import contextlib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from functools import lru_cache
from typing import cast

import msgspec

from echod.errors import Refused
from echod.gateway.problems import Problem
from echod.policy.nesting import TOO_DEEP, is_carried
from echod.registry.schemas import json_path
from echofn.codec import NIL
from echofn.frames import MAX_PAYLOAD_BYTES

_JSON = ("application/json", "text/json")
_MSGPACK = ("application/msgpack", "application/x-msgpack", "application/vnd.msgpack")
_AT_BYTE = re.compile(r"\(byte (\d+)\)")
_INTEGERS = range(-(2**63), 2**64)

Steps = tuple[str | int, ...]


@dataclass(frozen=True)
class Payload:
    """`packed` goes onto the bus; `value` is what lane paths walk; `seen` what the schema sees: bytes as base64."""

    value: object
    packed: bytes
    seen: object


def payload_of(body: bytes, headers: Mapping[str, str]) -> Payload:
    """The payload in a body. Raises the problem that it is: unsupported, unreadable, not to be carried, too large."""
    value, is_json = body_of(body, headers)
    return payload_in(value, is_json=is_json)


def body_of(body: bytes, headers: Mapping[str, str]) -> tuple[object, bool]:
    """The value in a body, and whether it is JSON; an empty one is None. Raises the problem that it is."""
    if not body:
        return None, False
    media_type = _media_type(headers.get("content-type", ""))
    is_json = media_type in _JSON or media_type.endswith("+json")
    return (_json_value(body) if is_json else _msgpack_value(body)), is_json


def payload_in(value: object, *, is_json: bool) -> Payload:
    """A value as a payload. Raises the problem of one that cannot be carried, or is too large."""
    if value is None:
        return Payload(None, NIL, None)
    packed = _packed(value)
    if len(packed) > MAX_PAYLOAD_BYTES:
        raise Problem("too-large", f"expected at most {MAX_PAYLOAD_BYTES} bytes of msgpack, got {len(packed)}")
    return Payload(value, packed, value if is_json else _with_text_for_bytes(value))


def stored(packed: bytes) -> Payload:
    """A payload that is on the bus already, or in a manifest."""
    value = msgspec.msgpack.decode(packed)
    return Payload(value, packed, _with_text_for_bytes(value))


@lru_cache(maxsize=64)
def _media_type(header: str) -> str:
    message = Message()
    message["content-type"] = header or "application/octet-stream"
    media_type, charset = message.get_content_type(), message.get_content_charset("utf-8")
    known = media_type in (*_JSON, *_MSGPACK) or media_type.endswith("+json")
    if not known:
        got = repr(header[:100]) if header else "none"
        raise Problem(
            "unsupported-media-type",
            f"expected Content-Type application/json or application/msgpack, got {got}",
            headers={"Accept-Post": "application/json, application/msgpack"},
        )
    if charset not in {"utf-8", "utf8", "us-ascii"}:
        raise Problem("unsupported-media-type", f"expected charset utf-8, got {charset[:40]!r}")
    return media_type


def _json_value(body: bytes) -> object:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise _invalid(f"expected UTF-8, got byte 0x{body[error.start]:02x}", body, error.start) from None
    try:
        return msgspec.json.decode(body)
    except msgspec.ValidationError as error:  # well-formed, but a number no float can hold
        raise Problem("invalid-payload", f"expected numbers of 64 bits: {error}") from None
    except msgspec.DecodeError as error:
        found = _AT_BYTE.search(str(error))
        position = int(found[1]) if found else len(body)
        raise _invalid(f"expected JSON: {_AT_BYTE.sub('', str(error)).strip()}", body, position) from None
    except ValueError as error:  # an integer of more digits than Python reads
        raise Problem("invalid-payload", f"expected numbers of 64 bits: {error}") from None
    except RecursionError:
        raise _too_deep() from None


def _msgpack_value(body: bytes) -> object:
    try:
        value = msgspec.msgpack.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise Problem("invalid-body", f"expected msgpack: {error}") from None
    except RecursionError:
        raise _too_deep() from None
    return value


def _packed(value: object) -> bytes:
    """msgpack of a value that holds nothing but what any reader can carry."""
    try:
        if is_carried(value):
            with contextlib.suppress(OverflowError):  # an integer of more than 64 bits: where is it?
                return msgspec.msgpack.encode(value)
    except Refused:
        raise _too_deep() from None
    steps, fault = next(_faults(value))
    path = json_path(list(steps))
    raise Problem("invalid-payload", f"{path}: {fault}", faults=[{"path": path, "message": fault}])


def _faults(value: object) -> Iterator[tuple[Steps, str]]:
    """What in `value` cannot be carried, and where; slow, and asked only where something is."""
    waiting: list[tuple[Steps, object]] = [((), value)]
    while waiting:
        steps, item = waiting.pop()
        match item:
            case bool() | None | str() | bytes():
                pass
            case int() if item not in _INTEGERS:
                yield steps, "expected an integer of at most 64 bits, got a longer one"
            case float() if not math.isfinite(item):
                yield steps, f"expected a finite number, got {item}"
            case int() | float():
                pass
            case dict():
                entries = cast("dict[object, object]", item)
                for key in entries:
                    if not isinstance(key, str):
                        yield steps, f"expected text keys, got one of type {type(key).__name__}"
                waiting += [((*steps, str(key)), child) for key, child in entries.items()]
            case list():
                waiting += [((*steps, index), child) for index, child in enumerate(cast("list[object]", item))]
            case _:
                yield steps, f"expected a JSON value or bytes, got {type(item).__name__}"


def _with_text_for_bytes(value: object) -> object:
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case dict():
            return {key: _with_text_for_bytes(item) for key, item in cast("dict[str, object]", value).items()}
        case list():
            return [_with_text_for_bytes(item) for item in cast("list[object]", value)]
        case _:
            return value


def _invalid(detail: str, body: bytes, position: int) -> Problem:
    line = body.count(b"\n", 0, position) + 1
    column = position - (body.rfind(b"\n", 0, position) + 1) + 1
    where = f"line {line}, column {column} (byte {position})"
    return Problem("invalid-body", f"{detail} at {where}", position=position, line=line, column=column)


def _too_deep() -> Problem:
    return Problem("invalid-payload", TOO_DEEP)
