"""The gate: hosts, origins, tokens, sizes, headers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from echod.config import Config
from echod.gateway.guard import MAX_BODY_BYTES, RIGHTS, SECURITY_HEADERS, Guard, demand
from echod.gateway.problems import Problem
from echod.gateway.session import COOKIE, cookie_of

OWN = "http://127.0.0.1:8321"


async def behind(scope: Scope, receive: Receive, send: Send) -> None:
    """What stands behind the gate: says who asked and how much came."""
    request = Request(scope, receive)
    try:
        size = len(await request.body())
        demand(request, request.query_params.get("right"))  # type: ignore[arg-type]  # a test asks for any
        answer: ASGIApp = JSONResponse({"rights": sorted(request.state.rights), "size": size, "path": scope["path"]})
    except Problem as problem:
        answer = problem.response()
    await answer(scope, receive, send)


async def ask(config: Config, method: str = "GET", url: str = "/functions", **more: Any) -> httpx.Response:
    transport = httpx.ASGITransport(Guard(behind, config), client=("127.0.0.1", 1234))
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
    cookie = {"Cookie": f"other=1; {COOKIE}={cookie_of('s3cret')}"}
    assert (await ask(Config(token="s3cret"), headers=cookie)).json()["rights"] == sorted(RIGHTS)
    assert (await ask(Config(token="new"), headers=cookie)).json()["rights"] == []
    assert "s3cret" not in cookie_of("s3cret")


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
