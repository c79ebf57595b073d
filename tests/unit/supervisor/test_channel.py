"""The frame reader: what honest workers send, and what hostile ones do."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, get_args, get_origin

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echod.bus.rows import pack, verdict_row
from echod.model.ids import JobId, VersionId, WorkerId
from echod.model.job import Claimed, Dead, Retry, Verdict
from echod.supervisor.base import Child
from echod.supervisor.batches import joined
from echod.supervisor.channel import Splitter
from echod.supervisor.events import Departure
from echod.supervisor.leases import Lease
from echod.supervisor.outcomes import MAX_MESSAGE
from echod.supervisor.runs import Runs
from echod.supervisor.watch import Looks
from echod.supervisor.worker import Worker
from echofn import frames
from echofn.codec import NIL
from echofn.manifest import Function, Policy, QueueTrigger

SAID: tuple[frames.FromWorker, ...] = (
    frames.Imported(),
    frames.Ready(walls=("rlimits",)),
    frames.Begun(0),
    frames.Listens(0),
    frames.Skipped(1),
    frames.Extend(0, 5_000),
    frames.Output(0, "stdout", "", "", "häll\x00o", 12),
    frames.Progress(0, 0.5, "half"),
    frames.Ended(0, "done", 1, 2, 3, result=b"\x01", children=(frames.Child(1, "f", b"\xc0"),)),
    frames.Left("RuntimeError", "generator didn't stop", "…"),
    frames.Failed("ValueError", "no", "…"),
)
STREAM = b"".join(frames.framed(frame) for frame in SAID)


@given(st.lists(st.integers(0, len(STREAM)), max_size=30))
def test_frames_survive_any_cut_of_the_stream(cuts: list[int]) -> None:
    splitter = Splitter()
    found: list[frames.FromWorker] = []
    edges = [0, *sorted(cuts), len(STREAM)]
    for start, end in itertools.pairwise(edges):
        if start < end:
            more, fault = splitter.feed(STREAM[start:end])
            assert fault is None
            found += more
    assert tuple(found) == SAID


def test_a_stream_of_single_bytes_is_read() -> None:
    splitter = Splitter()
    found = [frame for at in range(len(STREAM)) for frame in splitter.feed(STREAM[at : at + 1])[0]]
    assert tuple(found) == SAID


def test_a_length_over_the_cap_is_refused_before_its_body() -> None:
    found, fault = Splitter(cap=100).feed(frames.framed(frames.Begun(0)) + frames.HEADER.pack(101))
    assert found == [frames.Begun(0)]
    assert fault is not None
    assert "at most 100 bytes" in str(fault)


def _deep(levels: int) -> bytes:
    return b"\x91" * levels + b"\xc0"


HOSTILE: dict[str, bytes] = {
    "not msgpack": b"\xc1",
    "nothing": b"",
    "an unknown kind": msgspec.msgpack.encode(["hello", 1]),
    "a kind of ours": frames.encode(frames.Stop()),
    "too few fields": msgspec.msgpack.encode(["ended", 0]),
    "a wrong type": msgspec.msgpack.encode(["begun", "0"]),
    "an outcome we do not know": msgspec.msgpack.encode(["ended", 0, "perfect", 1, 1, 1]),
    "bytes after the end": frames.encode(frames.Begun(0)) + b"\xc0",
    "a map": msgspec.msgpack.encode({"type": "begun", "index": 0}),
    "nested too deep": b"\x93\xa5begun\x00" + _deep(200_000),
    "text that is no UTF-8": b"\x97\xa6output\x00\xa1\xff\xa0\xa0\xa0\x00",
    "a number over 64 bits": b"\x92\xa5begun\xcf" + b"\xff" * 8,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_anything_but_a_known_frame_is_a_fault(name: str) -> None:
    body = HOSTILE[name]
    found, fault = Splitter().feed(frames.HEADER.pack(len(body)) + body)
    if name == "a number over 64 bits" and fault is None:
        assert found == [frames.Begun(2**64 - 1)]  # a position that no job has: a fault one step later
        return
    assert found == []
    assert fault is not None


def test_a_large_frame_in_small_pieces_costs_no_more_than_its_size() -> None:
    splitter = Splitter()
    body = frames.encode(frames.Ended(0, "done", 1, 1, 1, result=bytes(frames.MAX_RESULT_BYTES - 16)))
    data = frames.HEADER.pack(len(body)) + body
    found: list[frames.FromWorker] = []
    for at in range(0, len(data), 100):  # ten thousand pieces: seconds, were each to copy what came before
        found += splitter.feed(data[at : at + 100])[0]
    assert len(found) == 1


# ---- frames that are read, and what is in them --------------------------------------------------------------------

FIRST = 5_000_000  # of the ids for its children
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


def _function(name: str, schema: Any = None, **policy: Any) -> Function:
    return Function(
        f"jobs.{name}", "jobs", name, "jobs.py", 1, Policy(**policy), (QueueTrigger(),), takes_payload=True,
        payload_schema=schema,
    )  # fmt: skip


FUNCTIONS = {
    each.name: each
    for each in (
        _function("plain"),
        _function("batch", batch=2),
        _function("typed", SCHEMA, lane="a", unique="a"),
        _function("loose", lane="a", unique=True),
    )
}
NUMBERS = st.sampled_from([0, 1, -1, 2**31, 2**53, 2**63 - 1, 2**64 - 1, -(2**63)]) | st.integers(-(2**63), 2**64 - 1)
TEXTS = st.sampled_from(["", "\0", "wall:tmp", "memory", "x" * 300]) | st.text(max_size=20)
LEAVES = st.none() | st.booleans() | NUMBERS | st.floats() | TEXTS | st.binary(max_size=20)
VALUES = st.recursive(
    LEAVES
    | st.builds(msgspec.msgpack.Ext, st.integers(-128, 127).filter(lambda code: code != -1), st.binary(max_size=4)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NUMBERS | TEXTS | st.just("a"), inner, max_size=3),
    max_leaves=6,
)
PACKED = (
    st.sampled_from([b"\x81\x01\x02", b"\xd6\xff\x00\x00\x00\x00", b"\x81\x80\x01", b"", NIL])
    | st.sampled_from([_deep(99), _deep(100), _deep(200)])
    | VALUES.map(msgspec.msgpack.encode)
    | st.binary(max_size=20)
)  # fmt: skip
HONEST: dict[str, Any] = {  # what most fields are, so that a frame is taken as far as to the one that is not
    "index": 0, "member": 0, "function": "jobs.typed", "outcome": "done", "result": NIL, "fault": None,
    "after_ms": None, "lane": None, "delay_ms": None, "at_ms": None, "unique": None, "priority": None,
}  # fmt: skip
WRONG: dict[str, st.SearchStrategy[Any]] = {
    "index": st.sampled_from([1, frames.OUTSIDE, 2**63]),
    "member": st.sampled_from([1, 1, 2, -1]),
    "function": st.sampled_from(["jobs.plain", "jobs.loose", "jobs.nowhere", "x" * 20_000]),
    "number": st.integers(FIRST - 1, FIRST + frames.MAX_CHILDREN),
}


def _fields(struct: type[msgspec.Struct]) -> list[st.SearchStrategy[Any]]:
    found: list[st.SearchStrategy[Any]] = []
    for field in msgspec.structs.fields(struct):
        hostile = WRONG.get(field.name, _of(field.type))
        found.append(_mostly(HONEST[field.name], hostile) if field.name in HONEST else hostile)
    return found


def _mostly(honest: Any, hostile: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 9).flatmap(lambda roll: hostile if roll == 9 else st.just(honest))


def _of(kind: Any) -> st.SearchStrategy[Any]:
    plain = {int: NUMBERS, str: TEXTS, bytes: PACKED, float: st.floats(), bool: st.booleans(), type(None): st.none()}
    if kind in plain:
        return plain[kind]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return st.tuples(*_fields(kind))
    match get_origin(kind):
        case origin if origin is Literal:
            return st.sampled_from(get_args(kind))
        case origin if origin is tuple:
            return st.lists(_of(get_args(kind)[0]), max_size=3)
        case _:
            return st.one_of(*map(_of, get_args(kind)))


KINDS: tuple[type[msgspec.Struct], ...] = get_args(frames.FromWorker)
WEIGHTS = (*KINDS, *[frames.Ended, frames.Part] * 4)
FRAMES = st.one_of(*(st.tuples(st.just(kind.__struct_config__.tag), *_fields(kind)) for kind in WEIGHTS))
ODD = st.tuples(FRAMES, st.integers(1, 11), VALUES).map(lambda odd: (*odd[0][: odd[1]], odd[2], *odd[0][odd[1] + 1 :]))


class Forks:
    """In place of a base: what it would fork is the test."""

    def spawn(self, child: Child, order: object, descriptors: tuple[int, ...]) -> int:
        self.child, self.end = child, socket.socket(fileno=os.dup(descriptors[0]))
        return 1

    def kill(self, number: int) -> None:
        pass

    def suspect(self) -> None:
        raise AssertionError("it did what it was told")


class Owner:
    def __init__(self, runs: Runs) -> None:
        self.runs = runs

    def ready(self, worker: Worker) -> None:
        pass

    def withdrawn(self, worker: Worker, leases: list[Lease]) -> None:
        self.runs.released(leases)

    def gone(self, worker: Worker, departure: Departure) -> None:
        for lease in departure.begun:
            self.runs.crashed(worker, lease, departure)
        self.runs.released(list(departure.unbegun))


async def _told(function: Function, said: Sequence[object]) -> list[tuple[JobId, Verdict]]:
    """What became of the jobs of a worker that says this in their run, and exits."""
    escaped: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: escaped.append(context))

    async def written(*call: Any, **more: Any) -> None:
        msgspec.msgpack.encode(call)

    bus = SimpleNamespace(clock=SimpleNamespace(now_ms=lambda: 2_000), log=written, progress=written)
    means: Any = SimpleNamespace(
        bus=bus, registry=SimpleNamespace(function=FUNCTIONS.get), spawn=asyncio.create_task, environ={},
        blocks=SimpleNamespace(give_back=lambda *_, **__: None), roll=lambda: 0.5,
    )  # fmt: skip
    runs, forks = Runs(function.name, means, lambda: None, lambda: None), Forks()
    base: Any = forks
    worker = Worker(
        WorkerId("WRK1"), base, runs, Owner(runs), folder=Path(), limit=9, function=function, looks=lambda _: Looks()
    )
    worker.start(lambda _: None, {})  # type: ignore[arg-type, return-value]
    names = [JobId(f"JOB0000000000{n}") for n in range(function.policy.batch or 1)]
    leases = [
        Lease(Claimed(name, 1, "h", 0, NIL, "-", 1_000, 1_000, 1_000, turn=1), function, VersionId("DEP1"), 0.0, 15.0)
        for name in names
    ]
    [lead] = joined(leases, function.policy.batch)
    lead.first_child = FIRST
    with forks.end as end:
        end.sendall(frames.framed(frames.Ready()))
        worker._look()
        worker.hand([lead], frames.Run((runs.prepare(lead),), 1_000))
        end.sendall(frames.framed(frames.Begun(0)))
        for frame in said:
            body = msgspec.msgpack.encode(frame)
            end.sendall(frames.HEADER.pack(len(body)) + body)
    forks.child.exited(frames.Exited(1, 1, 0, 0, 0))
    await runs.shut()
    assert not escaped
    return [(lease.job.id, verdict) for lease, verdict in runs.verdicts]


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.sampled_from(["plain", "batch"]), st.lists(FRAMES | ODD, max_size=4))
def test_whatever_a_worker_says_its_jobs_end_once_and_with_what_the_bus_takes(name: str, said: list[object]) -> None:
    function = FUNCTIONS[f"jobs.{name}"]
    verdicts = asyncio.run(_told(function, said))
    assert sorted(job for job, _ in verdicts) == [f"JOB0000000000{n}" for n in range(function.policy.batch or 1)]
    for _, verdict in verdicts:
        pack([verdict_row(verdict)])
        if isinstance(verdict, Retry | Dead):
            assert len(verdict.error.message) <= MAX_MESSAGE
            assert "could not be taken" not in verdict.error.message  # nothing that it can say was unforeseen


@pytest.mark.parametrize("name", ["plain", "batch"])
@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("echod.supervisor.outcomes.of", [frames.Ended(0, "done", 1, 1, 1)]),
        ("echod.supervisor.outcomes.of", [frames.Part(0, 0, "done")]),
        ("echod.supervisor.journal.Journal.wrote", [frames.Output(0, "stdout", "", "", "x", 1)]),
    ],
)
def test_a_defect_that_an_answer_finds_ends_the_jobs_it_is_of(
    name: str, broken: str, said: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise TypeError("unforeseen")

    monkeypatch.setattr(broken, fails)
    function = FUNCTIONS[f"jobs.{name}"]
    verdicts = asyncio.run(_told(function, said))
    assert len(verdicts) == (function.policy.batch or 1)
    assert {verdict.error.cause for _, verdict in verdicts if isinstance(verdict, Retry)} == {"protocol"}
