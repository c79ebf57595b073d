"""What must hold in the bus between any two calls, read with a client of its own and not through our code."""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from echod.bus.keys import GLOBAL_KEYS, QUEUE_KEYS
from echod.model.job import Child
from server import Server

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
    counted: dict[str, str]  # active jobs → the lane that counts them
    dead: dict[str, float]
    done: dict[str, float]
    meta: dict[str, str]
    windows: dict[str, float]
    settings: dict[str, str]  # of lanes: `<lane>:<letter>`
    index: list[str]
    wake: list[str]
    named: set[str]
    unique: dict[str, Row]
    out: dict[str, bytes]
    logs: dict[str, int]  # how many lines each has
    logged: set[str]
    rules: set[str]
    repeat: dict[str, float]
    recurrences: dict[str, Row]
    totals: dict[str, int]
    ends: dict[str, int]  # every key of the server → when it expires by itself, -1: never
    queues: set[str]  # all that are registered
    versions: set[str]  # those that are whole, and those that are being stored

    def ended_ms(self) -> dict[str, int]:
        """By what its age counts: of a job that ended before the clock went back, the beat that noticed."""
        return {id: int(ended) for id, ended in (self.done | self.dead).items()}

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


_READ = """
local read = {
  hash = {'HGETALL'}, zset = {'ZRANGE', 0, -1, 'WITHSCORES'}, set = {'SMEMBERS'}, list = {'LRANGE', 0, -1},
  string = {'GET'}, stream = {'XLEN'},
}
local all = {}
for i, key in ipairs(redis.call('KEYS', '*')) do
  local how = read[redis.call('TYPE', key).ok]
  all[i] = {key, redis.call('PEXPIRETIME', key), how and redis.call(how[1], key, unpack(how, 2)) or false}
end
return all
"""


def open_books(server: Server, queue: str) -> Books:
    """Read a whole queue, and the names of all keys, as they are at one moment."""
    told: Any = server.command("EVAL", _READ, 0)
    every = {key.decode("utf-8", "surrogatepass"): (ends_ms, value) for key, ends_ms, value in told}
    base, everywhere = f"emq:{{{queue}}}:", "emq:{~}:"

    def value(name: str, of: str = base) -> Any:
        return every.get(of + name, (0, ()))[1]

    def pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def scores(name: str, of: str = base) -> dict[str, float]:
        return {member.decode("utf-8", "surrogatepass"): float(at) for member, at in pairs(value(name, of)).items()}

    def family(kind: str) -> dict[str, Any]:
        start = base + kind
        return {key.removeprefix(start): got for key, (_, got) in every.items() if key.startswith(start)}

    def rows(kind: str) -> dict[str, Row]:
        return {name: pairs(flat) for name, flat in family(kind).items()}

    return Books(
        rows=rows("job:"),
        lanes={lane: [id.decode() for id in flat[::2]] for lane, flat in family("lane:").items()},
        ring=scores("ring"),
        later=scores("later"),
        held={member.decode() for member in value("held")},
        schedule=scores("schedule"),
        active=scores("active"),
        counted={id.decode(): lane.decode() for id, lane in pairs(value("counted")).items()},
        dead=scores("dead"),
        done=scores("done"),
        meta={name.decode(): each.decode("latin-1") for name, each in pairs(value("meta")).items()},
        windows=scores("windows"),
        settings={name.decode(): each.decode() for name, each in pairs(value("lanes")).items()},
        index=list(scores("jobs")),
        wake=[name.decode() for name in value("wake", everywhere)],
        named={name.decode() for name in pairs(value("named"))},
        unique=rows("unique:"),
        out={id.decode(): child for id, child in pairs(value("out")).items()},
        logs=family("log:"),
        logged=set(scores("logged")),
        rules={name.decode("utf-8", "surrogatepass") for name in value("rules")},
        repeat=scores("repeat"),
        recurrences=rows("repeat:"),
        totals={name.decode(): int(count) for name, count in pairs(value("totals")).items()},
        ends={key: ends_ms for key, (ends_ms, _) in every.items()},
        queues={name.decode() for name in pairs(value("queues", everywhere))},
        versions={*scores("versions", everywhere), *scores("uploads", everywhere)},
    )


_LETTERS = {"scheduled": b"s", "active": b"a", "done": b"d", "dead": b"x", "cancelled": b"c", "pending": None}
_OPEN = frozenset({"scheduled", "active", "pending"})
# Fields of rows that are of some states only; of the others any may have any.
_STATES_OF = {
    b"r": {"scheduled", "cancelled"},  # what a job that was cancelled had waited for
    b"bh": {"scheduled"},
    b"k": {"active"},
    b"o": {"done"},
    b"e": {"done", "dead", "cancelled"},
    b"sz": {"done", "dead", "cancelled"},
    b"z": {"done", "dead", "cancelled"},
    b"ca": {"dead"},
    b"x": {"active", "done", "dead", "cancelled"},
}


def audit(server: Server, queue: str) -> Books:
    """Every job in exactly one place, every lane in exactly one of ring, later, held, every count right; and no key of
    the whole server without an owner."""
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
        left = [field for field, states in _STATES_OF.items() if field in row and state not in states]
        assert left == [], f"{id} is {state}, and has {left} still"
    seats = [*books.ring, *books.later, *books.held]
    assert sorted(seats) == sorted(books.lanes), "a lane without a seat, with two, or a seat without a lane"
    assert int(books.meta.get("n", 0)) == sum(len(ids) for ids in books.lanes.values())
    if not books.lanes:
        assert "V" not in books.meta, "virtual time goes on although no lane is left"
    archived_bytes = sum(int(books.rows[id][b"sz"]) for id in books.done)
    assert int(books.meta.get("ab", 0)) == archived_bytes
    assert books.wake.count(queue) <= 1
    _audit_limits(books)
    _audit_unique(books)
    _audit_owners(books)
    _audit_names(books, queue)
    if books.ring and "paused" not in books.meta and not books.is_capped:
        assert "rung" in books.meta, "something to serve, and nobody was told"
    if "rung" not in books.meta:
        assert queue not in books.wake
    return books


def _audit_limits(books: Books) -> None:
    """Each active job is counted once in its lane where lanes are limited; of lanes that are gone nothing is kept."""
    of_active = [books.rows[id] for id in books.active]
    marked = {id: books.rows[id] for id in books.active if b"k" in books.rows[id]}
    assert books.counted == {id: row.get(b"l", b"-").decode() for id, row in marked.items()}
    counted = collections.Counter(books.counted.values())
    assert books.of_lanes(":a") == {lane: str(count) for lane, count in counted.items()}
    if {"lc", "own"} & books.limits.keys() and "judge" not in books.meta:
        assert all(b"k" in row for row in of_active), "an active job that its lane's limit does not know of"
    assert books.of_lanes(":v").keys() == books.later.keys() | books.held
    assert books.of_lanes(":s").keys() == books.windows.keys()
    assert int(books.meta.get("own", 0)) == len(books.of_lanes(":c").keys() | books.of_lanes(":r").keys())
    by_hand = [books.of_lanes(f":{letter}").keys() for letter in "wpcr"]
    assert books.named == set().union(*by_hand), "a name of a lane that nobody has set, or the other way round"


def _audit_unique(books: Books) -> None:
    """A key is its job's for as long as was asked, and no longer; what asks for one has it."""
    owned: dict[str, str] = {}
    for id, row in books.rows.items():
        mode, _, key = row.get(b"u", b"").decode().partition(":")
        is_open = books.state_of(id) in _OPEN
        if mode == "k" or (mode == "d" and is_open) or (mode == "s" and is_open and b"a" not in row):
            assert owned.setdefault(key, id) == id, f"{id} and {owned[key]} are both there under one key"
            assert books.unique.get(key, {}).get(b"o") == id.encode(), f"{id} has lost its key"
            assert books.unique[key][b"m"] == mode.encode()
    for key, unique in books.unique.items():
        if unique[b"m"] != b"t":
            assert owned.get(key) == unique[b"o"].decode(), f"unique:{key} is of a job that has it no more"


def _audit_owners(books: Books) -> None:
    """Logs, children on their way and recurrences: each of something that is there."""
    written = {id for id, row in books.rows.items() if int(row.get(b"lb", 0))}
    assert books.logs.keys() == written, "a log without its job, or a job without what it wrote"
    assert books.logged == books.logs.keys() if len(books.logs) <= 1000 else books.logged <= books.logs.keys()
    for id, child in books.out.items():
        parent = msgspec.msgpack.decode(child[13:], type=Child).mint.parent or ""
        # A parent that is itself a child may have been minted anew, long after it had ended (docs/guarantees.md).
        is_minted_anew = int(books.rows.get(parent, {}).get(b"m", 0)) > int(child[:13])
        is_done = parent not in books.rows or books.state_of(parent) == "done"
        assert is_done or is_minted_anew, f"{id} is of {parent}, which is not done"
    assert books.recurrences.keys() == books.rules, "a recurrence without its row, or the other way round"
    for name, row in books.recurrences.items():
        stands = b"next" in row and not row.keys() & {b"paused", b"gone"}
        assert (name in books.repeat) == stands, f"{name} is looked at, and should not be; or the other way round"
        # One that was parked stays so although its error may have been taken back.
        assert not stands or books.repeat[name] >= int(row[b"next"])
    assert books.repeat.keys() <= books.rules


def _audit_names(books: Books, queue: str) -> None:
    """Every key of the server is one that our table has; what nobody takes back goes by itself."""
    for key, end_ms in books.ends.items():
        if not key.startswith("emq:"):
            continue  # a test's own
        found = re.match(r"emq:\{(?:[^/}]+/)?([^}]+)\}:([^:]+)(?::(.+))?\Z", key, re.DOTALL)
        assert found, f"{key} is none of ours"
        of, kind, rest = found.groups()
        goes = kind in ("last", "m", "h", "fsync")
        if of == "~":
            is_known = kind in GLOBAL_KEYS or (kind == "version" and rest.partition(":")[0] in books.versions)
        elif rest is None:
            is_known = kind in QUEUE_KEYS and (of in books.queues or kind in ("meta", "lanes", "named"))
        else:
            is_known = f"{kind}:" in QUEUE_KEYS
        assert is_known, f"nobody knows {key}"
        if kind == "unique":
            goes = of != queue or books.unique.get(rest, {}).get(b"m") == b"t"
        assert goes or end_ms < 0, f"{key} ends by itself"
        assert not goes or end_ms > 0 or of != queue, f"{key} stays for ever"
