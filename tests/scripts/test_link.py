"""The connections: away, back, kicked, flushed, full of strangers; answers in time, and no effect twice."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import hiredis
import pytest
import redis
import uvloop

from audit import audit
from doing import LEASE_MS, ME, SHIPPED_S, claim, claim_one, counted, done, impatient, mint, settle
from echod.bus import Bus, address
from echod.bus.bus import check_kind
from echod.bus.core import PLACES_REMEMBERED
from echod.bus.faults import translate
from echod.bus.keys import escape
from echod.bus.link import FIRST_PAUSE_S, LONGEST_PAUSE_S, TRIP, Pauses
from echod.bus.wire import Wire
from echod.errors import BusAway, BusError, BusFull, BusReadOnly, BusUnfit, EchodError
from echod.model.ids import JobId, NodeId
from echod.model.job import Mint, Minted, Unique
from proxy import Proxy, through
from server import PATIENCE_S, Server, running


@pytest.fixture
async def proxy(server: Server) -> AsyncIterator[Proxy]:
    async with through(server) as proxy:
        yield proxy


async def joined(where: str, name: str = "NOD1") -> Bus:
    bus = await Bus.open(where)
    await bus.join(name)  # type: ignore[arg-type]
    return bus


def test_calls_with_next_to_no_time_left_are_calls_like_others(shared_server: Server) -> None:
    """uvloop, which nodes run on, has a timer that is due at once say nothing of when that is."""

    async def both() -> list[object]:
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_unix_connection(Wire, str(shared_server.socket))
        answers = [wire.send("PING", timeout_s=left_s) for left_s in (0.0002, 0.0001, 5.0)]
        told = await asyncio.gather(*answers, return_exceptions=True)
        wire.abort("all has been said")
        await asyncio.sleep(0)  # the transport's last turn
        return list(told)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert all(answer == b"PONG" or isinstance(answer, BusAway) for answer in runner.run(both()))


async def test_a_mint_whose_reply_is_lost_is_sent_again_and_makes_one_job(server: Server, proxy: Proxy) -> None:
    bus = await joined(proxy.address)
    await mint(bus, "warm")  # the script is loaded, so that the reply lost is the mint's own
    proxy.lose_replies_to = b"FCALL"
    (id,) = await mint(bus)
    assert proxy.lost == 1
    assert audit(server, "f").lanes == {"-": [id]}
    assert await counted(bus, "minted") == 1
    await bus.close()


async def test_a_question_whose_reply_is_lost_is_asked_again(proxy: Proxy) -> None:
    bus = await joined(proxy.address)
    await mint(bus)
    proxy.lose_replies_to = b"HGETALL"
    assert await bus.queues() == ["f"]
    assert proxy.lost == 1
    await bus.close()


async def test_more_calls_than_go_in_one_trip_are_answered_in_their_order(bus: Bus) -> None:
    numbers = [b"%d" % number for number in range(2 * TRIP + 1)]
    assert await bus.link.commands([("ECHO", number) for number in numbers]) == numbers
    (id,) = await mint(bus, "last")
    queues = [f"q{number}" for number in range(2 * TRIP)]
    assert [queue for queue, stats in (await bus.stats([*queues, "last"])).items() if stats.pending] == ["last"]
    assert [job.id for job in await claim(bus, 1, "last")] == [id]


async def test_a_job_that_came_and_went_before_its_mint_was_sent_again_is_not_minted_anew(
    proxy: Proxy, server: Server
) -> None:
    """It cannot be known whether it was minted, unless a key of a fixed time says so: no second job in either case."""
    ran: list[JobId] = []
    bus, other = await joined(proxy.address), await joined(server.address, "NOD2")

    async def run_and_purge() -> None:
        for job in (await other.claim("f", ME, 5)).jobs:
            ran.append(job.id)
            await other.settle("f", ME, [done(job)], lease_ms=LEASE_MS)
        await other.purge("f", ran, ("done",))

    await mint(bus, "warm")
    proxy.meanwhile, proxy.lose_replies_to = run_and_purge, b"FCALL"
    with pytest.raises(BusAway, match="whether the job was minted"):
        await bus.mint_outside("f", Mint(id=bus.new_job_id(), payload=b"\xc0"))
    proxy.lose_replies_to = b"FCALL"
    keyed = Mint(id=bus.new_job_id(), payload=b"\xc0", once=Unique("k", 3_600_000))
    assert await bus.mint_outside("f", keyed) == Minted(keyed.id)
    await run_and_purge()
    assert len(ran) == len(set(ran)) == 2
    await bus.close()
    await other.close()


async def test_a_child_whose_mint_cannot_be_known_is_swept_again(proxy: Proxy, server: Server) -> None:
    bus = await joined(proxy.address)

    async def step() -> None:
        server.clock.advance(11_000)  # a failover to a server ahead, say

    await mint(bus, "warm")
    child = Mint(id=bus.new_job_id(), payload=b"\xc0", parent=bus.new_job_id())
    proxy.meanwhile, proxy.lose = step, b"FCALL"
    assert await bus.mint_children("f", [child]) == []
    assert await bus.mint_children("f", [child]) == [child.id]
    assert list(audit(server, "f").rows) == [child.id]
    await bus.close()


async def test_a_child_that_no_bus_would_take_stands_in_nobodys_way(bus: Bus) -> None:
    unfit, fit = (Mint(id=bus.new_job_id(), payload=b"\xc0", at_ms=at_ms) for at_ms in (-5, None))
    assert await bus.mint_children("f", [unfit, fit]) == [unfit.id, fit.id]
    assert [job.id for job in (await bus.jobs("f"))[0]] == [fit.id]


async def test_a_claim_and_a_settle_whose_replies_are_lost_take_effect_once(server: Server, proxy: Proxy) -> None:
    bus = await joined(proxy.address)
    ids = await mint(bus, count=6)
    await settle(bus, [done(job) for job in await claim(bus, 1)])
    proxy.lose_replies_to = b"FCALL"
    jobs = await claim(bus, 2)
    assert [job.id for job in jobs] == ids[1:3]
    proxy.lose_replies_to = b"FCALL"
    following = await settle(bus, [done(job) for job in jobs], count=2)
    assert [job.id for job in following] == ids[3:5]
    assert proxy.lost == 2
    books = audit(server, "f")
    assert (len(books.active), len(books.done), books.lanes) == (2, 3, {"-": ids[5:]})
    assert await counted(bus, "done") == 3
    await bus.close()


async def test_a_lease_whose_claim_was_answered_late_runs_since_the_claim(server: Server, proxy: Proxy) -> None:
    """Else its holder believes in a lease that is over, while another runs the job."""
    bus = await joined(proxy.address)
    await claim(bus)  # the script is loaded, so that the reply lost is the claim's own
    await mint(bus)
    with proxy.is_deaf(bus), pytest.raises(BusAway):
        await bus.claim("f", ME, 1, LEASE_MS)
    while server.command("ZCARD", "emq:{f}:active") == 0:
        await asyncio.sleep(0)
    server.clock.advance(6000)
    answer = await bus.claim("f", ME, 1, LEASE_MS)
    (job,) = answer.jobs
    assert answer.now_ms - job.claimed_ms >= 6000
    await bus.close()


async def test_what_a_call_that_ended_as_away_did_reaches_its_claimer_with_the_next(
    server: Server, proxy: Proxy
) -> None:
    """The reply is late for good: BusAway.

    Called again with the same verdicts, nothing is refused and nothing is lost.
    """
    bus = await joined(proxy.address)
    ids = await mint(bus, count=5)
    jobs = await claim(bus, 2)
    with proxy.is_deaf(bus), pytest.raises(BusAway):
        await bus.settle("f", ME, [done(jobs[0])], count=1, lease_ms=LEASE_MS)
    answer = await bus.settle("f", ME, [done(jobs[0]), done(jobs[1])], count=3, lease_ms=LEASE_MS)
    assert answer.refused == ()
    assert [job.id for job in answer.claim.jobs] == ids[2:5]
    assert await counted(bus, "done") == 2
    assert len(audit(server, "f").active) == 3
    await bus.close()


async def test_verdicts_that_were_taken_are_not_sent_again_though_the_call_after_them_is_away_too(
    server: Server, proxy: Proxy
) -> None:
    """The settle's reply is late, its resend answered, and then the reply to the claim behind it is late."""
    bus = await joined(proxy.address)
    ids = await mint(bus, count=3)
    jobs = await claim(bus, 1)
    with proxy.is_deaf(bus), pytest.raises(BusAway):
        await bus.settle("f", ME, [done(jobs[0])], count=0, lease_ms=LEASE_MS)
    await bus.stats(["f"])  # it is connected again
    proxy.deafens = bus.scripts["claim"].function
    with impatient(bus), pytest.raises(BusAway):
        await bus.settle("f", ME, [done(jobs[0])], count=2, lease_ms=LEASE_MS)
    answer = await bus.settle("f", ME, [done(jobs[0])], count=2, lease_ms=LEASE_MS)
    assert answer.refused == ()
    assert [job.id for job in answer.claim.jobs] == ids[1:]
    assert (await counted(bus, "done"), await counted(bus, "refused")) == (1, 0)
    await bus.close()


@pytest.mark.parametrize("verb", ["recur", "unrecur", "pause", "resume", "park"])
async def test_a_write_of_a_schedule_whose_reply_is_lost_is_answered_the_same_and_undoes_nothing(
    server: Server, proxy: Proxy, verb: str
) -> None:
    """Sent again after somebody else wrote the opposite, it changes nothing."""
    bus, other = await joined(proxy.address), await joined(server.address, "NOD2")

    async def recur(by: Bus, queue: str = "f") -> str:
        return await by.recur(queue, "r", rule="x", tz="UTC", trigger=b"", payload=b"", next_ms=1000, generation=None)

    if verb != "recur":
        await recur(bus)
    if verb == "resume":
        await bus.pause_recurrence("f", "r")
    calls: dict[str, tuple[Callable[[], Awaitable[object]], Callable[[], Awaitable[object]], object, bytes]] = {
        "recur": (lambda: recur(bus), lambda: other.unrecur("f", "r", None), "created", b"recur"),
        "unrecur": (lambda: bus.unrecur("f", "r", None), lambda: recur(other), "removed", b"unrecur"),
        "pause": (
            lambda: bus.pause_recurrence("f", "r"),
            lambda: other.resume_recurrence("f", "r", 2000),
            True,
            b"recurrence",
        ),
        "resume": (
            lambda: bus.resume_recurrence("f", "r", 2000),
            lambda: other.pause_recurrence("f", "r"),
            "ok",
            b"recurrence",
        ),
        "park": (
            lambda: bus.park_recurrence("f", "r", 1, "broken"),
            lambda: other.occur("f", "r", 1, 1000, next_ms=2000, job=other.new_job_id()),
            True,
            b"recurrence",
        ),
    }
    call, opposite, expected, script = calls[verb]
    await recur(other, "g")
    await other.pause_recurrence("g", "r")
    await other.unrecur("g", "r", None)  # the scripts are loaded, so that the reply lost is the call's own
    after: list[object] = []

    async def meanwhile() -> None:
        await opposite()
        after.append(server.command("HGETALL", "emq:{f}:repeat:r"))

    proxy.meanwhile = meanwhile
    proxy.lose_replies_to = bus.scripts[script.decode()].function
    assert await call() == expected
    assert proxy.lost == 1
    assert server.command("HGETALL", "emq:{f}:repeat:r") == after[0]
    await bus.close()
    await other.close()


async def test_calls_to_a_frozen_server_are_away_in_under_a_second_and_work_goes_on_after(server: Server) -> None:
    bus = await joined(server.address)
    with impatient(bus), server.paused():
        for _ in range(2):
            with pytest.raises(BusAway):
                await bus.mint("f", [Mint(id=bus.new_job_id(), payload=b"")])
        assert not bus.connected
    assert SHIPPED_S < 1
    up = asyncio.Event()
    bus.on("connected", up.set)
    if not bus.connected:
        await asyncio.wait_for(up.wait(), PATIENCE_S)
    await mint(bus)
    await bus.close()


async def test_a_call_behind_one_that_had_more_time_and_was_answered_is_away_in_its_own_time(
    server: Server, proxy: Proxy
) -> None:
    bus = await joined(proxy.address)
    assert await bus.link.command("PING", timeout_s=10 * PATIENCE_S) == b"PONG"
    with proxy.is_deaf(bus):
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(BusAway):
                await bus.queues()
    await bus.close()


async def test_a_parked_connection_that_alone_is_half_open_is_found_by_the_next_beat(
    server: Server, proxy: Proxy
) -> None:
    bus = await joined(proxy.address)
    await mint(bus)
    await claim(bus, 1)
    assert await bus.ring_wait(PATIENCE_S) == "f"  # so that the pop's connection is there
    await claim(bus, 1)
    proxy.deafens = b"BLPOP"
    parked = asyncio.create_task(bus.ring_wait(60))
    while b"blocked_clients:1" not in bytes(str(server.command("INFO", "clients")), "utf-8"):
        await asyncio.sleep(0)
    await mint(bus)
    assert server.command("LLEN", "emq:{~}:wake") == 0  # popped, for a connection where it never arrives
    server.clock.advance(20_000)
    await bus.beat(pump=True)
    assert await asyncio.wait_for(parked, PATIENCE_S) == "f"
    await bus.close()


async def test_a_news_connection_that_alone_is_half_open_is_found_by_the_next_beat(
    server: Server, proxy: Proxy, bus: Bus
) -> None:
    behind = await joined(proxy.address, "NOD2")
    again, due = asyncio.Event(), asyncio.Event()
    behind.on("hearing", again.set)
    behind.on("due", lambda *_: due.set())
    proxy.deafen_subscribers()
    await mint(bus, in_ms=60_000)
    await behind.beat(pump=True)
    await asyncio.wait_for(again.wait(), PATIENCE_S)
    assert not due.is_set()
    await mint(bus, in_ms=30_000)
    await asyncio.wait_for(due.wait(), PATIENCE_S)
    await behind.close()


async def test_a_beat_does_not_cost_the_news_a_connection_that_hears(bus: Bus) -> None:
    ended = list[str]()
    bus.on("ended", ended.append)
    wire, doubts = bus._news._wire, set[object]()
    for _ in range(3):
        await bus.beat(pump=True)
        doubting = bus._news._doubting
        assert doubting is not None
        await doubting
        doubts.add(doubting)
    assert len(doubts) == 3
    assert bus._news._wire is wire
    assert not ended
    assert wire is not None
    assert not wire.closed.done()


async def test_a_name_on_the_bell_does_not_cost_a_pop_that_hears_its_connection(bus: Bus, server: Server) -> None:
    await bus.ring_wait(0.05)
    wire = bus._park._wire
    await mint(bus)
    await bus.beat(pump=True)  # nobody has popped it yet
    bus.on_unheard()
    assert await bus.ring_wait(PATIENCE_S) == "f"
    parked = asyncio.create_task(bus.ring_wait(60))
    while b"blocked_clients:1" not in bytes(str(server.command("INFO", "clients")), "utf-8"):
        await asyncio.sleep(0)
    bus.on_unheard()
    doubting = bus._park._doubting
    assert doubting is not None
    await doubting
    assert bus._park._wire is wire
    bus.on_unheard()
    assert bus._park._doubting not in {None, doubting}
    parked.cancel()
    await asyncio.gather(parked, return_exceptions=True)


async def test_a_server_that_is_killed_and_comes_back_is_used_again(tmp_path: Path) -> None:
    async with running(append_only=True) as server:
        bus = await joined(server.address)
        lost, back = asyncio.Event(), asyncio.Event()
        bus.on("lost", lost.set)
        bus.on("connected", back.set)
        (id,) = await mint(bus)
        parked = asyncio.create_task(bus.ring_wait(60))
        assert await asyncio.wait_for(parked, PATIENCE_S) == "f"
        await claim(bus, 1)
        parked = asyncio.create_task(bus.ring_wait(60))
        server.command("CONFIG", "SET", "appendfsync", "always")
        server.command("SET", "fence", 1)
        server.kill()
        await asyncio.wait_for(lost.wait(), PATIENCE_S)
        assert not bus.link._came_up.is_set(), "calls wait for the connection, and do not look for it in a loop"
        with impatient(bus), pytest.raises(BusAway):
            await bus.job(id, queue="f")
        await asyncio.to_thread(server.start)
        await asyncio.wait_for(back.wait(), PATIENCE_S)
        record = await bus.job(id)
        assert record is not None
        assert record.state == "active"
        await mint(bus)
        assert await asyncio.wait_for(parked, PATIENCE_S) == "f"
        await bus.close()


async def test_lost_functions_are_loaded_again_under_load(bus: Bus, server: Server) -> None:
    ids = []
    for number in range(60):
        if number % 3 == 0:
            server.command("FUNCTION", "FLUSH")
        ids += await mint(bus)
    jobs = await claim(bus, 60)
    server.command("FUNCTION", "FLUSH")
    await settle(bus, [done(job) for job in jobs])
    assert sorted(job.id for job in jobs) == sorted(ids)
    assert await counted(bus, "done") == 60


def popper(server: Server) -> bytes:
    """The client that pops from the bell; empty where none does."""
    found = server.command("CLIENT", "LIST")
    assert isinstance(found, bytes)
    return next((line.split()[0][3:] for line in found.splitlines() if b"cmd=blpop" in line), b"")


@pytest.mark.parametrize("how", ["unblock", "kill", "readonly"])
async def test_a_parked_pop_survives(bus: Bus, server: Server, how: str) -> None:
    parked = asyncio.create_task(bus.ring_wait(60))
    while not (client := popper(server)):
        await asyncio.sleep(0)
    if how == "unblock":
        server.command("CLIENT", "UNBLOCK", client, "ERROR")
    elif how == "kill":
        server.command("CLIENT", "KILL", "ID", client)
    else:
        server.command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(BusReadOnly):
            await bus.mint("f", [Mint(id=bus.new_job_id(), payload=b"")])
        server.command("REPLICAOF", "NO", "ONE")
    async with asyncio.timeout(PATIENCE_S):
        while popper(server) in {b"", client}:  # that connection is given up, whatever it was told
            await asyncio.sleep(0)
    await mint_until_minted(bus)
    assert await asyncio.wait_for(parked, PATIENCE_S) == "f"


async def test_a_wait_whose_end_could_not_be_asked_for_swallows_no_bell(
    bus: Bus, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(client: int) -> None:
        raise BusAway("just now")

    parked = asyncio.create_task(bus.ring_wait(60))
    async with asyncio.timeout(PATIENCE_S):
        while not popper(server):
            await asyncio.sleep(0)
        monkeypatch.setattr(bus._park, "_unblock", away)
        parked.cancel()
        while popper(server):
            await asyncio.sleep(0)
    await mint(bus)
    assert await asyncio.wait_for(bus.ring_wait(PATIENCE_S), PATIENCE_S) == "f"


async def test_a_wait_ends_in_its_time_though_the_bus_is_away(server: Server, proxy: Proxy) -> None:
    bus = await joined(proxy.address)
    proxy.path.unlink()
    server.command("CLIENT", "KILL", "TYPE", "normal")
    assert await asyncio.wait_for(bus.ring_wait(0.05), PATIENCE_S) is None
    await bus.close()


async def mint_until_minted(bus: Bus) -> None:
    one = Mint(id=bus.new_job_id(), payload=b"")
    for _ in range(20):
        try:
            assert await bus.mint("f", [one]) == [Minted(one.id)]
            return
        except BusAway:
            await asyncio.sleep(0.05)
    raise AssertionError("the bus did not come back")


async def test_a_half_open_pop_and_half_open_news_are_kicked_by_a_failing_beat(server: Server, proxy: Proxy) -> None:
    bus = await joined(proxy.address)
    await bus.ring_wait(0.05)  # so that the pop's connection is there
    again = asyncio.Event()
    bus.on("hearing", again.set)
    proxy.deafen_subscribers()
    proxy.deafens = b"BLPOP"
    parked = asyncio.create_task(bus.ring_wait(60))
    async with asyncio.timeout(PATIENCE_S):
        while not (deaf := popper(server)):
            await asyncio.sleep(0)
        with proxy.is_deaf(bus), pytest.raises(BusAway):
            await bus.beat(pump=False)
        while popper(server) in {b"", deaf}:
            await asyncio.sleep(0)
        await again.wait()
    await mint_until_minted(bus)
    assert await asyncio.wait_for(parked, PATIENCE_S) == "f"
    await bus.close()


async def test_three_disconnects_in_a_row_leave_it_hearing(bus: Bus, server: Server) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    bus.on("queues", heard.put_nowait)
    for _ in range(3):
        server.command("CLIENT", "KILL", "TYPE", "normal")
        server.command("CLIENT", "KILL", "TYPE", "pubsub")
        await mint_until_minted(bus)
    while int(str(server.command("PUBSUB", "NUMSUB", "emq:{~}:news")[1])) == 0:  # type: ignore[index]
        await asyncio.sleep(0.01)
    await mint(bus, "fresh")
    while (name := await asyncio.wait_for(heard.get(), PATIENCE_S)) != "fresh":
        assert name == "f"
    assert await bus.ring_wait(PATIENCE_S) in {"f", "fresh"}


async def test_what_speaks_another_protocol_is_away_and_said_to_be_no_bus(tmp_path: Path) -> None:
    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(web, tmp_path / "web.sock"):
        with pytest.raises(BusAway, match="not a bus"):
            await Bus.open(f"unix://{tmp_path / 'web.sock'}")


async def test_nonsense_in_mid_work_costs_a_connection_and_no_job(server: Server, proxy: Proxy) -> None:
    bus = await joined(proxy.address)
    for nonsense in (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", b"$-7\r\n", b"*99999999999999\r\n", bytes(64), b"+OK\r\n"):
        await mint_until_minted(bus)
        proxy.say(nonsense)
    await mint_until_minted(bus)
    books = audit(server, "f")
    assert await counted(bus, "minted") == len(books.rows) == 6
    await bus.close()


def _tries(client: redis.Redis) -> int:
    """How often somebody has tried a password."""
    return int(client.info("commandstats")["cmdstat_auth"]["calls"])


async def test_a_password_that_changes_in_mid_work_stops_it_until_it_is_the_right_one_again() -> None:
    async with running("--requirepass", "secret") as server:
        bus = await joined(f"unix://:secret@{server.socket}")
        with redis.Redis(unix_socket_path=str(server.socket), password="secret") as other:
            other.config_set("requirepass", "else")
            other.client_kill_filter(_type="normal", skipme=True)
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    with impatient(bus), contextlib.suppress(BusAway):
                        await bus.queues()
                    await asyncio.sleep(0.01)
                    if "WRONGPASS" in str(bus.link._trouble):
                        break
            began, tries = time.monotonic(), _tries(other)
            async with asyncio.timeout(PATIENCE_S):
                while _tries(other) < tries + 5:
                    await asyncio.sleep(0.01)
            assert time.monotonic() - began > 0.3, "waits between tries double: these are half of 20 to 320 ms at least"
            other.config_set("requirepass", "secret")
        await mint_until_minted(bus)
        await bus.close()


def test_waits_between_tries_double_up_to_a_bound_and_begin_anew() -> None:
    pauses = Pauses()
    for _ in range(2):
        for most_s in (FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S):
            assert most_s / 2 <= pauses.take() <= most_s
        for _ in range(20):
            last_s = pauses.take()
        assert LONGEST_PAUSE_S / 2 <= last_s <= LONGEST_PAUSE_S
        pauses.reset()


async def test_who_may_not_hear_the_news_is_unfit(server: Server) -> None:
    """It would find out of every switch and every end by its beat."""
    server.command("ACL", "SETUSER", "default", "resetchannels")
    try:
        with pytest.raises(BusUnfit, match=r"NOPERM.*channel"):
            await Bus.open(server.address)
    finally:
        server.command("ACL", "SETUSER", "default", "allchannels")


async def test_a_connection_that_has_ended_answers_at_once_that_it_has(server: Server) -> None:
    """Whoever has its reply may send the next command in the turn of the loop in which the connection ended."""
    raised = list[object]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: raised.append(context))
    _, wire = await loop.create_unix_connection(Wire, str(server.socket))
    wire.send("BLPOP", "nothing", 0, timeout_s=PATIENCE_S)  # and nobody waits for it
    wire.abort("by us")
    with pytest.raises(BusAway, match="by us"):
        await asyncio.wait_for(wire.send("PING", timeout_s=PATIENCE_S), PATIENCE_S)
    gc.collect()
    assert not raised


async def test_a_tiny_wait_is_not_for_ever(bus: Bus) -> None:
    assert await asyncio.wait_for(bus.ring_wait(0.0004), PATIENCE_S) is None


async def test_a_wrong_password_is_unfit_and_a_right_one_fits() -> None:
    async with running("--requirepass", "secret") as server:
        for where, said in (
            (server.address, "NOAUTH the bus asks for a password; give it in its address: --bus valkey://:PASSWORD@"),
            (f"unix://:wrong@{server.socket}", "WRONGPASS the bus does not take the user or password in its address;"),
        ):
            with pytest.raises(BusUnfit, match=said):
                await Bus.open(where)
        bus = await Bus.open(f"unix://:secret@{server.socket}")
        await bus.queues()
        await bus.close()


async def test_a_password_nobody_asked_for_is_unfit(server: Server) -> None:
    with pytest.raises(BusUnfit):
        await Bus.open(f"unix://:secret@{server.socket}")


async def test_another_wire_version_is_unfit(server: Server) -> None:
    server.command("SET", "emq:{~}:wire", 2)
    with pytest.raises(BusUnfit, match="wire version 1, got 2"):
        await Bus.open(server.address)


@pytest.mark.parametrize("version", ["6.2.14", "7.0.15", "7.1.0"])
def test_an_older_server_is_unfit_and_told_so(version: str) -> None:
    with pytest.raises(BusUnfit, match=f"7.2 or newer, got {version}; upgrade the server"):
        check_kind({"redis_version": version})
    check_kind({"redis_version": "7.2.4"})
    check_kind({"redis_version": "10.0.0"})


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("MISCONF Errors writing to the AOF file: No space left on device", BusFull),
        ("OOM command not allowed when used memory > 'maxmemory'.", BusFull),
        ("BUSY Valkey is busy running a script.", BusAway),
        ("LOADING Valkey is loading the dataset in memory", BusAway),
        ("UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)", BusAway),
        ("READONLY You can't write against a read only replica.", BusReadOnly),
        ("ERR WAITAOF cannot be used with replica instances.", BusReadOnly),
        ("ERR AUTH <password> called without any password configured for the default user.", BusUnfit),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", BusError),
    ],
)
def test_what_a_server_says_has_one_meaning(said: str, meant: type[EchodError]) -> None:
    """Full: what ends goes on, and room is made. Away: asked again in a while. Read-only: another server is meant."""
    assert type(translate(hiredis.ReplyError(said))) is meant


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'.", "memory limit.*raise its maxmemory, or drain"),
        ("READONLY You can't write against a read only replica.", "replica.*give the primary's address"),
        ("WRONGPASS invalid username-password pair or user is disabled.", "does not take the user or password.*--bus"),
    ],
)
def test_what_callers_can_see_of_a_servers_fault_says_what_to_do(said: str, told: str) -> None:
    error = translate(hiredis.ReplyError(said))
    assert re.fullmatch(f"{said.split()[0]} .*{told}.*", str(error))


async def test_a_server_in_cluster_mode_is_unfit_and_so_is_a_sentinel() -> None:
    """Nothing is written: a script that reached for two slots would fail in the middle of the work."""
    async with running("--cluster-enabled", "yes") as server:
        with pytest.raises(BusUnfit, match="Cluster mode"):
            await Bus.open(server.address)
        assert server.command("DBSIZE") == 0
    with pytest.raises(BusUnfit, match="Sentinel"):
        check_kind({"redis_version": "7.2.4", "redis_mode": "sentinel"})


async def test_nothing_there_is_away_at_once() -> None:
    with pytest.raises(BusAway):
        await Bus.open("unix:///nonexistent/valkey.sock")
    with pytest.raises(BusAway):
        await Bus.open("valkey://127.0.0.1:1")


@pytest.mark.parametrize("text", ["http://x", "", "unix://", "valkey://h:port", "localhost:6379"])
def test_what_is_no_address_is_unfit(text: str) -> None:
    with pytest.raises(BusUnfit):
        address.parse(text)


def test_credentials_do_not_show_in_messages() -> None:
    with pytest.raises(BusUnfit) as raised:
        address.parse("http://user:hunter2@host")
    assert "hunter2" not in str(raised.value)
    assert "hunter2" not in address.where(address.parse("valkey://user:hunter2@host:1"))


def test_addresses_are_read_as_redis_py_reads_them() -> None:
    tcp = address.parse("valkey://user:p%40ss@host:7000/3")
    assert (tcp.host, tcp.port, tcp.username, tcp.password, tcp.db) == ("host", 7000, "user", "p@ss", 3)
    assert address.parse("valkeys://host?ssl_cert_reqs=none").tls is not None
    assert address.parse("unix:///run/v.sock?db=2").path == "/run/v.sock"


async def test_a_bus_over_tcp_with_user_password_and_database() -> None:
    async with running("--bind", "127.0.0.1") as server:
        port = listening(server)
        server.command("ACL", "SETUSER", "node", "on", ">p@ss", "~*", "&*", "+@all")
        server.command("CONFIG", "SET", "requirepass", "else")
        bus = await joined(f"valkey://node:p%40ss@127.0.0.1:{port}/2")
        assert await bus.link.command("ACL", "WHOAMI") == b"node"
        (id,) = await mint(bus)
        kept = await bus.info("keyspace")
        assert list(kept) == ["db2"]
        assert await bus.ring_wait(PATIENCE_S) == "f"
        assert [job.id for job in await claim(bus, 1)] == [id]
        await bus.close()
        with pytest.raises(BusUnfit):
            await Bus.open(f"valkey://127.0.0.1:{port}")
        assert server.pid


def listening(server: Server) -> int:
    """A TCP port of the server's own, from below those that systems hand out: it says itself whether it has it."""
    while server.command("CONFIG", "SET", "port", port := random.randrange(20_000, 32_000)) != b"OK":
        pass
    return port


async def test_a_socket_path_longer_than_a_socket_address_works(tmp_path: Path) -> None:
    async with running() as server:
        deep = tmp_path / ("d" * 60) / ("e" * 60)
        deep.mkdir(parents=True)
        (deep / "valkey.sock").symlink_to(server.socket)
        assert len(str(deep / "valkey.sock")) > 107
        bus = await joined(f"unix://{deep / 'valkey.sock'}")
        await mint(bus)
        await bus.close()


async def test_a_call_given_up_leaves_the_connection_in_step(bus: Bus) -> None:
    wire = bus.link._wire
    for _ in range(20):
        task = asyncio.create_task(bus.queues())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await mint(bus)
    assert await bus.queues() == ["f"]
    assert bus.link._wire is wire, "its reply is nobody's, and no reason to connect anew"


async def test_killed_between_mint_and_settle_every_job_is_in_one_place(server: Server) -> None:
    """Clients that die at any moment: a connection cut in mid-work loses nothing and doubles nothing."""
    buses = [await joined(server.address, f"NOD{number}") for number in range(3)]

    async def work(bus: Bus, number: int) -> None:
        for _ in range(15):
            try:
                await bus.mint("f", [Mint(id=bus.new_job_id(), payload=b"")])
                answer = await bus.claim("f", f"W{number}", 3, LEASE_MS)
                await bus.settle("f", f"W{number}", [done(job) for job in answer.jobs[:2]])
            except BusAway:
                await asyncio.sleep(0.01)

    async def cut() -> None:
        for _ in range(15):
            server.command("CLIENT", "KILL", "TYPE", "normal")
            await asyncio.sleep(0.01)

    await asyncio.gather(*[work(bus, number) for number, bus in enumerate(buses)], cut())
    books = audit(server, "f")
    assert await counted(buses[0], "minted") == len(books.rows)
    assert await counted(buses[0], "done") == len(books.done)
    for bus in buses:
        await bus.close()


def libraries(server: Server) -> set[bytes]:
    listed = server.command("FUNCTION", "LIST")
    assert isinstance(listed, list)
    return {library[1] for library in listed}


async def test_what_another_version_left_goes_when_nobody_else_is_there(bus: Bus, server: Server) -> None:
    """A straggler of the other version loads its verbs again; what is not ours stays."""
    of_another = b"echod_claim_0123456789abcdef"
    for name in (of_another, b"theirs"):
        code = f"#!lua name={name.decode()}\nredis.register_function('{name.decode()}', function() return 1 end)"
        server.command("FUNCTION", "LOAD", "REPLACE", code)
    await mint(bus)
    try:
        other = await Bus.open(server.address)
        await other.join(NodeId("NOD2"))
        assert {of_another, b"theirs"} <= libraries(server)
        await bus.leave()
        await other.leave()
        await other.join(NodeId("NOD2"))
        assert of_another not in libraries(server)
        assert {b"theirs", other.scripts["mint"].function} <= libraries(server)
        await other.close()
    finally:
        server.command("FUNCTION", "DELETE", "theirs")


@pytest.mark.parametrize("denied", [["-function|load", "-function|list"], ["-fcall"], ["-fcall", "-function"]])
async def test_who_may_not_load_or_call_functions_is_served_by_plain_scripts(server: Server, denied: list[str]) -> None:
    server.command("FUNCTION", "FLUSH")
    server.command("ACL", "SETUSER", "default", *denied)
    try:
        bus = await Bus.open(server.address)
        await bus.join(NodeId("NOD1"))
        await mint(bus)
        await settle(bus, [done(await claim_one(bus))])
        assert await counted(bus, "done") == 1
        await bus.close()
    finally:
        server.command("ACL", "SETUSER", "default", "+function", "+fcall")
    assert libraries(server) == set()
    audit(server, "f")


async def test_a_call_that_fails_half_way_leaves_nothing_to_the_next(bus: Bus, server: Server) -> None:
    """What the server keeps of a verb are functions; a key of another type stops a claim between two of its writes."""
    await mint(bus, count=3)
    server.command("SET", "emq:{f}:active", "no set")
    with pytest.raises(BusError, match="WRONGTYPE"):
        await claim(bus, 3)
    server.command("DEL", "emq:{f}:active")
    await mint(bus, "g", count=3)
    assert len(await claim(bus, 2, "g")) == 2
    audit(server, "g")


async def test_names_are_remembered_where_keys_do_not_say_them_and_so_many_at_most(bus: Bus) -> None:
    await bus.mint("dünn", [Mint(id=bus.new_job_id(), payload=b"")])
    await bus.mint("plain", [Mint(id=bus.new_job_id(), payload=b"")])
    assert await bus.queues() == ["dünn", "plain"]
    escaped = escape("dünn")
    assert bus._names == {escaped: "dünn"}
    for n in range(2 * PLACES_REMEMBERED):
        bus.base(f"no such queue {n}")
    assert max(len(bus._names), len(bus._bases)) <= PLACES_REMEMBERED + 1
    assert escaped not in bus._names
    assert await bus.name_of(escaped) == "dünn"
    assert await bus.name_of("plain") == "plain"


async def test_who_may_call_neither_functions_nor_scripts_is_told_so(bus: Bus, server: Server) -> None:
    (id,) = await mint(bus)
    server.command("ACL", "SETUSER", "default", "-fcall", "-evalsha")
    try:
        for _ in range(2):
            with pytest.raises(BusUnfit, match=r"NOPERM.*evalsha"):
                await bus.cancel("f", id)
    finally:
        server.command("ACL", "SETUSER", "default", "+fcall", "+evalsha")
    assert await bus.cancel("f", id) == "cancelled"


async def test_a_replica_without_our_functions_answers_who_only_reads(bus: Bus, server: Server) -> None:
    await mint(bus)
    lost = asyncio.Event()
    bus.on("lost", lost.set)
    server.command("FUNCTION", "FLUSH")
    server.command("REPLICAOF", "127.0.0.1", "1")
    try:
        assert await bus.check("f", 10) == (1, [])
        assert not lost.is_set()
        with pytest.raises(BusReadOnly):
            await bus.mint("f", [Mint(id=bus.new_job_id(), payload=b"")])
        await asyncio.wait_for(lost.wait(), PATIENCE_S)  # the address may lead to the primary by now
    finally:
        server.command("REPLICAOF", "NO", "ONE")


async def test_two_apps_that_start_at_once_may_both_tidy_up(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    of_another = "echod_claim_0123456789abcdef"
    code = f"#!lua name={of_another}\nredis.register_function('{of_another}', function() return 1 end)"
    server.command("FUNCTION", "LOAD", "REPLACE", code)
    apps = [await Bus.open(server.address, app=app) for app in ("staging", "production")]
    listed = await apps[1].libraries()  # before the other deletes it

    async def stale() -> frozenset[bytes]:
        return listed

    monkeypatch.setattr(apps[1], "libraries", stale)
    for app in apps:
        await app.join(NodeId("NOD1"))
        assert of_another.encode() not in libraries(server)
        await app.close()
