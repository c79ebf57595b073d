"""Structured logs to stderr: `noun.past_verb` events with fields, for people or, with ECHOD_LOG=json, as JSON lines.

A verb that serves with --json writes them to stdout, where they are all that it prints.

Small and our own, because every echod process loads it first: the libraries for it bring a tenth of a node's start
along, and tracebacks that print local variables, and secrets with them.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from typing import NamedTuple

import msgspec

DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40
_NAMES = {DEBUG: "debug", INFO: "info", WARNING: "warning", ERROR: "error"}
_COLOURS = {WARNING: "\x1b[33m", ERROR: "\x1b[31m"}
_PLAIN_MARKS = frozenset("_.-+:/@~,<>()[]{}*%#")


class _Way(NamedTuple):
    """How lines are written."""

    as_json: bool = False
    level: int = WARNING  # as of a library, until a verb of ours says otherwise
    coloured: bool = False
    to_stdout: bool = False


_way = _Way()


def configure(*, as_json: bool, level: int = INFO, to_stdout: bool = False) -> None:
    """Set up the process's logs; called once, by the CLI."""
    global _way
    _way = _Way(as_json, level, sys.stderr.isatty() and not os.environ.get("NO_COLOR"), to_stdout)


class Logger:
    """Writes events of one part."""

    __slots__ = ("_part",)

    def __init__(self, part: str) -> None:
        self._part = part

    def debug(self, event: str, **fields: object) -> None:
        self._write(DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._write(INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._write(WARNING, event, fields)

    def error(self, event: str, *, exc_info: BaseException | None = None, **fields: object) -> None:
        """`exc_info`: an exception whose traceback to add."""
        self._write(ERROR, event, fields, exc_info)

    def exception(self, event: str, **fields: object) -> None:
        """An error with the traceback of the exception that is being handled."""
        self._write(ERROR, event, fields, sys.exc_info()[1])

    def _write(self, level: int, event: str, fields: dict[str, object], error: BaseException | None = None) -> None:
        if level < _way.level:
            return
        at = time.time()
        stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(at))}.{int(at % 1 * 1000):03d}Z"
        trace = "".join(traceback.format_exception(error)) if error is not None else ""
        if _way.as_json:
            line = _as_json({"at": stamp, "level": _NAMES[level], "event": event, "part": self._part, **fields}, trace)
        else:
            line = _for_people(stamp, level, event, {"part": self._part, **fields}) + (
                f"\n{trace.rstrip()}" if trace else ""
            )
        try:
            stream = sys.stdout if _way.to_stdout else sys.stderr
            stream.write(line + "\n")
            stream.flush()
        except (OSError, ValueError):
            pass  # nobody reads it any more: no reason to end what is being logged


def get(name: str) -> Logger:
    """A logger that carries its part's name."""
    return Logger(name)


def _as_json(fields: dict[str, object], trace: str) -> str:
    if trace:
        fields["exception"] = trace
    return msgspec.json.encode(fields, enc_hook=str).decode(errors="replace")


def _for_people(stamp: str, level: int, event: str, fields: dict[str, object]) -> str:
    name = f"{_NAMES[level]:<7}"
    if _way.coloured and level in _COLOURS:
        name = f"{_COLOURS[level]}{name}\x1b[0m"
    return f"{stamp} {name} {event:<24} " + " ".join(f"{key}={_shown(value)}" for key, value in fields.items())


def _shown(value: object) -> str:
    """A value that cannot be taken for several, nor steer a terminal, wherever its text came from."""
    text = value if isinstance(value, str) else repr(value)
    plain = text and all(char.isalnum() or char in _PLAIN_MARKS for char in text)
    return text if plain or not isinstance(value, str) else repr(text)
