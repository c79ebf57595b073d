"""The gate: hosts, origins, tokens, sizes, headers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from echod.bus.tokens import TokenRow, TokensHeld
from echod.config import Config
from echod.errors import BusAway
from echod.gateway.guard import MAX_BODY_BYTES, SECURITY_HEADERS, Guard, demand
from echod.gateway.keyring import RIGHTS, Keyring
from echod.gateway.limits import Intake
from echod.gateway.problems import Problem
from echod.gateway.session import COOKIE, fresh, session_digest
from echod.model.token import Kind, digest_of
from echod.model.token import Scope as Right

OWN = "http://127.0.0.1:8321"


async def behind(scope: Scope, receive: Receive, send: Send) -> None:
    """What stands behind the gate: says who asked and how much came."""
    request = Request(scope, receive)
    try:
        size = len(await request.body())
        demand(request, request.query_params.get("right"))  # type: ignore[arg-type]  # a test asks for any
        answer: ASGIApp = JSONResponse(
            {"rights": sorted(request.state.caller.rights), "size": size, "path": scope["path"]}
        )
    except Problem as problem:
        answer = problem.response()
    await answer(scope, receive, send)


class Listed:
    """A bus that holds these rows, or is away."""

    def __init__(self, *rows: TokenRow, closed: bool = False) -> None:
        self.rows, self.closed = rows, closed
        self.is_away = False
        self.reads = 0

    async def tokens(self) -> TokensHeld:
        self.reads += 1
        if self.is_away:
            raise BusAway("the bus is away")
        return TokensHeld(self.rows, self.closed)

    async def token_row(self, digest: str) -> TokenRow | None:
        if self.is_away:
            raise BusAway("the bus is away")
        return next((row for row in self.rows if row.digest == digest), None)

    async def used_token(self, digest: str) -> None:
        pass


NOTHING = Listed()


def row(kind: Kind, digest: str, *scopes: Right, expires_ms: int | None = None) -> TokenRow:
    return TokenRow(digest, kind, "ci", "", frozenset(scopes), 0, expires_ms, None)


async def ask(
    config: Config,
    method: str = "GET",
    url: str = "/functions",
    bus: Listed = NOTHING,
    mode: str = "dev",
    keyring: Keyring | None = None,
    **more: Any,
) -> httpx.Response:
    keyring = keyring or Keyring(config, bus, now_ms=lambda: 1_000, is_dev=lambda: mode == "dev")
    transport = httpx.ASGITransport(Guard(behind, config, keyring, Intake(config)), client=("127.0.0.1", 1234))
    async with httpx.AsyncClient(transport=transport, base_url=OWN) as client:
        return await client.request(method, url, **more)


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8321", "localhost:8321", "LOCALHOST:8321", "[::1]:8321", "localhost", "localhost.:1"]
)
async def test_own_hosts_pass(host: str) -> None:
    assert (await ask(Config(), headers={"Host": host})).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8321",
        "127.0.0.1.evil.example",
        "localhost@evil.example",
        "127.0.0.1:8321@evil.example",
        "evil.example#localhost",
        "evil.example/localhost",
        "localhost:port",
        "localhost:99999999",
        "127.0.0.1, evil.example",
        "0.0.0.0",
        "[::1",
        "",
        " ",
    ],
)
async def test_a_foreign_host_is_403(host: str) -> None:
    answer = await ask(Config(), headers={"Host": host})
    assert answer.status_code == 403
    assert answer.json()["type"].endswith("foreign-host")
    assert "--allow-host" in answer.json()["detail"]


async def test_two_hosts_are_none_of_ours() -> None:
    assert (await ask(Config(), headers=[("Host", "localhost"), ("Host", "localhost")])).status_code == 403


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_health_checks_are_answered_under_any_name(path: str) -> None:
    assert (await ask(Config(token="t"), url=path, headers={"Host": "10.0.0.7", "Origin": "null"})).status_code == 200


async def test_the_address_that_is_listened_on_is_own() -> None:
    assert (await ask(Config(host="10.1.2.3"), headers={"Host": "10.1.2.3:8321"})).status_code == 200


@pytest.mark.parametrize("origin", [OWN, "http://127.0.0.1:8321"])
async def test_the_own_origin_passes(origin: str) -> None:
    assert (await ask(Config(), "POST", headers={"Origin": origin})).status_code == 200


async def test_an_origin_is_own_when_it_is_where_the_request_went() -> None:
    mapped = {"Host": "localhost:9000", "Origin": "http://localhost:9000"}  # a published container port
    assert (await ask(Config(), headers=mapped)).status_code == 200
    assert (await ask(Config(), headers={"Host": "localhost", "Origin": "http://localhost"})).status_code == 200


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "https://evil.example",
        "http://evil.example:8321",
        "http://127.0.0.1:9999",
        "http://localhost:8321",  # another name than the one asked under: another site to a browser
        "http://127.0.0.1:8321.evil.example",
        "http://127.0.0.1:8321@evil.example",
        "chrome-extension://abc",
        "file://",
        "127.0.0.1:8321",
        "http://127.0.0.1:8321, https://evil.example",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_foreign_origin_is_403(method: str, origin: str) -> None:
    answer = await ask(Config(), method, headers={"Origin": origin})
    assert answer.status_code == 403
    assert answer.json()["type"].endswith("foreign-origin")


async def test_allow_host_adds_hosts_and_their_origins() -> None:
    config = Config(allow_host=("echod.example", "other.example:8443"))
    for host, status in (
        ("echod.example", 200),
        ("ECHOD.example:1234", 200),
        ("other.example:8443", 200),
        ("other.example:8444", 403),
        ("sub.echod.example", 403),
    ):
        assert (await ask(config, headers={"Host": host})).status_code == status, host
    for origin, status in (
        ("https://echod.example", 200),
        ("https://other.example:8443", 200),
        ("https://other.example", 403),
    ):
        assert (await ask(config, headers={"Origin": origin})).status_code == status, origin


async def test_without_a_token_everybody_may_do_everything() -> None:
    assert (await ask(Config())).json()["rights"] == sorted(RIGHTS)


@pytest.mark.parametrize("value", ["Bearer s3cret", "bearer s3cret", "BEARER  s3cret "])
async def test_the_token_opens(value: str) -> None:
    answer = await ask(Config(token="s3cret"), url="/x?right=deploy", headers={"Authorization": value})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "value", [None, "", "Bearer", "Bearer ", "Bearer S3CRET", "Bearer s3cre", "Basic s3cret", "s3cret", "Bearer \xff"]
)
@pytest.mark.parametrize("right", ["invoke", "read", "operate", "deploy"])
async def test_without_the_token_401_says_how(right: str, value: str | None) -> None:
    headers = {} if value is None else {"Authorization": value.encode("latin-1")}
    answer = await ask(Config(token="s3cret"), url=f"/x?right={right}", headers=headers)  # type: ignore[arg-type]
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith('Bearer realm="echod"')
    assert ('error="invalid_token"' in answer.headers["WWW-Authenticate"]) == (value is not None)
    assert "ECHOD_TOKEN" in answer.json()["detail"]
    assert "s3cret" not in answer.text


async def test_what_needs_no_right_is_open_without_a_token() -> None:
    assert (await ask(Config(token="s3cret"))).json()["rights"] == []


async def test_a_session_cookie_opens_and_ends_with_its_token() -> None:
    session = fresh("session")
    cookie = {"Cookie": f"other=1; {COOKIE}={session}"}
    bus = Listed(row("session", session_digest(session, "s3cret"), "read", "invoke"))
    assert (await ask(Config(token="s3cret"), headers=cookie, bus=bus)).json()["rights"] == ["invoke", "read"]
    assert (await ask(Config(token="new"), headers=cookie, bus=bus)).json()["rights"] == []


@pytest.mark.parametrize("kind", ["token", "session", "link"])
async def test_each_kind_opens_only_where_it_belongs(kind: Kind) -> None:
    text = fresh(kind)
    bus = Listed(row(kind, digest_of(text), "read"))
    as_bearer = await ask(Config(token="s3cret"), headers={"Authorization": f"Bearer {text}"}, bus=bus)
    as_cookie = await ask(Config(token="s3cret"), headers={"Cookie": f"{COOKIE}={text}"}, bus=bus)
    assert (as_bearer.json()["rights"] == ["read"]) == (kind == "token")
    assert (as_cookie.json()["rights"] == ["read"]) == (kind == "session")


async def test_a_missing_scope_is_403_and_names_it_while_an_unknown_token_is_401() -> None:
    text = fresh("token")
    bus = Listed(row("token", digest_of(text), "read", "invoke"))
    for right, status in (("read", 200), ("invoke", 200), ("operate", 403), ("deploy", 403)):
        answer = await ask(
            Config(token="s3cret"), url=f"/x?right={right}", headers={"Authorization": f"Bearer {text}"}, bus=bus
        )
        assert answer.status_code == status, right
        if status == 403:
            assert answer.json()["type"].endswith("out-of-scope")
            assert repr(right) in answer.json()["detail"]
    other = await ask(
        Config(token="s3cret"), url="/x?right=read", headers={"Authorization": f"Bearer {fresh('token')}"}, bus=bus
    )
    assert other.status_code == 401


async def test_an_expired_token_is_401() -> None:
    text = fresh("token")
    for expires_ms, status in ((1_000, 401), (1_001, 200)):
        bus = Listed(row("token", digest_of(text), "read", expires_ms=expires_ms))
        answer = await ask(
            Config(token="s3cret"), url="/x?right=read", headers={"Authorization": f"Bearer {text}"}, bus=bus
        )
        assert answer.status_code == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_a_cookie_alone_moves_nothing_without_our_own_origin(method: str) -> None:
    session = fresh("session")
    cookie = {"Cookie": f"{COOKIE}={session}"}
    bus = Listed(row("session", digest_of(session), "operate"))
    config = Config(token="s3cret")
    bare = await ask(config, method, headers=cookie, bus=bus)
    assert (bare.status_code, bare.json()["type"]) == (403, "urn:echod:problem:foreign-origin")
    for more, status in (
        ({"Origin": OWN}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "https://evil.example", "Sec-Fetch-Site": "same-origin"}, 403),
    ):
        assert (await ask(config, method, headers={**cookie, **more}, bus=bus)).status_code == status, more
    assert (await ask(config, headers=cookie, bus=bus)).status_code == 200


async def test_dev_on_loopback_asks_for_none_and_start_does_once_a_token_was_made() -> None:
    for mode, closed, host, open_ in (
        ("dev", True, "127.0.0.1", True),
        ("start", False, "127.0.0.1", True),
        ("start", True, "127.0.0.1", False),
        ("dev", False, "0.0.0.0", False),
        ("start", False, "10.1.2.3", False),
    ):
        answer = await ask(Config(host=host), url="/x", bus=Listed(closed=closed), mode=mode)
        assert (answer.json()["rights"] == sorted(RIGHTS)) == open_, (mode, closed, host)


async def test_a_token_shown_to_an_open_dev_is_held_to_its_scopes() -> None:
    text = fresh("token")
    bus = Listed(row("token", digest_of(text), "read"))
    assert (await ask(Config(), headers={"Authorization": f"Bearer {text}"}, bus=bus)).json()["rights"] == ["read"]


async def test_with_the_bus_away_the_main_token_opens_and_others_are_503() -> None:
    bus = Listed()
    bus.is_away = True
    config = Config(token="s3cret")
    main = await ask(config, url="/x?right=deploy", headers={"Authorization": "Bearer s3cret"}, bus=bus)
    assert (main.status_code, bus.reads) == (200, 0)
    other = await ask(config, url="/x?right=read", headers={"Authorization": f"Bearer {fresh('token')}"}, bus=bus)
    assert (other.status_code, other.headers["Retry-After"]) == (503, "1")
    garbage = await ask(config, url="/x?right=read", headers={"Authorization": "Bearer garbage"}, bus=bus)
    assert garbage.status_code == 401
    for path in ("/healthz", "/static/x", "/login"):
        cookie = {"Cookie": f"{COOKIE}={fresh('session')}"}
        assert (await ask(config, url=path, headers=cookie, bus=bus)).status_code == 200, path


async def test_the_list_is_read_once_until_news_and_a_revoked_token_is_out_at_once() -> None:
    text = fresh("token")
    bus = Listed(row("token", digest_of(text), "read"))
    config = Config(token="s3cret")
    keyring = Keyring(config, bus, now_ms=lambda: 1_000, is_dev=lambda: False)
    shown = {"Authorization": f"Bearer {text}"}
    for _ in range(5):
        assert (await ask(config, url="/x?right=read", keyring=keyring, headers=shown)).status_code == 200
    assert bus.reads == 1
    bus.rows = ()
    keyring.heard()
    assert (await ask(config, url="/x?right=read", keyring=keyring, headers=shown)).status_code == 401


@pytest.mark.parametrize("url", ["/functions", "/healthz", "/x?right=read"])
@pytest.mark.parametrize("headers", [{}, {"Host": "evil.example"}, {"Origin": "null"}])
async def test_every_answer_carries_the_security_headers(url: str, headers: dict[str, str]) -> None:
    answer = await ask(Config(token="s3cret"), url=url, headers=headers)
    for name, value in SECURITY_HEADERS.items():
        assert answer.headers[name] == value
    assert "unsafe-inline" not in answer.headers["Content-Security-Policy"]


async def test_a_declared_length_over_the_limit_is_413_before_the_body_is_read() -> None:
    async def body() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    answer = await ask(Config(), "POST", content=body(), headers={"Content-Length": str(MAX_BODY_BYTES + 1)})
    assert answer.status_code == 413
    assert str(MAX_BODY_BYTES) in answer.json()["detail"]


async def test_a_body_without_a_length_is_413_once_it_is_too_large() -> None:
    sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:  # for ever, if nobody stops it
            sent += 65_536
            yield b"x" * 65_536

    answer = await ask(Config(), "POST", content=body())
    assert answer.status_code == 413
    assert sent <= MAX_BODY_BYTES + 2 * 65_536


async def test_a_body_of_exactly_the_limit_passes() -> None:
    assert (await ask(Config(), "POST", content=b"x" * MAX_BODY_BYTES)).json()["size"] == MAX_BODY_BYTES


async def test_routes_see_the_path_as_it_was_sent() -> None:
    assert (await ask(Config(), url="/functions/a%2Fb%20c")).json()["path"] == "/functions/a%2Fb%20c"
