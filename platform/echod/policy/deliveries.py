"""What a request says beside its content: which delivery it is, whether its sender asks who is there, what is kept.

Pure. A sender that was not answered sends again, for hours: its own id makes that one job. It is read from what was
signed alone: whoever can replay a request can also give it another Content-Type, spell its signature in capitals, or
put a wrong one before it. Where an id is not part of what was signed (GitHub's is not), the guard is `unique=`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Set
from typing import cast
from urllib.parse import parse_qsl

from echod.policy.signatures import RawHeaders
from echofn.manifest import Hmac, Verify

METHODS = ("POST", "PUT", "PATCH")
MAX_QUERY_FIELDS = 1000
Said = Callable[
    [], object
]  # the body as JSON, whatever its headers call it; None where it is none; asked if it matters


def delivery_of(how: Verify, headers: RawHeaders, body: bytes, said: Said) -> str | None:
    """The sender's id of this delivery, the same each time it is sent; None where it has none."""
    match how:
        case "github":
            return _header(headers, b"x-github-delivery")
        case "standard-webhooks":
            return _header(headers, b"webhook-id")
        case "stripe":
            return _text(said(), "id")
        case "slack":
            # Only events have an id, and are sent again with a new time; anything else is told by all that was signed.
            sent = _header(headers, b"x-slack-request-timestamp")
            return _text(said(), "event_id") or f"{sent} {hashlib.sha256(body).hexdigest()}"
        case None | "bearer" | "basic" | Hmac():
            return None


def challenge_of(how: Verify, said: Said) -> str | None:
    """What Slack wants to hear back before it sends any event (api.slack.com, "url_verification")."""
    if how != "slack" or _text(said(), "type") != "url_verification":
        return None
    return _text(said(), "challenge")


def query_of(text: str) -> dict[str, str | list[str]]:
    """The address's parameters by name: a value, or a list of what came several times. Raises ValueError."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="replace", max_num_fields=MAX_QUERY_FIELDS)
    except ValueError:
        raise ValueError(f"expected at most {MAX_QUERY_FIELDS} parameters in the address") from None
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return {name: found[0] if len(found) == 1 else found for name, found in values.items()}


def kept(headers: RawHeaders, withheld: Set[str]) -> dict[str, str]:
    """Headers by name in lower case, without those withheld; one that came several times is joined with commas."""
    found: dict[str, str] = {}
    for key, value in headers:
        name, text = key.decode("latin-1"), value.decode("latin-1")
        if name not in withheld:
            found[name] = f"{found[name]}, {text}" if name in found else text
    return found


def _header(headers: RawHeaders, name: bytes) -> str | None:
    found = next((value for key, value in headers if key == name), b"")
    return found.strip().decode("latin-1") or None


def _text(body: object, name: str) -> str | None:
    if not isinstance(body, Mapping):
        return None
    value = cast("Mapping[object, object]", body).get(name)
    return value if isinstance(value, str) and value else None
