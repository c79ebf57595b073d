"""The way over HTTP against a scripted server: when a request is sent again, for how long, and what is told."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
import pytest

import echod
from echod import errors
from echod.client import http

TAKEN = {"id": "JOB00000000001", "function": "f.f", "state": "pending", "url": "/jobs/JOB00000000001"}


class Cut(NamedTuple):
    """Something, and then the server hangs up."""

    said: bytes


class Silence:
    """The server never answers."""


Answer = bytes | Cut | Silence


def answer(status: int, body: object, **headers: str) -> bytes:
    raw = json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(raw)}", "Content-Type: application/json"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + raw


def problem(status: int, slug: str, **members: object) -> bytes:
    retry = {"Retry_After": "0"} if status in {429, 503} else {}
    return answer(status, {"type": f"urn:echod:problem:{slug}", "detail": f"it is {slug}", **members}, **retry)


class Server:
    """Answers in turn, the last one for ever; notes each request and when it came."""

    def __init__(self) -> None:
        self.answers: list[Answer] = [answer(202, TAKEN)]
        self.requests: list[tuple[float, bytes]] = []
        self.before_last: Callable[[], object] = lambda: None  # when all that is left to say is the last
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # a thread accepts on it
        self._listener.close()
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def keys(self) -> set[str]:
        heads = [request.partition(b"\r\n\r\n")[0].decode() for _, request in self.requests]
        return {line for head in heads for line in head.split("\r\n") if line.startswith("Idempotency-Key: ")}

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            while request := _read(connection):
                self.requests.append((time.monotonic(), request))
                said = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if len(self.answers) == 1:
                    self.before_last()
                if isinstance(said, Silence):
                    connection.recv(1)  # until the client gives it up
                    return
                connection.sendall(said if isinstance(said, bytes) else said.said)
                if isinstance(said, Cut):
                    return


def _read(connection: socket.socket) -> bytes:
    request = b""
    while b"\r\n\r\n" not in request:
        if not (data := connection.recv(65536)):
            return b""
        request += data
    head, _, body = request.partition(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.mark.parametrize(
    "lost",
    [
        Cut(b""),
        Cut(b"HTTP/1.1 202 Accepted\r\nContent-Length: 90\r\n\r\n{"),
        Cut(b"SSH-2.0-nothing of ours\r\n"),
        Silence(),
        problem(503, "bus-away"),
        problem(429, "too-many-requests"),
        answer(502, {"detail": "a proxy's own"}),
    ],
    ids=lambda lost: type(lost).__name__ + (lost[9:12].decode() if isinstance(lost, bytes) else ""),
)
def test_an_order_is_sent_again_under_its_key(server: Server, lost: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.answers = [lost, lost, answer(202, TAKEN)]
    if isinstance(lost, Silence):  # is waited for no longer than it must be, and any other answer as long as it takes
        monkeypatch.setattr(http, "ATTEMPT_S", 0.3)
        server.before_last = lambda: monkeypatch.setattr(http, "ATTEMPT_S", 60.0)
    with echod.Client(server.url, timeout=60) as client:
        assert client.enqueue("f.f").id == TAKEN["id"]
    assert len(server.requests) == 3
    assert len({request for _, request in server.requests}) == len(server.keys()) == 1


def test_retry_after_is_waited_for(server: Server) -> None:
    server.answers = [problem(503, "bus-away").replace(b"Retry-After: 0", b"Retry-After: 1"), answer(202, TAKEN)]
    with echod.Client(server.url) as client:
        client.enqueue("f.f")
    (first, _), (second, _) = server.requests
    assert second - first >= 1.0


@pytest.mark.parametrize(
    ("always", "error", "said"),
    [
        (Cut(b""), errors.NothingListens, "is echod running there"),
        (problem(503, "bus-away"), errors.BusAway, "it is bus-away"),
    ],
)
def test_patience_ends_and_says_what_was_known(
    server: Server, always: Answer, error: type[Exception], said: str
) -> None:
    server.answers = [always]
    began = time.monotonic()
    with echod.Client(server.url, timeout=2) as client, pytest.raises(error, match=said):
        client.enqueue("f.f")
    assert time.monotonic() - began > 0.5
    assert len(server.requests) > 1


@pytest.mark.parametrize(
    ("said", "check"),
    [
        (problem(404, "unknown-function", suggestions=["f.g"]), lambda e: e.suggestions == ("f.g",)),
        (
            problem(422, "invalid-payload", faults=[{"path": "$.a", "message": "m"}]),
            lambda e: e.faults[0]["path"] == "$.a",
        ),
        (problem(405, "not-callable"), lambda e: isinstance(e, errors.NotCallable)),
        (problem(409, "key-conflict", job="JOB1"), lambda e: e.job == "JOB1"),
        (problem(429, "full"), lambda e: isinstance(e, errors.QueueFull)),
        (problem(401, "unauthenticated"), lambda e: "ECHOD_TOKEN" in str(e)),
        (problem(403, "out-of-scope"), lambda e: "ECHOD_TOKEN" in str(e)),
        (
            answer(503, {"type": "urn:echod:problem:bus-unfit", "detail": "no"}),
            lambda e: isinstance(e, errors.BusUnfit),
        ),
        (problem(500, "internal"), lambda e: type(e) is errors.EchodError),
        (b"HTTP/1.1 400 X\r\nContent-Length: 4\r\n\r\nlost", lambda e: "HTTP 400" in str(e)),
    ],
)
def test_a_refusal_is_an_error_of_its_kind_and_asked_for_once(
    server: Server, said: bytes, check: Callable[[Exception], bool]
) -> None:
    server.answers = [said]
    with echod.Client(server.url) as client, pytest.raises(errors.EchodError) as raised:
        client.enqueue("f.f")
    assert check(raised.value), repr(raised.value)
    assert len(server.requests) == 1


def test_a_schedule_whose_removal_was_not_heard_of_is_removed(server: Server) -> None:
    listed = [
        {"id": "f.f/nightly", "name": "nightly", "origin": "runtime"},
        {"id": "f.f/x", "name": "x", "origin": "code"},
    ]
    server.answers = [answer(200, {"schedules": listed}), Cut(b""), problem(404, "unknown-schedule")]
    with echod.Client(server.url) as client:
        assert client.cancel_repeat("nightly") is True
        server.answers = [answer(200, {"schedules": listed})]
        assert client.cancel_repeat("x") is False  # code's is not the client's to remove
    assert [request[:20] for _, request in server.requests][1:3] == [b"DELETE /schedules/f."] * 2


def test_wishes_go_as_headers_and_the_payload_as_msgpack(server: Server) -> None:
    with echod.Client(server.url + "/behind/a/proxy/", "tok") as client:
        client.enqueue("f g/ü", {"a": b"\x00"}, lane="läne", delay="5m", unique="u", priority=-3, key="mine")
    [(_, request)] = server.requests
    head, _, body = request.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /behind/a/proxy/functions/f%20g%2F%C3%BC HTTP/1.1\r\n")
    lines = set(head.decode().split("\r\n"))
    assert lines >= {"Echo-Lane: läne", "Echo-Delay: 300000ms", "Echo-Unique: u", "Echo-Priority: -3"}
    assert lines >= {"Idempotency-Key: mine", "Authorization: Bearer tok", "Content-Type: application/msgpack"}
    assert body == b"\x81\xa1a\xc4\x01\x00"


def test_a_key_that_the_client_made_is_known_no_longer_than_it_is_sent(server: Server) -> None:
    """Or each call would leave a key behind for a day: the bus would grow with the calls, whatever is kept of jobs."""
    with echod.Client(server.url, timeout="10s") as client:
        client.enqueue("f.f", 1)
        client.enqueue("f.f", 1, key="mine")
        server.answers = [answer(202, {"jobs": [TAKEN], "minted": 1, "refused": 0})]
        client.enqueue_many("f.f", [1])
    made, own, many = [request for _, request in server.requests]
    assert b"\r\nEcho-Key-For: 70s\r\n" in made
    assert b"Echo-Key-For" not in own
    assert msgspec.msgpack.decode(many.partition(b"\r\n\r\n")[2])[0]["key_for"] == "70s"


@pytest.mark.parametrize(
    ("lost", "error"), [(Cut(b""), errors.NothingListens), (problem(503, "bus-away"), errors.BusAway)]
)
def test_who_was_stopped_for_longer_than_its_key_is_known_sends_nothing_again(
    server: Server, lost: Answer, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request may have made a job: under a key that is forgotten a second one would make another."""
    times = iter([0.0, 50.0, 95.0])  # begun; looked at before each time that it may be sent again
    monkeypatch.setattr(http, "since_boot_s", lambda: next(times))
    server.answers = [lost]
    with echod.Client(server.url, timeout=60) as client:
        with pytest.raises(error):
            client.enqueue("f.f")
        assert len(server.requests) == 2
        times = iter([0.0, 95.0])
        with pytest.raises(errors.EchodError):
            client.enqueue_many("f.f", [1])
        assert len(server.requests) == 3
        times = iter([0.0, 95.0])
        server.answers = [lost, answer(202, TAKEN)]
        assert client.enqueue("f.f", key="mine").id == TAKEN["id"]  # is known for a day


@pytest.mark.parametrize("option", ["lane", "unique", "key"])
def test_no_header_is_smuggled_in(server: Server, option: str) -> None:
    """What a header cannot say goes as one of many orders, whose body can."""
    server.answers = [many(1)]
    with echod.Client(server.url) as client:
        options: Any = {option: "a\r\nEvil: 1"}
        client.enqueue("f.f", **options)
        with pytest.raises(ValueError, match="expected text that UTF-8 can hold"):
            client.enqueue("f.f", **{option: "\ud800"})  # type: ignore[arg-type]
    [(_, request)] = server.requests
    head, _, _ = request.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /jobs HTTP/1.1\r\n")
    assert b"Evil" not in head
    assert orders_in(request)[0][option] == "a\r\nEvil: 1"


@pytest.mark.parametrize("priority", ["x", 2.5, float("nan"), True, [1], 10**9])
def test_a_priority_that_is_none_is_refused_before_anything_is_sent(server: Server, priority: int) -> None:
    """A bus takes it as it comes, and has written half a job when it finds that it is no number."""
    with echod.Client(server.url) as client:
        with pytest.raises(ValueError, match="expected a whole priority from -1,000,000 to 1,000,000"):
            client.enqueue("f.f", 1, priority=priority)
        with pytest.raises(ValueError, match="expected a whole priority"):
            client.enqueue_many("f.f", [1, 2], priority=priority)
    assert server.requests == []


def test_a_connection_is_kept(server: Server) -> None:
    with echod.Client(server.url) as client:
        client.enqueue("f.f")
        threads = threading.active_count()
        for _ in range(20):
            client.enqueue("f.f")
        assert threading.active_count() == threads  # no other connection's thread


# ---- many orders, long waits -----------------------------------------------------------------------------------------


def many(count: int, *refused: int) -> bytes:
    """What POST /jobs answers; ids count from zero."""
    jobs: list[dict[str, object]] = []
    for number in range(count):
        problem = {"type": "urn:echod:problem:full", "title": "x", "status": 429, "detail": "it is full"}
        id = f"JOB{number:011}"
        job = {"id": id, "function": "f.f", "state": "pending", "url": f"/jobs/{id}"}
        jobs.append({"problem": problem} if number in refused else job)
    return answer(207 if refused else 202, {"jobs": jobs, "minted": count - len(refused), "refused": len(refused)})


def orders_in(request: bytes) -> list[dict[str, object]]:
    head, _, body = request.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /jobs HTTP/1.1\r\n")
    found: list[dict[str, object]] = msgspec.msgpack.decode(body)
    return found


def test_many_orders_go_in_few_requests_each_with_a_key_of_its_own(server: Server) -> None:
    server.answers = [many(500), problem(503, "bus-away"), many(500), many(200)]
    with echod.Client(server.url) as client:
        jobs = client.enqueue_many("f.f", ({"n": number} for number in range(1200)), lane="a", delay="5m", priority=2)
    assert len(jobs) == 1200
    first, lost, second, third = (orders_in(request) for _, request in server.requests)
    assert lost == second  # sent again under the same keys
    sent = [*first, *second, *third]
    assert [order["payload"] for order in sent] == [{"n": number} for number in range(1200)]
    assert len({order["key"] for order in sent}) == 1200
    assert sent[0] | {"key": "", "payload": 0} == {
        "function": "f.f", "payload": 0, "key": "", "key_for": "90s", "lane": "a", "delay": "300000ms", "priority": 2
    }  # fmt: skip


def test_large_orders_go_in_more_requests(server: Server) -> None:
    server.answers = [many(2), many(2), many(1)]
    with echod.Client(server.url) as client:
        assert len(client.enqueue_many("f.f", ["x" * 900_000] * 5)) == 5
    assert [len(orders_in(request)) for _, request in server.requests] == [2, 2, 1]


def test_an_order_that_is_refused_is_named_and_the_others_stand(server: Server) -> None:
    server.answers = [many(500), many(100, 3, 77)]
    with (
        echod.Client(server.url) as client,
        pytest.raises(echod.OrdersRefused, match="order 503: it is full") as raised,
    ):
        client.enqueue_many("f.f", range(600))
    refused = raised.value
    assert "2 of 600 orders were refused, the others stand" in str(refused)
    assert {number: type(error) for number, error in refused.errors.items()} == dict.fromkeys(
        (503, 577), errors.QueueFull
    )
    assert [number for number, job in enumerate(refused.jobs) if job is None] == [503, 577]
    assert isinstance(refused.jobs[0], echod.Job)


def test_what_refuses_all_of_them_is_an_error_of_its_own_kind(server: Server) -> None:
    server.answers = [problem(401, "unauthenticated")]
    with echod.Client(server.url) as client:
        with pytest.raises(errors.Refused, match="ECHOD_TOKEN"):
            client.enqueue_many("f.f", range(3))
        server.answers = [many(500), problem(401, "unauthenticated")]
        with pytest.raises(echod.OrdersRefused, match="100 of 600 orders were refused") as raised:
            client.enqueue_many("f.f", range(600))
        assert set(raised.value.errors) == set(range(500, 600))
        server.answers = [many(500), problem(503, "bus-full")]
    with echod.Client(server.url, timeout=60) as client:
        door: Any = client._core().client._door

        def hurry() -> None:
            """What is left to ask has no patience, and what was asked all it had."""
            door._patience_s = 1.0

        server.before_last = hurry
        with pytest.raises(echod.OrdersRefused, match="100 of 600 orders were refused, the others stand") as raised:
            client.enqueue_many("f.f", range(600))
        assert {type(error) for error in raised.value.errors.values()} == {errors.BusFull}
        door._patience_s = 60.0
        server.answers = [many(500), Silence()]
        with pytest.raises(
            echod.OrdersRefused, match=r"^100 of 600 orders got no answer, the others stand; order 500: "
        ):
            client.enqueue_many("f.f", range(600))
        assert client.enqueue_many("f.f", []) == []


def test_a_result_is_waited_for_by_the_gateway(server: Server) -> None:
    instant = "2026-01-01T00:00:00.000Z"
    known: dict[str, object] = dict.fromkeys(("reason", "started", "ended", "error", "result"))
    known |= {"id": TAKEN["id"], "function": "f.f", "lane": "-", "attempts": 1, "failures": 0}
    known |= {"due": instant, "minted": instant}
    server.answers = [answer(200, known | {"state": "active"}), answer(200, known | {"state": "done", "result": 5})]
    with echod.Client(server.url) as client:
        assert client.job(str(TAKEN["id"])).result(30) == 5
        server.answers = [answer(200, known | {"state": "active"})]
        with pytest.raises(TimeoutError):
            client.job(str(TAKEN["id"])).result(0.2)
    waits = [b"Prefer: wait=20\r\n" in request for _, request in server.requests]
    assert waits[:2] == [True, True]
    assert waits[2:] == [False] * len(waits[2:])  # less than a second: by looks


# ---- what is said at once --------------------------------------------------------------------------------------------


def test_that_nobody_listens_is_said_at_once_and_what_to_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    for url in (f"http://127.0.0.1:{port}", f"http://localhost:{port}", f"valkey://127.0.0.1:{port}"):
        began = time.monotonic()
        with echod.Client(url, timeout=600) as client, pytest.raises(errors.EchodError) as raised:
            client.enqueue("f.f")
        assert time.monotonic() - began < 60  # two seconds, and not the ten minutes of its patience
        assert raised.value.exit_code == 3
        assert "start" in str(raised.value)
        if url.startswith("http"):
            assert isinstance(raised.value, echod.NothingListens)
            assert f"nothing listens at {url}" in str(raised.value)


def test_who_was_heard_before_is_waited_for(server: Server) -> None:
    with echod.Client(server.url, timeout=3) as client:
        client.enqueue("f.f")
        server.close()
        began = time.monotonic()
        with pytest.raises(echod.NothingListens):
            client.enqueue("f.f")
        assert time.monotonic() - began > 2.5


@pytest.mark.parametrize("url", ["", "unix:///nowhere/valkey.sock"])
def test_a_closed_client_refuses(server: Server, url: str) -> None:
    client = echod.Client(url or server.url, timeout=1)
    job = client.job(str(TAKEN["id"]))
    client.close()
    client.close()
    for call in (
        lambda: client.enqueue("f.f"),
        lambda: client.enqueue_many("f.f", [1]),
        lambda: client.repeat("n", "f.f", every="1h"),
        job.refresh,
        job.result,
    ):
        with pytest.raises(echod.Refused, match="expected an open client, got one that was closed"):
            call()
    assert server.requests == []


@pytest.mark.parametrize("url", ["", "unix:///nowhere/valkey.sock"])
async def test_a_closed_async_client_refuses(server: Server, url: str) -> None:
    client = echod.AsyncClient(url or server.url, timeout=1)
    job = client.job(str(TAKEN["id"]))
    await client.close()
    for call in (
        client.enqueue("f.f"),
        client.enqueue_many("f.f", [1]),
        client.repeat("n", "f.f", every="1h"),
        job.result(),
    ):
        with pytest.raises(echod.Refused, match="expected an open client, got one that was closed"):
            await call
    assert server.requests == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lane": 5}, r"lane=: expected text, got 5 \(int\)"),
        ({"unique": b"x"}, r"unique=: expected text, got b'x' \(bytes\)"),
        ({"key": 7}, r"key=: expected text, got 7 \(int\)"),
        ({"durable": "fsync"}, r"durable=: expected True or False, got 'fsync' \(str\)"),
        ({"delay": "soon"}, "delay=: expected"),
        ({"at": 5}, "at=: expected a datetime or RFC 3339 text, got int"),
        ({"delya": "5m"}, r"enqueue\(\) has no option delya=; did you mean delay=\? there are at, delay"),
        ({"zzz": 1}, r"enqueue\(\) has no option zzz=; there are at, delay, durable"),
    ],
)
def test_an_option_that_cannot_be_is_named(server: Server, options: dict[str, Any], said: str) -> None:
    with echod.Client(server.url) as client:
        with pytest.raises((TypeError, ValueError), match=said):
            client.enqueue("f.f", 1, **options)
        with pytest.raises(TypeError, match=r"enqueue_many\(\) has no option key=;"):
            client.enqueue_many("f.f", [1], key="x")  # type: ignore[call-overload]
        with pytest.raises(TypeError, match=r"repeat\(\) has no option corn=; did you mean cron=\?"):
            client.repeat("n", "f.f", corn="0 2 * * *")  # type: ignore[call-overload]
    assert server.requests == []


KNOWN: dict[str, object] = {
    **dict.fromkeys(("reason", "started", "ended", "error", "result")),
    **{"id": TAKEN["id"], "function": "f.f", "lane": "-", "attempts": 1, "failures": 0, "state": "active"},
    **dict.fromkeys(("due", "minted"), "2026-01-01T00:00:00.000Z"),
}


@pytest.mark.parametrize(
    "always",
    [Silence(), Cut(b""), problem(503, "bus-away"), answer(502, {}), None],
    ids=["silence", "cut", "bus away", "proxy", "gone"],
)
def test_a_result_is_waited_for_no_longer_than_its_timeout_says(
    server: Server, always: Answer | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However patient the client is otherwise: whoever was there before is gone now, or does not answer."""
    monkeypatch.setattr("echod.client.asynchronous.LOOK_S", 0.1)
    server.answers = [answer(200, KNOWN)]
    with echod.Client(server.url, timeout="6s") as client:
        job = client.job(str(TAKEN["id"])).refresh()
        server.answers = [always or Cut(b"")]
        if always is None:
            server.close()
        with pytest.raises(errors.TimedOut, match=f"{TAKEN['id']} has not ended within 200ms: nothing was heard of it"):
            job.result("200ms")
        with pytest.raises(TimeoutError):
            job.result(0)


def test_a_timeout_of_nothing_asks_whether_it_has_ended(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echod.client.asynchronous.LOOK_S", 60.0)
    server.answers = [answer(200, KNOWN | {"state": "done", "result": 5})]
    with echod.Client(server.url) as client:
        job = client.job(str(TAKEN["id"]))
        assert job.result(0) == 5
        assert job.result("1ms") == 5
        server.answers = [answer(200, KNOWN)]
        with pytest.raises(errors.TimedOut, match=r"has not ended within 0ms$"):
            job.result(0)


@pytest.mark.parametrize("what", ["url", "token", "app", "package"])
def test_an_address_that_is_no_text_is_named(what: str) -> None:
    for client in (echod.Client, echod.AsyncClient):
        with pytest.raises(TypeError, match=rf"^{what}=: expected text, got 5 \(int\)$"):
            client(**{what: 5})  # type: ignore[arg-type]


@pytest.mark.parametrize("payloads", [5, None, "abc", b"abc", {"a": 1}, len])
def test_many_payloads_are_a_list_of_them(server: Server, payloads: Any) -> None:
    """Of text every letter would be a job, of a mapping every key."""
    with (
        echod.Client(server.url) as client,
        pytest.raises(TypeError, match=r"^payloads=: expected a list of them, got "),
    ):
        client.enqueue_many("f.f", payloads)
    assert server.requests == []


@pytest.mark.parametrize("name", [5, None, b"nightly"])
def test_a_schedule_is_named_by_text(server: Server, name: Any) -> None:
    with echod.Client(server.url) as client:
        with pytest.raises(TypeError, match="name=: expected text, got "):
            client.cancel_repeat(name)
        with pytest.raises(TypeError, match="name=: expected text, got "):
            client.repeat(name, "f.f", every="1h")
    assert server.requests == []


@pytest.mark.parametrize("id", ["", ".", "..", "nonsense", "JOB", "JOB0000000000!", "?function=f"])
def test_what_is_no_id_is_not_asked_for(server: Server, id: str) -> None:
    with echod.Client(server.url) as client:
        for call in (client.job(id).refresh, client.job(id).result, client.job(id).cancel):
            with pytest.raises(echod.Refused, match=rf"^no job {re.escape(repr(id))}: it was never minted"):
                call()
    assert server.requests == []


def test_jobs_of_one_id_are_equal(server: Server) -> None:
    with echod.Client(server.url) as client, echod.Client(server.url) as other:
        one, two = client.enqueue("f.f"), other.job(str(TAKEN["id"]))
        assert one == two
        assert len({one, two, client.job("JOB00000000002")}) == 2
        assert one != client.job("JOB00000000002")
        assert one != TAKEN["id"]


async def test_jobs_of_one_id_are_equal_in_a_loop(server: Server) -> None:
    async with echod.AsyncClient(server.url) as client:
        one, two = await client.enqueue("f.f"), client.job(str(TAKEN["id"]))
        assert one == two
        assert len({one, two, client.job("JOB00000000002")}) == 2
        assert one != client.job("JOB00000000002")
