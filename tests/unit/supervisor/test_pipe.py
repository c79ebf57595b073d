"""Bytes written past Python, parted by the marks between them wherever a read ends."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from echod.supervisor import pipe as pipes
from echod.supervisor.pipe import MOST_HELD_BYTES, READ_BYTES, Pipe
from echofn.frames import MARK, MARK_BYTES, OUTSIDE, POSITION


def mark(index: int) -> bytes:
    return MARK + POSITION.pack(index)


class Reading:
    """A pipe and what came out of it, by whose it is; `ahead`: who has not begun yet."""

    def __init__(self) -> None:
        reading, self.writing = os.pipe()
        self.ahead = set[int]()
        self.dealt: list[tuple[int, bytes]] = []
        self.pipe = Pipe(reading, self._deal)

    def _deal(self, index: int, data: bytes) -> bool:
        if index in self.ahead:
            return False
        self.dealt.append((index, data))
        return True

    def of(self, index: int) -> bytes:
        return b"".join(data for each, data in self.dealt if each == index)


@pytest.fixture
def reading() -> Iterator[Reading]:
    made = Reading()
    yield made
    os.close(made.writing)
    os.close(made.pipe.descriptor)


def test_what_comes_before_any_mark_is_nobodys(reading: Reading) -> None:
    os.write(reading.writing, b"import" + mark(0) + b"a" + mark(1) + mark(2) + b"c")
    reading.pipe.drain()
    os.write(reading.writing, b"cc")
    reading.pipe.drain()
    assert reading.dealt == [(OUTSIDE, b"import"), (0, b"a"), (2, b"c"), (2, b"cc")]


def test_marks_alone_say_who_is_next(reading: Reading) -> None:
    os.write(reading.writing, mark(7) + mark(8))
    reading.pipe.drain()
    os.write(reading.writing, b"x")
    reading.pipe.drain()
    assert reading.dealt == [(8, b"x")]


@pytest.mark.parametrize("into", range(MARK_BYTES + 1))
def test_a_read_may_end_anywhere_in_a_mark(reading: Reading, into: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes, "READ_BYTES", 1000)
    os.write(reading.writing, mark(3) + b"x" * (1000 - MARK_BYTES - into) + mark(4) + b"y" * 5)
    reading.pipe.drain()
    assert reading.of(3) == b"x" * (1000 - MARK_BYTES - into)
    assert reading.of(4) == b"y" * 5
    assert reading.of(OUTSIDE) == b""


def test_bytes_like_the_beginning_of_a_mark_are_bytes(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes, "READ_BYTES", 100)
    data = (b"\0" * 60 + MARK[:4]) * 5 + MARK[:-1]
    os.write(reading.writing, mark(1) + data)
    reading.pipe.drain()
    os.write(reading.writing, b"end")
    reading.pipe.drain()
    assert reading.of(1) == data + b"end"


def test_what_is_of_a_run_that_has_not_begun_is_held_until_it_has(reading: Reading) -> None:
    reading.ahead = {1, 2}
    os.write(reading.writing, mark(0) + b"a" + mark(1) + b"b" + mark(2) + b"c")
    reading.pipe.drain()
    assert reading.dealt == [(0, b"a")]
    reading.ahead = {2}
    reading.pipe.hand_on()
    assert reading.dealt == [(0, b"a"), (1, b"b")]
    reading.ahead = set()
    reading.pipe.drain()
    assert reading.dealt[2:] == [(2, b"c")]


def test_no_more_is_held_than_an_honest_worker_would_make_us(reading: Reading) -> None:
    reading.ahead = {1}
    os.write(reading.writing, mark(1))
    part = b"x" * (READ_BYTES // 2)
    for _ in range(2 * MOST_HELD_BYTES // len(part)):
        os.write(reading.writing, part)
        reading.pipe.drain()
    reading.ahead = set()
    reading.pipe.hand_on()
    assert len(reading.of(1)) <= MOST_HELD_BYTES + READ_BYTES
