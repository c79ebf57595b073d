"""What is printed for people: lines of functions, commands that work when pasted, what a save has done."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from echod.deploy.live import Saved
from echod.node import terminal
from echofn.manifest import CronTrigger, EveryTrigger, Function, LoadError, Policy, QueueTrigger

NOW_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z


def function_of(**fields: Any) -> Function:
    given = {"policy": Policy(), "triggers": (QueueTrigger(),), **fields}
    return Function("shop.pack", "shop", "pack", "shop.py", 1, **given)


def test_the_command_can_be_pasted_into_a_shell() -> None:
    function = function_of(takes_payload=True, payload_schema={"type": "string", "const": "it's $HOME"})
    words = shlex.split(terminal.command(function, "http://127.0.0.1:9000"))
    assert words[:3] == ["echod", "invoke", "shop.pack"]
    assert json.loads(words[words.index("--data") + 1]) == "it's $HOME"
    assert words[words.index("--url") + 1] == "http://127.0.0.1:9000"
    assert "--url" not in terminal.command(function_of(), "http://127.0.0.1:8321")
    assert "--data" not in terminal.command(function_of(), None)
    least = {"type": "object", "properties": {"at": {"type": "string"}, "n": {"type": "integer"}}, "required": ["n"]}
    assert """--data '{"n":1}'""" in terminal.command(function_of(takes_payload=True, payload_schema=least), None)
    odd = {"type": "string", "pattern": "^[A-Z]{3}-[0-9]+$"}
    assert "--data JSON" in terminal.command(function_of(takes_payload=True, payload_schema=odd), None)


def test_a_trigger_is_told_with_its_next_instant() -> None:
    assert terminal.trigger_text(QueueTrigger(), NOW_MS) == "queue"
    every = EveryTrigger("every 20s", 20_000)
    assert terminal.trigger_text(every, NOW_MS) == "every 20s, next 2026-01-01T00:00:20Z"
    cron = CronTrigger("n", "0 6 * * *", "Europe/Berlin")
    assert terminal.trigger_text(cron, NOW_MS) == "0 6 * * * Europe/Berlin, next 2026-01-01T05:00:00Z"


def test_a_save_is_told_with_its_file_and_its_errors(capsys: pytest.CaptureFixture[str]) -> None:
    error = LoadError("shop", "shop.py", "SyntaxError: invalid syntax", 3, 7)
    terminal.saved(Saved(None, ("shop.py",), (error,)))
    terminal.saved(Saved(None, tuple(f"{n}.py" for n in range(9)), (), mended=True, took_ms=80))
    said = capsys.readouterr().out
    assert "shop.py: served, but for what is broken in shop.py: that serves on as it was" in said
    assert "error  shop.py:3:7: SyntaxError: invalid syntax" in said
    assert "4.py and 4 more: mended, serving" in said
