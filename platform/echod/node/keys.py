"""Single keys from the terminal, and a line where an action asks for one. Nothing off a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

STDIN = 0


class Keys:
    """Runs the action of a key, one at a time, until closed; the terminal is then as it was."""

    def __init__(self, actions: Mapping[str, Callable[[], Awaitable[None]]]) -> None:
        self._actions = actions
        self._before: list[Any] | None = None
        self._action: asyncio.Task[None] | None = None
        self._line: asyncio.Future[str] | None = None

    def open(self) -> bool:
        """Take the keys, if there is a terminal to take them from."""
        if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.tcgetpgrp(STDIN) != os.getpgrp():
            return False
        self._before = termios.tcgetattr(STDIN)
        tty.setcbreak(STDIN)  # keys at once; ctrl-c is still a signal
        asyncio.get_running_loop().add_reader(STDIN, self._read)
        return True

    def close(self) -> None:
        """Give the terminal back."""
        if self._before is None:
            return
        asyncio.get_running_loop().remove_reader(STDIN)
        with contextlib.suppress(termios.error):
            termios.tcsetattr(STDIN, termios.TCSADRAIN, self._before)
        self._before = None
        if self._action is not None:
            self._action.cancel()

    async def line(self, prompt: str) -> str:
        """A line that the person types, with the terminal's own editing."""
        if self._before is None:
            return ""
        self._line = asyncio.get_running_loop().create_future()
        termios.tcsetattr(STDIN, termios.TCSADRAIN, self._before)
        print(prompt, end="", flush=True)
        try:
            return await self._line
        finally:
            self._line = None
            tty.setcbreak(STDIN)

    def _read(self) -> None:
        try:
            typed = os.read(STDIN, 65536).decode(errors="replace")
        except OSError:
            typed = ""
        if not typed:  # the terminal has gone
            self.close()
        elif self._line is not None:
            if not self._line.done():
                self._line.set_result(typed.rstrip("\n"))
        elif (action := self._actions.get(typed[0].lower())) and (self._action is None or self._action.done()):
            self._action = asyncio.ensure_future(action())
