"""The refusal that teaches: what a wall refused a run, in the words of its author, with the option that opens it.

The kernel refuses; here it is only noted. An audit hook (PEP 578) sees what Python code sets out to do, and keeps the
first thing of a run that its function has not opened, because what that ends as can be anything: libraries wrap, retry
and translate. Code that swallows a refusal and returns is fine. Refused files show in the exception itself.
"""

from __future__ import annotations

import contextvars
import errno
import ipaddress
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, NamedTuple, cast

from echofn.quoting import hidden
from echofn.walls import Openings
from echofn.walls.reach import readable

_STARTS = frozenset(
    {"os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system", "pty.spawn", "subprocess.Popen"}
)
_INTERNET = frozenset({socket.AF_INET, socket.AF_INET6})
_WALLED = frozenset({"standard", "strict"})
_MAX_CHAIN = 20
_MAX_WHAT = 300


class Refusal(NamedTuple):
    """What was refused, by which wall, and what to do about it."""

    wall: str  # network | processes | files | tmp
    what: str  # "network to api.stripe.com:443"; whole, however long: `said` is for people
    remedy: str  # "Add network=[443]"; empty where nothing opens it
    is_option: bool = True  # the remedy is an option of @queue

    @property
    def said(self) -> str:
        """What was refused, masked and then cut."""
        return hidden(self.what, _MAX_WHAT)


class _First:
    """A place for the first refusal of a run."""

    __slots__ = ("has_started", "refusal")

    def __init__(self) -> None:
        self.refusal: Refusal | None = None
        self.has_started = False  # processes, which its function has opened


class Refusals:
    """The first refusal since `begin`: of this process, or of a run that begins `apart` from others, by its context."""

    def __init__(self, level: str, opened: Openings, root: str, tmp: str) -> None:
        self.tmp = tmp  # as user code sees it
        self._level, self._opened, self._root = level, opened, root
        self._first = _First()
        self._apart: contextvars.ContextVar[_First] = contextvars.ContextVar("echofn_refused")
        self._aims: dict[int, tuple[str, int | None]] = {}  # thread -> where it last asked to go

    def watch(self) -> None:
        """See what this process sets out to do, from now on and for good."""
        if self._level in _WALLED:
            sys.addaudithook(self._heard)

    def begin(self, *, apart: bool = False) -> None:
        """A run begins: what was refused before is not its doing. `apart`: others go on beside it."""
        if apart:
            self._apart.set(_First())
            return
        self._first.refusal, self._first.has_started = None, False
        if self._aims:
            self._aims.clear()

    def behind(self, error: BaseException) -> Refusal | None:
        """What refusal an exception comes from, if any."""
        return self._apart.get(self._first).refusal or next(filter(None, map(self._in_system, _chain(error))), None)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        """The audit hook. It raises nothing, whatever it is handed."""
        if event.startswith("socket.") or event in _STARTS:
            try:
                first = self._apart.get(self._first)
                if first.refusal is None:
                    first.refusal = self._network(event, arguments) if event not in _STARTS else self._start(arguments)
            except Exception:
                pass  # arguments of a shape that the call itself is about to refuse

    def _start(self, arguments: tuple[Any, ...]) -> Refusal | None:
        if self._opened.processes:
            self._apart.get(self._first).has_started = True
            return None
        program = next((word for each in arguments if (word := _word(each))), "")
        return Refusal("processes", f"starting {program}" if program else "starting a process", "Add processes=1")

    def _network(self, event: str, arguments: tuple[Any, ...]) -> Refusal | None:
        ports = self._opened.ports
        if ports is None:
            return None
        match event, arguments:
            case "socket.getaddrinfo", (host, port, *_):
                aim = (_word(host), port if type(port) is int else _number(port))
                self._aims[threading.get_ident()] = aim
                if not ports and host is not None and not _is_address(aim[0]):
                    return _to(*aim)
            case "socket.__new__", (_, family, kind, *_) if family in _INTERNET and not _is_wrapped():
                if not ports:
                    return _to(*self._aims.get(threading.get_ident(), ("", None)))
                if kind & 0xF != socket.SOCK_STREAM:
                    return Refusal("network", "a socket that is not TCP", "Add network=True")
            case "socket.connect", (_, (str(host), int(port), *_)) if port not in ports:
                known = self._aims.get(threading.get_ident(), ("", None))
                return _to(known[0] if known[1] == port and known[0] else host, port, ports)
            case ("socket.bind", (_, (str(), int(), *_))):
                return Refusal("network", "listening for connections", "Add network=True")
            case _:
                pass
        return None

    def _in_system(self, error: BaseException) -> Refusal | None:
        if not isinstance(error, OSError) or self._level == "off":
            return None
        if error.errno == errno.EAGAIN and self._apart.get(self._first).has_started and self._level in _WALLED:
            most = self._opened.processes
            return Refusal("processes", f"more than {most} at once of its own processes", f"Add processes={2 * most}")
        if error.errno == errno.EFBIG or (error.errno == errno.ENOSPC and self._level == "strict"):
            size = self._opened.tmp_bytes // 1024**2
            return Refusal("tmp", f"more than {size} MB in /tmp", f'Add tmp="{2 * size}MB"')
        path = error.filename
        if self._level not in _WALLED or not isinstance(path, (str, bytes)):
            return None
        path = os.path.abspath(os.fsdecode(path))
        is_own = _is_below(path, (self.tmp,)) and not _is_below(path, (self._root,))
        if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
            return None if is_own else _file(path)
        if error.errno == errno.ENOENT and self._level == "strict":
            visible = (self.tmp, *readable(self._root).whole)
            return None if _is_below(path, visible) else _file(path)
        return None


def told(refusal: Refusal, file: str, line: int, ending: str) -> str:
    """The sentence that an error starts with."""
    where = f" to @queue ({file}:{line})" if refusal.is_option else ""
    return f"blocked by echod: {refusal.said}. {refusal.remedy}{where}. It ended as {ending}"


def _to(host: str, port: int | None, ports: tuple[int, ...] = ()) -> Refusal:
    place = "" if not host else f" to {host}" if port is None else f" to {host}:{port}"
    wanted = "True" if port is None else str(sorted({*ports, port}))
    return Refusal("network", f"network{place}", f"Add network={wanted}")


def _file(path: str) -> Refusal:
    hint = "A function reads its own folder and writes to /tmp; put the file beside the code, or send it as payload"
    return Refusal("files", f"the file {path}", hint, is_option=False)


def _is_wrapped() -> bool:
    """Whether the socket being made goes around a descriptor that is there already: a pair's end, an accepted one."""
    frame = sys._getframe(3)  # the maker of the socket: _is_wrapped, _network and _heard are ours
    return frame.f_code.co_name == "__init__" and frame.f_locals.get("fileno") is not None


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


def _is_below(path: str, folders: tuple[str, ...]) -> bool:
    return any(path == folder or path.startswith(folder + os.sep) for folder in folders)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception and those it came from, each once."""
    ahead, seen = [error], set[int]()
    while ahead and len(seen) < _MAX_CHAIN:
        each = ahead.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        ahead += [other for other in (each.__cause__, each.__context__) if other is not None]
        if isinstance(each, BaseExceptionGroup):
            ahead += cast("BaseExceptionGroup[BaseException]", each).exceptions
