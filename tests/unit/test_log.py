"""Logs: one line an event, for people or programs, and nothing in a value can pass for another line."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from echod import log


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    log.configure(as_json=False)


def test_an_event_is_a_line_on_stderr_with_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure(as_json=False)
    log.get("pump").info("rule.parked", rule="0 0 30 2 *", count=2)
    said = capsys.readouterr()
    assert not said.out
    assert said.err.count("\n") == 1
    assert "info    rule.parked" in said.err
    assert said.err.endswith("part=pump rule='0 0 30 2 *' count=2\n")


def test_json_lines_carry_the_same_and_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure(as_json=True)
    secret = "s3cret"
    try:
        raise ValueError("no such thing")
    except ValueError as error:
        log.get("pump").exception("turn.crashed", why=error)
        log.get("pump").error("turn.crashed", exc_info=error)
    one, other = map(json.loads, capsys.readouterr().err.splitlines())
    assert (one["level"], one["event"], one["part"], one["why"]) == ("error", "turn.crashed", "pump", "no such thing")
    assert "ValueError: no such thing" in one["exception"]
    assert one["exception"] == other["exception"]
    assert secret not in one["exception"]


def test_what_is_below_the_level_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure(as_json=False, level=log.WARNING)
    logger = log.get("pump")
    logger.debug("a.b")
    logger.info("a.b")
    logger.warning("c.d")
    assert "c.d" in capsys.readouterr().err
    log.configure(as_json=False)
    logger.debug("a.b")
    assert not capsys.readouterr().err


@pytest.mark.parametrize("value", ["a\nfake.event part=x", "\x1b[2J", "x y=z", "", "é\u202e", "a='b"])
def test_a_value_cannot_pass_for_fields_lines_or_orders_to_a_terminal(
    capsys: pytest.CaptureFixture[str], value: str
) -> None:
    log.configure(as_json=False)
    log.get("pump").info("job.said", text=value)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "\x1b" not in said
    assert said.rstrip("\n").endswith(f"text={value!r}")
