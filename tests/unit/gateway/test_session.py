"""Sessions: what a browser holds in place of a token."""

from __future__ import annotations

import pytest
from starlette.requests import HTTPConnection
from starlette.responses import Response

from echod.gateway.session import AGE_S, came_by_tls, fresh, is_token, session_digest, set_cookie
from echod.model.token import is_shaped


def test_the_token_is_itself_and_nothing_else() -> None:
    assert is_token("s3cret", "s3cret")
    assert not any(is_token(given, "s3cret") for given in ("", "s3cre", "s3cret ", "S3CRET", "é", "\udcff"))


def test_a_session_of_one_main_token_is_unknown_under_another() -> None:
    cookie = fresh("session")
    assert is_shaped("session", cookie)
    digests = {session_digest(cookie, main) for main in (None, "a", "b")}
    assert len(digests) == 3
    assert session_digest(cookie, "a") == session_digest(cookie, "a")


def connection(scheme: str = "http", **headers: str) -> HTTPConnection:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return HTTPConnection(
        {"type": "http", "scheme": scheme, "path": "/", "query_string": b"", "headers": raw, "server": ("h", 80)}
    )


@pytest.mark.parametrize(
    ("seen", "secure"),
    [
        (connection(), False),
        (connection("https"), True),
        (connection(origin="https://echod.example"), True),
        (connection(origin="http://echod.example"), False),
        (connection(x_forwarded_proto="https"), True),
    ],
)
def test_the_cookie_is_strict_and_stays_on_tls_where_it_came_by_tls(seen: HTTPConnection, secure: bool) -> None:
    assert came_by_tls(seen) == secure
    answer = Response()
    set_cookie(answer, seen, "echos_x", AGE_S)
    parts = {part.strip().lower() for part in answer.headers["set-cookie"].split(";")}
    assert {"httponly", "samesite=strict", "path=/", f"max-age={AGE_S}"} <= parts
    assert ("secure" in parts) == secure
