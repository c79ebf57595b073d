import math
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echofn.units import MAX_DURATION_MS, duration_ms, duration_text, rate, size_bytes


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        ("250ms", 250),
        ("30s", 30_000),
        ("5m", 300_000),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        ("1w", 604_800_000),
        ("0s", 0),
        ("0.1s", 100),
        ("1.5h", 5_400_000),
        (" 5 m ", 300_000),
        ("15", 15_000),
        (30, 30_000),
        (0, 0),
        (2.5, 2_500),
        (timedelta(minutes=3), 180_000),
        (timedelta(milliseconds=1), 1),
        ("0.4ms", 1),  # never 0: to a blocking pop that is for ever
        (0.0001, 1),
        ("36525d", MAX_DURATION_MS),
    ],
)
def test_durations(value: str | int | float | timedelta, ms: int) -> None:
    assert duration_ms(value) == ms


@pytest.mark.parametrize(
    "value",
    [
        *(
            "",
            " ",
            "s",
            "ms",
            "5x",
            "5 minutes",
            "5M",
            "5S",
            "-5s",
            "+5s",
            "1e3s",
            "1_0s",
            "0x5s",
            "5..5s",
            ".5s",
            "5.s",
        ),
        *("1h30m", "5s5s", "\u0665s", "\uff15s", "s5", "5s\x00", "9" * 16 + "s", "9" * 10_000, "1000w1", "36526d"),
        *(
            -1,
            -0.5,
            1e300,
            math.nan,
            math.inf,
            -math.inf,
            10**20,
            timedelta(-1),
            timedelta(10**6),
            True,
            None,
            [],
            {},
            b"5s",
        ),
    ],
)
def test_what_is_no_duration_is_refused_with_what_was_expected(value: object) -> None:
    with pytest.raises(ValueError, match=r"^expected .*, got ") as caught:
        duration_ms(value)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 200


@given(st.integers(0, MAX_DURATION_MS))
def test_a_duration_written_reads_back(ms: int) -> None:
    assert duration_ms(duration_text(ms)) == ms


@pytest.mark.parametrize(
    ("ms", "text"), [(0, "0ms"), (1, "1ms"), (1_000, "1s"), (90_000, "90s"), (86_400_000, "1d"), (604_800_000, "1w")]
)
def test_the_shortest_spelling(ms: int, text: str) -> None:
    assert duration_text(ms) == text


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("64MB", 64 << 20),
        ("512kB", 512 << 10),
        ("1GB", 1 << 30),
        ("1GiB", 1 << 30),
        ("1.5mb", 3 << 19),
        ("10B", 10),
        ("7", 7),
        (7, 7),
    ],
)
def test_sizes(value: str | int, size: int) -> None:
    assert size_bytes(value) == size


@pytest.mark.parametrize("value", ["", "MB", "5TBB", "-1MB", "1e3", -1, 1 << 60, True, None, 1.5, "9" * 20])
def test_what_is_no_size_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"^expected .*, got "):
        size_bytes(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "counted"),
    [
        ("100/s", (100, 1_000)),
        ("5/m", (5, 60_000)),
        ("10/h", (10, 3_600_000)),
        ("1/d", (1, 86_400_000)),
        ("3/10s", (3, 10_000)),
        (" 5 / m ", (5, 60_000)),
    ],
)
def test_rates(value: str, counted: tuple[int, int]) -> None:
    assert rate(value) == counted


@pytest.mark.parametrize(
    "value",
    ["", "/", "5", "5/", "/s", "0/s", "-1/s", "1.5/s", "5/x", "5/0s", "5/5", "5/s/s", "\u0665/s", 5, None, True],
)
def test_what_is_no_rate_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"^expected .*, got "):
        rate(value)


@pytest.mark.parametrize("read", [duration_ms, size_bytes])
def test_a_number_that_no_text_can_hold_is_refused_in_our_words(read: Callable[[int], int]) -> None:
    with pytest.raises(ValueError, match="got an integer of too many digits"):
        read(10**5_000)


def test_importing_units_imports_nothing() -> None:
    code = "import sys; before = set(sys.modules); import echofn.units; print(*sorted(set(sys.modules) - before))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in found if not name.startswith("echofn")] == ["__future__"]
