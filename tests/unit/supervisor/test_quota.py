"""The size of a worker's /tmp where no filesystem bounds it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from echod.supervisor.life import cause_of
from echod.supervisor.quota import BYTES_A_FILE, Quota, used_bytes

ENOUGH = 1 << 30


def test_files_count_by_the_room_they_take_and_links_are_not_followed(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "big").write_bytes(b"x" * 100_000)
    (deep / "empty").touch()
    os.symlink("/", tmp_path / "everything")
    os.link(deep / "empty", deep / "again")
    assert 100_000 <= used_bytes(tmp_path, ENOUGH) <= 100_000 + 12 * BYTES_A_FILE


def test_counting_stops_when_it_is_enough(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / str(number)).touch()
    assert used_bytes(tmp_path, 10 * BYTES_A_FILE) == 11 * BYTES_A_FILE
    assert used_bytes(tmp_path / "gone", ENOUGH) == 0


async def test_past_the_limit_the_worker_is_ended_once_and_one_look_follows_a_short_run(tmp_path: Path) -> None:
    ended = asyncio.Event()
    quota = Quota(tmp_path, 50_000, over=ended.set, busy=lambda: False)
    (tmp_path / "big").write_bytes(b"x" * 100_000)
    quota.wake()
    quota.wake()
    await asyncio.wait_for(ended.wait(), 5)
    quota.close()


async def test_while_something_runs_it_looks_again_and_after_that_no_more(tmp_path: Path) -> None:
    asked: list[int] = []
    still = [True, True, False]
    quiet = asyncio.Event()

    def busy() -> bool:
        asked.append(1)
        if not still[len(asked) - 1]:
            quiet.set()
        return still[len(asked) - 1]

    quota = Quota(tmp_path, 50_000, over=lambda: None, busy=busy)
    quota.wake()
    await asyncio.wait_for(quiet.wait(), 5)
    assert len(asked) == 3
    quota.close()


def test_the_cause_is_the_wall() -> None:
    assert cause_of(9, why="tmp") == "wall:tmp"
