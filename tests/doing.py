"""Short words for tests that move jobs about."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from echod.bus import Bus, link
from echod.errors import BusAway
from echod.model.ids import JobId
from echod.model.job import Claimed, Dead, Done, Error, Hold, Mint, Minted, Retry, RunRecord
from server import Server

ME = "WRK00000000001"
SHIPPED_S = link.CALL_TIMEOUT_S  # how long users wait for a call; tests have more time (conftest.py)
LEASE_MS = 15_000


async def mint(bus: Bus, queue: str = "f", count: int = 1, **fields: Any) -> list[JobId]:
    """That many new jobs; each must be minted."""
    fields.setdefault("payload", b"\x01")
    mints = [Mint(id=bus.new_job_id(), **fields) for _ in range(count)]
    answers = await bus.mint(queue, mints)
    assert answers == [Minted(mint.id) for mint in mints]
    return [mint.id for mint in mints]


async def claim(
    bus: Bus, count: int = 1, queue: str = "f", lease_ms: int = LEASE_MS, claimer: str = ME
) -> list[Claimed]:
    answer = await bus.claim(queue, claimer, count, lease_ms)
    return list(answer.jobs)


async def claim_one(bus: Bus, queue: str = "f", lease_ms: int = LEASE_MS) -> Claimed:
    (job,) = await claim(bus, 1, queue, lease_ms)
    return job


def hold(job: Claimed) -> Hold:
    return Hold(job.id, job.attempts, job.holder)


def run(job: Claimed, *, took_ms: int = 5, waited_ms: int = 0) -> RunRecord:
    start = job.claimed_ms + waited_ms
    return RunRecord("WRKworker", "DEP1", start, start + took_ms, 1000, 4096, True)


def done(job: Claimed, result: bytes = b"\x02", **fields: Any) -> Done:
    return Done(hold(job), run(job), result, **fields)


def retry(job: Claimed, after_ms: int = 1000, cause: str = "error") -> Retry:
    return Retry(hold(job), run(job), Error("ValueError", "no", "trace", cause), after_ms)


def dead(job: Claimed, cause: str = "error") -> Dead:
    return Dead(hold(job), run(job), Error("ValueError", "no", "trace", cause))


async def settle(
    bus: Bus, verdicts: Sequence[Any], queue: str = "f", claimer: str = ME, count: int = 0
) -> list[Claimed]:
    """Settle; nothing may be refused."""
    answer = await bus.settle(queue, claimer, verdicts, count=count, lease_ms=LEASE_MS)
    assert answer.refused == ()
    return list(answer.claim.jobs)


async def bury(bus: Bus, queue: str = "f") -> JobId:
    """A job in the morgue."""
    (id,) = await mint(bus, queue)
    await settle(bus, [dead(await claim_one(bus, queue))], queue)
    return id


async def counted(bus: Bus, name: str, queue: str = "f") -> int:
    """A counter over the last hours."""
    return int(getattr(await bus.metrics(queue, 3 * 3_600_000), name))


@contextlib.contextmanager
def impatient(*buses: Bus) -> Iterator[None]:
    """While a bus does not answer, that is told as soon as it is to users."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link, "CALL_TIMEOUT_S", SHIPPED_S)
        for bus in buses:
            patch.setattr(bus.link, "patience_s", SHIPPED_S)
        yield


@contextlib.contextmanager
def replies_lost(bus: Bus) -> Iterator[None]:
    """What the block calls of the bus is done there, and comes back as BusAway."""
    real = bus.link.script

    async def lost(*call: Any, **more: Any) -> Any:
        await real(*call, **more)
        raise BusAway("its reply was lost")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bus.link, "script", lost)
        with pytest.raises(BusAway):
            yield


def commands(server: Server) -> int:
    """Server commands so far, those of scripts too: a cost without the noise of the machine."""
    info = server.command("INFO", "commandstats")
    assert isinstance(info, bytes)
    return sum(int(line.split("calls=")[1].split(",")[0]) for line in info.decode().splitlines() if "calls=" in line)


READS = frozenset({"HGET", "HMGET", "HGETALL", "HVALS"})


@contextlib.contextmanager
def watched(server: Server) -> Iterator[list[list[str]]]:
    """What the server does in the block, those of scripts too, each command as its words; there after the block."""
    done, end = list[list[str]](), f"end {secrets.token_hex(8)}"
    with server.connected() as sock:
        sock.sendall(b"MONITOR\r\n")
        said = sock.recv(5)
        yield done
        server.command("ECHO", end)
        while f'"{end}"'.encode() not in said:
            more = sock.recv(1 << 16)
            assert more, "the server closed the connection"
            said += more
    for line in said.decode("latin-1").splitlines()[1:]:
        done.append(re.findall(r'"((?:[^"\\]|\\.)*)"', line))


def reads(done: Sequence[Sequence[str]], key: str, field: str) -> int:
    """How often a hash's field was read, alone or with others, of all whose key has `key` in it."""
    return sum(
        command[:1] != [] and command[0] in READS and key in command[1] and (field in command[2:] or not command[2:])
        for command in done
    )
