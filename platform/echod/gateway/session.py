"""A browser's session: a strict cookie in place of a token, with a term of its own, known to the bus by its digest.

A session of ECHOD_TOKEN is stored under a digest keyed by that token: a gateway with another one does not know it, so
changing the token ends them all, and nothing on the bus tells anything about the token.
"""

from __future__ import annotations

import hmac
import secrets

from starlette.requests import HTTPConnection
from starlette.responses import Response

from echod.model.token import ENTROPY_BYTES, Kind, digest_of, token_of

COOKIE = "echod"
AGE_S = 7 * 86_400


def fresh(kind: Kind) -> str:
    """A new token's text."""
    return token_of(kind, secrets.token_bytes(ENTROPY_BYTES))


def session_digest(cookie: str, main_token: str | None) -> str:
    """What the bus knows a session by. `main_token`: ECHOD_TOKEN, for sessions that came of it; None for the others."""
    if main_token is None:
        return digest_of(cookie)
    return hmac.new(main_token.encode(), f"echod session {cookie}".encode(errors="replace"), "sha256").hexdigest()


def is_token(given: str, token: str) -> bool:
    """Whether `given` is the token, in constant time whatever its length."""
    return hmac.compare_digest(digest_of(given), digest_of(token))


def set_cookie(answer: Response, connection: HTTPConnection, cookie: str, age_s: int) -> None:
    """Hand the cookie to the browser.

    No script reads it, no other site sends it, and it is Secure if the request came by TLS.
    """
    answer.set_cookie(
        COOKIE, cookie, max_age=age_s, secure=came_by_tls(connection), httponly=True, samesite="strict", path="/"
    )


def drop_cookie(answer: Response) -> None:
    """Take the cookie back."""
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict", path="/")


def came_by_tls(connection: HTTPConnection) -> bool:
    """Whether the browser spoke TLS, to us or to a proxy. A false claim only keeps the claimer's own cookie back."""
    return (
        connection.url.scheme == "https"
        or connection.headers.get("origin", "").startswith("https://")
        or connection.headers.get("x-forwarded-proto", "") == "https"
    )
