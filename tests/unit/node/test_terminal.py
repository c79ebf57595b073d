"""What is printed for people: lines of functions, commands that work when pasted, what a save has done."""

from __future__ import annotations

import datetime as dt
import enum
import json
import shlex
import uuid
from typing import Annotated, Any, Literal

import msgspec
import pytest

from echod.deploy.live import Saved
from echod.node import terminal
from echofn.manifest import CronTrigger, EveryTrigger, Function, LoadError, Policy, QueueTrigger

NOW_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Line(msgspec.Struct):
    sku: Annotated[str, msgspec.Meta(min_length=3)]
    count: Annotated[int, msgspec.Meta(ge=1)]


class Order(msgspec.Struct):
    id: uuid.UUID
    lines: list[Line]
    first: Line
    colour: Colour
    when: Annotated[dt.datetime, msgspec.Meta(tz=True)]  # without it the schema says no more than "string"
    kind: Literal["a", "b"]
    price: Annotated[float, msgspec.Meta(gt=0)]
    paid: bool
    note: str | None
    optional: int = 5


@pytest.mark.parametrize("kind", [Order, Line, dict, list[int], str, int, bool, dict[str, int], Line | None, Colour])
def test_the_sample_payload_fits_the_functions_type(kind: Any) -> None:
    value = terminal.sample(msgspec.json.schema(kind))
    msgspec.json.decode(msgspec.json.encode(value), type=kind)


def test_a_schema_that_refers_to_itself_has_a_sample_all_the_same() -> None:
    schema = {"$ref": "#/$defs/Node", "$defs": {"Node": {"type": "object", "required": ["next"], "properties": {}}}}
    schema["$defs"]["Node"]["properties"] = {"next": {"$ref": "#/$defs/Node"}}  # type: ignore[index]
    json.dumps(terminal.sample(schema))


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
