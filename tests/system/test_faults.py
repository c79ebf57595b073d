"""Whole nodes on a server that fails them: full, away, loading, frozen, closed to them; they recover by themselves."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import redis

import echod
from audit import audit
from doing import LEASE_MS, claim_one, hold, mint
from echod.bus import Bus
from echod.model.ids import NodeId
from nodes import TOKEN, Node, run, until
from server import Server, running

Make = Callable[..., Node]
WORK = {"shop.py": "from echofn import queue\n\n\n@queue()\ndef pack(payload):\n    return len(payload)\n"}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes nodes that are gone at the end."""
    made: list[Node] = []

    def make(files: dict[str, str] | None = None) -> Node:
        made.append(Node(tmp_path / str(len(made)), WORK if files is None else files))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def own() -> Iterator[Server]:
    """A server of the test's own, with an append-only file."""
    server = Server(append_only=True)
    server.start()
    yield server
    server.remove()


def info(server: Server, name: str) -> int:
    told = server.command("INFO")
    assert isinstance(told, bytes)
    return int(told.split(f"\n{name}:".encode())[1].split()[0])


def pending(node: Node) -> int:
    return int(node.get("/functions/shop.pack")["pending"])


def test_a_server_full_of_waiting_jobs_is_worked_off_and_takes_new_ones_then(make: Make, own: Server) -> None:
    node = make().start("start", "--bus", own.address, ECHOD_TOKEN=TOKEN)
    assert node.ask("POST", "/functions/shop.pack/pause")[0] == 200
    own.command("CONFIG", "SET", "maxmemory", info(own, "used_memory") + 4_000_000)
    minted: list[str] = []
    said: tuple[int, Any] = (202, None)
    while said[0] == 202:
        said = node.ask("POST", "/functions/shop.pack", "x" * 20_000)
        if said[0] == 202:
            minted.append(said[1]["id"])
    assert (said[0], said[1]["type"]) == (503, "urn:echod:problem:bus-full")
    assert 50 < len(minted) < 400
    assert any("memory limit" in each for each in node.get("/readyz")["degraded"])
    assert node.ask("POST", "/functions/shop.pack/resume")[0] == 200
    until(lambda: own.command("ZCARD", "emq:{shop.pack}:done") == len(minted))
    audit(own, "shop.pack")
    before = info(own, "used_memory")
    own.clock.advance(11_000)  # what has just ended stays ten seconds, for mints that are sent again
    node.ask("POST", "/functions/shop.pack", "x" * 20_000)
    until(lambda: node.ask("POST", "/functions/shop.pack", "x" * 20_000)[0] == 202)
    until(lambda: info(own, "used_memory") < before)
    until(lambda: pending(node) == 0)
    assert info(own, "maxmemory") > info(own, "used_memory")
    assert "Traceback" not in node.said()


def test_a_node_that_starts_on_a_full_server_works_it_off(make: Make, own: Server) -> None:
    first = make().start("start", "--bus", own.address, ECHOD_TOKEN=TOKEN)
    assert first.ask("POST", "/functions/shop.pack/pause")[0] == 200
    minted = [first.mint("shop.pack", "x") for _ in range(20)]
    assert first.ask("POST", "/functions/shop.pack/resume")[0] == 200
    assert first.end() == 0
    own.command("CONFIG", "SET", "maxmemory", "1")
    second = make().start("start", "--bus", own.address, folder=False, ECHOD_TOKEN=TOKEN)
    until(lambda: own.command("ZCARD", "emq:{shop.pack}:done") == len(minted))
    audit(own, "shop.pack")
    assert second.process is not None
    assert second.process.poll() is None


# ---- a start without a bus ----------------------------------------------------------------------------------------


def refuse(server: Server) -> None:
    server.command("ACL", "SETUSER", "default", "-fcall", "-evalsha")


def permit(server: Server) -> None:
    server.command("ACL", "SETUSER", "default", "+fcall", "+evalsha")


def lock(server: Server) -> None:
    server.command("CONFIG", "SET", "requirepass", "secret")


@pytest.mark.parametrize(
    ("spoil", "mend", "said"),
    [
        (lambda own: own.kill(), lambda own: own.start(), "no bus answers"),
        (lambda own: os.kill(own.pid, signal.SIGSTOP), lambda own: os.kill(own.pid, signal.SIGCONT), "does not answer"),
        (refuse, permit, "NOPERM"),
        (
            lambda own: own.command("REPLICAOF", "127.0.0.1", "1"),
            lambda own: own.command("REPLICAOF", "NO", "ONE"),
            "READONLY",
        ),
    ],
    ids=["away", "frozen", "forbidden", "replica"],
)
def test_a_node_without_a_bus_stays_up_says_why_and_is_ready_once_it_is_there(
    make: Make, own: Server, spoil: Callable[[Server], Any], mend: Callable[[Server], Any], said: str
) -> None:
    spoil(own)
    node = make().start("start", "--bus", own.address, ready=False, ECHOD_TOKEN=TOKEN)
    status, ready = node.ask("GET", "/readyz")
    assert (status, ready["ready"], ready["bus"]) == (503, False, False)
    assert said in " ".join(ready["reasons"])
    assert node.ask("GET", "/healthz") == (200, {"ok": True})
    status, problem = node.ask("POST", "/functions/shop.pack", "x")
    assert (status, problem["status"]) == (503, 503)
    assert said in problem["detail"]
    mend(own)
    until(lambda: node.is_up(ready=True))
    assert node.call("shop.pack", "abc") == 3
    assert 1 <= node.said().count("waiting for the bus") <= 3  # said, not repeated each second


def test_a_node_with_a_wrong_password_stays_up_until_it_is_the_right_one(make: Make, own: Server) -> None:
    own.command("CONFIG", "SET", "requirepass", "other")
    address = f"unix://:secret@{own.socket}"
    node = make().start("start", "--bus", address, ready=False, ECHOD_TOKEN=TOKEN)
    status, ready = node.ask("GET", "/readyz")
    said = "bus: WRONGPASS the bus does not take the user or password in its address; mend --bus valkey://:PASSWORD@"
    assert (status, ready["reasons"][0][: len(said)]) == (503, said)
    assert "secret" not in node.said()
    with redis.Redis(unix_socket_path=str(own.socket), password="other") as client:
        client.config_set("requirepass", "secret")
    until(lambda: node.is_up(ready=True))
    assert node.call("shop.pack", "abc") == 3


def test_a_node_that_starts_while_its_bus_loads_is_ready_when_that_has_loaded(make: Make) -> None:
    server = Server("--key-load-delay", "3000", append_only=True)  # µs for each command of the file
    try:
        server.start()
        for number in range(1000):
            server.command("SET", f"filler:{number}", "x")
        server.stop()
        starting = threading.Thread(target=server.start)
        starting.start()
        node = make().start("start", "--bus", server.address, ready=False, ECHOD_TOKEN=TOKEN)
        starting.join()
        until(lambda: node.is_up(ready=True))
        assert node.call("shop.pack", "abc") == 3
    finally:
        server.remove()


def test_a_waiting_node_ends_when_it_is_told_to(make: Make, own: Server) -> None:
    own.kill()
    node = make().start("start", "--bus", own.address, ready=False, ECHOD_TOKEN=TOKEN)
    assert node.end() == 0


def test_what_is_no_address_ends_the_start_with_a_sentence() -> None:
    done = run("start", "--bus", "http://127.0.0.1:1", ECHOD_TOKEN=TOKEN)
    assert done.returncode == 2
    assert "expected valkey://" in done.stderr


# ---- in the middle of the work ------------------------------------------------------------------------------------

SLOW = {
    "shop.py": """
import time
from echofn import every, queue

@queue(workers=(1, 2))
def pack(payload):
    time.sleep(0.05)
    return payload

@every("1s", missed="all")
def beat():
    pass
"""
}


def killed(server: Server) -> None:
    """Every connection, ten times a second, is the least that a restarted proxy does."""
    for kind in ("normal", "pubsub"):
        server.command("CLIENT", "KILL", "TYPE", kind)


def unblocked(server: Server) -> None:
    listed = server.command("CLIENT", "LIST")
    assert isinstance(listed, bytes)
    for line in listed.splitlines():
        if b"flags=b" in line:
            server.command("CLIENT", "UNBLOCK", line.split()[0][3:], "ERROR")


FAULTS: dict[str, tuple[Callable[[Server], Any], Callable[[Server], Any]]] = {
    "scripts flushed": (lambda own: own.command("FUNCTION", "FLUSH"), lambda own: None),
    "connections killed": (killed, lambda own: None),
    "unblocked": (unblocked, lambda own: None),
    "replica": (
        lambda own: own.command("REPLICAOF", "127.0.0.1", "1"),
        lambda own: own.command("REPLICAOF", "NO", "ONE"),
    ),
    "forbidden": (refuse, permit),
    "full": (
        lambda own: own.command("CONFIG", "SET", "maxmemory", "1"),
        lambda own: own.command("CONFIG", "SET", "maxmemory", "0"),
    ),
}
WINDOW_S = 3.0
MOST_CALLS_PER_S = 400  # ten kills a second provoke some two hundred; a busy loop makes thousands


def calls(server: Server) -> int:
    """Calls that came from clients, refused ones too: of scripts, of pops, and of connections that were made anew."""
    told = server.command("INFO", "commandstats")
    assert isinstance(told, bytes)
    found = re.findall(r"cmdstat_(?:fcall|blpop|ping|subscribe):calls=(\d+).*?rejected_calls=(\d+)", told.decode())
    return sum(int(count) for counts in found for count in counts)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_mid_work_ends_in_no_loop_no_loss_and_no_double(make: Make, own: Server, fault: str) -> None:
    spoil, mend = FAULTS[fault]
    node = make(SLOW).start("start", "--bus", own.address, ECHOD_TOKEN=TOKEN)
    minted = [node.mint("shop.pack", number) for number in range(100)]
    until(lambda: own.command("ZCARD", "emq:{shop.pack}:done"))
    before, began = calls(own), time.monotonic()
    while (took_s := time.monotonic() - began) < WINDOW_S:
        spoil(own)
        time.sleep(0.1)
    assert (calls(own) - before) / took_s < MOST_CALLS_PER_S
    mend(own)
    until(lambda: own.command("ZCARD", "emq:{shop.pack}:done") == len(minted), 120)
    until(lambda: node.is_up(ready=True))
    assert {job["state"] for job in node.get("/jobs?function=shop.pack&limit=200")["jobs"]} == {"done"}
    assert [len(node.job(job)["history"]) for job in minted] == [1] * len(minted)
    beats = until(lambda: len(found := dues(node)) > 5 and found)
    assert len(set(beats)) == len(beats)
    steps = {(b - a).total_seconds() for a, b in pairwise(beats)}
    assert steps == {1.0}, fault
    audit(own, "shop.pack")
    assert "Traceback" not in node.said()


@pytest.mark.parametrize("how", ["frozen", "gone"])
def test_an_outage_longer_than_any_call_is_shown_and_over_at_once(make: Make, own: Server, how: str) -> None:
    """Idle workers, parked on the bell: the connection that they are parked on notices too."""
    node = make().start("start", "--bus", own.address, ECHOD_TOKEN=TOKEN)
    assert node.call("shop.pack", "abc") == 3
    until(lambda: b"cmd=blpop" in bytes(own.command("CLIENT", "LIST")))  # type: ignore[call-overload]
    if how == "frozen":
        os.kill(own.pid, signal.SIGSTOP)
    else:
        own.kill()
    until(lambda: node.ask("GET", "/readyz")[0] == 503)
    began = time.monotonic()
    while time.monotonic() - began < 6:
        assert node.ask("GET", "/healthz")[0] == 200
        status, ready = node.ask("GET", "/readyz")
        assert (status, ready["bus"]) == (503, False)
    if how == "frozen":
        os.kill(own.pid, signal.SIGCONT)
    else:
        own.start()
    until(lambda: node.is_up(ready=True))
    status, said = node.ask("POST", "/functions/shop.pack", "abcd", Prefer="wait=15")  # a deaf worker starts it in 20
    assert (status, said) == (200, 4)
    until(lambda: b"cmd=blpop" in bytes(own.command("CLIENT", "LIST")))  # type: ignore[call-overload]


def dues(node: Node) -> list[datetime]:
    """The due instants for which `beat` has jobs, in order."""
    jobs = node.get("/jobs?function=shop.beat&limit=200")["jobs"]
    return sorted(datetime.fromisoformat(job["occurrence"]["due"]) for job in jobs)


# ---- on disk ------------------------------------------------------------------------------------------------------


def is_asked_for_a_sync(server: Server) -> bool:
    """Whether a connection waits for one: what it wrote is in the file, and not on disk yet."""
    clients = server.command("CLIENT", "LIST")
    assert isinstance(clients, bytes)
    return any(b" cmd=waitaof " in each and b" flags=b" in each for each in clients.splitlines())


def test_a_job_that_was_answered_as_on_disk_outlives_the_server(make: Make, own: Server) -> None:
    """A SIGKILL alone would spare what was only written: so no answer comes while the server syncs nothing."""
    node = make().start("start", "--bus", own.address, ECHOD_TOKEN=TOKEN)
    assert node.ask("POST", "/functions/shop.pack/pause")[0] == 200

    def by_http() -> str:
        status, job = node.ask("POST", "/functions/shop.pack", "x", Echo_Durable="fsync")
        assert status == 202, job
        return str(job["id"])

    def by_client(address: str, token: str | None) -> str:
        with echod.Client(address, token=token) as client:
            return client.enqueue("shop.pack", "y", durable=True).id

    ids: list[str] = []
    with ThreadPoolExecutor() as threads:
        for ask in (by_http, partial(by_client, node.url, TOKEN), partial(by_client, own.address, None)):
            own.command("CONFIG", "SET", "appendfsync", "no")
            answer = threads.submit(ask)
            until(lambda answer=answer: is_asked_for_a_sync(own) or answer.done())
            assert not answer.done(), answer.result()
            own.command("CONFIG", "SET", "appendfsync", "everysec")
            ids.append(answer.result())
    own.kill()
    own.start()
    assert set(ids) == set(audit(own, "shop.pack").rows)


def test_an_fsync_that_does_not_come_is_503_with_the_job_and_one_that_cannot_is_501(make: Make, own: Server) -> None:
    node = make().start("start", "--bus", own.address, ECHOD_TOKEN=TOKEN)
    own.command("CONFIG", "SET", "appendfsync", "no")
    status, problem = node.ask("POST", "/functions/shop.pack", "abc", Echo_Durable="fsync", Prefer="wait=60")
    assert (status, problem["type"]) == (503, "urn:echod:problem:unconfirmed")
    assert "minted, not confirmed" in problem["detail"]
    assert until(lambda: (job := node.job(problem["job"]))["state"] == "done" and job)["result"] == 3
    own.command("CONFIG", "SET", "appendonly", "no")
    status, problem = node.ask("POST", "/functions/shop.pack", "abc", Echo_Durable="fsync")
    assert (status, problem["type"]) == (501, "urn:echod:problem:not-durable")
    assert len(audit(own, "shop.pack").rows) == 1


# ---- doctor -------------------------------------------------------------------------------------------------------


def doctored(server: Server, *flags: str) -> tuple[int, Any]:
    """Exit code and what it found."""
    done = run("doctor", "--bus", server.address, "--json", *flags)
    return done.returncode, json.loads(done.stdout)


def level_of(found: Any, topic: str) -> str:
    return next(str(each["level"]) for each in found["findings"] if each["topic"] == topic)


def test_the_doctor_finds_nothing_to_mend_on_a_server_as_it_should_be(make: Make, own: Server) -> None:
    node = make().start("start", "--bus", own.address, ECHOD_TOKEN=TOKEN)
    node.mint("shop.pack", "x")
    code, found = doctored(own)
    assert (code, found["level"]) == (0, "advice"), found  # no limit of memory
    topics = {each["topic"] for each in found["findings"]}
    assert topics >= {
        "role",
        "durability",
        "memory",
        "eviction",
        "disk",
        "clock",
        "scripts",
        "nodes",
        "version",
        "places",
    }
    assert "up to about 2 s" in " ".join(each["text"] for each in found["findings"])
    said = node.cli("doctor", "--bus", own.address)
    assert said.returncode == 0
    assert "each is in exactly one place" in said.stdout


def test_the_doctor_finds_what_is_wrong(own: Server) -> None:
    for name, value in (
        ("maxmemory-policy", "allkeys-lru"),
        ("appendonly", "no"),
        ("maxmemory", "2000000"),
        ("hash-max-listpack-value", "64"),
    ):
        own.command("CONFIG", "SET", name, value)
    own.clock.advance(60_000)
    own.command("HSET", "emq:{~}:queues", "f", "f")
    own.command("ZADD", "emq:{f}:jobs", 0, "JOB0KHTOWnGLuC")
    own.command("HSET", "emq:{f}:job:JOB0KHTOWnGLuC", "m", 1)
    code, found = doctored(own)
    assert (code, found["level"]) == (1, "problem")
    levels = {
        topic: level_of(found, topic) for topic in ("eviction", "durability", "clock", "nodes", "version", "places")
    }
    assert levels == {
        "eviction": "problem", "durability": "warning", "clock": "warning", "nodes": "warning", "version": "warning",
        "places": "problem",
    }  # fmt: skip
    assert level_of(found, "rows") == "advice"
    assert any("JOB0KHTOWnGLuC" in each["text"] for each in found["findings"])


def test_the_doctor_says_that_no_bus_answers(tmp_path: Path) -> None:
    done = run("doctor", "--state", str(tmp_path))
    assert done.returncode == 3
    assert "no bus answers" in done.stderr


def test_the_doctor_looks_at_an_embedded_server(make: Make) -> None:
    node = make().start()
    done = run("doctor", "--state", str(node.state), "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0, found
    assert {each["topic"] for each in found["findings"] if each["level"] != "fine"} == {"memory"}


def test_an_evicting_server_is_called_out_at_the_start_and_as_long_as_it_is(make: Make, own: Server) -> None:
    own.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    node = make().start("start", "--bus", own.address, ECHOD_TOKEN=TOKEN)
    assert any("allkeys-lru" in each for each in node.get("/readyz")["degraded"])
    assert "allkeys-lru" in node.said()


async def test_a_pump_that_starts_on_a_server_just_back_takes_no_living_lease(make: Make) -> None:
    """A lease that was over while nobody could renew it: its holder has had no chance yet."""
    async with running() as server:  # the tests' shared one has long been up
        bus = await Bus.open(server.address)
        bus.link.patience_s = 60.0
        await bus.join(NodeId("NOD00000000001"))
        await mint(bus)
        job = await claim_one(bus)
        await bus.extend("f", [hold(job)], LEASE_MS, begun=[hold(job)])
        server.clock.advance(LEASE_MS + 1)
        pump = make({}).launch("pump", "--bus", server.address, ECHOD_TOKEN=TOKEN)
        until(lambda: "clock.stepped" in pump.said())
        assert (await bus.extend("f", [hold(job)], LEASE_MS)).lost == ()
        pump.close()
        await bus.close()


def test_the_doctor_says_of_a_replica_that_it_is_one(own: Server) -> None:
    own.command("HSET", "emq:{~}:queues", "f", "f")
    own.command("REPLICAOF", "127.0.0.1", "1")
    code, found = doctored(own)
    assert (code, level_of(found, "role"), level_of(found, "places")) == (1, "problem", "fine")


def test_the_doctor_names_a_queue_that_cannot_be_read_and_looks_at_the_others(own: Server) -> None:
    own.command("HSET", "emq:{~}:queues", "f", "f", "g", "g")
    own.command("SET", "emq:{f}:ring", "no set")
    own.command("HSET", "emq:{g}:job:JOB0KHTOWnGLuC", "m", 1)
    own.command("ZADD", "emq:{g}:jobs", 0, "JOB0KHTOWnGLuC")
    code, found = doctored(own)
    [places] = [each["text"] for each in found["findings"] if each["topic"] == "places"]
    assert (code, found["level"]) == (1, "problem")
    assert "f: what is kept cannot be read: WRONGTYPE" in places
    assert "g: a job in no place: JOB0KHTOWnGLuC" in places


def test_the_doctor_goes_on_where_the_nodes_cannot_be_read(own: Server) -> None:
    own.command("SET", "emq:{~}:nodes", "no hash")
    code, found = doctored(own)
    assert (code, level_of(found, "version")) == (1, "warning")
    assert any("cannot be read: WRONGTYPE" in each["text"] for each in found["findings"])
