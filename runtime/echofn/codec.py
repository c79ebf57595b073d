"""Values to msgpack and back: the one path for payloads, results and children, however a job came to be.

What is stored is what JSON can say, plus bytes: Structs and dataclasses become maps, datetimes text, sets lists, keys
text. So every reader (pages, HTTP, another function) can show it without a class of ours or yours.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from echofn import models

NIL = b"\xc0"
_PLAIN = frozenset({type(None), bool, int, str, bytes})
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder()
# A float64 whose exponent is all ones is NaN or infinite. Text can look the same: a hit is a reason to look closely.
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")


class Unfit(Exception):
    """A value that cannot be stored, or does not fit its type. The text says expected and got."""


def encode(value: object, limit_bytes: int, what: str) -> bytes:
    """msgpack of a value; `what` ("result", "payload") begins the text of Unfit. MemoryError passes through."""
    try:
        data = _encoder.encode(value if type(value) in _PLAIN else builtins_of(value, round_trip=what == "payload"))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Unfit(f"{what} cannot be stored: {_reason(error)}") from None
    if _NOT_FINITE.search(data) and not _finite(_decoder.decode(data)):
        raise Unfit(f"{what} cannot be stored: expected finite numbers, got NaN or infinity, which JSON cannot say")
    if len(data) > limit_bytes:
        raise Unfit(f"{what} is too large: expected at most {limit_bytes:,} bytes, got {len(data):,}")
    return data


def builtins_of(value: object, *, round_trip: bool = False) -> Any:
    """The value in None, bool, int, float, str, bytes, list and dict with text keys. `round_trip`: such that the same
    model can be made of it again."""
    hook = _other_again if round_trip else _other
    return msgspec.to_builtins(value, str_keys=True, builtin_types=(bytes,), enc_hook=hook)


def decode(data: bytes) -> Any:
    """The builtins that were stored."""
    return _decoder.decode(data)


def convert(value: Any, wanted: Any, *, strict: bool = True) -> Any:
    """Builtins as the type a handler asks for; not `strict`: numbers may be text. Raises Unfit with the path of what
    does not fit, or of what the type's own checks raise.

    Where it does not fit as it is, 1.0 may stand for 1: to JSON Schema, by which the gateway judges, it is an integer.
    """
    try:
        try:
            return msgspec.convert(value, wanted, str_keys=True, strict=strict, dec_hook=_model)
        except msgspec.ValidationError:
            whole = _with_whole_numbers(value)
            return msgspec.convert(whole, wanted, str_keys=True, strict=strict, dec_hook=_model)
    except MemoryError:
        raise
    except (msgspec.ValidationError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Unfit(_reason(error)) from None
    except Exception as error:  # a validator is code of the author's
        raise Unfit(f"a check of its type raised {type(error).__name__}") from error


def _with_whole_numbers(value: Any) -> Any:
    """The value with whole floats as integers."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, dict):
        return {key: _with_whole_numbers(item) for key, item in cast("dict[Any, Any]", value).items()}  # type: ignore[redundant-cast] # pyright needs it
    if isinstance(value, list):
        return [_with_whole_numbers(item) for item in cast("list[Any]", value)]  # type: ignore[redundant-cast] # pyright needs it
    return value


def _other(value: Any) -> Any:
    """What msgspec does not know and plainly is one of its kinds: subclasses of builtins, mappings."""
    if isinstance(value, str):
        return str.__str__(value)  # not str(value): a subclass may say something else there
    if isinstance(value, int):
        return int.__index__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return dict(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] # any mapping
    if models.is_model(type(value)):
        return models.dumped(value, round_trip=False)
    expected = "expected JSON kinds, a Struct, a dataclass, a TypedDict or a model"
    raise TypeError(f"{expected}, got {type(value).__qualname__:.100}")


def _other_again(value: Any) -> Any:
    return models.dumped(value, round_trip=True) if models.is_model(type(value)) else _other(value)


def _model(kind: type, value: Any) -> Any:
    """Builtins as a type that msgspec does not know. (Discovery refuses the others.)"""
    if models.is_model(kind):
        return models.validated(kind, value)
    if isinstance(value, kind):
        return value  # `object`, say: as it goes without a hook
    raise ValueError(f"expected {kind.__name__}, got {type(value).__name__}")


def _finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    inner: Iterable[Any] = ()
    if isinstance(value, dict):
        inner = cast("dict[str, Any]", value).values()
    elif isinstance(value, list):
        inner = cast("list[Any]", value)  # type: ignore[redundant-cast] # pyright needs it
    return all(map(_finite, inner))


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply, or contains itself"
    if isinstance(error, OverflowError):
        return "expected integers of at most 64 bits"
    if isinstance(error, UnicodeEncodeError):
        return "expected text that UTF-8 can hold, got a lone surrogate"
    return str(error)
