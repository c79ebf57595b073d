"""Bytes as they are, against a running gateway: what could be read in two ways, what never ends, what is too much.

RFC 9112 section 11.2 (request smuggling), section 6 (lengths and codings); field reports K3.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace

import msgspec
import pytest
import uvloop

from echod.gateway.connection import Bounds
from echod.gateway.limits import Aim, Bodies, Crowd, Lag, Pace
from echod.model.job import Done
from unit.gateway.kit import LEASE_MS, Rig, Valkey, hold, serving, until

DRIPS_S = 30  # a byte now and then, which makes nothing last for ever
QUICK = Bounds(head_s=0.4, body_s=0.5, body_rate=1000, linger_s=0.3, head_bytes=4096, headers=20)


@pytest.fixture
async def rig(server: Valkey) -> AsyncIterator[Rig]:
    async with serving(server) as rig:
        yield rig


@pytest.fixture
async def quick(server: Valkey) -> AsyncIterator[Rig]:
    """A gateway that is in a hurry."""
    async with serving(server, bounds=QUICK) as rig:
        yield rig


class Wire:
    """One connection, by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    async def answer(self, within_s: float = 60) -> tuple[int, dict[str, str], bytes]:
        """The next answer: status, headers, body."""
        async with asyncio.timeout(within_s):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)
            }
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(head[0].split()[1]), headers, body

    async def ended(self, within_s: float = 60) -> bytes:
        """What is left until the server closes."""
        async with asyncio.timeout(within_s):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""


@contextlib.asynccontextmanager
async def wire(rig: Rig) -> AsyncIterator[Wire]:
    reader, writer = await asyncio.open_connection(rig.http.base_url.host, rig.http.base_url.port)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()


def post(*headers: bytes, path: bytes = b"/functions/hello.any", version: bytes = b"1.1") -> bytes:
    lines = [b"POST " + path + b" HTTP/" + version, b"Host: localhost", b"Content-Type: application/json", *headers]
    return b"\r\n".join([*lines, b"", b""])


async def minted(rig: Rig) -> int:
    return (await rig.bus.stats(["hello.any"]))["hello.any"].pending


CHUNKED = b"Transfer-Encoding: chunked"
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        post(CHUNKED, b"Content-Length: 3") + b"1\r\n1\r\n0\r\n\r\n",
        post(b"Content-Length: 3", CHUNKED) + b"1\r\n1\r\n0\r\n\r\n",
        post(b"Content-Length: 1", b"Content-Length: 1") + b"1",
        post(b"Content-Length: 1", b"Content-Length: 2") + b"11",
        post(b"Content-Length: 1, 1") + b"1",
        post(b"Content-Length: +1") + b"1",
        post(b"Content-Length: -1") + b"1",
        post(b"Content-Length: 0x1") + b"1",
        post(b"Content-Length: 1 1") + b"1",
        post(b"Content-Length:") + b"1",
        post(b"Content-Length: 99999999999999999999999999") + b"1",
        post(CHUNKED, CHUNKED) + b"1\r\n1\r\n0\r\n\r\n",
        post(b"Transfer-Encoding: gzip, chunked") + b"1\r\n1\r\n0\r\n\r\n",
        post(b"Transfer-Encoding: chunked, identity") + b"1\r\n1\r\n0\r\n\r\n",
        post(b"Transfer-Encoding: xchunked") + b"1\r\n1\r\n0\r\n\r\n",
        post(b"Transfer-Encoding: identity") + b"1",
        post(b"Transfer-Encoding : chunked") + b"1\r\n1\r\n0\r\n\r\n",
        post(b"Transfer-Encoding: \x0bchunked") + b"1\r\n1\r\n0\r\n\r\n",
        post(b"Transfer-Encoding:", b" chunked") + b"1\r\n1\r\n0\r\n\r\n",
        post(CHUNKED, version=b"1.0") + b"1\r\n1\r\n0\r\n\r\n",
        post(CHUNKED) + b"zz\r\n1\r\n0\r\n\r\n",
        post(CHUNKED) + b"-1\r\n1\r\n0\r\n\r\n",
        post(CHUNKED) + b"0x1\r\n1\r\n0\r\n\r\n",
        post(CHUNKED) + b" 1\r\n1\r\n0\r\n\r\n",
        post(CHUNKED) + b"1 \r\n1\r\n0\r\n\r\n",
        post(CHUNKED) + b"1\n1\n0\n\n",
        post(CHUNKED) + b"1\r\n12\r\n0\r\n\r\n",
        post(CHUNKED) + b"2\r\n1\r\n0\r\n\r\n",
        post(CHUNKED) + b"fffffffffffffffff\r\n1\r\n0\r\n\r\n",
        post(CHUNKED) + b"1;a\nb\r\n1\r\n0\r\n\r\n",
        post(CHUNKED) + b"1\r\n1\r\n0\r\nContent-Length: 5\r\n\r\n",
        post(b"X: a", b" b", b"Content-Length: 1") + b"1",
        post(b"X: a", b"\tb", b"Content-Length: 1") + b"1",
        post(b"X: a\nY: b", b"Content-Length: 1") + b"1",
        post(b"X: a\rY: b", b"Content-Length: 1") + b"1",
        post(b"X: a\0b", b"Content-Length: 1") + b"1",
        post(b"X\0: a", b"Content-Length: 1") + b"1",
        post(b": a", b"Content-Length: 1") + b"1",
        post(b"no colon", b"Content-Length: 1") + b"1",
        post(b"Content-Length: 1", path=b"/functions/hello\0any") + b"1",
        post(b"Content-Length: 1").replace(b"\r\n", b"\n") + b"1",
        post(b"Content-Length: 1", b"Host: localhost") + b"1",
        post(b"Content-Length: 1", version=b"0.9") + b"1",
        post(b"Content-Length: 1", version=b"1.2") + b"1",
        post(b"Content-Length: 1", version=b"2.0") + b"1",
        b"POST /functions/hello.any\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT localhost:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"post /functions/hello.any HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
async def test_what_could_be_read_in_two_ways_is_400_ends_the_connection_and_mints_nothing(
    rig: Rig, sent: bytes
) -> None:
    async with wire(rig) as connection:
        await connection.send(sent)
        status, headers, body = await connection.answer()
        assert status == 400, body
        assert headers["content-type"] == "application/problem+json"
        assert headers["connection"] == "close"
        assert msgspec.json.decode(body)["status"] == 400
        with contextlib.suppress(ConnectionError):
            await connection.send(GET)
        assert await connection.ended() == b""  # what follows is never taken for a request
    assert await minted(rig) == 0


def get(target: bytes, *headers: bytes, method: bytes = b"GET", version: bytes = b"1.1") -> bytes:
    return b"\r\n".join([method + b" " + target + b" HTTP/" + version, *headers, b"", b""])


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (get(b"http://evil.example/functions", b"Host: localhost"), 403),
        (get(b"HTTP://evil.example:80/functions", b"Host: localhost"), 403),
        (get(b"https://evil.example/functions", b"Host: localhost"), 403),
        (get(b"http://evil.example?/functions", b"Host: localhost"), 403),
        (get(b"http://evil.example", b"Host: localhost"), 403),
        (get(b"http://evil.example/functions", version=b"1.0"), 403),
        (get(b"http://localhost@evil.example/functions", b"Host: localhost"), 403),
        (get(b"http://me@localhost/functions", b"Host: localhost"), 403),
        (get(b"//evil.example/functions", b"Host: localhost"), 404),  # a path that starts so
        (get(b"http://localhost/functions", b"Host: evil.example"), 200),  # the host that counts is the target's
        (get(b"http://localhost:8321/functions?window=60", b"Host: localhost"), 200),
        (get(b"HTTP://LocalHost/functions", b"Host: localhost"), 200),
        (get(b"http://localhost", b"Host: localhost"), 200),
        (get(b"http://localhost?x=1", b"Host: localhost"), 200),
        (get(b"http://localhost/functions#evil", b"Host: localhost"), 200),
        (get(b"http://localhost/functions", version=b"1.0"), 200),
        (get(b"http://localhost/functions", b"Host: localhost", b"Origin: http://localhost"), 200),
        (get(b"http://localhost/functions", b"Host: evil.example", b"Origin: http://evil.example"), 403),
        (get(b"http://localhost/functions"), 400),  # HTTP/1.1 has Host all the same
        (get(b"http:///functions", b"Host: localhost"), 400),
        (get(b"ftp://localhost/functions", b"Host: localhost"), 400),
        (get(b"localhost:8321", b"Host: localhost"), 400),
        (get(b"*", b"Host: localhost"), 400),
        (get(b"*", b"Host: localhost", method=b"OPTIONS"), 400),
    ],
)
async def test_the_host_of_a_whole_address_replaces_the_header(rig: Rig, sent: bytes, status: int) -> None:
    async with wire(rig) as connection:
        await connection.send(sent)
        got, _, body = await connection.answer()
    assert got == status, body
    if status == 403:
        assert msgspec.json.decode(body)["type"] in {
            "urn:echod:problem:foreign-host",
            "urn:echod:problem:foreign-origin",
        }
    if status == 400 and b"Host" in sent:
        assert "expected a path as the request's target" in msgspec.json.decode(body)["detail"]


async def test_an_answer_has_the_date_of_its_second(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though nothing ticks while nobody asks."""
    async with wire(rig) as connection:
        for now_s in (784111777.9, 784111778.1):
            monkeypatch.setattr("echod.gateway.server.time", SimpleNamespace(time=lambda now_s=now_s: now_s))
            await connection.send(GET)
            _, headers, _ = await connection.answer()
            assert headers["date"] == f"Sun, 06 Nov 1994 08:49:{int(now_s) - 784111740} GMT"


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_a_body_in_chunks_of_any_size_is_whole(rig: Rig, size: int) -> None:
    body = msgspec.json.encode({"text": "x" * 500, "n": [1, 2, 3]})
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    async with wire(rig) as connection:
        await connection.send(post(CHUNKED), *(b"%x\r\n%s\r\n" % (len(part), part) for part in parts), b"0\r\n\r\n")
        assert (await connection.answer())[0] == 202
    assert msgspec.msgpack.decode((await rig.claim("hello.any")).payload) == msgspec.json.decode(body)


async def test_a_request_a_byte_at_a_time_is_whole(rig: Rig) -> None:
    async with wire(rig) as connection:
        whole = post(b"Content-Length: 7") + b"[1,2,3]"
        await connection.send(*(whole[at : at + 1] for at in range(len(whole))))
        assert (await connection.answer())[0] == 202
    assert (await rig.claim("hello.any")).payload == msgspec.msgpack.encode([1, 2, 3])


async def test_trailers_are_no_headers(rig: Rig) -> None:
    async with wire(rig) as connection:
        trailers = b"Idempotency-Key: k\r\nEcho-Lane: other\r\nX-Any: y\r\n\r\n"
        await connection.send(post(CHUNKED), b"1\r\n7\r\n", b"0\r\n" + trailers)
        assert (await connection.answer())[0] == 202
    job = await rig.claim("hello.any")
    assert (job.payload, job.lane) == (b"\x07", "-")


async def test_pipelined_requests_are_answered_in_order(rig: Rig) -> None:
    async with wire(rig) as connection:
        asked = [post(b"Content-Length: 1", b"Prefer: x") + b"1", GET, post(b"Content-Length: 2") + b"[x"]
        await connection.send(b"".join([*asked, GET]))
        assert [(await connection.answer())[0] for _ in range(4)] == [202, 200, 400, 200]


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (post(CHUNKED, b"Content-Length: 3"), "can't be present with"),
        (post(b"Content-Length: 1", b"Content-Length: 2") + b"11", "Content-Length"),
        (post(CHUNKED) + b"zz\r\n1\r\n0\r\n\r\n", "chunk size"),
        (post(b"Content-Length: 1").replace(b"\r\n", b"\n") + b"1", "CRLF"),
    ],
)
async def test_a_request_that_cannot_be_read_is_told_why(rig: Rig, sent: bytes, said: str) -> None:
    async with wire(rig) as connection:
        await connection.send(sent)
        status, _, body = await connection.answer()
        assert (status, said in msgspec.json.decode(body)["detail"]) == (400, True), body


async def test_who_waits_is_told_that_its_connection_is_gone_whatever_was_pipelined_behind(rig: Rig) -> None:
    async with wire(rig) as connection:
        await connection.send(post(b"Content-Length: 1", b"Prefer: wait=60") + b"1" + GET + GET)
        await until(lambda: len(rig.desk.waiting) == 1)
        connection.writer.transport.abort()
        await until(lambda: len(rig.desk.waiting) == 0)


async def test_rubbish_behind_a_good_request_does_not_answer_for_it(rig: Rig) -> None:
    async with wire(rig) as connection:
        await connection.send(post(b"Content-Length: 1") + b"1" + b"\0rubbish\r\n\r\n" + GET)
        assert (await connection.answer())[0] == 202
        assert await connection.ended() == b""


async def test_a_connection_serves_many_requests(rig: Rig) -> None:
    async with wire(rig) as connection:
        for _ in range(20):
            await connection.send(GET)
            assert (await connection.answer())[0] == 200


UPGRADE = (b"Connection: Upgrade, HTTP2-Settings", b"UpGrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAAP__")
WORDS = b'["Upgrade: h2c\\r\\n", 1]'
IN_CHUNKS = b"%x\r\n%s\r\n" % (4, WORDS[:4]) + b"%x\r\n%s\r\n0\r\nUpgrade: h2c\r\n\r\n" % (len(WORDS) - 4, WORDS[4:])
ASKS_FOR_MORE = [post(*UPGRADE, b"Content-Length: %d" % len(WORDS)) + WORDS, post(CHUNKED, *UPGRADE) + IN_CHUNKS]


@pytest.mark.parametrize("sent", ASKS_FOR_MORE, ids=["length", "chunked"])
@pytest.mark.parametrize("size", [1, 7, 100_000])
async def test_an_upgrade_is_not_taken_and_the_body_is_whole(rig: Rig, sent: bytes, size: int) -> None:
    """A server may ignore Upgrade (RFC 9110, 7.8); who asked goes on in HTTP/1.1, and may be pipelining."""
    both = sent + GET + sent
    async with wire(rig) as connection:
        await connection.send(*(both[at : at + size] for at in range(0, len(both), size)))
        assert [(await connection.answer())[0] for _ in range(3)] == [202, 200, 202]
    for _ in range(2):
        assert msgspec.msgpack.decode((await rig.claim("hello.any")).payload) == msgspec.json.decode(WORDS)
    assert await minted(rig) == 0


@pytest.mark.parametrize("sent", ASKS_FOR_MORE, ids=["length", "chunked"])
async def test_an_upgrade_wherever_its_head_and_body_are_parted(rig: Rig, sent: bytes) -> None:
    cuts = range(sent.index(b"h2c"), len(sent), 3)
    async with wire(rig) as connection:
        for cut in cuts:
            await connection.send(GET + sent[:cut])
            assert (await connection.answer())[0] == 200  # what came so far was read by itself
            await connection.send(sent[cut:] + GET)
            assert [(await connection.answer())[0] for _ in range(2)] == [202, 200]
    jobs = (await rig.bus.claim("hello.any", "WRK1", len(cuts) + 1, LEASE_MS)).jobs
    assert [msgspec.msgpack.decode(job.payload) for job in jobs] == [msgspec.json.decode(WORDS)] * len(cuts)


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        (get(b"/healthz", b"Host: localhost", *UPGRADE) + GET, [200, 200]),
        (get(b"/healthz", b"Host: localhost", b"Connection: close", *UPGRADE) + GET, [200]),
        (get(b"/healthz", b"Host: localhost", *UPGRADE, version=b"1.0") + GET, [200]),
        (post(*UPGRADE, b"Content-Length: 9") + b"1" + GET, [400]),  # a body is as long as it was said to be
        (post(*UPGRADE, CHUNKED) + b"zz\r\n1\r\n0\r\n\r\n" + GET, [400]),
        (post(*UPGRADE, CHUNKED, b"Content-Length: 1") + b"1\r\n1\r\n0\r\n\r\n" + GET, [400]),
        (post(*UPGRADE, b"Content-Length: 1", version=b"1.2") + b"1" + GET, [400]),
        (post(*UPGRADE, b"Content-Length: 8000000") + b"1" + GET, [413]),
    ],
)
async def test_what_asks_for_an_upgrade_is_read_as_strictly_as_the_rest(
    quick: Rig, sent: bytes, statuses: list[int]
) -> None:
    async with wire(quick) as connection:
        await connection.send(sent)
        assert [(await connection.answer())[0] for _ in statuses] == statuses
        if statuses != [200, 200]:
            assert await connection.ended() == b""
    assert await minted(quick) == 0


async def test_a_body_behind_an_upgrade_that_never_comes_is_408(quick: Rig) -> None:
    async with wire(quick) as connection:
        await connection.send(post(*UPGRADE, b"Content-Length: 9"), b"1")
        assert (await connection.answer())[0] == 408
    assert await minted(quick) == 0


# ---- too much -----------------------------------------------------------------------------------------------------


async def test_a_length_over_the_limit_is_413_before_any_of_the_body_came(rig: Rig) -> None:
    async with wire(rig) as connection:
        await connection.send(post(b"Content-Length: 1073741824", b"Expect: 100-continue"))
        status, _, body = await connection.answer()
        assert status == 413, body


@pytest.mark.parametrize("more", [(), (b"Connection: close",)])
async def test_whoever_sends_it_all_first_gets_to_read_the_413(rig: Rig, more: tuple[bytes, ...]) -> None:
    async with wire(rig) as connection:
        await connection.send(post(b"Content-Length: 8000000", *more), *[b"x" * 80_000] * 100)
        assert (await connection.answer())[0] == 413


@pytest.mark.parametrize("head", [post(b"Content-Length: 800000000"), post(CHUNKED) + b"2faf0800\r\n"])
async def test_what_nobody_wants_is_not_read_for_ever(rig: Rig, head: bytes) -> None:
    async with wire(rig) as connection:
        answer = asyncio.ensure_future(connection.answer())
        assert await flood(connection, head, b"x") < 120_000_000
        assert (await answer)[0] == 413


async def flood(connection: Wire, begun: bytes, more: bytes) -> int:
    """Send without end; how much went before the server had enough."""
    sent = 0
    with contextlib.suppress(ConnectionError):
        await connection.send(begun)
        while sent < 400_000_000:
            await connection.send(more * 65_536)
            sent += 65_536
    return sent


@pytest.mark.parametrize(
    "head",
    [
        post(*(b"X-%d: y" % number for number in range(30)), b"Content-Length: 1"),
        post(b"X: " + b"y" * 5000, b"Content-Length: 1"),
        post(*(b"X-%d: " % number + b"y" * 500 for number in range(10)), b"Content-Length: 1"),
        post(b"Content-Length: 1", path=b"/functions/" + b"x" * 70_000),
    ],
)
async def test_a_head_over_the_limit_is_431(quick: Rig, head: bytes) -> None:
    async with wire(quick) as connection:
        await connection.send(head + b"1")
        status, headers, _ = await connection.answer()
        assert (status, headers["connection"]) == (431, "close")
    assert await minted(quick) == 0


@pytest.mark.parametrize(
    "begun", [b"GET /healthz HTTP/1.1\r\nX: ", b"GET /", post(CHUNKED) + b"0\r\nX: ", post(CHUNKED) + b"1;"]
)
async def test_a_line_that_never_ends_is_cut_off(rig: Rig, begun: bytes) -> None:
    async with wire(rig) as connection:
        assert await flood(connection, begun, b"y") < 120_000_000
    assert await minted(rig) == 0


async def test_connections_over_the_limit_are_turned_away(server: Valkey) -> None:
    async with serving(server, bounds=Bounds(connections=3)) as rig, contextlib.AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(wire(rig))
        async with wire(rig) as connection:
            status, headers, _ = await connection.answer()
            assert (status, headers["retry-after"]) == (503, "1")


# ---- too slow -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begun", [b"GET / HTTP/1.1\r\nHost: loc", b"G", b"\r\n"])
async def test_a_head_that_drips_in_is_ended_in_time(quick: Rig, begun: bytes) -> None:
    async with wire(quick) as connection:
        await connection.send(begun)
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(DRIPS_S):
                while not connection.reader.at_eof():
                    await connection.send(b"\r\n" if begun == b"\r\n" else b"a")
                    await asyncio.sleep(0.02)
        got = await connection.ended()
        assert got == b"" or got.startswith(b"HTTP/1.1 408"), got


async def test_a_connection_that_says_nothing_is_closed(quick: Rig) -> None:
    async with wire(quick) as connection:
        assert await connection.ended() == b""


@pytest.mark.parametrize("head", [post(b"Content-Length: 1000"), post(CHUNKED)])
async def test_a_body_that_drips_in_is_408_in_time_and_mints_nothing(quick: Rig, head: bytes) -> None:
    async with wire(quick) as connection:
        await connection.send(head)
        part = b"1\r\n1\r\n" if b"chunked" in head else b"1"
        answer = asyncio.ensure_future(connection.answer(DRIPS_S))
        with contextlib.suppress(ConnectionError):
            while not answer.done():
                await connection.send(part)
                await asyncio.sleep(0.02)
        assert (await answer)[0] == 408
    assert await minted(quick) == 0


async def test_a_steady_body_may_take_longer_than_a_dripping_one(quick: Rig) -> None:
    body = msgspec.json.encode("x" * 60_000)  # a minute, at the least that one must bring
    async with wire(quick) as connection:
        await connection.send(post(b"Content-Length: %d" % len(body)) + body[:-2])
        for at in (-2, -1):
            await asyncio.sleep(QUICK.body_s)
            await connection.send(body[at : at + 1 or None])
        assert (await connection.answer())[0] == 202


async def test_a_wait_for_a_result_is_not_cut_short_by_any_of_these(quick: Rig) -> None:
    async with wire(quick) as connection:
        await connection.send(post(b"Content-Length: 1", b"Prefer: wait=60") + b"1")
        await asyncio.sleep(max(QUICK.head_s, QUICK.body_s) * 2)
        await quick.run("hello.any", 5)
        status, _, body = await connection.answer()
        assert (status, body) == (200, b"5")


async def test_a_hundred_slow_heads_do_not_keep_others_waiting(rig: Rig) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(100):
            held = await stack.enter_async_context(wire(rig))
            await held.send(b"POST /functions/hello.any HTTP/1.1\r\nHost: ")
        async with asyncio.timeout(Bounds().head_s - 1):  # then they are cut off
            assert (await rig.http.get("/healthz")).status_code == 200


# ---- too many -----------------------------------------------------------------------------------------------------


async def test_requests_over_the_limit_of_their_path_are_429_with_when_to_come_again(server: Valkey) -> None:
    async with serving(server, request_limit="5/m") as rig:
        answers = [await rig.call("hello.any", 1) for _ in range(7)]
        assert [answer.status_code for answer in answers] == [202] * 5 + [429] * 2
        assert 1 <= int(answers[-1].headers["Retry-After"]) <= 12
        assert answers[-1].json()["type"] == "urn:echod:problem:too-many-requests"
        assert (await rig.call("shop.once", 1)).status_code == 202  # another path
        for _ in range(10):
            assert (await rig.http.get("/healthz")).status_code == 200


async def test_guesses_at_the_login_are_limited(server: Valkey) -> None:
    async with serving(server, token="s3cret") as rig:
        answers: list[int] = []
        while 429 not in answers and len(answers) < 300:  # two seconds are good for one more
            answers.append((await rig.http.post("/login", data={"token": str(len(answers))})).status_code)
        assert len(answers) > 30
        assert answers == [401] * (len(answers) - 1) + [429]


async def test_of_a_burst_as_many_are_taken_in_as_are_answered_in_time(rig: Rig, server: Valkey) -> None:
    crowd = rig.desk.intake.crowd = Crowd(Aim(first=8, least=4))
    rig.bus.link.patience_s = 3.0  # the first must not have given up when the last come
    with server.paused():
        answers = await asyncio.gather(*(rig.call("hello.any", 1) for _ in range(30)))
    kinds = [answer.json()["type"] for answer in answers]
    assert {answer.status_code for answer in answers} == {503}
    assert kinds.count("urn:echod:problem:busy") == 22
    assert kinds.count("urn:echod:problem:bus-away") == 8
    assert all(answer.headers["Retry-After"] == "1" for answer in answers)
    assert crowd.size == 0
    assert crowd.limit < 8
    assert (await rig.call("hello.any", 1)).status_code == 202


async def test_who_waits_for_something_else_keeps_nobody_out(rig: Rig) -> None:
    crowd = rig.desk.intake.crowd = Crowd(Aim(first=2, least=2))
    async with contextlib.AsyncExitStack() as stack:
        dripping = [await stack.enter_async_context(wire(rig)) for _ in range(4)]
        for connection in dripping:
            await connection.send(post(b"Content-Length: 2") + b"1")
        waiting = []
        for _ in range(4):
            waiting.append(asyncio.ensure_future(rig.call("hello.greet", {"name": "x"}, Prefer="wait=20")))
            await rig.claim("hello.greet")
            stream = await stack.enter_async_context(rig.http.stream("GET", "/events"))
            assert stream.status_code == 200
        assert crowd.size == 0
        assert (await rig.call("shop.once", 1)).status_code == 202
        for connection in dripping:
            await connection.send(b"1")
            assert (await connection.answer())[0] == 202
        assert not any(each.done() for each in waiting)
        for each in waiting:
            each.cancel()


@contextlib.asynccontextmanager
async def half_sent(
    rig: Rig, bodies: Bodies, head: bytes = b"Content-Length: 1000", part: bytes = b"x" * 600
) -> AsyncIterator[Wire]:
    """A connection whose body has come in part, and is counted."""
    before = bodies.size
    async with wire(rig) as connection:
        await connection.send(post(head) + (b"%x\r\n" % len(part) if head == CHUNKED else b"") + part)
        await until(lambda: bodies.size == before + len(part))
        yield connection


@pytest.mark.parametrize("head", [b"Content-Length: 1000", CHUNKED], ids=["length", "chunked"])
async def test_bodies_on_their_way_are_bounded_together(rig: Rig, head: bytes) -> None:
    """1,500 connections that stop a few bytes before their end were 1.4 GB."""
    bodies = rig.desk.intake.callers = Bodies(2000, quiet_s=600)
    async with half_sent(rig, bodies, head), half_sent(rig, bodies, head), half_sent(rig, bodies, head) as third:
        async with wire(rig) as fourth:
            await fourth.send(post(head) + (b"258\r\n" if head == CHUNKED else b"") + b"x" * 600)
            status, headers, body = await fourth.answer()
            assert (status, headers["retry-after"]) == (503, "1"), body
            assert msgspec.json.decode(body)["type"] == "urn:echod:problem:busy"
        assert bodies.size == 1800  # what was refused is not kept
        for _ in range(3):
            assert (
                await rig.call("shop.once", "x" * 5000)
            ).status_code == 202  # what comes at a stroke waits for nobody
        await third.send(b"\r\n0\r\n\r\n" if head == CHUNKED else b"x" * 400)
        assert (await third.answer())[0] == 400  # whole, and no JSON
        assert bodies.size == 1200
        async with half_sent(rig, bodies, head):
            assert bodies.size == 1800
    await until(lambda: bodies.size == 0)


@pytest.mark.parametrize("head", [b"Content-Length: 1000", CHUNKED], ids=["length", "chunked"])
async def test_the_slowest_body_makes_room_for_the_next(rig: Rig, head: bytes) -> None:
    """Who stalls gives way, the longest first, and can read why; the others, and who came, go on."""
    bodies = rig.desk.intake.callers = Bodies(2000, quiet_s=0)
    end = b"\r\n0\r\n\r\n" if head == CHUNKED else b" " * 400
    async with (
        half_sent(rig, bodies, head) as first,
        half_sent(rig, bodies, head) as second,
        half_sent(rig, bodies, head, b'"%b"' % (b"x" * 598)) as third,
        wire(rig) as fourth,
    ):
        await fourth.send(post(head) + (b"258\r\n" if head == CHUNKED else b"") + b"1".rjust(600))
        status, _, body = await first.answer()
        assert (status, msgspec.json.decode(body)["type"]) == (408, "urn:echod:problem:too-slow")
        for each in (third, fourth):
            await each.send(end)
            assert (await each.answer())[0] == 202
        assert bodies.size == 600  # the second's: one had to go, not all
        await second.send(end)
        assert (await second.answer())[0] == 400
    assert bodies.size == 0


async def test_who_drips_is_slower_than_who_sends(rig: Rig) -> None:
    """A few bytes now and then are no step: of two bodies the one that came first, and brought more, stays."""
    bodies = rig.desk.intake.callers = Bodies(40_000, quiet_s=0)
    head = b"Content-Length: 50000"
    async with half_sent(rig, bodies, head) as sending, half_sent(rig, bodies, head) as dripping:
        await sending.send(b"x" * 20_000)
        await until(lambda: bodies.size == 21_200)
        await dripping.send(b"x")
        await until(lambda: bodies.size == 21_201)
        await sending.send(b"x" * 19_400)
        assert (await dripping.answer())[0] == 408
        assert bodies.size == 40_000


async def test_a_coded_body_is_415_whichever_header_says_so(rig: Rig) -> None:
    """At every address: none of them would read it as what it is."""
    named = [
        (b"Content-Encoding: gzip",),
        (b"Content-Encoding: identity", b"Content-Encoding: gzip"),
        (b"Content-Encoding: gzip", b"Content-Encoding: identity"),
        (b"Content-Encoding: ", b"content-encoding: br"),
        (b"Content-Encoding: identity, gzip",),
        (b"Content-Encoding: identity,,deflate , identity",),
    ]
    async with wire(rig) as connection:
        for path in (b"/functions/hello.any", b"/jobs", b"/functions/hello.any/set", b"/deploy"):
            for coded in named:
                await connection.send(post(*coded, b"Content-Length: 2", path=path) + b"{}")
                status, _, body = await connection.answer()
                assert status == 415, (path, coded, body)
                assert "expected a body without Content-Encoding, got" in msgspec.json.decode(body)["detail"]
        plain = (b"Content-Encoding: identity", b"Content-Encoding: ", b"Content-Encoding: Identity , identity")
        await connection.send(post(*plain, b"Content-Length: 2") + b"{}")
        assert (await connection.answer())[0] == 202
    assert await minted(rig) == 1


async def test_a_body_leaves_the_sum_however_it_ends(quick: Rig) -> None:
    bodies = quick.desk.intake.callers
    async with half_sent(quick, bodies) as slow:
        assert (await slow.answer())[0] == 408
        await until(lambda: bodies.size == 0)
    async with half_sent(quick, bodies) as gone:
        gone.writer.transport.abort()
        await until(lambda: bodies.size == 0)
    async with half_sent(quick, bodies, CHUNKED) as broken:
        await broken.send(b"zz\r\n")
        assert (await broken.answer())[0] == 400
        await until(lambda: bodies.size == 0)
    async with half_sent(quick, bodies, CHUNKED) as large:
        for _ in range(20):
            await large.send(b"\r\n10000\r\n" + b"x" * 65_536)
        assert (await large.answer())[0] == 413
        await until(lambda: bodies.size == 0)
    quick.desk.intake.crowd.size = 1_000_000
    async with wire(quick) as crowded:
        await crowded.send(post(b"Content-Length: 1") + b"1")
        assert (await crowded.answer())[0] == 503
    quick.desk.intake.crowd.size = 0
    async with half_sent(quick, bodies) as waiting:
        await waiting.send(b"x" * 400)
        assert (await waiting.answer())[0] == 400
        assert bodies.size == 0


def test_a_turn_of_the_loop_takes_in_more_than_one_connection(server: Valkey) -> None:
    """On the loop that a node has: libuv takes in one for each listening descriptor."""

    async def turns() -> int:
        async with serving(server) as rig:
            assert rig.server._server is not None
            known, counted = rig.server._server.server_state.connections, 0
            with contextlib.ExitStack() as stack:
                for _ in range(64):  # the kernel takes them in; the loop has no turn meanwhile
                    stack.enter_context(socket.create_connection(rig.server.address))
                while len(known) < 64:
                    await asyncio.sleep(0)
                    counted += 1
            return counted

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(turns()) < 32


async def test_of_what_lay_unread_for_too_long_most_is_turned_away_at_once(rig: Rig) -> None:
    """A flood waits in the kernel, where the loop does not see it: accepted in turn, all of it would be late."""
    rig.desk.intake.lag = Lag(Pace(flood=8))
    rig.desk.intake.crowd = Crowd(Aim(first=1000, most=1000))
    sent = post(b"Content-Length: 1") + b"1"
    with contextlib.ExitStack() as stack:
        flood = [stack.enter_context(socket.create_connection(rig.server.address)) for _ in range(100)]
        for connection in flood:
            connection.sendall(sent)
        time.sleep(0.4)  # noqa: ASYNC251  # what keeps the loop
        loop, answers = asyncio.get_running_loop(), list[bytes]()
        for connection in flood:
            connection.setblocking(False)
            answers.append(await loop.sock_recv(connection, 4096))
        refused = [said for said in answers if said.startswith(b"HTTP/1.1 503")]
        assert 64 < len(refused) < 100
        assert sum(said.startswith(b"HTTP/1.1 202") for said in answers) == 100 - len(refused) == await minted(rig)
        assert b"ms behind" in refused[0]
        assert b"retry-after: 1\r\n" in refused[0]
        assert b"content-security-policy:" in refused[0]
        assert await loop.sock_recv(flood[answers.index(refused[0])], 4096) == b""  # and its connection is given up
    async with wire(rig) as connection:
        await connection.send(GET.replace(b"/functions", b"/healthz"))
        assert (await connection.answer())[0] == 200
        await connection.send(sent)  # the next one did not lie there
        assert (await connection.answer())[0] == 202


@pytest.mark.parametrize("second", [post(b"Content-Length: 1") + b"1", post(CHUNKED, CHUNKED)])
async def test_what_is_turned_away_behind_another_does_not_answer_for_it(rig: Rig, second: bytes) -> None:
    async with wire(rig) as connection:
        await connection.send(post(b"Content-Length: 1", b"Prefer: wait=20") + b"1")
        job = await rig.claim("hello.any")
        rig.desk.intake.crowd.size = 1_000_000
        await connection.send(second)
        probe = post(b"Content-Length: 1") + b"1"
        async with wire(rig) as other:  # read after it
            await other.send(probe)
            assert (await other.answer())[0] == 503
        await rig.settle("hello.any", Done(hold(job), rig.record(job), msgspec.msgpack.encode("first")))
        assert (await connection.answer())[::2] == (200, b'"first"')
        assert await connection.ended() == b""


async def test_a_late_loop_turns_requests_away_and_takes_them_again_once_it_is_not(rig: Rig) -> None:
    lag = rig.desk.intake.lag = Lag(Pace(every_s=0.02, watched_s=2, late_s=0.04))
    assert (await rig.call("hello.any", 1)).status_code == 202
    loop = asyncio.get_running_loop()
    is_flooded = True

    def block() -> None:
        time.sleep(0.08)  # what a flood does to a loop
        if is_flooded:
            loop.call_later(0.001, block)

    block()
    try:
        async with asyncio.timeout(60):
            statuses, refused = set[int](), None
            while refused is None:
                answers = await asyncio.gather(*(rig.call("hello.any", 1) for _ in range(16)))
                statuses |= {answer.status_code for answer in answers}
                refused = next((answer for answer in answers if answer.status_code == 503), None)
            assert statuses <= {202, 503}
            assert refused.headers["Retry-After"] == "1"
            assert (await rig.http.get("/healthz")).status_code == 200
    finally:
        is_flooded = False
    async with asyncio.timeout(60):
        while (await rig.call("hello.any", 1)).status_code != 202:
            await asyncio.sleep(0.05)
        while lag.is_watching:
            await asyncio.sleep(0.05)  # and nothing is measured while nobody asks
