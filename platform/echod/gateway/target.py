"""The target of a request, in whichever form it came: RFC 9112, section 3.2. Pure."""

from __future__ import annotations

import re

EXPECTED = "expected a path as the request's target, or this server's whole address"
_ABSOLUTE = re.compile(rb"https?://([^/?#]+)([^#]*)", re.IGNORECASE)


class Misformed(ValueError):
    """A form that no request to this server has."""


def origin_form(target: bytes) -> tuple[bytes, bytes | None]:
    """The path and query of a target, and the host that it names, None for a path alone.

    Raises Misformed for `*`, which asks about no resource of ours, for a bare authority, and for other schemes.
    """
    if target.startswith(b"/"):
        return target, None
    absolute = _ABSOLUTE.fullmatch(target.partition(b"#")[0])
    if absolute is None:
        raise Misformed(f"{EXPECTED}, got {target[:100].decode('latin-1')!r}")
    rest = absolute[2]
    return (rest if rest.startswith(b"/") else b"/" + rest), absolute[1]
