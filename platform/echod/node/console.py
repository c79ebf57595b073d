"""What the keys of `dev` do: r reload, i invoke, c cron off, o open, q quit."""

from __future__ import annotations

import asyncio
import http.client
import os
import subprocess
import sys
from collections.abc import Callable
from urllib.parse import quote, urlsplit

from echod.bus import Bus
from echod.deploy.live import Live
from echod.errors import BusError
from echod.gateway import instants
from echod.node import terminal
from echod.node.keys import Keys
from echod.policy.recurring import restored, rule_of

HELP = "r reload   i invoke   c cron off   o open   q quit"

# Runs beside the node while the browser does, and adopts it: else the node would take it for a stray (`kin`).
_BROWSE = """
import os, signal, sys, webbrowser
from echofn.walls import adopt_orphans
adopt_orphans()
signal.signal(signal.SIGINT, lambda *_: None)
with open(int(sys.argv[2]), "wb") as answer:
    answer.write(b"1" if webbrowser.open(sys.argv[1]) else b"")
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
"""


class Console:
    """The keys of one `dev`."""

    def __init__(self, bus: Bus, live: Live, url: str, token: str | None, quit: Callable[[], None]) -> None:
        self._bus = bus
        self._live = live
        self._url = url
        self._token = token
        self._quit = quit
        self._browsers: list[subprocess.Popen[bytes]] = []
        self._stilled: list[tuple[str, str]] = []  # schedules that `c` has paused
        self._keys = Keys({"r": self._reload, "i": self._invoke, "c": self._cron, "o": self._open, "q": self._leave})

    def open(self) -> None:
        """Take the keys, and say which there are."""
        if self._keys.open():
            terminal.say(HELP)

    async def close(self) -> None:
        """Give the terminal back; schedules that were paused by a key run on."""
        self._keys.close()
        if self._stilled:
            await self._cron()

    async def _reload(self) -> None:
        if (saved := await self._live.reloaded(again=True)) is not None:
            terminal.saved(saved)

    async def _invoke(self) -> None:
        name, _, data = (await self._keys.line("invoke NAME [JSON]: ")).strip().partition(" ")
        if name:
            terminal.say(await asyncio.to_thread(self._call, name, data.strip() or "null"))

    async def _cron(self) -> None:
        """Pause all schedules, or resume those that this has paused."""
        try:
            if self._stilled:
                rows = {(row.queue, row.name): row for row in await self._bus.recurrences()}
                while self._stilled:
                    row = rows.get(self._stilled[-1])
                    if row is not None:
                        rule, now_ms = rule_of(restored(row.policy)), self._bus.clock.now_ms()
                        on = await asyncio.to_thread(instants.resumed, rule, row.due_ms, now_ms)
                        said = await self._bus.resume_recurrence(
                            row.queue,
                            row.name,
                            on.next_ms,
                            skipped=on.skipped,
                            last_ms=on.last_ms,
                            revision=row.revision,
                        )
                        if said == "stale":  # a save changed its rule meanwhile
                            rows = {(row.queue, row.name): row for row in await self._bus.recurrences()}
                            continue
                    self._stilled.pop()
                terminal.say("cron on")
                return
            for row in await self._bus.recurrences():
                if not row.paused:
                    await self._bus.pause_recurrence(row.queue, row.name)
                    self._stilled.append((row.queue, row.name))
            terminal.say(f"cron off: {len(self._stilled)} schedules paused; c again resumes them")
        except BusError as error:
            terminal.say(f"cron: {error}")

    async def _open(self) -> None:
        if not await asyncio.to_thread(self._browse):
            terminal.say(self._url)

    def _browse(self) -> bool:
        """Open the page in the user's browser; whether there is one."""
        reading, writing = os.pipe()
        command = [sys.executable, "-I", "-B", "-c", _BROWSE, self._url, str(writing)]
        self._browsers.append(subprocess.Popen(command, pass_fds=[writing]))
        os.close(writing)
        with open(reading, "rb") as answer:
            return answer.read() == b"1"

    async def _leave(self) -> None:
        self._quit()

    def _call(self, name: str, data: str) -> str:
        """What the function answers, as a person would ask it: over HTTP."""
        place = urlsplit(self._url)
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=45)
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Prefer": "wait=30"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            connection.request("POST", f"/functions/{quote(name, safe='')}", data.encode(), headers)
            return connection.getresponse().read().decode(errors="replace")
        except OSError as error:
            return f"invoke: {error}"
        finally:
            connection.close()
