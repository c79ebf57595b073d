"""echod.Client and AsyncClient against a node, over HTTP and straight to the bus: both take and refuse the same."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import echod
from echod.bus import Bus
from nodes import Node, environment, until

FILES = {
    "shop.py": """
from dataclasses import dataclass
from datetime import datetime

from echofn import Context, queue, webhook


@dataclass
class Order:
    id: int
    tenant: str = "-"


@dataclass
class Parcel:
    order: int
    packed: datetime
    label: bytes


@queue(lane="tenant", retries=0)
def pack(payload: Order, ctx: Context) -> Parcel:
    print("packing", payload.id)
    if payload.id < 0:
        raise ValueError("negative")
    return Parcel(payload.id, datetime.fromisoformat("2026-01-01T00:00:00+00:00"), bytes([0, 255]))


@queue
async def ping() -> str:
    return "pong"


@queue(unique="id", max_pending=3, name="shop.once")
def once(payload: Order) -> int:
    return payload.id


@queue(lane="tenant")
def loose(payload):
    return payload


@webhook("/hooks/in", verify=None)
def hook(request):
    return "hooked"
"""
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("client"), FILES).start()
    try:
        yield node
    finally:
        node.close()


@pytest.fixture(scope="module")
def shop(node: Node) -> Iterator[Any]:
    """The folder's module as another program imports it."""
    sys.path.insert(0, str(node.folder.parent))
    try:
        import importlib

        yield importlib.import_module("functions.shop")
    finally:
        sys.path.remove(str(node.folder.parent))
        for name in [name for name in sys.modules if name == "functions" or name.startswith("functions.")]:
            del sys.modules[name]


def address(node: Node, way: str) -> str:
    return node.url if way == "http" else f"unix://{node.state}/valkey.sock"


@pytest.fixture(params=["http", "bus"])
def client(node: Node, request: pytest.FixtureRequest) -> Iterator[echod.Client]:
    with echod.Client(address(node, request.param)) as client:
        yield client


# ---- a job and its end ---------------------------------------------------------------------------------------------


def test_a_function_is_called_and_its_result_is_of_its_own_type(client: echod.Client, shop: Any) -> None:
    job = client.enqueue(shop.pack, shop.Order(7, "acme"))
    assert job.id.startswith("JOB")
    parcel = job.result(timeout=90)
    assert parcel == shop.Parcel(7, datetime(2026, 1, 1, tzinfo=UTC), b"\x00\xff")
    assert (job.state, job.function) == ("done", "shop.pack")
    assert job.record is not None
    assert (job.record.lane, job.record.attempts, job.record.error) == ("acme", 1, None)
    assert job.record.minted <= job.record.ended


def test_a_function_is_called_by_its_name_and_its_result_is_as_it_is_stored(client: echod.Client) -> None:
    assert client.enqueue("shop.ping").result(90) == "pong"
    assert client.enqueue("shop.pack", {"id": 1}).result(90)["order"] == 1


def test_a_run_that_failed_says_so_with_cause_and_error(client: echod.Client, shop: Any) -> None:
    with pytest.raises(echod.JobFailed, match="ValueError: negative") as failed:
        client.enqueue(shop.pack, shop.Order(-1)).result(90)
    error = failed.value
    assert (error.state, error.cause, error.type, error.message) == ("dead", "error", "ValueError", "negative")
    assert "shop.py" in error.traceback


def test_who_waits_for_too_short_a_time_gets_a_timeout_and_the_job_goes_on(client: echod.Client, shop: Any) -> None:
    job = client.enqueue(shop.pack, shop.Order(1), delay="1h")
    assert job.state == "scheduled"
    with pytest.raises(TimeoutError, match=job.id):
        job.result(timeout="300ms")
    assert job.refresh().state == "scheduled"
    assert job.record is not None
    assert timedelta(minutes=59) < job.record.due - job.record.minted < timedelta(minutes=61)


def test_a_job_is_cancelled_and_one_that_ended_is_not(client: echod.Client, shop: Any) -> None:
    job = client.enqueue(shop.pack, shop.Order(1), at=datetime.now(UTC) + timedelta(hours=1))
    assert job.cancel() is True
    assert job.state == "cancelled"
    assert job.cancel() is False
    assert client.job(job.id).cancel() is False
    with pytest.raises(echod.JobFailed, match="cancelled"):
        job.result(90)
    done = client.enqueue("shop.ping")
    client.job(done.id).result(90)
    assert done.state == "pending"
    assert done.cancel() is False
    assert done.state == "done"


def test_a_job_is_found_again_by_its_id(client: echod.Client) -> None:
    id = client.enqueue("shop.ping").id
    assert client.job(id).result(90) == "pong"
    for unknown in ("JOB00000000000", "nonsense"):
        with pytest.raises(echod.Refused, match="no job"):
            client.job(unknown).refresh()


def test_many_are_enqueued_in_their_order(client: echod.Client, shop: Any) -> None:
    jobs = client.enqueue_many(shop.pack, [shop.Order(number, f"t{number % 7}") for number in range(600)])
    assert len({job.id for job in jobs}) == 600
    assert [job.result(90).order for job in jobs[::97]] == list(range(0, 600, 97))


def test_of_many_those_that_cannot_be_are_named_and_the_others_stand(client: echod.Client, shop: Any) -> None:
    with pytest.raises(
        echod.OrdersRefused, match=r"2 of 40 orders were refused, the others stand; order 7: "
    ) as raised:
        client.enqueue_many("shop.pack", [{"id": "x" if number in (7, 31) else number} for number in range(40)])
    assert {number: error.faults[0]["path"] for number, error in raised.value.errors.items()} == {7: "$.id", 31: "$.id"}
    assert [number for number, job in enumerate(raised.value.jobs) if job is None] == [7, 31]
    assert raised.value.jobs[39].result(90)["order"] == 39
    with pytest.raises(echod.OrdersRefused, match=r"3 of 3 orders were refused, none was minted; .*did you mean"):
        client.enqueue_many("shop.pac", [1, 2, 3])
    with pytest.raises(echod.InvalidPayload, match="order 1: "):
        client.enqueue_many(shop.pack, [shop.Order(1), {"id": "x"}])


def test_who_waits_for_a_result_is_told_and_hardly_looks(node: Node, client: echod.Client, shop: Any) -> None:
    job = client.job(client.enqueue(shop.pack, shop.Order(1), delay="4s").id)  # of which it knows the id alone

    async def info() -> str:
        bus = await Bus.open(address(node, "bus"))
        try:
            return str((await bus.link.command("INFO", "commandstats")).decode())
        finally:
            await bus.close()

    def reads() -> int:
        found = re.search(r"cmdstat_hgetall:calls=(\d+)", asyncio.run(info()))
        return int(found[1]) if found else 0

    before = reads()
    assert job.result(90)["order"] == 1
    assert reads() - before < 20  # who looked again and again would have looked fifty times


def test_options_say_what_the_policy_does_not(client: echod.Client, shop: Any) -> None:
    job = client.enqueue(shop.pack, shop.Order(1, "acme"), lane="other", priority=-7, delay=3600)
    assert job.refresh().record.lane == "other"
    name = f"u{time.time_ns()}"
    one, two, third = (
        client.enqueue(shop.pack, shop.Order(1), unique=unique, delay=3600) for unique in (name, name, name + "b")
    )
    assert one.id == two.id != third.id
    for each in (job, one, third):
        assert each.cancel()


def test_a_key_of_the_callers_own_answers_with_its_first_job(client: echod.Client, shop: Any) -> None:
    key = f"order-{time.time_ns()}"
    first = client.enqueue(shop.pack, shop.Order(5), key=key)
    first.result(90)
    assert client.enqueue(shop.pack, shop.Order(5), key=key).id == first.id
    with pytest.raises(echod.KeyConflict) as conflict:
        client.enqueue(shop.pack, shop.Order(6), key=key)
    assert conflict.value.job == first.id


def test_a_key_is_the_same_by_either_way(node: Node, shop: Any) -> None:
    key = f"both-{time.time_ns()}"
    with echod.Client(address(node, "http")) as http, echod.Client(address(node, "bus")) as bus:
        assert http.enqueue(shop.ping, key=key).id == bus.enqueue(shop.ping, key=key).id


# ---- what is refused, before anything is queued --------------------------------------------------------------------


def test_what_cannot_be_taken_is_refused_alike_and_nothing_is_queued(
    node: Node, client: echod.Client, shop: Any
) -> None:
    before = len(jobs_of(node))
    with pytest.raises(echod.UnknownFunction, match=r"did you mean shop\.pack") as unknown:
        client.enqueue("shop.pac", {"id": 1})
    assert unknown.value.suggestions[0] == "shop.pack"
    with pytest.raises(echod.InvalidPayload) as invalid:
        client.enqueue("shop.pack", {"id": "x"})
    assert [fault["path"] for fault in invalid.value.faults] == ["$.id"]
    with pytest.raises(echod.InvalidPayload, match="lane") as invalid:
        client.enqueue("shop.loose", {"tenant": {}})
    assert [fault["path"] for fault in invalid.value.faults] == ["$.tenant"]
    with pytest.raises(echod.InvalidPayload):
        client.enqueue(shop.pack, {"id": "x"})
    with pytest.raises(echod.InvalidPayload, match="levels"):
        client.enqueue("shop.loose", {"tenant": "a", "deep": eval("[" * 150 + "]" * 150)})
    with pytest.raises(echod.NotCallable, match="/hooks/in"):
        client.enqueue("shop.hook", None)
    with pytest.raises(ValueError, match="both"):
        client.enqueue("shop.ping", delay="1s", at="2026-01-01T00:00:00Z")
    with pytest.raises(TypeError, match="@queue"):
        client.enqueue(len, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"id=: expected text, got 5 \(int\)"):
        client.job(5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout=: expected a duration"):
        client.job("JOB00000000000").result(timeout="5 sec")
    with pytest.raises(echod.InvalidPayload, match=r"payload for shop\.pack: expected one"):
        client.repeat("no", shop.pack, every="1h")
    with pytest.raises(TypeError, match="urgent"):
        client.enqueue("shop.ping", urgent=True)  # type: ignore[call-overload]
    assert len(jobs_of(node)) == before


def test_a_full_queue_is_told(node: Node, client: echod.Client, shop: Any) -> None:
    node.ask("POST", "/functions/shop.once/pause")
    try:
        base = time.time_ns() % 10**9
        jobs = [client.enqueue(shop.once, shop.Order(base + number)) for number in range(3)]
        with pytest.raises(echod.QueueFull, match="3 jobs waiting"):
            client.enqueue(shop.once, shop.Order(base + 3))
        assert client.enqueue(shop.once, shop.Order(base)).id == jobs[0].id  # unique by the policy's path
        for job in jobs:
            job.cancel()
    finally:
        node.ask("POST", "/functions/shop.once/resume")


def jobs_of(node: Node) -> list[Any]:
    found: list[Any] = []
    cursor = ""
    while True:
        page = node.get(f"/jobs?limit=200&cursor={cursor}")
        found += page["jobs"]
        cursor = page["cursor"]
        if not cursor:
            return found


# ---- schedules -----------------------------------------------------------------------------------------------------


def test_a_schedule_is_registered_changed_and_cancelled(node: Node, client: echod.Client, shop: Any) -> None:
    made = client.repeat("nightly", shop.pack, cron="0 2 * * *", tz="Europe/Berlin", payload=shop.Order(1))
    assert (made.id, made.rule, made.tz) == ("shop.pack/nightly", "0 2 * * *", "Europe/Berlin")
    assert made.next is not None
    changed = client.repeat("nightly", "shop.pack", every="1h", payload={"id": 2})
    assert (changed.id, changed.rule) == (made.id, "every 1h")
    assert [each["id"] for each in node.get("/schedules")["schedules"]] == ["shop.pack/nightly"]
    client.repeat("nightly", shop.ping, every=60)
    with pytest.raises(echod.Refused, match="by its id"):
        client.cancel_repeat("nightly")
    assert client.cancel_repeat("shop.ping/nightly") is True
    assert client.cancel_repeat("nightly") is True
    assert client.cancel_repeat("nightly") is False


def test_its_jobs_run(client: echod.Client, node: Node, shop: Any) -> None:
    client.repeat("often", shop.pack, every="1s", payload=shop.Order(42))
    try:
        done = until(lambda: [job for job in jobs_of(node) if job["occurrence"] and job["state"] == "done"])
        assert done[0]["occurrence"]["recurrence"] == "shop.pack/often"
        assert client.job(done[0]["id"]).result(90)["order"] == 42
    finally:
        assert client.cancel_repeat("often")


def test_a_schedule_that_cannot_be_is_refused_with_its_paths(node: Node, client: echod.Client) -> None:
    with pytest.raises(echod.InvalidSchedule) as invalid:
        client.repeat("bad", "shop.pack", cron="0 0 30 2 *", tz="Nowhere/Land", payload={"id": "x"})
    assert {fault["path"] for fault in invalid.value.faults} == {"$.cron", "$.tz", "$.payload.id"}
    with pytest.raises(echod.UnknownFunction):
        client.repeat("bad", "shop.pac", every="1h")
    assert node.get("/schedules")["schedules"] == []


# ---- other shapes of program ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["http", "bus"])
async def test_the_same_from_a_loop(node: Node, shop: Any, way: str) -> None:
    async with echod.AsyncClient(address(node, way)) as client:
        jobs = await asyncio.gather(*(client.enqueue(shop.pack, shop.Order(number)) for number in range(20)))
        assert [(await job.result(90)).order for job in jobs] == list(range(20))
        assert await (await client.enqueue("shop.ping")).result(90) == "pong"
        await client.repeat("hourly", shop.ping, every="1h")
        assert await client.cancel_repeat("hourly")


@pytest.mark.parametrize("way", ["http", "bus"])
def test_threads_share_a_client(node: Node, shop: Any, way: str) -> None:
    with (
        echod.Client(address(node, way)) as client,
        concurrent.futures.ThreadPoolExecutor(8) as pool,
    ):
        jobs = list(pool.map(lambda number: client.enqueue(shop.pack, shop.Order(number)), range(80)))
        assert len({job.id for job in jobs}) == 80


FORKED = """
import os, sys, echod
client = echod.Client(sys.argv[1])
first = client.enqueue("shop.ping")
ids = []
for _ in range(2):
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            there = first.result(90)
            os.write(write, ",".join([there, *(client.enqueue("shop.ping").id for _ in range(20))]).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        ids += [pipe.read().split(",")]
    os.wait()
ids.append([client.enqueue("shop.ping").id for _ in range(20)])
assert ids[0][0] == ids[1][0] == "pong", ids
every = ids[0][1:] + ids[1][1:] + ids[2]
assert len(set(every)) == 60, every
client.close()
"""


@pytest.mark.parametrize("way", ["http", "bus"])
def test_a_process_that_forked_goes_on_with_ids_of_its_own(node: Node, way: str) -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED, address(node, way)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment())
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_importing_echod_loads_nothing_of_the_server() -> None:
    heavy = {"asyncio", "msgspec", "starlette", "redis", "uvicorn", "jinja2", "jsonschema_rs", "click", "echod.client"}
    code = "import sys; import echod; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    assert not heavy & set(loaded.split())
    code = "import sys; import echod; echod.Client('http://127.0.0.1:9').close(); print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    found = set(loaded.split())
    server = {"starlette", "redis", "uvicorn", "uvloop", "jinja2", "jsonschema_rs", "click", "rich", "hiredis"}
    assert not server & found
    assert not {
        name for name in found if name.startswith(("echod.gateway", "echod.bus", "echod.node", "echod.registry"))
    }


def test_a_client_leaves_its_node_number_when_it_is_closed(node: Node) -> None:
    def clients() -> list[Any]:
        return [each for each in node.get("/nodes")["nodes"] if each.get("roles") == ["client"]]

    before = len(clients())
    with echod.Client(address(node, "bus")) as client:
        client.job("JOB00000000000")
        assert len(clients()) == before  # who only looks needs none
        client.enqueue("shop.ping")
        assert len(clients()) == before + 1
    assert len(clients()) == before


@pytest.mark.parametrize(
    ("url", "said"),
    [("ftp://x", "expected http://"), ("http://", "expected http://"), ("http://h:port", "expected http://")],
)
def test_an_address_that_is_none_is_refused_at_once(url: str, said: str) -> None:
    with pytest.raises(echod.Refused, match=said):
        echod.Client(url)


def test_a_token_is_asked_for_and_given(tmp_path: Path) -> None:
    with contextlib.closing(Node(tmp_path, {"m.py": FILES["shop.py"]})) as node:
        node.start("start", ECHOD_TOKEN="secret-0123456789")
        with echod.Client(node.url, timeout=2) as client, pytest.raises(echod.Refused, match="ECHOD_TOKEN"):
            client.enqueue("shop.once", {"id": 1})
        with echod.Client(node.url, "secret-0123456789") as client:
            assert client.enqueue("m.ping").result(90) == "pong"


# ---- the bus goes, answers are lost --------------------------------------------------------------------------------


class Cutting:
    """A way to a server that is cut before every `every`-th answer is through: it took effect, and nobody heard."""

    def __init__(self, target: str | tuple[str, int], every: int) -> None:
        self._target, self._every = target, every
        self._answers = self.cuts = self.lost = 0
        self.deaf = False  # every answer is lost, and counted, and the connection stays
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._sockets = [self._listener]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.socket(socket.AF_UNIX if isinstance(self._target, str) else socket.AF_INET)
                self._sockets += [near, far]
                far.connect(self._target)
                for one, other, is_answer in ((near, far, False), (far, near, True)):
                    thread = threading.Thread(target=self._pass_on, args=(one, other, is_answer), daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if is_answer and self.deaf:
                    self.lost += 1
                    continue
                self._answers += is_answer
                if is_answer and self._answers % self._every == 0:
                    self.cuts += 1
                    break
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("way", ["http", "bus"])
def test_an_answer_that_was_lost_makes_no_second_job(node: Node, way: str) -> None:
    target = ("127.0.0.1", node.port) if way == "http" else f"{node.state}/valkey.sock"
    before = {job["id"] for job in jobs_of(node)}
    with contextlib.closing(Cutting(target, every=4 if way == "http" else 11)) as cutting:
        scheme = "http" if way == "http" else "valkey"
        with echod.Client(f"{scheme}://127.0.0.1:{cutting.port}") as client:
            ids = [client.enqueue("shop.loose", number).id for number in range(40)]
            ids += [job.id for job in client.enqueue_many("shop.loose", range(40))]
            result = client.job(ids[0]).result(90)
    assert cutting.cuts >= 3
    assert result == 0
    assert sorted(ids) == sorted({job["id"] for job in jobs_of(node)} - before)
    assert len(set(ids)) == 80


def test_an_order_that_the_bus_took_and_nobody_heard_of_is_minted_again_under_its_id(node: Node) -> None:
    before = {job["id"] for job in jobs_of(node)}
    with (
        contextlib.closing(Cutting(f"{node.state}/valkey.sock", every=10**9)) as cutting,
        echod.Client(f"valkey://127.0.0.1:{cutting.port}") as client,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        warm = client.enqueue("shop.loose", 0).id
        cutting.deaf = True
        order = pool.submit(client.enqueue, "shop.loose", 1)
        until(lambda: len(jobs_of(node)) == len(before) + 2)  # it took effect
        until(lambda: cutting.lost >= 2)  # of the order, and of a new connection: the first has given it up
        cutting.deaf = False
        assert {warm, order.result(90).id} == {job["id"] for job in jobs_of(node)} - before


def test_an_order_whose_job_came_ended_and_went_unheard_is_not_minted_again(node: Node) -> None:
    def of_loose() -> list[Any]:
        return [job for job in jobs_of(node) if job["function"] == "shop.loose"]

    with (
        contextlib.closing(Cutting(f"{node.state}/valkey.sock", every=10**9)) as cutting,
        echod.Client(f"valkey://127.0.0.1:{cutting.port}") as client,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        client.enqueue("shop.loose", 0).result(90)
        node.ask("POST", "/functions/shop.loose/purge?state=done")
        cutting.deaf = True
        order = pool.submit(client.enqueue, "shop.loose", 1)
        [job] = until(lambda: [job for job in of_loose() if job["state"] == "done"])
        assert until(lambda: node.ask("POST", "/functions/shop.loose/purge?state=done")[1]["purged"]) == 1
        until(lambda: cutting.lost >= 2)  # of the order, and of a new connection: the first has given it up
        cutting.deaf = False
        assert order.result(90).id == job["id"]
    assert of_loose() == []


@pytest.mark.parametrize("way", ["http", "bus"])
def test_every_job_is_there_once_although_the_bus_was_killed_in_between(tmp_path: Path, way: str) -> None:
    node = Node(tmp_path, FILES).start()
    try:
        node.ask("POST", "/functions/shop.ping/pause")
        ids: list[str] = []
        failed: list[Exception] = []

        def work() -> None:
            try:
                while len(ids) < 400:
                    ids.append(client.enqueue("shop.ping").id)
            except Exception as error:
                failed.append(error)

        with echod.Client(address(node, way), timeout=120) as client:
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            until(lambda: len(ids) > 60)
            os.kill(node.server_pid(), signal.SIGKILL)
            for thread in threads:
                thread.join(180)
        assert failed == []
        assert len(set(ids)) == len(ids) >= 400
        assert sorted(ids) == sorted(job["id"] for job in jobs_of(node))
    finally:
        node.close()
