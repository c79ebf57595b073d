"""Mints that are answered once they are on disk: confirmed, not confirmed, or refused before anything is minted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from audit import audit, open_books
from doing import ME, done, impatient
from echod.bus import Bus, durable
from echod.bus.wire import Wire
from echod.errors import BusAway, BusFull, BusReadOnly, NotDurable, Unconfirmed
from echod.model.job import Mint, MintAnswer, Minted
from proxy import through
from server import PATIENCE_S, Server, running


@pytest.fixture(autouse=True)
def patient_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that others write to may take seconds for a sync."""
    monkeypatch.setattr(durable, "FSYNC_S", PATIENCE_S)


@pytest.fixture
async def disk() -> AsyncIterator[Server]:
    """A server with an append-only file that it syncs each second."""
    async with running("--appendfsync", "everysec", append_only=True) as server:
        yield server


@pytest.fixture
async def keen(disk: Server) -> AsyncIterator[Bus]:
    """A bus on it."""
    bus = await Bus.open(disk.address)
    await bus.join("NOD1")  # type: ignore[arg-type]
    yield bus
    await bus.close()


def one(bus: Bus) -> Mint:
    return Mint(id=bus.new_job_id(), payload=b"\x01")


async def fsynced(bus: Bus, mint: Mint) -> MintAnswer:
    [answer] = await bus.mint("f", [mint], fsync=True)
    return answer


def calls_of(server: Server, command: str) -> int:
    told = server.command("INFO", "commandstats")
    assert isinstance(told, bytes)
    found = [line for line in told.decode().splitlines() if line.startswith(f"cmdstat_{command}:calls=")]
    return int(found[0].partition("calls=")[2].partition(",")[0]) if found else 0


async def test_what_was_confirmed_is_there_after_the_server_was_killed(keen: Bus, disk: Server) -> None:
    minted = one(keen)
    assert await fsynced(keen, minted) == Minted(minted.id)
    disk.kill()
    disk.start()
    assert minted.id in audit(disk, "f").rows


async def test_nothing_is_confirmed_before_the_file_was_synced(
    keen: Bus, disk: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written is not synced: a server that never syncs never confirms, though it has all of it in its file."""
    disk.command("CONFIG", "SET", "appendfsync", "no")
    minted = one(keen)
    with monkeypatch.context() as patched:
        patched.setattr(durable, "FSYNC_S", 0.3)
        assert await fsynced(keen, minted) == Minted(minted.id, is_confirmed=False)
        with pytest.raises(Unconfirmed, match="not confirmed") as caught:
            await keen.mint_outside("f", mint := one(keen), fsync=True)
        assert caught.value.job == mint.id
        # Sent again on another connection it writes nothing, and is not taken for synced either.
        disk.command("CLIENT", "KILL", "TYPE", "normal")
        assert await fsynced(keen, minted) == Minted(minted.id, is_confirmed=False)
    assert set(audit(disk, "f").rows) == {minted.id, mint.id}
    disk.command("CONFIG", "SET", "appendfsync", "everysec")
    assert await fsynced(keen, minted) == Minted(minted.id)


def is_asked(server: Server) -> bytes:
    """The connection that waits for a sync, by its id; else nothing."""
    listed = server.command("CLIENT", "LIST")
    assert isinstance(listed, bytes)
    waiting = (line for line in listed.splitlines() if b"cmd=waitaof" in line and b"flags=b" in line)
    return next((line.split()[0][3:] for line in waiting), b"")


async def answered_too_early(server: Server, asked: int, answer: asyncio.Task[MintAnswer]) -> None:
    """The WAITAOF behind a mint, after so many, has its answer. (A server to which something is said looks at once.)"""
    while calls_of(server, "waitaof") < asked + 2 or is_asked(server):
        assert not answer.done()
        await asyncio.sleep(0)


async def test_a_server_that_answers_before_its_sync_has_ended_is_not_believed(
    keen: Bus, disk: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Valkey answers a WAITAOF at once where its last sync was less than a second ago, as here."""
    await fsynced(keen, one(keen))
    disk.command("CONFIG", "SET", "hz", "1")  # so that the next sync begins with the question for it
    disk.clock.advance(5_000)
    disk.command("SET", "any", "thing")  # synced at once: the last sync is long ago
    while b"aof_pending_bio_fsync:0" not in bytes(disk.command("INFO", "persistence")):  # type: ignore[call-overload]
        await asyncio.sleep(0)
    minted = one(keen)
    with monkeypatch.context() as patched, disk.without_syncs():
        patched.setattr(durable, "FSYNC_S", 3 * durable.EVERY_S)
        patched.setattr(durable, "EVERY_S", 1.0)  # the last sync began a little earlier
        asked = calls_of(disk, "waitaof")
        answer = asyncio.create_task(fsynced(keen, minted))
        await answered_too_early(disk, asked, answer)
        assert await answer == Minted(minted.id, is_confirmed=False)
    assert await fsynced(keen, minted) == Minted(minted.id)


async def test_a_rewrite_of_the_file_hides_no_sync(keen: Bus, disk: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written before it is in a file that is synced and closed elsewhere; the server counts no such sync."""
    await fsynced(keen, one(keen))
    minted = one(keen)
    with monkeypatch.context() as patched, disk.without_syncs():
        patched.setattr(durable, "FSYNC_S", 3 * durable.EVERY_S)
        patched.setattr(durable, "EVERY_S", 1.0)  # less than from the rewrite
        asked = calls_of(disk, "waitaof")
        answer = asyncio.create_task(fsynced(keen, minted))
        await answered_too_early(disk, asked, answer)
        await asyncio.sleep(0.2)
        disk.command("BGREWRITEAOF")
        assert await answer == Minted(minted.id, is_confirmed=False)
    assert await fsynced(keen, minted) == Minted(minted.id)


async def test_who_syncs_at_each_write_is_not_waited_for(keen: Bus, disk: Server) -> None:
    disk.command("CONFIG", "SET", "appendfsync", "always")
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(3):
            minted = one(keen)
            assert await fsynced(keen, minted) == Minted(minted.id)
    assert calls_of(disk, "info") == 3 + 1  # before each; this one


async def test_whose_settings_may_not_be_read_is_confirmed_too(keen: Bus, disk: Server) -> None:
    disk.command("ACL", "SETUSER", "default", "-config")
    minted = one(keen)
    assert await fsynced(keen, minted) == Minted(minted.id)


async def test_many_mints_share_few_syncs(keen: Bus, disk: Server) -> None:
    minted = [one(keen) for _ in range(400)]
    answers = await asyncio.gather(*[fsynced(keen, mint) for mint in minted])
    assert answers == [Minted(mint.id) for mint in minted]
    assert calls_of(disk, "waitaof") <= 20
    assert len(audit(disk, "f").rows) == 400


async def test_without_an_append_only_file_nothing_is_minted(bus: Bus, server: Server) -> None:
    with pytest.raises(NotDurable, match="append-only file"):
        await fsynced(bus, one(bus))
    assert open_books(server, "f").rows == {}


async def test_the_calls_of_others_do_not_wait_for_a_disk(keen: Bus, disk: Server) -> None:
    disk.command("CONFIG", "SET", "appendfsync", "no")
    waiting = asyncio.create_task(fsynced(keen, one(keen)))
    while not calls_of(disk, "waitaof"):
        await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_S / 2):
        await keen.mint("f", [one(keen)])
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_a_connection_that_breaks_while_it_waits_confirms_nothing(keen: Bus, disk: Server) -> None:
    """The server behind the next one may be another, or have lost what it had."""
    disk.command("CONFIG", "SET", "appendfsync", "no")
    minted = one(keen)
    waiting = asyncio.create_task(fsynced(keen, minted))
    client = b""
    while not client:
        client = is_asked(disk)
        if not open_books(disk, "f").rows:
            client = b""  # it waits before the mint: that only asks whether there is a file
        await asyncio.sleep(0)
    disk.command("CLIENT", "KILL", "ID", client)
    assert await waiting == Minted(minted.id, is_confirmed=False)
    disk.command("CONFIG", "SET", "appendfsync", "everysec")
    assert await fsynced(keen, minted) == Minted(minted.id)
    assert len(audit(disk, "f").rows) == 1


async def test_a_lost_script_is_loaded_and_a_lost_connection_made_anew(keen: Bus, disk: Server) -> None:
    await fsynced(keen, one(keen))
    disk.command("FUNCTION", "FLUSH")
    await fsynced(keen, one(keen))
    disk.command("CLIENT", "KILL", "TYPE", "normal")
    await fsynced(keen, one(keen))
    assert len(audit(disk, "f").rows) == 3


async def test_a_job_that_came_and_went_before_its_mint_was_sent_again_is_not_minted_anew(
    keen: Bus, disk: Server
) -> None:
    async def run_and_purge() -> None:
        jobs = (await keen.claim("f", ME, 5)).jobs
        await keen.settle("f", ME, [done(job) for job in jobs])
        await keen.purge("f", [job.id for job in jobs], ("done",))

    async with through(disk) as proxy:
        bus = await Bus.open(proxy.address)
        await bus.join("NOD2")  # type: ignore[arg-type]
        await fsynced(bus, one(bus))  # the script is loaded, so that the reply lost is the mint's own
        await run_and_purge()
        proxy.meanwhile, proxy.lose_replies_to = run_and_purge, b"FCALL"
        with pytest.raises(BusAway, match="whether the job was minted"):
            await bus.mint_outside("f", one(bus), fsync=True)
        assert (proxy.lost, open_books(disk, "f").rows) == (1, {})
        await bus.close()


async def test_a_server_that_is_frozen_full_or_gone_is_told_in_time(keen: Bus, disk: Server) -> None:
    """While it is so: what waited for it would wait as long as the block."""
    disk.command("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(BusFull):
        await fsynced(keen, one(keen))
    disk.command("CONFIG", "SET", "maxmemory", "0")
    with impatient(keen), disk.paused():
        async with asyncio.timeout(PATIENCE_S / 2):
            with pytest.raises(BusAway):
                await fsynced(keen, one(keen))
    disk.kill()
    async with asyncio.timeout(PATIENCE_S / 2):
        with impatient(keen), pytest.raises(BusAway):
            await fsynced(keen, one(keen))


async def test_who_is_waited_for_at_the_close_is_told(keen: Bus, disk: Server) -> None:
    disk.command("CONFIG", "SET", "appendfsync", "no")
    waiting = asyncio.create_task(fsynced(keen, one(keen)))
    while not calls_of(disk, "waitaof"):
        await asyncio.sleep(0)
    await keen.close()
    with pytest.raises(BusAway):
        await asyncio.wait_for(waiting, PATIENCE_S / 2)


async def test_who_waits_for_a_connection_at_the_close_is_told_too(keen: Bus, disk: Server) -> None:
    disk.command("CONFIG", "SET", "appendfsync", "no")
    waiting = list[asyncio.Task[list[MintAnswer]]]()
    for number in range(durable.CONNECTIONS):
        waiting.append(asyncio.create_task(keen.mint(f"q{number}", [one(keen)], fsync=True)))
        while f"blocked_clients:{number + 1}" not in str(disk.command("INFO", "clients")):
            await asyncio.sleep(0)
    waiting.append(asyncio.create_task(keen.mint("last", [one(keen)], fsync=True)))
    while not keen.durable._waiting:
        await asyncio.sleep(0)
    await keen.close()
    answers = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), PATIENCE_S / 2)
    assert [type(answer) for answer in answers] == [BusAway] * len(waiting)


async def test_more_calls_than_one_connection_takes_at_once_are_answered(
    keen: Bus, disk: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "MOST_CALLS", 2)
    mints = {f"q{number}": one(keen) for number in range(3 * durable.CONNECTIONS)}
    async with asyncio.timeout(PATIENCE_S):
        answers = await asyncio.gather(*[keen.mint(queue, [mint], fsync=True) for queue, mint in mints.items()])
    assert answers == [[Minted(mint.id)] for mint in mints.values()]


async def test_a_server_that_only_such_mints_find_full_is_relieved(keen: Bus, disk: Server) -> None:
    disk.command("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(BusFull):
        await fsynced(keen, one(keen))
    assert keen._relieving is not None  # "archives give way" shows what it does
    disk.command("CONFIG", "SET", "maxmemory", "0")
    async with asyncio.timeout(PATIENCE_S):
        await keen._relieving


async def test_a_replica_is_told_as_one_and_an_address_that_moves_is_followed(disk: Server) -> None:
    async with running(append_only=True) as second:
        now = disk.folder / "now"
        now.symlink_to(disk.socket)
        bus = await Bus.open(f"unix://{now}")
        await bus.join("NOD1")  # type: ignore[arg-type]
        await asyncio.gather(*[fsynced(bus, one(bus)) for _ in range(3)])
        disk.command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(BusReadOnly, match="replica"):
            await fsynced(bus, one(bus))
        now.unlink()
        now.symlink_to(second.socket)
        minted = one(bus)
        assert await fsynced(bus, minted) == Minted(minted.id)
        assert set(audit(second, "f").rows) == {minted.id}
        await bus.close()


async def test_a_server_that_becomes_a_replica_behind_the_question_for_its_file_is_left_too(
    keen: Bus, disk: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fsynced(keen, one(keen))
    before = calls_of(disk, "ping")

    async def turned(wire: Wire) -> None:
        disk.command("REPLICAOF", "127.0.0.1", "1")

    with monkeypatch.context() as patched:
        patched.setattr(durable, "_check_append_only", turned)
        with pytest.raises(BusReadOnly):
            await fsynced(keen, one(keen))
    disk.command("REPLICAOF", "NO", "ONE")
    minted = one(keen)
    assert await fsynced(keen, minted) == Minted(minted.id)
    assert calls_of(disk, "ping") == before + 1  # of a new connection


async def test_who_may_not_call_functions_is_served_by_plain_scripts(keen: Bus, disk: Server) -> None:
    disk.command("ACL", "SETUSER", "default", "-fcall")
    minted = one(keen)
    assert await fsynced(keen, minted) == Minted(minted.id)
