"""Tokens on the bus: digests only, one name once, links once, revoked with all that came of them."""

from __future__ import annotations

import asyncio

import msgspec

from echod.bus import Bus
from server import PATIENCE_S, Server

DAY_MS = 86_400_000


async def test_a_token_is_listed_with_what_it_may_do_and_a_resend_makes_it_once(bus: Bus) -> None:
    for _ in range(2):
        assert await bus.make_token("d1", name="ci", scopes=["deploy", "invoke"], expires_in_ms=DAY_MS) == "made"
    held = await bus.tokens()
    [row] = held.rows
    assert (row.digest, row.kind, row.name, row.scopes) == ("d1", "token", "ci", {"invoke", "deploy"})
    assert row.expires_ms == row.made_ms + DAY_MS
    assert row.used_ms is None
    assert not row.is_over(row.made_ms)
    assert row.is_over(row.made_ms + DAY_MS)
    assert held.closed


async def test_a_name_is_given_once_and_is_free_again_after_its_token_was_revoked(bus: Bus) -> None:
    assert await bus.make_token("d1", name="ci", scopes=["read"]) == "made"
    assert await bus.make_token("d2", name="ci", scopes=["read"]) == "taken"
    assert await bus.revoke_token(name="ci") == 1
    assert await bus.revoke_token(name="ci") == 0
    assert await bus.make_token("d2", name="ci", scopes=["read"]) == "made"


async def test_revoking_a_token_ends_its_sessions_and_links_and_no_others(bus: Bus) -> None:
    await bus.make_token("d1", name="ci", scopes=["read"])
    await bus.make_token("d2", name="ops", scopes=["read"])
    for parent, digest in (("ci", "s1"), ("ci", "s2"), ("ops", "s3"), ("", "s4")):
        assert await bus.begin_session(digest, parent=parent, scopes=["read"], expires_in_ms=DAY_MS)
    await bus.make_token("l1", kind="link", parent="ci", scopes=["read"], expires_in_ms=DAY_MS)
    assert await bus.revoke_token(name="ci") == 4
    assert {row.digest for row in (await bus.tokens()).rows} == {"d2", "s3", "s4"}
    assert await bus.revoke_token(digest="s3") == 1
    assert {row.digest for row in (await bus.tokens()).rows} == {"d2", "s4"}


async def test_a_token_is_no_link_and_a_link_takes_no_name(bus: Bus) -> None:
    await bus.make_token("d1", name="ci", scopes=["read"], expires_in_ms=DAY_MS)
    assert not await bus.begin_session("s1", link="d1", parent="ci", scopes=["read"], expires_in_ms=DAY_MS)
    assert await bus.make_token("l1", kind="link", name="ci", scopes=["read"], expires_in_ms=DAY_MS) == "made"
    assert {row.digest for row in (await bus.tokens()).rows} == {"d1", "l1"}
    assert await bus.revoke_token(name="ci") == 1
    assert {row.digest for row in (await bus.tokens()).rows} == {"l1"}


async def test_a_link_opens_one_session_and_a_resend_finds_it(bus: Bus) -> None:
    await bus.make_token("l1", kind="link", parent="ci", scopes=["read"], expires_in_ms=DAY_MS)
    opened = await asyncio.gather(
        *(
            bus.begin_session(f"s{number}", link="l1", parent="ci", scopes=["read"], expires_in_ms=DAY_MS)
            for number in range(20)
        )
    )
    assert opened.count(True) == 1
    [row] = (await bus.tokens()).rows
    assert await bus.begin_session(row.digest, link="l1", parent="ci", scopes=["read"], expires_in_ms=DAY_MS)
    assert len((await bus.tokens()).rows) == 1


async def test_a_link_ends_by_the_servers_clock(bus: Bus, server: Server) -> None:
    await bus.make_token("l1", kind="link", scopes=["read"], expires_in_ms=60_000)
    server.clock.advance(60_001)
    assert not await bus.begin_session("s1", link="l1", parent="", scopes=["read"], expires_in_ms=DAY_MS)


async def test_what_ended_is_swept_but_a_named_token_stays_listed(bus: Bus, server: Server) -> None:
    await bus.make_token("d1", name="ci", scopes=["read"], expires_in_ms=60_000)
    await bus.make_token("l1", kind="link", scopes=["read"], expires_in_ms=60_000)
    await bus.begin_session("s1", parent="ci", scopes=["read"], expires_in_ms=60_000)
    server.clock.advance(60_001)
    await bus.make_token("d2", name="ops", scopes=["read"])
    assert {row.digest for row in (await bus.tokens()).rows} == {"d1", "d2"}


async def test_the_thousand_and_first_session_ends_the_oldest(bus: Bus, server: Server) -> None:
    await bus.begin_session("first", parent="", scopes=["read"], expires_in_ms=DAY_MS)
    server.clock.advance(1000)
    for number in range(1000):
        await bus.begin_session(f"s{number}", parent="", scopes=["read"], expires_in_ms=DAY_MS)
    digests = {row.digest for row in (await bus.tokens()).rows}
    assert len(digests) == 1000
    assert "first" not in digests


async def test_two_thousand_tokens_are_the_most_and_what_ended_makes_room(bus: Bus, server: Server) -> None:
    entry = msgspec.msgpack.encode(["link", "", "", ["read"], 1, 2, 0])  # over since long
    kept = msgspec.msgpack.encode(["token", "other", "", ["read"], 1, 0, 0])
    server.command("HSET", "emq:{~}:tokens", *(part for number in range(2000) for part in (f"d{number}", kept)))
    assert await bus.make_token("new", name="ci", scopes=["read"]) == "full"
    server.command("HSET", "emq:{~}:tokens", "d7", entry)
    assert await bus.make_token("new", name="ci", scopes=["read"]) == "made"


async def test_use_is_noted_once_a_minute_and_never_brings_a_revoked_token_back(bus: Bus, server: Server) -> None:
    await bus.make_token("d1", name="ci", scopes=["read"])
    await bus.used_token("d1")
    [first] = (await bus.tokens()).rows
    server.clock.advance(30_000)
    await bus.used_token("d1")
    assert (await bus.tokens()).rows == (first,)
    server.clock.advance(30_001)
    await bus.used_token("d1")
    assert ((await bus.tokens()).rows[0].used_ms or 0) > (first.used_ms or 0)
    await bus.revoke_token(name="ci")
    await bus.used_token("d1")
    assert (await bus.tokens()).rows == ()


async def test_the_door_stays_closed_when_the_last_token_is_revoked(bus: Bus) -> None:
    assert not (await bus.tokens()).closed
    await bus.make_token("d1", name="ci", scopes=["read"])
    await bus.revoke_token(name="ci")
    held = await bus.tokens()
    assert held.closed
    assert held.rows == ()


async def test_every_node_hears_of_a_change(bus: Bus, server: Server) -> None:
    other = await Bus.open(server.address)
    try:
        heard = asyncio.Event()
        other.on("tokens", lambda *_: heard.set())
        for change in (
            bus.make_token("d1", name="ci", scopes=["read"]),
            bus.begin_session("s1", parent="ci", scopes=["read"], expires_in_ms=DAY_MS),
            bus.revoke_token(name="ci"),
        ):
            await change
            async with asyncio.timeout(PATIENCE_S):
                await heard.wait()
            heard.clear()
    finally:
        await other.close()


async def test_two_apps_on_one_server_share_no_tokens(bus: Bus, server: Server) -> None:
    other = await Bus.open(server.address, app="staging")
    try:
        await bus.make_token("d1", name="ci", scopes=["read"])
        assert (await other.tokens()).rows == ()
    finally:
        await other.close()
