"""The frame reader: what honest workers send, and what hostile ones do."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echod.supervisor.channel import Splitter
from echofn import frames

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
