"""Branded ids: three letters and a 63-bit snowflake in base62, so that byte order is mint order.

41 bits of milliseconds since 2024-01-01T00:00:00Z, 10 bits of node number, 12 bits of sequence. Base62 digits are
0-9A-Za-z, in ASCII order, padded to 11. Lua sees ids as strings only: a double loses bits past 2^53.
"""

from __future__ import annotations

from typing import NewType

JobId = NewType("JobId", str)
VersionId = NewType("VersionId", str)
NodeId = NewType("NodeId", str)
WorkerId = NewType("WorkerId", str)

EPOCH_MS = 1_704_067_200_000  # 2024-01-01T00:00:00Z
NODE_BITS = 10
SEQUENCE_BITS = 12
MAX_NODES = 1 << NODE_BITS
MAX_NUMBER = (1 << 63) - 1
WIDTH = 11
DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_VALUE = {digit: value for value, digit in enumerate(DIGITS)}


def base62(number: int, width: int = WIDTH) -> str:
    """`number` in base62, padded with zeros to `width` digits."""
    digits: list[str] = []
    while number:
        number, rest = divmod(number, 62)
        digits.append(DIGITS[rest])
    return "".join(reversed(digits)).rjust(width, "0")


def branded(brand: str, number: int) -> str:
    """`brand` + 11 base62 digits. Raises ValueError outside 0 … 2^63 - 1."""
    if not 0 <= number <= MAX_NUMBER:
        raise ValueError(f"expected a 63-bit number, got {number}")
    return brand + base62(number)


def number_of(text: str) -> int:
    """The snowflake of a branded id. Raises ValueError for anything else."""
    digits = text[3:]
    if len(digits) != WIDTH or any(digit not in _VALUE for digit in digits):
        raise ValueError(f"expected three letters and {WIDTH} base62 digits, got {text!r}")
    number = 0
    for digit in digits:
        number = number * 62 + _VALUE[digit]
    if number > MAX_NUMBER:
        raise ValueError(f"expected a 63-bit number, got {text!r}")
    return number


def is_job_id(text: str) -> bool:
    """Whether `text` has the shape of a job id."""
    return text.startswith("JOB") and len(text) == 3 + WIDTH and all(digit in _VALUE for digit in text[3:])


class Snowflakes:
    """Numbers of one node, strictly increasing.

    When the clock steps back, or a millisecond is full, the next number is the one after the last: the sequence carries
    into the millisecond, never into the node's bits, where it would be another node's number.
    """

    def __init__(self, node_number: int) -> None:
        if not 0 <= node_number < MAX_NODES:
            raise ValueError(f"expected a node number below {MAX_NODES}, got {node_number}")
        self._node = node_number
        self._millisecond = 0
        self._sequence = 0  # the next free one in that millisecond

    def take(self, now_ms: int, count: int = 1) -> int:
        """The first of `count` (at most 4096) numbers in a row, in the millisecond `now_ms` or after the last taken."""
        if not 1 <= count <= 1 << SEQUENCE_BITS:
            raise ValueError(f"expected 1 to {1 << SEQUENCE_BITS} numbers, got {count}")
        millisecond = max(now_ms - EPOCH_MS, 0)
        if millisecond > self._millisecond:
            self._millisecond, self._sequence = millisecond, 0
        elif self._sequence + count > 1 << SEQUENCE_BITS:
            self._millisecond, self._sequence = self._millisecond + 1, 0
        first = ((self._millisecond << NODE_BITS) | self._node) << SEQUENCE_BITS | self._sequence
        self._sequence += count
        return first
