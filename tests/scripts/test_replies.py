"""Each reply and each error that a script declares is seen by a test, and what it does not declare by none."""

from __future__ import annotations

from pathlib import Path

import pytest

from echod.bus import scripts
from scripts.replies import SHOWN, declared, told


@pytest.mark.parametrize("verb", scripts.names())
def test_each_reply_and_error_of_a_script_has_a_test(verb: str) -> None:
    assert set(SHOWN.get(verb, {})) == declared(verb), f"name a test for each in tests/scripts/replies.py: {verb}"


def test_the_tests_that_show_a_reply_exist() -> None:
    assert set(SHOWN) == set(scripts.names())
    for shown in {name for kinds in SHOWN.values() for name in kinds.values()}:
        file, _, test = shown.partition(": ")
        source = Path(__file__).with_name(f"test_{file}.py").read_text()
        assert f"def test_{test.partition('[')[0]}(" in source, shown


def test_kinds_are_read_as_headers_write_them() -> None:
    assert declared("mint") == {"1", "2", "3", "4", "5", "6", "MALFORMED"}
    assert declared("unrecur") == {"removed", "absent", "older", "taken"}
    assert declared("run_now") == {"1", "4", "5"}
    assert declared("tick") == {"answered"}
    assert {"answered", "rebuilt", "blocked empty", "blocked capped"} <= declared("claim")
    assert told("occur", [[1, b"JOB"], [4]]) == {"1", "4"}
    assert told("claim", [0, [], [], b"paused", None, 0, 5]) == {"answered", "rebuilt", "blocked paused"}
    assert told("unrecur", b"surprise") - declared("unrecur") == {"surprise"}
