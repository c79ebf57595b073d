"""Whether a webhook was sent by whoever knows the secret. Pure: raw body, raw headers, secrets and the time in, an
answer out.

Short and by hand, after the senders' own documents (named at each). Everything is compared as bytes, in constant time;
every signature is tried with every secret, so that both sides can rotate theirs; a timestamp may be 300 seconds off,
either way. A header may hold anything: what cannot be read does not match.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Sequence
from typing import assert_never

import msgspec

from echofn.manifest import Hmac, Verify

TOLERANCE_S = 300
MAX_HEADER_BYTES = 16 * 1024  # of a signature: what is longer was not sent by any of them
MAX_SIGNATURES = 32
_WHSEC = "whsec_"

RawHeaders = Sequence[tuple[bytes, bytes]]  # names in lower case, as ASGI has them


class Verified(msgspec.Struct, frozen=True):
    """Sent by whoever knows one of the secrets, or nothing was to be verified."""


class Unverified(msgspec.Struct, frozen=True):
    """Not proven; `why` names no secret and no expected value."""

    why: str


Answer = Verified | Unverified


class _Unfit(Exception):
    """A header that is missing, there twice, or unreadable; the text says which."""


def verify(how: Verify, body: bytes, headers: RawHeaders, secrets: Sequence[str], now_s: float) -> Answer:
    """Judge a request. `now_s`: seconds since the epoch."""
    keys = [secret.encode("utf-8", "surrogateescape") for secret in secrets]
    try:
        match how:
            case None:
                return Verified()
            case "github":
                return _github(body, headers, keys)
            case "stripe":
                return _stripe(body, headers, keys, now_s)
            case "slack":
                return _slack(body, headers, keys, now_s)
            case "standard-webhooks":
                return _standard(body, headers, secrets, now_s)
            case "bearer":
                return _bearer(headers, keys)
            case "basic":
                return _basic(headers, keys)
            case Hmac():
                return _hmac(how, body, headers, keys)
            case _:
                assert_never(how)
    except _Unfit as unfit:
        return Unverified(str(unfit))


def is_usable(how: Verify, secret: str) -> bool:
    """Whether a secret can verify anything: it is there, and for standard-webhooks it is base64."""
    return bool(secret) and (how != "standard-webhooks" or _standard_key(secret) is not None)


def withheld(how: Verify) -> frozenset[str]:
    """Names of the headers that carry a signature or a credential: they are verified and not stored."""
    own: tuple[str, ...] = ()
    match how:
        case None | "bearer" | "basic":
            pass
        case "github":
            own = ("x-hub-signature-256", "x-hub-signature")
        case "stripe":
            own = ("stripe-signature",)
        case "slack":
            own = ("x-slack-signature",)
        case "standard-webhooks":
            own = ("webhook-signature",)
        case Hmac():
            own = (how.header,)
        case _:
            assert_never(how)
    return frozenset({"authorization", "proxy-authorization", "cookie", *own})


def _github(body: bytes, headers: RawHeaders, keys: Sequence[bytes]) -> Answer:
    """docs.github.com, "Validating webhook deliveries": sha256=<hex of HMAC-SHA256 over the body>."""
    given = [_hex(value.removeprefix(b"sha256=")) for value in _values(headers, b"x-hub-signature-256", b"sha256=")]
    return _compared(given, (_digest(key, "sha256", body) for key in keys), "X-Hub-Signature-256")


def _stripe(body: bytes, headers: RawHeaders, keys: Sequence[bytes], now_s: float) -> Answer:
    """docs.stripe.com, "Verify webhook signatures manually": t=<seconds>,v1=<hex over "t.body">,v1=…; v0 is none."""
    items = [item.strip().partition(b"=") for item in _one(headers, b"stripe-signature").split(b",")]
    times = [value for name, _, value in items if name == b"t"]
    if len(times) != 1:
        raise _Unfit("Stripe-Signature: expected one timestamp t=…")
    sent = _sent(times[0], now_s, "Stripe-Signature")
    given = [_hex(value) for name, _, value in items if name == b"v1"]
    return _compared(given, (_digest(key, "sha256", sent, b".", body) for key in keys), "Stripe-Signature")


def _slack(body: bytes, headers: RawHeaders, keys: Sequence[bytes], now_s: float) -> Answer:
    """api.slack.com, "Verifying requests from Slack": v0=<hex over "v0:timestamp:body">."""
    sent = _sent(_one(headers, b"x-slack-request-timestamp"), now_s, "X-Slack-Request-Timestamp")
    given = [_hex(value.removeprefix(b"v0=")) for value in _values(headers, b"x-slack-signature", b"v0=")]
    return _compared(given, (_digest(key, "sha256", b"v0:", sent, b":", body) for key in keys), "X-Slack-Signature")


def _standard(body: bytes, headers: RawHeaders, secrets: Sequence[str], now_s: float) -> Answer:
    """github.com/standard-webhooks, the specification: v1,<base64 over "id.timestamp.body"> and more after spaces."""
    name = _one(headers, b"webhook-id")
    sent = _sent(_one(headers, b"webhook-timestamp"), now_s, "webhook-timestamp")
    items = [item.partition(b",") for item in _one(headers, b"webhook-signature").split()]
    given = [_base64(value) for version, _, value in items if version == b"v1"]
    keys = [key for key in map(_standard_key, secrets) if key is not None]
    expected = (_digest(key, "sha256", name, b".", sent, b".", body) for key in keys)
    return _compared(given, expected, "webhook-signature")


def _hmac(how: Hmac, body: bytes, headers: RawHeaders, keys: Sequence[bytes]) -> Answer:
    prefix = how.prefix.encode()
    read = _hex if how.encoding == "hex" else _base64
    given = [read(value[len(prefix) :]) for value in _values(headers, how.header.encode(), prefix)]
    return _compared(given, (_digest(key, how.algorithm, body) for key in keys), how.header)


def _bearer(headers: RawHeaders, keys: Sequence[bytes]) -> Answer:
    """RFC 6750, 2.1."""
    return _compared([_credentials(headers, b"bearer")], keys, "Authorization")


def _basic(headers: RawHeaders, keys: Sequence[bytes]) -> Answer:
    """RFC 7617: base64 of user:password, which is what the secret says."""
    return _compared([_base64(_credentials(headers, b"basic"))], keys, "Authorization")


def _credentials(headers: RawHeaders, wanted: bytes) -> bytes:
    scheme, _, given = _one(headers, b"authorization").partition(b" ")
    if scheme.lower() != wanted:
        raise _Unfit(f"Authorization: expected {wanted.decode()}")
    return given.strip()


def _compared(given: Sequence[bytes | None], expected: Iterable[bytes], header: str) -> Answer:
    """Whether one of the given is one of the expected: all pairs are looked at, however early one matches."""
    readable = [value for value in given if value is not None]
    if len(readable) > MAX_SIGNATURES:
        raise _Unfit(f"{header}: expected at most {MAX_SIGNATURES} signatures, got {len(readable)}")
    matches = 0
    for digest in expected:
        for value in readable:
            matches += hmac.compare_digest(digest, value)
    return Verified() if matches else Unverified(f"{header}: it does not match this body under the secret known here")


def _values(headers: RawHeaders, name: bytes, prefix: bytes) -> list[bytes]:
    """The values of a header that begin as they should; it may be there several times."""
    found = [value.strip() for key, value in headers if key == name]
    if not found:
        raise _Unfit(f"{name.decode()}: expected this header, got none")
    if any(len(value) > MAX_HEADER_BYTES for value in found):
        raise _Unfit(f"{name.decode()}: expected at most {MAX_HEADER_BYTES} bytes")
    return [value for value in found if value.startswith(prefix)]


def _one(headers: RawHeaders, name: bytes) -> bytes:
    """The value of a header that must be there once: of two it is not clear which was signed."""
    found = _values(headers, name, b"")
    if len(found) != 1:
        raise _Unfit(f"{name.decode()}: expected it once, got it {len(found)} times")
    return found[0]


def _sent(given: bytes, now_s: float, header: str) -> bytes:
    """A timestamp as it was signed, if it is one and near enough."""
    if not given.isdigit() or len(given) > 12:
        raise _Unfit(f"{header}: expected a timestamp in seconds")
    off_s = now_s - int(given)
    if abs(off_s) > TOLERANCE_S:
        where = "old" if off_s > 0 else "ahead"
        raise _Unfit(f"{header}: expected a timestamp within {TOLERANCE_S} s, got one {abs(off_s):.0f} s {where}")
    return given


def _standard_key(secret: str) -> bytes | None:
    bare = secret.removeprefix(_WHSEC)
    key = _base64((bare + "=" * (-len(bare) % 4)).encode("utf-8", "surrogateescape"))
    return key or None


def _digest(key: bytes, algorithm: str, *parts: bytes) -> bytes:
    mac = hmac.new(key, digestmod=getattr(hashlib, algorithm))
    for part in parts:
        mac.update(part)
    return mac.digest()


def _hex(text: bytes) -> bytes | None:
    try:
        return binascii.unhexlify(text)
    except ValueError:
        return None


def _base64(text: bytes) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return None
