"""What a worker is told of a job, how jobs are cut into frames, and which ids a run may use."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from echod.model.ids import JobId
from echod.model.job import Claimed, Occurrence
from echod.policy.slots import MOST_BYTES
from echod.supervisor.children import BLOCK, BLOCK_AGE_S, Blocks
from echod.supervisor.handover import frame_sizes, job_frame
from echofn.manifest import CronTrigger, EveryTrigger, Function, Policy

FUNCTION = Function(
    name="shop.report",
    module="shop",
    attribute="report",
    file="shop.py",
    line=1,
    policy=Policy(retries=2, timeout_ms=9),
    triggers=(
        CronTrigger(name="0 * * * *", rule="0 * * * *"),
        EveryTrigger(name="often", period_ms=20_000),
    ),
)
HOUR = 3_600_000


def claimed(*, failures: int = 0, attempts: int = 1, occurrence: Occurrence | None = None, due_ms: int = 5) -> Claimed:
    return Claimed(JobId("JOB1"), attempts, "h", failures, b"\xc0", "north", due_ms, 4, 6, occurrence=occurrence)


def test_attempt_counts_charged_runs_and_fence_counts_claims() -> None:
    first = job_frame(claimed(), FUNCTION, 7)
    assert (first.attempt, first.last_attempt, first.fence, first.lane, first.first_child) == (1, False, 1, "north", 7)
    last = job_frame(claimed(failures=2, attempts=9), FUNCTION, 7)
    assert (last.attempt, last.last_attempt, last.fence, last.timeout_ms) == (3, True, 9, 9)


def test_an_occurrence_knows_its_neighbours() -> None:
    cron = job_frame(claimed(occurrence=Occurrence("shop.report/0 * * * *", 10 * HOUR)), FUNCTION, 0)
    assert (cron.previous_ms, cron.next_ms, cron.manual) == (9 * HOUR, 11 * HOUR, False)
    every = job_frame(claimed(occurrence=Occurrence("shop.report/often", 40_000, manual=True)), FUNCTION, 0)
    assert (every.previous_ms, every.next_ms, every.manual) == (20_000, 60_000, True)


def test_an_occurrence_of_a_rule_that_is_gone_has_none() -> None:
    gone = job_frame(claimed(occurrence=Occurrence("shop.report/gone", HOUR)), FUNCTION, 0)
    assert (gone.previous_ms, gone.next_ms) == (None, None)
    assert job_frame(claimed(), FUNCTION, 0).previous_ms is None


@given(st.lists(st.integers(0, MOST_BYTES), max_size=60))
def test_frames_are_not_too_large_and_leave_nobody_out(sizes: list[int]) -> None:
    cuts = frame_sizes(sizes)
    assert [index for start, end in cuts for index in range(start, end)] == list(range(len(sizes)))
    assert all(end - start == 1 or sum(sizes[start:end]) <= MOST_BYTES for start, end in cuts)


class Counter:
    """Numbers as the bus reserves them."""

    def __init__(self) -> None:
        self.next = 1_000

    def reserve(self, count: int) -> int:
        first, self.next = self.next, self.next + count
        return first


def test_runs_at_the_same_time_never_share_a_block() -> None:
    blocks = Blocks(Counter().reserve)
    taken = [blocks.take(0.0) for _ in range(10)]
    assert len({first // BLOCK for first in taken}) == 10


def test_a_block_is_used_again_only_when_no_id_of_it_was() -> None:
    blocks = Blocks(Counter().reserve)
    unused, used = blocks.take(0.0), blocks.take(0.0)
    blocks.give_back(unused, used=False)
    blocks.give_back(used, used=True)
    blocks.give_back(unused, used=False)  # twice is once
    assert blocks.take(0.1) == unused
    assert blocks.take(0.1) not in {unused, used}


def test_an_old_block_is_not_used_again() -> None:
    blocks = Blocks(Counter().reserve)
    first = blocks.take(0.0)
    blocks.give_back(first, used=False)
    assert blocks.take(BLOCK_AGE_S + 0.1) != first
