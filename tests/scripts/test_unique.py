"""Whose a unique key is, after everything that can become of its job: until done, until started, for a fixed time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from audit import audit
from doing import claim_one, dead, done, hold, mint, retry, run, settle
from echod.bus import Bus
from echod.bus.clock import StepWatch
from echod.model.ids import JobId
from echod.model.job import Cancelled, Delay, Mint, Minted, Release, Unique, Until
from server import Server

HOUR_MS = 3_600_000


async def waits(bus: Bus, server: Server, id: JobId) -> None:
    """Nothing became of it yet."""


async def starts(bus: Bus, server: Server, id: JobId) -> None:
    await claim_one(bus)


async def is_tried_again(bus: Bus, server: Server, id: JobId) -> None:
    await settle(bus, [retry(await claim_one(bus))])


async def snoozes(bus: Bus, server: Server, id: JobId) -> None:
    job = await claim_one(bus)
    await settle(bus, [Delay(hold(job), run(job), 1000)])


async def is_released(bus: Bus, server: Server, id: JobId) -> None:
    await settle(bus, [Release(hold(await claim_one(bus)))])


async def is_lost(bus: Bus, server: Server, id: JobId) -> None:
    job = await claim_one(bus)
    await bus.extend("f", [hold(job)], begun=[hold(job)])
    server.clock.advance(15_001)
    bus.steps = StepWatch()  # its own time passed too: no step
    assert (await bus.tick("f")).recovered == 1


async def is_done(bus: Bus, server: Server, id: JobId) -> None:
    await settle(bus, [done(await claim_one(bus))])


async def dies(bus: Bus, server: Server, id: JobId) -> None:
    await settle(bus, [dead(await claim_one(bus))])


async def is_cancelled(bus: Bus, server: Server, id: JobId) -> None:
    assert await bus.cancel("f", id) == "cancelled"


async def is_cancelled_running(bus: Bus, server: Server, id: JobId) -> None:
    job = await claim_one(bus)
    assert await bus.cancel("f", id) == "cancelling"
    await settle(bus, [Cancelled(hold(job), run(job))])


async def is_drained(bus: Bus, server: Server, id: JobId) -> None:
    assert await bus.drain("f", [id]) == (id,)


async def is_moved(bus: Bus, server: Server, id: JobId) -> None:
    assert await bus.move("f", [id], "b") == (id,)


async def is_redriven(bus: Bus, server: Server, id: JobId) -> None:
    await dies(bus, server, id)
    assert (await bus.redrive("f", [id])).ids == (id,)


async def is_redriven_and_done(bus: Bus, server: Server, id: JobId) -> None:
    await is_redriven(bus, server, id)
    await is_done(bus, server, id)


async def is_purged(bus: Bus, server: Server, id: JobId) -> None:
    await dies(bus, server, id)
    assert await bus.purge("f", [id], ["dead"]) == (id,)


async def is_evicted(bus: Bus, server: Server, id: JobId) -> None:
    server.command("DEL", f"emq:{{f}}:job:{id}")


Become = Callable[[Bus, Server, JobId], Awaitable[None]]
TABLE: list[tuple[Become, bool, bool]] = [  # owned by its job still: until done, until started
    (waits, True, True),
    (is_moved, True, True),
    (starts, True, False),
    (is_tried_again, True, False),
    (snoozes, True, False),
    (is_released, True, False),
    (is_lost, True, False),
    (is_redriven, True, False),
    (is_done, False, False),
    (dies, False, False),
    (is_cancelled, False, False),
    (is_cancelled_running, False, False),
    (is_drained, False, False),
    (is_redriven_and_done, False, False),
    (is_purged, False, False),
    (is_evicted, False, False),
]
CASES = [
    (become, until, owned)
    for become, until_done, until_started in TABLE
    for until, owned in (("done", until_done), ("started", until_started), (HOUR_MS, True))
]


@pytest.mark.parametrize(
    ("become", "until", "owned"), CASES, ids=[f"{until}-{become.__name__}" for become, until, _ in CASES]
)
async def test_a_key_is_its_jobs_for_as_long_as_was_asked(
    bus: Bus, server: Server, become: Become, until: Until, owned: bool
) -> None:
    unique = Unique("k", until)
    (first,) = await mint(bus, unique=unique)
    await become(bus, server, first)
    if become is not is_evicted:
        audit(server, "f")  # and of a key that is free nothing remains
    second = Mint(id=bus.new_job_id(), payload=b"\x01", unique=unique)
    answer = [Minted(first, duplicate=True)] if owned else [Minted(second.id)]
    assert await bus.mint("f", [second]) == answer
    if until == HOUR_MS:
        server.clock.advance(HOUR_MS)
        third = Mint(id=bus.new_job_id(), payload=b"\x01", unique=unique)
        assert await bus.mint("f", [third]) == [Minted(third.id)]


async def test_a_key_that_outlived_its_claim_counts_for_nothing(bus: Bus, server: Server) -> None:
    """Whatever left it there: it is its job's only while the row says so."""
    (first,) = await mint(bus, unique=Unique("k", "started"))
    await claim_one(bus)
    server.command("HSET", "emq:{f}:unique:k", "o", first, "m", "s", "b", "")
    second = Mint(id=bus.new_job_id(), payload=b"\x01", unique=Unique("k", "started"))
    assert await bus.mint("f", [second]) == [Minted(second.id)]


@pytest.mark.parametrize("become", [is_purged, is_done, is_cancelled, is_drained, dies])
async def test_an_earlier_job_does_not_free_a_key_that_is_anothers_by_now(
    bus: Bus, server: Server, become: Become
) -> None:
    """It frees its own at its end; here that end comes after another has taken the key."""
    (first,) = await mint(bus, unique=Unique("k"))
    server.command("HDEL", f"emq:{{f}}:job:{first}", "u")  # as if its row no longer said so
    (second,) = await mint(bus, unique=Unique("k"), lane="z")
    server.command("HSET", f"emq:{{f}}:job:{first}", "u", "d:k")
    await become(bus, server, first)
    third = Mint(id=bus.new_job_id(), payload=b"\x01", unique=Unique("k"))
    assert await bus.mint("f", [third]) == [Minted(second, duplicate=True)]
