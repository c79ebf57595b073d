"""What a type checker says of a program that uses the client: results have the handler's type, wrong payloads fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("program.py")
BIN = Path(sys.executable).parent
MYPY = ("mypy", "--strict", "--warn-unused-ignores", "--no-incremental", "--config-file=")
PYRIGHT = ("pyright", "--warnings", "--pythonpath", sys.executable)


@pytest.mark.parametrize("checker", [MYPY, PYRIGHT], ids=["mypy", "pyright"])
def test_a_program_is_checked_as_its_author_means_it(checker: tuple[str, ...]) -> None:
    """Each line that must fail carries an ignore, and an ignore that nothing needs is an error itself."""
    command = [BIN / checker[0], *checker[1:], str(PROGRAM)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=PROGRAM.parents[2])
    assert done.returncode == 0, done.stdout + done.stderr
