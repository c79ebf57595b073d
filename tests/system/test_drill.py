"""The crash drill at a small count; `make drill ROUNDS=…` is the whole of it."""

from __future__ import annotations

import random
from pathlib import Path

from drill import drill


def test_every_job_is_accounted_for_whatever_is_killed(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10**9)
    told = drill(15, seed, tmp_path)
    assert sum(told["kills"].values()) - told["kills"].get("power", 0) == 15, told
    assert told["jobs"] > told["heard"] > 20, told
