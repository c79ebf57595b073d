"""A browser's session: a strict cookie in place of the token, derived from it; a new token ends all sessions."""

from __future__ import annotations

import hmac

COOKIE = "echod"
AGE_S = 30 * 86_400


def cookie_of(token: str) -> str:
    """The cookie's value for a token."""
    return hmac.new(token.encode(), b"echod session", "sha256").hexdigest()


def is_token(given: str, token: str) -> bool:
    """Whether `given` is the token, in constant time."""
    return hmac.compare_digest(given.encode(errors="replace"), token.encode())


def is_cookie(given: str, token: str) -> bool:
    """Whether `given` is the cookie of the token, in constant time."""
    return hmac.compare_digest(given.encode(errors="replace"), cookie_of(token).encode())
