"""The public face of echofn: light to import, typed, and harmless outside a worker."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import echofn
from echofn import annotations
from echofn.options import KNOWN

ALLOWED = {"__future__", "echofn", "echofn.annotations", "echofn.verdicts", "echofn.context"}
ALLOWED |= {"echofn.verifiers", "echofn.request", "echofn.backoff", "echofn.quoting", "echofn.enqueueing"}


@pytest.mark.parametrize("statement", ["import echofn", "from echofn import *", "from echofn import queue, Context"])
def test_importing_echofn_loads_nothing_else(statement: str) -> None:
    program = f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before))"
    told = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True).stdout
    assert set(told.split()) <= ALLOWED


def test_the_public_names_are_these() -> None:
    verbs = ["basic", "bearer", "cron", "every", "hmac", "lifespan", "queue", "webhook"]
    assert echofn.__all__ == ["Backoff", "Cancel", "Context", "Fail", "Request", "Retry", "Snooze", *verbs]
    assert all(hasattr(echofn, name) for name in echofn.__all__)
    assert not hasattr(echofn, "anything_else")


def test_the_options_that_type_checkers_know_are_those_that_are_taken() -> None:
    tree = ast.parse(Path(annotations.__file__).read_text())
    (typed,) = (node for node in tree.body if isinstance(node, ast.If) and node.orelse)
    known: dict[str, set[str]] = {}
    for node in typed.body:
        if isinstance(node, ast.FunctionDef):
            known.setdefault(node.name, set()).update(each.arg for each in node.args.kwonlyargs)
    assert known == {kind: set(names) for kind, names in KNOWN.items()}


def test_an_annotated_function_is_the_same_function() -> None:
    def plain(payload: int) -> int:
        return payload + 1

    annotated = echofn.queue(retries=1)(echofn.every("1s")(plain))
    assert annotated is plain
    assert echofn.queue(plain) is plain
    assert annotated(1) == 2


def test_verdicts_carry_what_they_were_given() -> None:
    assert (echofn.Retry("why", after="10s").reason, echofn.Retry(after=1).after_ms) == ("why", 1_000)
    assert echofn.Snooze("10m").after_ms == 600_000
    assert str(echofn.Fail("no")) == "no"
    assert echofn.Cancel().reason == ""
    with pytest.raises(ValueError, match="expected a duration"):
        echofn.Snooze("soon")
