"""One owner per state folder, and the second one hears who the first is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from echod.errors import Refused
from echod.node.lock import StateLock

HOLD = """
import sys
from pathlib import Path
from echod.node.lock import StateLock
lock = StateLock(Path(sys.argv[1]))
lock.announce("http://127.0.0.1:4711")
print("held", flush=True)
sys.stdin.read()
"""


def test_the_second_owner_is_refused_with_the_address_of_the_first(tmp_path: Path) -> None:
    lock = StateLock(tmp_path / "state")
    with pytest.raises(Refused, match=f"in use by an echod with process id {os.getpid()}"):
        StateLock(tmp_path / "state")
    lock.announce("http://127.0.0.1:8321")
    with pytest.raises(Refused, match=r"at http://127\.0\.0\.1:8321 .*; use that one, or give another with --state"):
        StateLock(tmp_path / "state")
    lock.release()
    StateLock(tmp_path / "state").release()


def test_the_folder_is_private(tmp_path: Path) -> None:
    state = tmp_path / "a" / "state"
    state.mkdir(parents=True, mode=0o755)
    StateLock(state).release()
    assert state.stat().st_mode & 0o777 == 0o700


def test_a_killed_owner_leaves_the_folder_free_at_once(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "held\n"
        with pytest.raises(Refused, match="4711"):
            StateLock(tmp_path)
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        StateLock(tmp_path).release()


def test_a_state_that_cannot_be_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match="give another with --state"):
        StateLock(tmp_path / "file")
