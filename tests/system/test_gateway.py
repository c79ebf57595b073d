"""The gateway when things go wrong around it: a bus that freezes or dies, strange bytes on the wire, open pages."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest

from echod.bus.link import CALL_TIMEOUT_S
from echod.config import Config
from echod.errors import Refused
from echod.gateway.app import create_app
from echod.gateway.server import Server, listening
from unit.gateway.kit import Rig, Valkey, serving, until

BOUND_S = 30.0  # of what takes a second; what goes wrong lasts for a minute, or for as long as its test


@pytest.fixture
async def rig(server: Valkey) -> AsyncIterator[Rig]:
    async with serving(server) as rig:
        yield rig


@pytest.fixture
def hasty(rig: Rig) -> None:
    """No more patient than it is shipped, where the bus is away."""
    rig.bus.link.patience_s = CALL_TIMEOUT_S


# ---- the bus is away ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("hasty")
async def test_a_frozen_bus_is_503_with_when_to_come_back_and_no_false_2xx(rig: Rig) -> None:
    with rig.valkey.paused():
        for headers in ({}, {"Prefer": "wait=60"}, {"Idempotency-Key": "k"}):
            async with asyncio.timeout(BOUND_S):
                answer = await rig.call(
                    "hello.any", 1, **{name.replace("-", "_"): value for name, value in headers.items()}
                )
            assert answer.status_code == 503
            assert answer.json()["type"] == "urn:echod:problem:bus-away"
            assert int(answer.headers["Retry-After"]) >= 1
    assert len(rig.desk.waiting) == 0
    async with asyncio.timeout(BOUND_S):
        while (await rig.call("hello.any", 1)).status_code != 202:
            pass


@pytest.mark.usefixtures("hasty")
async def test_every_look_at_a_frozen_bus_is_503_in_time(rig: Rig) -> None:
    paths = ("/functions", "/functions/hello.any", "/jobs", "/jobs/JOB0KHTOWnGLuC", "/schedules", "/bus", "/nodes")
    asked = [(path, accept) for path in (*paths, "/versions") for accept in ("application/json", "text/html")]
    with rig.valkey.paused():
        async with asyncio.timeout(BOUND_S):
            answers = await asyncio.gather(*(rig.http.get(path, headers={"Accept": accept}) for path, accept in asked))
    for (path, _), answer in zip(asked, answers, strict=True):
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1"), path


@pytest.mark.usefixtures("hasty")
async def test_a_pinned_version_is_not_waited_for_longer_than_anything_else(rig: Rig) -> None:
    with rig.valkey.paused():
        async with asyncio.timeout(BOUND_S):
            answer = await rig.call("hello.any", 1, Echo_Version="DEP00000000009")
        assert answer.status_code == 503


@pytest.mark.usefixtures("hasty")
async def test_what_is_refused_without_the_bus_is_refused_while_it_is_away(rig: Rig) -> None:
    with rig.valkey.paused():
        assert (await rig.call("no.such", 1)).status_code == 404
        assert (await rig.call("hello.greet", "a")).status_code == 422
        assert (await rig.http.get("/healthz")).status_code == 200
        answer = await rig.http.get("/readyz")
        assert (answer.status_code, answer.json()["ready"], answer.json()["bus"]) == (503, False, False)


@pytest.mark.usefixtures("hasty")
async def test_a_caller_whose_bus_goes_while_he_waits_gets_202_for_what_was_minted(rig: Rig) -> None:
    waiting = asyncio.create_task(rig.call("hello.any", 1, Prefer="wait=1"))
    job = await rig.first("hello.any")
    with rig.valkey.paused():
        answer = await waiting
    assert (answer.status_code, answer.json()["id"]) == (202, job)


async def test_a_waiter_hears_of_an_end_whose_news_was_lost(rig: Rig) -> None:
    waiting = asyncio.create_task(rig.call("hello.any", 1, Prefer="wait=30"))
    await rig.first("hello.any")
    rig.valkey.command("CLIENT", "KILL", "TYPE", "pubsub")
    await rig.run("hello.any", "heard")
    answer = await waiting
    assert (answer.status_code, answer.json()) == (200, "heard")


async def test_a_full_server_refuses_mints_clearly(rig: Rig) -> None:
    rig.valkey.command("CONFIG", "SET", "maxmemory", "1mb")
    try:
        answer = await rig.call("hello.any", "x" * 100_000)
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:echod:problem:bus-full")
        assert answer.headers["Retry-After"]
        ready = await rig.http.get("/readyz")
        assert ready.status_code == 200
        assert "memory limit" in " ".join(ready.json()["degraded"])
    finally:
        rig.valkey.command("CONFIG", "SET", "maxmemory", "0")
    assert (await rig.http.get("/readyz")).json()["degraded"] == []
    assert (await rig.call("hello.any", 1)).status_code == 202


async def test_a_read_only_server_is_503(rig: Rig) -> None:
    rig.valkey.command("REPLICAOF", "127.0.0.1", "1")
    try:
        answer = await rig.call("hello.any", 1)
        assert answer.status_code == 503
        assert answer.headers["Retry-After"]
        ready = await rig.http.get("/readyz")
        assert (ready.status_code, ready.json()["bus"]) == (503, False)
        assert "replica" in " ".join(ready.json()["reasons"])
    finally:
        rig.valkey.command("REPLICAOF", "NO", "ONE")
    async with asyncio.timeout(BOUND_S):
        while (await rig.call("hello.any", 1)).status_code != 202:
            pass


@pytest.mark.usefixtures("hasty")
async def test_an_open_log_outlives_a_frozen_bus(rig: Rig) -> None:
    id = await rig.mint("hello.any", 1)
    async with rig.http.stream("GET", f"/jobs/{id}/logs") as answer:
        lines = answer.aiter_lines()
        assert await anext(lines) == "retry: 1000"
        with rig.valkey.paused():
            assert (await rig.http.get(f"/jobs/{id}")).status_code == 503
        await rig.run("hello.any")
        async with asyncio.timeout(BOUND_S):
            assert "event: end" in [line async for line in lines]


async def test_nothing_is_asked_of_the_bus_while_nobody_asks_us(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echod.bus.waiting._CHECK_S", 600.0)  # what a waiter asks for now and then is no busy loop
    async with rig.http.stream("GET", "/events") as answer:  # and none either after a page was open
        await anext(answer.aiter_lines())
    waiting = asyncio.create_task(rig.call("hello.any", 1, Prefer="wait=60"))
    await rig.first("hello.any")
    await until(lambda: rig.desk.live._reader is None)
    before, real = calls(rig.valkey), asyncio.get_running_loop().time
    # Whatever would have looked within three seconds looks now, and has while these are answered.
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: real() + 3)
    for _ in range(50):
        await rig.http.get("/healthz")
    assert calls(rig.valkey) == before
    await rig.run("hello.any", 1)
    assert (await waiting).status_code == 200


def calls(valkey: Valkey) -> int:
    """Commands that were processed, but for those that ask."""
    raw = valkey.command("INFO", "commandstats")
    assert isinstance(raw, bytes)
    counted = dict(line.split(":", 1) for line in raw.decode().splitlines() if line.startswith("cmdstat_"))
    return sum(
        int(text.split(",")[0].removeprefix("calls=")) for name, text in counted.items() if name != "cmdstat_info"
    )


# ---- the wire -----------------------------------------------------------------------------------------------------


async def raw(rig: Rig, *parts: bytes) -> bytes:
    """Send bytes as they are; what came back until the server closed, or had answered whole."""
    host, port = rig.http.base_url.host, rig.http.base_url.port
    reader, writer = await asyncio.open_connection(host, port)
    for part in parts:
        with contextlib.suppress(ConnectionError):
            writer.write(part)
            await writer.drain()
    got = b""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(60):
            while not is_whole(got) and (chunk := await reader.read(65_536)):
                got += chunk
    writer.close()
    return got


def is_whole(got: bytes) -> bool:
    """Whether an answer is there that is no mere word to go on, with all of its body."""
    head, end, body = re.sub(rb"^HTTP/1.1 1\d\d.*?\r\n\r\n", b"", got, flags=re.S).partition(b"\r\n\r\n")
    length = re.search(rb"(?i)^content-length: *(\d+)", head, re.M)
    return bool(end and length) and len(body) >= int(length[1])  # type: ignore[index]


def post(*headers: bytes, path: bytes = b"/functions/hello.any") -> bytes:
    return b"\r\n".join(
        [b"POST " + path + b" HTTP/1.1", b"Host: localhost", b"Content-Type: application/json", *headers, b"", b""]
    )


@pytest.mark.parametrize(
    "request_bytes",
    [
        post(b"Content-Length: 1", b"Transfer-Encoding: chunked") + b"0\r\n\r\n",
        post(b"Transfer-Encoding: chunked", b"Content-Length: 5") + b"1\r\n1\r\n0\r\n\r\n",
        post(b"Content-Length: 1", b"Content-Length: 2") + b"11",
        post(b"Transfer-Encoding: chunked") + b"zz\r\n1\r\n0\r\n\r\n",
        post(b"Transfer-Encoding: chunked, identity") + b"1\r\n1\r\n0\r\n\r\n",
        post(b"Content-Length: -1") + b"1",
        post(b"Content-Length: 1x") + b"1",
        post(b"Bad Header: x", b"Content-Length: 1") + b"1",
        b"POST /functions/hello.any HTTP/1.1\r\nContent-Length: 1\r\n\r\n1",
        b"\x16\x03\x01\x02\x00",
        b"GET\r\n\r\n",
    ],
)
async def test_bytes_that_could_be_read_two_ways_mint_nothing(rig: Rig, request_bytes: bytes) -> None:
    got = await raw(rig, request_bytes)
    assert got.split(b" ", 2)[1:2] in ([b"400"], [b"403"]), got
    assert (await rig.bus.stats(["hello.any"]))["hello.any"].pending == 0


async def test_a_chunked_body_with_trailers_is_read_whole(rig: Rig) -> None:
    got = await raw(
        rig, post(b"Transfer-Encoding: chunked"), b"1\r\n[\r\n", b"2\r\n7]\r\n", b"0\r\nX-Trailer: y\r\n\r\n"
    )
    assert got.startswith(b"HTTP/1.1 202"), got
    assert (await rig.claim("hello.any")).payload == msgspec.msgpack.encode([7])


async def test_an_oversized_body_is_413_before_any_of_it_is_read(rig: Rig) -> None:
    got = await raw(rig, post(b"Content-Length: 1073741824", b"Expect: 100-continue"))
    assert got.startswith(b"HTTP/1.1 413"), got
    assert b"100 Continue" not in got


async def test_an_endless_chunked_body_is_413(rig: Rig) -> None:
    chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
    got = await raw(rig, post(b"Transfer-Encoding: chunked"), *[chunk] * 20)
    assert got.startswith(b"HTTP/1.1 413"), got


async def test_a_caller_who_hangs_up_in_mid_body_mints_nothing(rig: Rig) -> None:
    host, port = rig.http.base_url.host, rig.http.base_url.port
    _, writer = await asyncio.open_connection(host, port)
    writer.write(post(b"Content-Length: 10") + b"[1")
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await rig.http.get("/healthz")).status_code == 200
    assert (await rig.bus.stats(["hello.any"]))["hello.any"].pending == 0


async def test_an_absolute_address_in_the_request_line_is_the_same_route(rig: Rig) -> None:
    got = await raw(rig, b"GET http://localhost/healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 200"), got


# ---- start and stop -----------------------------------------------------------------------------------------------


async def test_a_busy_port_is_refused_with_what_to_do(rig: Rig) -> None:
    port = rig.http.base_url.port or 0
    with pytest.raises(Refused, match=f"port {port} on 127.0.0.1 is in use; .* --port"):
        listening("127.0.0.1", port)


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid", "300.1.1.1"])
def test_an_address_that_is_not_ours_is_refused(host: str) -> None:
    with pytest.raises(Refused, match="expected an address to listen on"):
        listening(host, 0)


async def test_stopping_ends_open_streams_and_frees_the_port(server: Valkey) -> None:
    async with serving(server) as rig:
        id = await rig.mint("hello.any", 1)
        host, port = rig.http.base_url.host, rig.http.base_url.port or 0
        readers = []
        for path in (b"/events", f"/jobs/{id}/logs".encode()):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await reader.readuntil(b"retry: 1000")
            readers.append((reader, writer))
        stopping = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - stopping < BOUND_S
    for reader, writer in readers:
        await asyncio.wait_for(reader.read(), BOUND_S)  # to its end
        writer.close()
    with socket.create_server((host, port)):
        pass


async def test_stopping_answers_those_who_wait_with_202(rig: Rig) -> None:
    waiting = asyncio.create_task(rig.call("hello.any", 1, Prefer="wait=60"))
    job = await rig.first("hello.any")
    async with asyncio.timeout(BOUND_S):
        await rig.server.stop()
        answer = await waiting
    assert (answer.status_code, answer.json()["id"]) == (202, job)


async def test_a_server_starts_and_stops_again_and_again(rig: Rig) -> None:
    descriptors: list[int] = []
    for _ in range(3):
        app = create_app(rig.bus, rig.registry, Config(port=0), status=dict, level="minimal")
        server = Server(app, Config(port=0))
        await server.start()
        host, port = server.address
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as http:
            assert (await http.get("/healthz")).status_code == 200
        await server.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, port), timeout=BOUND_S)
        descriptors.append(len(os.listdir("/proc/self/fd")))
    assert descriptors[1:] == descriptors[:1] * 2
