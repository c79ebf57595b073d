"""What must hold in the bus between any two calls, read with a client of its own and not through our code."""

from __future__ import annotations

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
    index: list[str]
    wake: list[str]

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
    if books.ring and "paused" not in books.meta:
        assert "rung" in books.meta, "something to serve, and nobody was told"
    if "rung" not in books.meta:
        assert queue not in books.wake
    return books
