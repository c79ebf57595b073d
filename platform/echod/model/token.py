"""Tokens as text: a prefix that says what it is, 43 random base62 digits, and a checksum of both.

The prefix lets scanners find a leaked token, the checksum tells a mistyped one from a wrong one without a look-up. The
bus never sees the text, only its SHA-256; 256 random bits need no slow hash.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import Literal, get_args

from echod.model.ids import DIGITS, base62

Scope = Literal["invoke", "read", "operate", "deploy"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
Kind = Literal["token", "session", "link"]
PREFIXES: dict[Kind, str] = {"token": "echod_", "session": "echos_", "link": "echol_"}
ENTROPY_BYTES = 32
_RANDOM_WIDTH = 43
_CHECK_WIDTH = 6


def token_of(kind: Kind, entropy: bytes) -> str:
    """The text of a token from 32 random bytes."""
    if len(entropy) != ENTROPY_BYTES:
        raise ValueError(f"expected {ENTROPY_BYTES} random bytes, got {len(entropy)}")
    text = PREFIXES[kind] + base62(int.from_bytes(entropy), _RANDOM_WIDTH)
    return text + _checksum(text)


def is_shaped(kind: Kind, text: str) -> bool:
    """Whether `text` has prefix, length, digits and checksum of a token of that kind."""
    prefix = PREFIXES[kind]
    body, check = text[:-_CHECK_WIDTH], text[-_CHECK_WIDTH:]
    return (
        text.startswith(prefix)
        and len(text) == len(prefix) + _RANDOM_WIDTH + _CHECK_WIDTH
        and all(digit in DIGITS for digit in text[len(prefix) :])
        and check == _checksum(body)
    )


def digest_of(text: str) -> str:
    """What the bus holds of a token: its SHA-256, in hex."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _checksum(text: str) -> str:
    return base62(zlib.crc32(text.encode()), _CHECK_WIDTH)
