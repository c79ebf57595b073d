"""A flood: many requests at once, each on a connection of its own, and how soon each was answered.

One thread over all sockets, so that as little as can be of what is measured is ours. Beside them one connection asks
for /healthz again and again, which no limit holds back: what it waits for is the loop.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time

import msgspec

PATIENCE_S = 60.0


class Flood(msgspec.Struct, frozen=True):
    """`answers`: status and milliseconds since its connection was begun; `probes`: milliseconds of each look."""

    answers: list[tuple[int, float]]
    probes: list[float]

    def accepted_ms(self) -> list[float]:
        return [took for status, took in self.answers if status < 300]

    def count(self, *statuses: int) -> int:
        return sum(status in statuses for status, _ in self.answers)


def flood(address: tuple[str, int], request: bytes, count: int) -> Flood:
    """Send `request` on `count` new connections at once. An answer that does not come in a minute is a 0."""
    probe = _Probe(address)
    waiting = selectors.DefaultSelector()
    waiting.register(probe.socket, selectors.EVENT_READ)
    probe.ask()
    until = time.perf_counter() + PATIENCE_S
    answers: list[tuple[int, float]] = []

    def turn(patience_s: float) -> None:
        for key, events in waiting.select(patience_s):
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            if connection is probe.socket:
                probe.heard()
            elif events & selectors.EVENT_WRITE:
                _send(waiting, key, request)
            else:
                answers.append((_status(connection), (time.perf_counter() - key.data) * 1000))
                waiting.unregister(connection)
                connection.close()

    for number in range(count):
        connection = socket.socket()
        connection.setblocking(False)
        waiting.register(connection, selectors.EVENT_WRITE, time.perf_counter())
        connection.connect_ex(address)
        if number % 16 == 15:
            turn(0)
    while len(answers) < count and (left := until - time.perf_counter()) > 0:
        turn(left)
    silent = [key.fileobj for key in waiting.get_map().values() if key.fileobj is not probe.socket]
    for connection in silent:
        assert isinstance(connection, socket.socket)
        connection.close()
    answers += [(0, PATIENCE_S * 1000)] * (count - len(answers))
    probe.socket.close()
    waiting.close()
    return Flood(answers, probe.waits)


def _send(waiting: selectors.BaseSelector, key: selectors.SelectorKey, request: bytes) -> None:
    connection = key.fileobj
    assert isinstance(connection, socket.socket)
    with contextlib.suppress(OSError):  # refused or reset: what is read next says so
        connection.send(request)
    waiting.modify(connection, selectors.EVENT_READ, key.data)


def _status(connection: socket.socket) -> int:
    """Of the answer that is there; 0 for a connection that was cut."""
    try:
        said = connection.recv(4096)
    except OSError:
        return 0
    return int(said[9:12]) if said.startswith(b"HTTP/1.1 ") else 0


class _Probe:
    """One connection that asks as soon as it is answered."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address)
        self.waits: list[float] = []
        self._asked = 0.0

    def ask(self) -> None:
        self._asked = time.perf_counter()
        self.socket.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")

    def heard(self) -> None:
        self.waits.append((time.perf_counter() - self._asked) * 1000)
        self.socket.recv(4096)
        self.ask()
