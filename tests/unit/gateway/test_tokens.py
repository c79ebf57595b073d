"""Tokens over HTTP: made once, within one's own rights, revoked everywhere; links and sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from doing import impatient
from echod.bus import Bus
from echod.bus.tokens import TokensHeld
from echod.errors import BusError
from echod.gateway import keyring
from echod.gateway.app import TABLE
from echod.gateway.session import COOKIE, fresh
from echod.model.token import SCOPES, digest_of, is_shaped
from server import PATIENCE_S
from unit.gateway.kit import Rig, Valkey, serving, until

MAIN = {"Authorization": "Bearer s3cret"}
DAY_MS = 86_400_000


@pytest.fixture
async def closed(server: Valkey) -> AsyncIterator[Rig]:
    """A gateway that asks for a token."""
    async with serving(server, token="s3cret") as rig:
        yield rig


async def made(rig: Rig, name: str, *scopes: str, by: dict[str, str] = MAIN, **more: object) -> str:
    answer = await rig.http.post("/tokens", json={"name": name, "scopes": scopes, **more}, headers=by)
    assert answer.status_code == 201, answer.text
    assert answer.headers["Cache-Control"] == "no-store"
    text: str = answer.json()["token"]
    assert is_shaped("token", text)
    return text


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_a_token_opens_what_its_scopes_say_and_every_route_holds_to_it(closed: Rig) -> None:
    for scope in SCOPES:
        token = await made(closed, f"only-{scope}", scope)
        for entry in TABLE:
            if entry.right is None or entry.path in {"/events", "/deploy"}:
                continue
            if (entry.method, entry.path) == ("POST", "/schedules"):
                continue  # it takes two: see below
            path = entry.path.replace("{name:name}", "x").replace("{id:names}", "x/y").replace("{id:name}", "x")
            answer = await closed.http.request(entry.method, path, headers=bearer(token))
            rights = (entry.right,) if isinstance(entry.right, str) else entry.right
            assert (answer.status_code == 403) == (scope not in rights), (scope, entry)
            if answer.status_code == 403:
                assert answer.json()["type"] == "urn:echod:problem:out-of-scope"
                assert " or ".join(map(repr, rights)) in answer.json()["detail"]


async def test_whoever_may_deploy_finds_the_version_to_go_back_to(closed: Rig) -> None:
    ci = bearer(await made(closed, "ci", "deploy"))
    answer = await closed.http.get("/versions", headers=ci)
    assert (answer.status_code, [each["active"] for each in answer.json()["versions"]]) == (200, [True])
    assert (await closed.http.get("/versions", headers=bearer(await made(closed, "app", "invoke")))).status_code == 403
    assert (await closed.http.get("/functions", headers=ci)).status_code == 403


async def test_the_list_tells_names_scopes_terms_and_use_and_no_token(closed: Rig) -> None:
    token = await made(closed, "ci", "invoke", "deploy", "invoke", expires="90d")
    await closed.http.get("/jobs", headers=bearer(token))
    answer = await closed.http.get("/tokens", headers=MAIN)
    [row] = answer.json()["tokens"]
    assert (row["name"], row["scopes"], row["expired"], row["sessions"]) == ("ci", ["invoke", "deploy"], False, 0)
    assert row["expires"] > row["made"]
    assert token not in answer.text
    assert digest_of(token) not in answer.text


async def test_use_is_noted(closed: Rig) -> None:
    token = await made(closed, "ci", "read")
    assert (await closed.http.get("/jobs", headers=bearer(token))).status_code == 200

    async def used() -> object:
        return (await closed.bus.tokens()).rows[0].used_ms

    seen = await used()
    while seen is None:
        seen = await used()
    assert (await closed.http.get("/tokens", headers=MAIN)).json()["tokens"][0]["used"]


async def test_a_name_is_given_once_and_an_unknown_one_is_404(closed: Rig) -> None:
    await made(closed, "ci", "read")
    again = await closed.http.post("/tokens", json={"name": "ci", "scopes": ["read"]}, headers=MAIN)
    assert (again.status_code, again.json()["type"]) == (409, "urn:echod:problem:name-taken")
    assert (await closed.http.delete("/tokens/nobody", headers=MAIN)).status_code == 404


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"name": "bad name!"}, "name: expected 1 to 64 of A-Z a-z 0-9 _ . @ -, got 'bad name!'"),
        ({"expires": "0s"}, "expires: expected minutes, hours, days or weeks, such as 30m, 12h, 90d or 8w, got '0s'"),
    ],
)
async def test_a_name_and_a_term_are_refused_in_words(closed: Rig, wrong: dict[str, str], said: str) -> None:
    answer = await closed.http.post("/tokens", json={"name": "ci", "scopes": ["read"], **wrong}, headers=MAIN)
    assert (answer.status_code, answer.json()["detail"]) == (422, said)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"", 400),
        (b"[]", 422),
        (b"null", 422),
        (b'{"name":"a"}', 422),
        (b'{"name":"a","scopes":[]}', 422),
        (b'{"name":"a","scopes":["root"]}', 422),
        (b'{"name":"","scopes":["read"]}', 422),
        (b'{"name":"a b","scopes":["read"]}', 422),
        (b'{"name":"a\\n","scopes":["read"]}', 422),
        (b'{"name":"\xd9\xa3","scopes":["read"]}', 422),
        (b'{"name":"a","scopes":["read"],"expires":"soon"}', 422),
        (b'{"name":"a","scopes":["read"],"expires":"1s"}', 422),
        (b'{"name":"a","scopes":["read"],"expires":"99999w"}', 422),
        (b'{"name":"a","scopes":["read"],"admin":true}', 422),
    ],
)
async def test_a_body_that_is_none_is_refused(closed: Rig, body: bytes, status: int) -> None:
    answer = await closed.http.post("/tokens", content=body, headers={**MAIN, "Content-Type": "application/json"})
    assert answer.status_code == status, answer.text
    assert (await closed.bus.tokens()).rows == ()


async def test_a_form_makes_no_token(closed: Rig) -> None:
    assert (await closed.http.post("/tokens", data={"name": "a"}, headers=MAIN)).status_code == 415


async def test_nobody_gives_or_takes_rights_beyond_their_own(closed: Rig) -> None:
    operator = bearer(await made(closed, "ops", "operate", "read"))
    await made(closed, "deployer", "deploy")
    for scopes, status in ((["read"], 201), (["operate", "read"], 201), (["deploy"], 403), (["read", "invoke"], 403)):
        name = "-".join(scopes)
        answer = await closed.http.post("/tokens", json={"name": name, "scopes": scopes}, headers=operator)
        assert answer.status_code == status, scopes
    assert (await closed.http.delete("/tokens/deployer", headers=operator)).status_code == 403
    assert (await closed.http.delete("/tokens/read", headers=operator)).status_code == 200
    link = await closed.http.post("/login/links", json={"scopes": ["deploy"]}, headers=operator)
    assert link.status_code == 403


async def test_a_schedule_of_ones_own_takes_the_right_to_invoke(closed: Rig) -> None:
    wanted = {"function": "hello.any", "every": "1h", "payload": 1}
    for scopes, status in ((["operate"], 403), (["invoke"], 403), (["invoke", "operate"], 201)):
        headers = bearer(await made(closed, "-".join(scopes), *scopes))
        answer = await closed.http.post("/schedules", json=wanted, headers=headers)
        assert answer.status_code == status, answer.text


async def test_a_revoked_token_is_out_at_once_on_every_gateway_with_its_sessions(server: Valkey) -> None:
    async with serving(server, token="s3cret") as one, serving(server, token="another") as two:
        token = await made(one, "ci", "read")
        async with asyncio.timeout(PATIENCE_S):  # two hears of it
            while (await two.http.get("/jobs", headers=bearer(token))).status_code != 200:
                await asyncio.sleep(0.005)
        session = await two.http.post("/login", data={"token": token})
        assert session.status_code == 303
        assert (await two.http.get("/jobs")).status_code == 200
        assert (await one.http.delete("/tokens/ci", headers=MAIN)).status_code == 200
        assert (await one.http.get("/jobs", headers=bearer(token))).status_code == 401
        await until(lambda: two.desk.keyring._is_stale())
        assert (await two.http.get("/jobs", headers=bearer(token))).status_code == 401
        assert (await two.http.get("/jobs")).status_code == 401


@pytest.mark.parametrize("path", ["/events", "/jobs/{id}/logs", "/functions/hello.any/logs"])
@pytest.mark.parametrize("way", ["token", "session"])
async def test_an_open_stream_ends_with_its_token_and_others_go_on(
    server: Valkey, path: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the news of it: no beat comes."""
    monkeypatch.setattr(keyring, "BEAT_S", 3600.0)
    async with serving(server, token="s3cret") as one, serving(server, token="another") as two:
        token = await made(one, "ci", "read")
        await made(one, "second", "read")
        path = path.format(id=await two.mint("hello.any", 1, Authorization="Bearer another"))
        headers, asked = bearer(token), {"Accept": "text/event-stream"}
        if way == "session":
            await two.http.post("/login", data={"token": token})
            headers = {}
        async with (
            two.http.stream("GET", path, headers=headers | asked) as theirs,
            two.http.stream("GET", path, headers=bearer("another") | asked) as ours,
        ):
            gone, stays = asyncio.create_task(drained(theirs)), asyncio.create_task(drained(ours))
            await one.http.delete("/tokens/second", headers=MAIN)  # news that is not about it
            await until(lambda: not two.desk.keyring._is_stale())
            assert not gone.done()
            await one.http.delete("/tokens/ci", headers=MAIN)
            async with asyncio.timeout(PATIENCE_S):
                await gone
            assert not stays.done()
            stays.cancel()


async def drained(answer: httpx.Response) -> None:
    assert answer.status_code == 200
    async for _ in answer.aiter_bytes():
        pass


async def test_a_gateway_that_missed_the_news_ends_a_stream_within_a_beat(
    closed: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyring, "BEAT_S", 0.2)
    token = await made(closed, "ci", "read")
    async with closed.http.stream("GET", "/events", headers=bearer(token)) as stream:
        monkeypatch.setattr(closed.desk.keyring, "_wake", lambda: None)
        await closed.bus.revoke_token(name="ci")
        async with asyncio.timeout(PATIENCE_S):
            await drained(stream)


async def test_a_stream_ends_with_its_tokens_term(server: Valkey) -> None:
    async with serving(server, token="s3cret") as rig:
        token = await made(rig, "ci", "read", expires="1m")
        async with rig.http.stream("GET", "/events", headers=bearer(token)) as stream:
            server.clock.advance(61_000)
            await rig.bus.beat(pump=False)
            rig.desk.keyring._wake()  # or within a beat
            async with asyncio.timeout(PATIENCE_S):
                await drained(stream)


async def test_a_stream_outlives_a_bus_that_is_away(closed: Rig, server: Valkey) -> None:
    token = await made(closed, "ci", "read")
    async with closed.http.stream("GET", "/events", headers=bearer(token)) as stream:
        follow = asyncio.create_task(drained(stream))
        with impatient(closed.bus), server.paused():
            closed.desk.keyring.heard()
            with pytest.raises(BusError):
                await closed.desk.keyring.caller(f"Bearer {token}", "")
        assert not follow.done()
        await closed.http.delete("/tokens/ci", headers=MAIN)
        async with asyncio.timeout(PATIENCE_S):
            await follow


async def test_a_strangers_guesses_wake_no_stream(closed: Rig) -> None:
    told = closed.desk.keyring._told
    await closed.http.get("/jobs", headers=bearer(fresh("token")))
    assert closed.desk.keyring._told is told


async def test_a_token_ends_by_the_servers_clock(server: Valkey) -> None:
    async with serving(server, token="s3cret") as rig:
        token = await made(rig, "ci", "read", expires="1m")
        assert (await rig.http.get("/jobs", headers=bearer(token))).status_code == 200
        server.clock.advance(61_000)
        await rig.bus.beat(pump=False)
        assert (await rig.http.get("/jobs", headers=bearer(token))).status_code == 401
        login = await rig.http.post("/login", data={"token": token})
        assert login.status_code == 401


async def test_a_session_has_its_tokens_rights_and_no_longer_a_term(server: Valkey) -> None:
    async with serving(server, token="s3cret") as rig:
        token = await made(rig, "reader", "read", expires="1h")
        answer = await rig.http.post("/login", data={"token": token, "next": "/jobs"})
        assert answer.headers["Set-Cookie"].count("Max-Age=36") + answer.headers["Set-Cookie"].count("Max-Age=35") == 1
        own = {"Origin": str(rig.http.base_url).rstrip("/")}
        assert (await rig.http.get("/jobs")).status_code == 200
        assert (await rig.http.post("/functions/hello.any", headers=own)).status_code == 403
        assert (await rig.http.get("/tokens", headers=MAIN)).json()["tokens"][0]["sessions"] == 1


async def test_a_login_link_opens_once_for_one_browser(server: Valkey) -> None:
    async with serving(server, token="s3cret") as rig:
        made_link = await rig.http.post("/login/links", json={"scopes": ["read"]}, headers=MAIN)
        assert made_link.status_code == 201
        path = made_link.json()["path"]
        assert (await rig.http.head(path)).headers.get("set-cookie") is None  # a preview spends nothing
        opened = await rig.http.get(path)
        assert (opened.status_code, opened.headers["Location"]) == (303, "/")
        assert "SameSite=strict" in opened.headers["Set-Cookie"]
        assert (await rig.http.get("/jobs")).status_code == 200
        async with httpx.AsyncClient(base_url=rig.http.base_url) as other:
            again = await other.get(path)
            assert (again.status_code, "set-cookie" in again.headers) == (401, False)
            assert (await other.get("/login?code=guess")).status_code == 401
        own = {"Origin": str(rig.http.base_url).rstrip("/")}
        assert (await rig.http.post("/functions/hello.any", headers=own)).status_code == 403


async def test_signing_out_ends_the_session_on_the_bus_too(closed: Rig) -> None:
    await closed.http.post("/login", data={"token": "s3cret"})
    kept = closed.http.cookies[COOKIE]
    assert len((await closed.bus.tokens()).rows) == 1
    await closed.http.post("/logout", headers={"Origin": str(closed.http.base_url).rstrip("/")})
    assert (await closed.bus.tokens()).rows == ()
    closed.http.cookies.clear()
    assert (await closed.http.get("/jobs", headers={"Cookie": f"{COOKIE}={kept}"})).status_code == 401


async def test_a_new_main_token_ends_the_sessions_of_the_old(server: Valkey) -> None:
    async with serving(server, token="s3cret") as rig:
        await rig.http.post("/login", data={"token": "s3cret"})
        kept = {"Cookie": f"{COOKIE}={rig.http.cookies[COOKIE]}"}
        rig.http.cookies.clear()
        assert (await rig.http.get("/jobs", headers=kept)).status_code == 200
        async with serving(server, token="changed") as other:
            assert (await other.http.get("/jobs", headers=kept)).status_code == 401


async def test_with_the_bus_away_the_main_token_is_known_and_others_are_503_in_time(server: Valkey) -> None:
    """While it is away: it does not come back before they are answered."""
    async with serving(server, token="s3cret") as rig:
        token = await made(rig, "ci", "read")
        assert (await rig.http.get("/jobs", headers=bearer(token))).status_code == 200
        with impatient(rig.bus), server.paused():
            rig.desk.keyring.heard()
            for headers in (bearer(token), {"Cookie": f"{COOKIE}={'x' * 10}", **bearer(token)}):
                answer = await rig.http.get("/healthz", headers=headers)
                assert answer.status_code == 200
                answer = await rig.http.get("/openapi.json", headers=headers)
                assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
            assert (await rig.http.get("/openapi.json", headers=MAIN)).status_code == 200
        assert (await rig.http.get("/jobs", headers=bearer(token))).status_code == 200


async def test_a_gateway_without_a_main_token_asks_once_the_bus_has_one(server: Valkey) -> None:
    async with serving(server) as rig:
        assert (await rig.http.get("/jobs")).status_code == 200
        token = await made(rig, "first", *SCOPES, by={})
        assert (await rig.http.get("/jobs")).status_code == 401
        assert (await rig.http.get("/jobs", headers=bearer(token))).status_code == 200
        assert (await rig.http.delete("/tokens/first", headers=bearer(token))).status_code == 200
        assert (await rig.http.get("/jobs")).status_code == 401  # whoever revokes the last one opens nothing


async def test_the_bus_holds_no_token(closed: Rig, bus: Bus) -> None:
    token = await made(closed, "ci", "read")
    path = (await closed.http.post("/login/links", json={}, headers=MAIN)).json()["path"]
    await closed.http.get(path)
    await closed.http.post("/login", data={"token": token})
    raw: Any = await bus.link.command("HGETALL", bus.keys.tokens)
    everything = b" ".join(raw)
    for text in (token, path.partition("=")[2], closed.http.cookies[COOKIE], "s3cret"):
        assert text.encode() not in everything


async def test_guesses_of_a_login_link_have_no_list_read_and_are_few(
    closed: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every guess a piece of news, whoever signed in waited for a list that was never new enough."""
    token = await made(closed, "ci", "read")
    assert (await closed.http.get("/jobs", headers=bearer(token))).status_code == 200
    lists: list[None] = []
    tokens = closed.bus.tokens

    async def counted() -> TokensHeld:
        lists.append(None)
        return await tokens()

    monkeypatch.setattr(closed.bus, "tokens", counted)
    began_s = asyncio.get_running_loop().time()
    statuses = [(await closed.http.get(f"/login?%63ode={fresh('link')}")).status_code for _ in range(60)]
    refilled = (asyncio.get_running_loop().time() - began_s) / 2
    assert set(statuses) == {401, 429}
    assert statuses.count(401) <= 31 + refilled
    for _ in range(10):
        assert (await closed.http.get("/jobs", headers=bearer(fresh("token")))).status_code == 401
    assert (await closed.http.get("/jobs", headers=bearer(token))).status_code == 200
    assert len(lists) <= 3 + refilled / 10  # late news of the token, and beats
    assert (await closed.http.get("/login")).status_code == 200  # the page itself is no guess
