"""The refusal that teaches: what a wall refused a run, in the words of its author, with the option that opens it.

The kernel refuses; here it is only noted. An audit hook (PEP 578) sees what Python code sets out to do, and keeps the
first thing of a run that its function has not opened, because what that ends as can be anything: libraries wrap, retry
and translate. Code that swallows a refusal and returns is fine. What no event tells of shows in the exception itself
(traces.py).
"""

from __future__ import annotations

import contextvars
import ipaddress
import os
import socket
import sys
import threading
from pathlib import PurePath
from types import FrameType
from typing import Any

from echofn import blocked
from echofn.blocked import Refusal
from echofn.traces import Bounds, Noted, line_of, refusal_in
from echofn.walls import Openings

_STARTS = frozenset(
    {"os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system", "pty.spawn", "subprocess.Popen"}
)
_OTHERS = _STARTS | {"sqlite3.connect", "mmap.__new__"}
_INTERNET = frozenset({socket.AF_INET, socket.AF_INET6})
_WALLED = frozenset({"standard", "strict"})


class Refusals:
    """The first refusal since `begin`: of this process, or of a run that begins `apart` from others, by its context."""

    def __init__(self, level: str, opened: Openings, root: str, tmp: str) -> None:
        self.tmp = tmp  # as user code sees it
        self._level, self._opened, self._root = level, opened, root
        self._first = Noted()
        self._apart: contextvars.ContextVar[Noted] = contextvars.ContextVar("echofn_refused")
        self._aims: dict[int, tuple[str, int | None]] = {}  # thread -> where it last asked to go

    def watch(self) -> None:
        """See what this process sets out to do, from now on and for good."""
        if self._level in _WALLED:
            sys.addaudithook(self._heard)

    def begin(self, *, apart: bool = False) -> None:
        """A run begins: what was refused before is not its doing. `apart`: others go on beside it."""
        if apart:
            self._apart.set(Noted())
            return
        self._first.forget()
        if self._aims:
            self._aims.clear()

    def behind(self, error: BaseException) -> Refusal | None:
        """What refusal an exception comes from, if any."""
        noted = self._apart.get(self._first)
        return noted.refusal or refusal_in(error, noted, Bounds(self._level, self._opened, self._root, self.tmp))

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        """The audit hook. It raises nothing, whatever it is handed."""
        if event.startswith("socket.") or event in _OTHERS:
            try:
                noted = self._apart.get(self._first)
                if noted.refusal is None:
                    noted.refusal = self._refused(event, arguments, noted, sys._getframe(1))
            except Exception:
                pass  # arguments of a shape that the call itself is about to refuse

    def _refused(self, event: str, arguments: tuple[Any, ...], noted: Noted, caller: FrameType) -> Refusal | None:
        """What is refused for sure; else what shows later whether it was is noted."""
        if event in _STARTS:
            return self._start(arguments, noted)
        if event == "sqlite3.connect":
            noted.database = _word(arguments[0])
        elif event == "mmap.__new__":
            noted.own_call = (caller.f_code, caller.f_lasti)  # refused where the file is not open for writing
        elif event == "socket.__new__" and arguments[1] == socket.AF_UNIX:
            return None if _is_wrapped(caller) else blocked.unix_socket(line_of(caller, self._root))
        else:
            return self._network(event, arguments, noted, caller)
        return None

    def _start(self, arguments: tuple[Any, ...], noted: Noted) -> Refusal | None:
        program = next((word for each in arguments if (word := _word(each))), "")
        if self._opened.processes:
            noted.has_started, noted.program = True, program
            return None
        return Refusal("processes", f"starting {program}" if program else "starting a process", "Add processes=1")

    def _network(self, event: str, arguments: tuple[Any, ...], noted: Noted, caller: FrameType) -> Refusal | None:
        ports = self._opened.ports
        if event != "socket.__new__" and ports != ():
            noted.own_call = (caller.f_code, caller.f_lasti)  # where this is open, a firewall's no is not ours
        if ports is None:
            return None
        match event, arguments:
            case "socket.getaddrinfo", (host, port, *_):
                aim = (_word(host), port if type(port) is int else _number(port))
                self._aims[threading.get_ident()] = aim
                if not ports and host is not None and not _is_address(aim[0]):
                    return blocked.network(*aim)
            case "socket.__new__", (_, family, kind, *_) if family in _INTERNET and not _is_wrapped(caller):
                if not ports:
                    return blocked.network(*self._aims.get(threading.get_ident(), ("", None)))
                if kind & 0xF != socket.SOCK_STREAM:
                    return Refusal("network", "a socket that is not TCP", "Add network=True")
            case "socket.connect", (_, (str(host), int(port), *_)) if port not in ports:
                known = self._aims.get(threading.get_ident(), ("", None))
                return blocked.network(known[0] if known[1] == port and known[0] else host, port, ports)
            case ("socket.bind", (_, (str(), int(), *_))):
                return Refusal("network", "listening for connections", "Add network=True")
            case _:
                pass
        return None


def _is_wrapped(maker: FrameType) -> bool:
    """Whether the socket being made goes around a descriptor that is there already: a pair's end, an accepted one."""
    return maker.f_code.co_name == "__init__" and maker.f_locals.get("fileno") is not None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host in {"", "localhost"}
    return True


def _number(port: object) -> int | None:
    text = port.decode() if isinstance(port, bytes) else port
    if isinstance(text, str):
        return int(text) if text.isdigit() else {"http": 80, "https": 443}.get(text)
    return None


def _word(value: object) -> str:
    if isinstance(value, bytes):
        value = os.fsdecode(value)
    return str(value) if isinstance(value, (str, PurePath)) else ""
