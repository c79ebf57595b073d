"""The crash drill: everything is killed at random points under load, and then every job is accounted for.

    make drill ROUNDS=200            # or: python tests/drill.py --rounds 200 --seed 7

A gateway, two pumps and two worker nodes run on one server with an append-only file. Senders mint over HTTP, each
sending again until it is told that it was heard. A round is one SIGKILL: of a worker or a base, a supervisor, a pump,
the gateway, or the server, half the time with the tail of its append-only file cut off anywhere after the last
confirmed fsync (WAITAOF), as a power cut does. What was acknowledged before that fsync must be there after; what came
later may be gone, whole. In the end nothing waits, and of every queue:

- each acknowledged job is in exactly one place, ended as its handler ends it, and no delivery became two jobs;
- what crashes its worker is in the morgue after exactly the runs that its policy allows;
- each parent that is done has its three children, each once, and nothing else has any;
- each due instant of the schedules became one job, or was counted as missed or skipped; what limits count is what runs;
- the books balance: tests/audit.py.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import http.client
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from audit import Books, audit, open_books
from nodes import TOKEN, Node, alive, until
from server import Server

LEASE = "2s"
EPOCH = 100  # rounds on one server; then a fresh one, so that nothing has been trimmed when it is counted
HANDLERS = """
import os, time
from echofn import queue, every, Context, Retry

@queue(lane="tenant", lane_concurrency=2, retries=100, backoff=["20ms"])
def work(payload):
    time.sleep(payload["n"] % 7 / 1000)
    return payload["n"]

@queue(concurrency=3, retries=100, backoff=["20ms"])
async def flaky(payload, ctx: Context):
    if ctx.attempt == 1:
        raise ValueError("once")
    return payload["n"]

@queue(retries=2, backoff=["20ms"])
def crash(payload):
    os._exit(3)

@queue(retries=100, backoff=["20ms"])
def fan(payload, ctx: Context):
    for number in range(3):
        ctx.enqueue("d.child", [payload["n"], number])
    return payload["n"]

@queue(lane="0", retries=100, backoff=["20ms"])
def child(payload):
    return payload

@queue(lane="tenant", lane_rate="200/s", batch=5, batch_wait="100ms", retries=100, backoff=["20ms"])
def batch(payloads):
    return [payload["n"] for payload in payloads]

@every("1s")
def tick():
    pass

@every("1s", overlap="skip")
def skips():
    time.sleep(1.3)

@every("1s", overlap="replace")
def replaces():
    time.sleep(1.3)
"""
SENT = ("d.work", "d.work", "d.work", "d.flaky", "d.fan", "d.batch", "d.crash")
SCHEDULES = ("d.tick", "d.skips", "d.replaces")
QUEUES = (*dict.fromkeys(SENT), "d.child", *SCHEDULES)
_decode = msgspec.msgpack.decode


class Sender(threading.Thread):
    """Mints one job after another, each under its own key until it is told that it was heard."""

    def __init__(self, number: int, senders: int, gateway: Node) -> None:
        super().__init__(daemon=True)
        self.heard: dict[int, tuple[str, str]] = {}  # delivery → function, id
        self.refused: list[object] = []
        self.tries = 0  # that are over
        self.over = threading.Event()
        self._numbers = itertools.count(number, senders)
        self._gateway = gateway

    def run(self) -> None:
        for number in self._numbers:
            name = SENT[number % len(SENT)]
            payload = {"n": number, "tenant": f"t{number % 5}"}
            while number not in self.heard:
                if self.over.is_set():
                    return
                with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                    status, answer = self._gateway.ask(
                        "POST", f"/functions/{name}", payload, Idempotency_Key=f"k{number}"
                    )
                    if status == 202:
                        self.heard[number] = (name, answer["id"])
                    elif status not in (429, 503):
                        self.refused.append((status, answer))
                self.tries += 1
                time.sleep(0.02)


class Epoch:
    """One server's life: parts that are killed and started again, senders, and the count at the end."""

    def __init__(self, place: Path, dice: random.Random) -> None:
        self.kills: collections.Counter[str] = collections.Counter()
        self.unsure: set[int] = set()  # heard after the last fsync before a kill of the server
        self._dice = dice
        self._place = place
        self._server = Server(append_only=True, driven=False)
        self._gateway = Node(place / "gateway", {"d.py": HANDLERS})
        self._parts: dict[str, Node] = {"gateway": self._gateway}
        for name in ("pump-1", "pump-2", "worker-1", "worker-2"):
            self._parts[name] = Node(place / name)
        self._senders: list[Sender] = []

    def run(self, rounds: int) -> dict[str, Any]:
        """The rounds, the calm after them, and the count. Raises AssertionError for what is not accounted for."""
        self._server.start()
        try:
            for name in self._parts:
                self._start(name)
            until(lambda: self._asked("GET", "/healthz") == 200, 120)
            deployed = self._gateway.cli("deploy", str(self._gateway.folder))
            assert deployed.returncode == 0, deployed.stderr
            self._senders = [Sender(number, 4, self._gateway) for number in range(4)]
            for sender in self._senders:
                sender.start()
            until(lambda: len(self._heard()) > 20, 120)
            for _ in range(rounds):
                self._round()
            return self._counted()
        except AssertionError:
            shutil.copytree(self._server.folder, self._place / "server", ignore=shutil.ignore_patterns("*.sock"))
            raise
        finally:
            for sender in self._senders:
                sender.over.set()
            for part in self._parts.values():
                part.close()
            self._server.remove()

    def _start(self, name: str) -> None:
        role = name.partition("-")[0]
        flags = ["--lease", LEASE, "--sandbox", "standard"] if role == "worker" else []
        self._parts[name].launch(
            role, "--bus", self._server.address, "--state", str(self._parts[name].state), *flags, ECHOD_TOKEN=TOKEN
        )

    def _asked(self, method: str, path: str) -> int:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            return self._gateway.ask(method, path)[0]
        return 0

    def _heard(self) -> dict[int, tuple[str, str]]:
        return {number: job for sender in self._senders for number, job in tuple(sender.heard.items())}

    def _round(self) -> None:
        kinds = {"server": 2, "gateway": 2, "pump": 3, "supervisor": 3, "worker": 6}
        victim = self._dice.choices([*kinds], [*kinds.values()])[0]
        heard = len(self._heard())
        until(lambda: len(self._heard()) > heard, 120)  # it is under load again, whatever was killed before
        time.sleep(self._dice.uniform(0, 0.4))
        self.kills[victim] += 1
        if victim == "server":
            self._kill_server()
        elif victim == "worker":
            self._kill_below(self._parts[f"worker-{self._dice.randint(1, 2)}"])
        else:
            role = "worker" if victim == "supervisor" else victim
            name = role if role == "gateway" else f"{role}-{self._dice.randint(1, 2)}"
            below = self._parts[name].descendants()
            self._parts[name].kill()
            until(lambda: not any(map(alive, below)))  # kill means dead
            self._start(name)

    def _kill_server(self) -> None:
        before = self._heard()
        answer = self._server.command("WAITAOF", 1, 0, 30_000)
        assert isinstance(answer, list)
        assert answer[0] == 1, answer
        (log,) = self._server.folder.glob("appendonlydir/*.incr.aof")
        synced = log.stat().st_size
        time.sleep(self._dice.uniform(0, 1))
        self._server.kill()
        if self._dice.random() < 0.5:  # as if the power had gone, too
            self.kills["power"] += 1
            os.truncate(log, self._dice.randint(synced, log.stat().st_size))
        tries = [sender.tries for sender in self._senders]
        until(lambda: all(sender.tries > had for sender, had in zip(self._senders, tries, strict=True)), 120)
        self.unsure |= self._heard().keys() - before.keys()
        self._server.start()

    def _kill_below(self, supervisor: Node) -> None:
        below = supervisor.descendants()[1:]
        if below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._dice.choice(below), signal.SIGKILL)

    def _counted(self) -> dict[str, Any]:
        for sender in self._senders:
            sender.over.set()
        for sender in self._senders:
            sender.join(120)
            assert not sender.is_alive()
            assert sender.refused == []
        until(lambda: all(self._is_calm(queue) for queue in QUEUES if queue not in SCHEDULES), 300)
        held = {queue: self._unended(queue) for queue in SCHEDULES}  # by who was killed, too: a pump has to free those
        until(lambda: not any(ids & self._unended(queue) for queue, ids in held.items()), 300)
        for name in ("pump-1", "pump-2"):
            self._parts[name].end()
        until(lambda: all(self._is_calm(queue) for queue in SCHEDULES), 120)
        books = {queue: audit(self._server, queue) for queue in QUEUES}
        heard = self._heard()
        lost = self._check_jobs(books, heard)
        self._check_children(books)
        ticks = sum(self._check_ticks(queue, books[queue]) for queue in SCHEDULES)
        return {
            "kills": dict(self.kills),
            "jobs": sum(len(each.rows) for each in books.values()),
            "heard": len(heard),
            "unsure": len(self.unsure),
            "lost_unsure": lost,
            "ticks": ticks,
        }

    def _is_calm(self, queue: str) -> bool:
        return not self._unended(queue)

    def _unended(self, queue: str) -> set[str]:
        """The jobs that wait or run, and the children that are still to be minted."""
        books = open_books(self._server, queue)
        return {*books.active, *books.schedule, *books.out, *itertools.chain.from_iterable(books.lanes.values())}

    def _check_jobs(self, books: dict[str, Books], heard: dict[int, tuple[str, str]]) -> int:
        """Every delivery that is safe is one job, which ended as its handler does; how many of the unsure are gone."""
        gone = {number for number, (name, id) in heard.items() if id not in books[name].rows}
        assert gone <= self.unsure, f"acknowledged before the last fsync, and lost: {sorted(gone - self.unsure)[:5]}"
        for name in dict.fromkeys(SENT):
            numbers = collections.Counter(_decode(row[b"p"])["n"] for row in books[name].rows.values())
            assert not [number for number, count in numbers.items() if count > 1], f"{name}: a delivery became two jobs"
            for id, row in books[name].rows.items():
                state, failures = books[name].state_of(id), int(row.get(b"f", 0))
                if name == "d.crash":
                    assert (state, failures) == ("dead", 3), (id, state, failures)
                    continue
                assert state == "done", (name, id, state, row)
                assert _decode(row[b"o"]) == _decode(row[b"p"])["n"], (name, id)
                assert name != "d.flaky" or failures >= 1, (id, failures)
        return len(gone)

    def _check_children(self, books: dict[str, Books]) -> None:
        """Every parent that is done has its three children, each once; they have no others."""
        expected = {(_decode(row[b"p"])["n"], number) for row in books["d.fan"].rows.values() for number in range(3)}
        found = collections.Counter(tuple(_decode(row[b"p"])) for row in books["d.child"].rows.values())
        assert set(found) == expected, (sorted(expected - set(found))[:5], sorted(set(found) - expected)[:5])
        assert max(found.values(), default=1) == 1, "a child was minted twice"
        assert all(books["d.child"].state_of(id) == "done" for id in books["d.child"].rows)

    def _check_ticks(self, queue: str, books: Books) -> int:
        """Every due instant between the first and the last is one job, or was counted as what became of it."""
        dues = sorted(_decode(row[b"oc"])[1] for row in books.rows.values())
        assert len(set(dues)) == len(dues), "an occurrence was minted twice"
        (recurrence,) = _decode(next(iter(books.rows.values()))[b"oc"])[:1]
        counted = self._server.command("HMGET", f"emq:{{{queue}}}:repeat:{recurrence}", "missed", "skipped", "last")
        assert isinstance(counted, list)
        dropped = sum(int(count or 0) for count in counted[:2])
        instants = (int(counted[2]) - dues[0]) // 1000 + 1  # dropped ones may be the last
        assert instants == len(dues) + dropped, (queue, instants, len(dues), dropped)
        return len(dues)


def drill(rounds: int, seed: int, place: Path) -> dict[str, Any]:
    """All rounds, in epochs; what was killed and counted."""
    dice = random.Random(seed)
    total: collections.Counter[str] = collections.Counter()
    kills: collections.Counter[str] = collections.Counter()
    began = time.monotonic()
    for number, start in enumerate(range(0, rounds, EPOCH)):
        epoch = Epoch(place / f"epoch-{number}", dice)
        told = epoch.run(min(EPOCH, rounds - start))
        kills.update(told.pop("kills"))
        total.update(told)
        print(f"{min(start + EPOCH, rounds)} of {rounds} rounds, {dict(total)}", file=sys.stderr, flush=True)
        shutil.rmtree(place / f"epoch-{number}")
    return {"seed": seed, "rounds": rounds, "kills": dict(kills), **total, "seconds": round(time.monotonic() - began)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**9))
    asked = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="echod-drill-"))
    try:
        print(json.dumps(drill(asked.rounds, asked.seed, place)))
    except AssertionError:
        print(f"seed {asked.seed}; the logs and the server's files are in {place}", file=sys.stderr)
        raise
    shutil.rmtree(place)


if __name__ == "__main__":
    main()
