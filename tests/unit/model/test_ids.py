import pytest
from hypothesis import given
from hypothesis import strategies as st

from echod.model.ids import (
    EPOCH_MS,
    MAX_NODES,
    MAX_NUMBER,
    NODE_BITS,
    SEQUENCE_BITS,
    Snowflakes,
    branded,
    is_job_id,
    number_of,
)

NUMBERS = st.integers(0, MAX_NUMBER)
NOW = EPOCH_MS + 90_000_000_000
A_MILLISECOND = 1 << SEQUENCE_BITS


def node_of(number: int) -> int:
    return (number >> SEQUENCE_BITS) % MAX_NODES


def millisecond_of(number: int) -> int:
    return (number >> (NODE_BITS + SEQUENCE_BITS)) + EPOCH_MS


def test_the_vector_of_the_design() -> None:
    assert branded("USR", 274557032793636864) == "USR0KHTOWnGLuC"
    assert number_of("USR0KHTOWnGLuC") == 274557032793636864


@given(NUMBERS)
def test_an_id_is_fourteen_bytes_and_reads_back(number: int) -> None:
    text = branded("JOB", number)
    assert len(text.encode()) == 14
    assert is_job_id(text)
    assert number_of(text) == number


@given(NUMBERS, NUMBERS)
def test_byte_order_is_the_order_of_numbers(one: int, other: int) -> None:
    assert (branded("JOB", one).encode() < branded("JOB", other).encode()) == (one < other)


@pytest.mark.parametrize("number", [-1, 1 << 63])
def test_a_number_outside_63_bits_has_no_id(number: int) -> None:
    with pytest.raises(ValueError, match="63-bit"):
        branded("JOB", number)


@pytest.mark.parametrize(
    "text", ["", "JOB", "JOB123", "JOB0KHTOWnGLu-", "JOB0KHTOWnGLuC1", "JOBzzzzzzzzzzz", "JOB0KHTOWnGLu\u0665"]
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        number_of(text)


@pytest.mark.parametrize("text", ["", "JOB", "USR0KHTOWnGLuC", "JOB0KHTOWnGLu-", "JOB0KHTOWnGLuC1", " JOB0KHTOWnGLuC"])
def test_what_has_not_the_shape_of_a_job_id_is_none(text: str) -> None:
    assert not is_job_id(text)


@given(
    st.integers(0, MAX_NODES - 1),
    st.lists(st.tuples(st.integers(NOW - 10_000, NOW + 10_000), st.integers(1, 4096)), max_size=60),
)
def test_numbers_grow_and_stay_with_their_node_whatever_the_clock_does(node: int, takes: list[tuple[int, int]]) -> None:
    snowflakes, last = Snowflakes(node), -1
    for now_ms, count in takes:
        first = snowflakes.take(now_ms, count)
        assert first > last
        last = first + count - 1
        assert node_of(first) == node_of(last) == node
        assert millisecond_of(first) == millisecond_of(last)


def test_the_millisecond_is_the_one_given() -> None:
    assert millisecond_of(Snowflakes(1023).take(NOW)) == NOW


def test_a_step_back_goes_on_after_the_last_number() -> None:
    snowflakes = Snowflakes(5)
    first = snowflakes.take(NOW)
    assert snowflakes.take(NOW - 60_000) == first + 1


def test_a_full_millisecond_carries_into_the_millisecond_and_never_into_the_node() -> None:
    snowflakes = Snowflakes(1023)  # a carry would overflow this one's bits
    numbers = [snowflakes.take(NOW) for _ in range(A_MILLISECOND + 1)]
    assert numbers[A_MILLISECOND - 1] - numbers[0] == A_MILLISECOND - 1
    assert node_of(numbers[-1]) == 1023
    assert numbers[-1] >> (SEQUENCE_BITS + NODE_BITS) == (numbers[0] >> (SEQUENCE_BITS + NODE_BITS)) + 1


def test_a_block_that_does_not_fit_begins_in_the_next_millisecond() -> None:
    snowflakes = Snowflakes(3)
    snowflakes.take(NOW, 4000)
    block = snowflakes.take(NOW, 97)
    assert block % A_MILLISECOND == 0
    assert millisecond_of(block) == NOW + 1


@pytest.mark.parametrize("count", [0, -1, 4097])
def test_a_block_is_at_most_a_millisecond(count: int) -> None:
    with pytest.raises(ValueError, match="expected 1 to 4096"):
        Snowflakes(0).take(NOW, count)


@pytest.mark.parametrize("node", [-1, 1024])
def test_a_node_number_has_ten_bits(node: int) -> None:
    with pytest.raises(ValueError, match="below 1024"):
        Snowflakes(node)


def test_a_clock_before_the_epoch_still_makes_ids() -> None:
    snowflakes = Snowflakes(0)
    assert snowflakes.take(0) < snowflakes.take(0)
