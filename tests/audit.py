"""What must hold in the bus between any two calls, read with a client of its own and not through our code."""

from __future__ import annotations

import collections
import math
from typing import Any

import msgspec
import redis

from valkey import Server

Row = dict[bytes, bytes]


class Books(msgspec.Struct):
    """A queue as it stands."""

    rows: dict[str, Row]
    lanes: dict[str, list[str]]
    ring: dict[str, float]
    later: dict[str, float]
    held: set[str]
    schedule: dict[str, float]
    active: dict[str, float]
    dead: dict[str, float]
    done: dict[str, float]
    meta: dict[str, str]
    windows: dict[str, float]
    settings: dict[str, str]  # of lanes: `<lane>:<letter>`
    index: list[str]
    wake: list[str]

    def of_lanes(self, field: str) -> dict[str, str]:
        """One field of all lanes."""
        return {name.removesuffix(field): value for name, value in self.settings.items() if name.endswith(field)}

    @property
    def limits(self) -> dict[str, Any]:
        return msgspec.msgpack.decode(self.meta.get("limits", "\x80").encode("latin-1"))

    @property
    def is_capped(self) -> bool:
        """A limit of the queue stands against a start; a window that is over counts until a tick has seen it."""
        started = int(self.meta.get("window", "0 0").split()[1])
        return len(self.active) >= self.limits.get("c", math.inf) or started >= self.limits.get("r", [math.inf])[0]

    def state_of(self, id: str) -> str:
        """Where a job is, by its place and not by its row."""
        if id in self.schedule:
            return "scheduled"
        if id in self.active:
            return "active"
        if id in self.dead:
            return "dead"
        if id in self.done:
            return "cancelled" if self.rows[id].get(b"s") == b"c" else "done"
        return "pending" if any(id in ids for ids in self.lanes.values()) else "nowhere"


def open_books(server: Server, queue: str) -> Books:
    """Read a whole queue."""
    base = f"emq:{{{queue}}}:"
    with redis.Redis(unix_socket_path=str(server.socket)) as client:

        def scores(name: str) -> dict[str, float]:
            return {member.decode(): score for member, score in client.zrange(base + name, 0, -1, withscores=True)}

        keys = [key.decode() for key in client.keys(f"emq:{{{queue}}}:*")]
        return Books(
            rows={key.rpartition(":")[2]: client.hgetall(key) for key in keys if key.startswith(base + "job:")},
            lanes={
                key.removeprefix(base + "lane:"): [id.decode() for id in client.zrange(key, 0, -1)]
                for key in keys
                if key.startswith(base + "lane:")
            },
            ring=scores("ring"),
            later=scores("later"),
            held={member.decode() for member in client.smembers(base + "held")},
            schedule=scores("schedule"),
            active=scores("active"),
            dead=scores("dead"),
            done=scores("done"),
            meta={name.decode(): value.decode("latin-1") for name, value in client.hgetall(base + "meta").items()},
            windows=scores("windows"),
            settings={name.decode(): value.decode() for name, value in client.hgetall(base + "lanes").items()},
            index=list(scores("jobs")),
            wake=[name.decode() for name in client.lrange("emq:{~}:wake", 0, -1)],
        )


_LETTERS = {"scheduled": b"s", "active": b"a", "done": b"d", "dead": b"x", "cancelled": b"c", "pending": None}


def audit(server: Server, queue: str) -> Books:
    """Every job in exactly one place, every lane in exactly one of ring, later, held, every count right."""
    books = open_books(server, queue)
    placed: dict[str, list[str]] = {}
    for lane, ids in books.lanes.items():
        for id in ids:
            placed.setdefault(id, []).append(f"lane {lane}")
    for name in ("schedule", "active", "dead", "done"):
        for id in getattr(books, name):
            placed.setdefault(id, []).append(name)
    assert {id: places for id, places in placed.items() if len(places) != 1} == {}
    assert set(placed) == set(books.rows), "a row without a place, or a place without a row"
    assert sorted(books.rows) == books.index
    for id, row in books.rows.items():
        state = books.state_of(id)
        assert row.get(b"s") == _LETTERS[state], f"{id} lies as {state}, its row says {row.get(b's')}"
        if state == "pending":
            assert id in books.lanes[row.get(b"l", b"-").decode()]
    seats = [*books.ring, *books.later, *books.held]
    assert sorted(seats) == sorted(books.lanes), "a lane without a seat, with two, or a seat without a lane"
    assert int(books.meta.get("n", 0)) == sum(len(ids) for ids in books.lanes.values())
    if not books.lanes:
        assert "V" not in books.meta, "virtual time goes on although no lane is left"
    archived_bytes = sum(int(books.rows[id][b"sz"]) for id in books.done)
    assert int(books.meta.get("ab", 0)) == archived_bytes
    assert books.wake.count(queue) <= 1
    _audit_limits(books)
    if books.ring and "paused" not in books.meta and not books.is_capped:
        assert "rung" in books.meta, "something to serve, and nobody was told"
    if "rung" not in books.meta:
        assert queue not in books.wake
    return books


def _audit_limits(books: Books) -> None:
    """Each active job is counted once in its lane where lanes are limited; of lanes that are gone nothing is kept."""
    of_active = [books.rows[id] for id in books.active]
    counted = collections.Counter(row.get(b"l", b"-").decode() for row in of_active if b"k" in row)
    assert books.of_lanes(":a") == {lane: str(count) for lane, count in counted.items()}
    assert all(b"k" not in row for id, row in books.rows.items() if id not in books.active)
    if {"lc", "lr", "own"} & books.limits.keys() and "judge" not in books.meta:
        assert all(b"k" in row for row in of_active), "an active job that its lane's limit does not know of"
    assert books.of_lanes(":v").keys() == books.later.keys() | books.held
    assert books.of_lanes(":s").keys() == books.windows.keys()
