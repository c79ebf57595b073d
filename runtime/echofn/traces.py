"""What an exception shows of a wall: refused files, and what no audit event tells of.

A system that says no without a name may say it for reasons of the program's own. What Python code raises by itself
(a client that translates a remote's answer) is no refusal, nor is what a call says that its function has opened.
"""

from __future__ import annotations

import _thread
import errno
import opcode
import os
import resource
import threading
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import NamedTuple, cast
from urllib.parse import unquote

from echofn import blocked
from echofn.blocked import Refusal
from echofn.faults import NO_THREAD
from echofn.walls import Openings
from echofn.walls.process import THREADS
from echofn.walls.reach import SYSTEM, interpreter, readable

_WALLED = frozenset({"standard", "strict"})
_MAX_CHAIN = 20
_NEARLY = THREADS - 16  # libraries in C have threads that Python does not count
_STACK = 2 << 20  # the C library's, where the system gives no size, see pthread_create(3)
_RAISE = opcode.opmap["RAISE_VARARGS"]
_NO_FILE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_SHARED_MEMORY = ("/multiprocessing/synchronize.py", "/multiprocessing/shared_memory.py")
_NO_DATABASE = frozenset({3, 8, 14})  # SQLITE_PERM, SQLITE_READONLY, SQLITE_CANTOPEN
_CERTIFICATES = ("cafile", "capath")  # what ssl calls the files that it was given


class Noted:
    """What the audit hook saw of a run: its first refusal, and what tells later whether there was one."""

    __slots__ = ("database", "has_started", "own_call", "program", "refusal")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.refusal: Refusal | None = None
        self.has_started = False  # processes, which its function has opened
        self.program = ""  # the last of them
        self.database = ""  # the last that sqlite3 was to open
        self.own_call: tuple[CodeType, int] | None = None  # the last that can be refused for reasons of its own


class Bounds(NamedTuple):
    """What holds for a worker."""

    level: str
    opened: Openings
    root: str
    tmp: str  # as user code sees it

    def is_own(self, path: str) -> bool:
        """Whether the function may write there."""
        return _is_below(path, (self.tmp,)) and not (
            _is_below(path, (self.root,)) and _is_below(self.root, (self.tmp,))
        )


def refusal_in(error: BaseException, noted: Noted, bounds: Bounds) -> Refusal | None:
    """The refusal that an exception, or one it came from, shows; None where it shows none."""
    if bounds.level == "off":
        return None
    return next(filter(None, (_shown(each, noted, bounds) for each in _chain(error))), None)


def line_of(frame: FrameType | None, root: str) -> str:
    """The innermost line of the function's own folder, as `billing.py:12`; empty where there is none."""
    while frame is not None:
        if at := _line(frame.f_code.co_filename, frame.f_lineno, root):
            return at
        frame = frame.f_back
    return ""


def _shown(error: BaseException, noted: Noted, bounds: Bounds) -> Refusal | None:
    is_walled = bounds.level in _WALLED
    if isinstance(error, RuntimeError):
        if not is_walled or error.args != (NO_THREAD,) or not _has_room_for_threads(bounds):
            return None
        return blocked.threads(THREADS + bounds.opened.processes, _line_in(error, bounds))
    if not isinstance(error, OSError):
        return _database(error, noted, bounds) if is_walled and noted.database else None
    if error.errno == errno.EAGAIN and noted.has_started and is_walled:
        most = bounds.opened.processes
        return Refusal("processes", f"more than {most} at once of its own processes", f"Add processes={2 * most}")
    if error.errno == errno.EFBIG or (error.errno == errno.ENOSPC and bounds.level == "strict"):
        size = bounds.opened.tmp_bytes // 1024**2
        return Refusal("tmp", f"more than {size} MB in /tmp", f'Add tmp="{2 * size}MB"')
    if not is_walled:
        return None
    if _innermost(error).filename.endswith(_SHARED_MEMORY) and error.errno in {*_NO_FILE, errno.ENOENT, errno.ENOSYS}:
        return blocked.shared_memory(_line_in(error, bounds))
    if isinstance(error.filename, (str, bytes)):
        return _named(error, os.fsdecode(error.filename), noted, bounds)
    return _unnamed(error, noted, bounds)


def _has_room_for_threads(bounds: Bounds) -> bool:
    """Whether it is their number that keeps one from starting, and not the memory that their stacks take."""
    if _thread._count() >= _NEARLY:
        return True
    default = resource.getrlimit(resource.RLIMIT_STACK)[0]
    stack = threading.stack_size() or (_STACK if default == resource.RLIM_INFINITY else default)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return THREADS * stack + used <= bounds.opened.memory_bytes


def _named(error: OSError, name: str, noted: Noted, bounds: Bounds) -> Refusal | None:
    path = os.path.abspath(name)
    if name == noted.program and error.errno in {errno.EACCES, errno.EPERM, errno.ENOENT}:
        return _program(error, name, path, bounds)
    inner = _innermost(error)
    if inner.is_raised and not inner.filename.endswith("/subprocess.py"):  # which tells what its child met
        return None
    if error.errno in _NO_FILE:
        return None if bounds.is_own(path) else _file(path, error, bounds)
    if error.errno == errno.ENOENT and bounds.level == "strict":
        return None if bounds.is_own(path) or _is_in_sight(path, bounds) else _file(path, error, bounds)
    return None


def _program(error: OSError, name: str, path: str, bounds: Bounds) -> Refusal | None:
    """A program that did not start. One that is not there, or a system program without that right, is no refusal."""
    if os.sep in name and _is_below(path, (*SYSTEM, *interpreter())):
        return None
    if error.errno == errno.ENOENT:
        is_hidden = os.sep in name and not bounds.is_own(path) and not _is_in_sight(path, bounds)
        if bounds.level != "strict" or not is_hidden:
            return None
    return blocked.program(name, _line_in(error, bounds))


def _unnamed(error: OSError, noted: Noted, bounds: Bounds) -> Refusal | None:
    """The system said no, and not to what."""
    is_denial = type(error) is PermissionError and error.errno in {errno.EACCES, errno.EPERM}
    is_denial = is_denial or (type(error) is OSError and error.errno == errno.ENOSYS)
    inner = _innermost(error)
    if inner.given and (is_denial or (error.errno == errno.ENOENT and bounds.level == "strict")):
        path = os.path.abspath(inner.given)
        return None if bounds.is_own(path) or _is_in_sight(path, bounds) else _file(path, error, bounds)
    if not is_denial or inner.is_raised or inner.call == noted.own_call:
        return None
    at = _line_in(error, bounds)
    if error.errno == errno.EACCES:  # Landlock's; the filter of system calls says EPERM
        return blocked.unnamed("files", "a file that the error does not name", at)
    return blocked.unnamed("calls", "a system call", at)


def _database(error: BaseException, noted: Noted, bounds: Bounds) -> Refusal | None:
    """A database that sqlite3 could not open or write: its errors name no file."""
    code = getattr(error, "sqlite_errorcode", None)
    if type(error).__module__ != "sqlite3" or type(code) is not int or code & 0xFF not in _NO_DATABASE:
        return None
    name, options = noted.database, ""
    if name.startswith("file:"):
        name, _, options = name.removeprefix("file:").partition("?")
        name = unquote(name)
    if name in {"", ":memory:"} or "mode=memory" in options:
        return None
    path = os.path.abspath(name)
    if bounds.is_own(path) or ("mode=ro" in options and _is_in_sight(path, bounds) and not os.path.exists(path)):
        return None
    return _file(path, error, bounds)


def _file(path: str, error: BaseException, bounds: Bounds) -> Refusal:
    at = _line_in(error, bounds)
    if _is_in_sight(path, bounds):
        return blocked.writing(path, at)
    if bounds.level != "strict" and _is_below(path, ("/tmp",)):
        return blocked.shared_tmp(path, bounds.tmp, at)
    return blocked.file(path, at)


def _is_in_sight(path: str, bounds: Bounds) -> bool:
    """Whether the function may read it."""
    return _is_below(path, readable(bounds.root).whole)


class _Inner(NamedTuple):
    """Where an exception was raised."""

    filename: str = ""
    is_raised: bool = True  # by Python code; else by a call of the system
    call: tuple[CodeType, int] | None = None
    given: str = ""  # the file that ssl was given there


def _innermost(error: BaseException) -> _Inner:
    at = error.__traceback__
    if at is None:
        return _Inner()  # never raised here
    while at.tb_next is not None:
        at = at.tb_next
    frame, code = at.tb_frame, at.tb_frame.f_code
    given = ""
    if code.co_filename == os.path.join(os.path.dirname(os.__file__), "ssl.py"):
        given = next((each for name in _CERTIFICATES if isinstance(each := frame.f_locals.get(name), str)), "")
    return _Inner(code.co_filename, code.co_code[at.tb_lasti] == _RAISE, (code, at.tb_lasti), given)


def _line_in(error: BaseException, bounds: Bounds) -> str:
    """The line of the function's own folder that an exception came from."""
    found, at = "", error.__traceback__
    while at is not None:
        found = _line(at.tb_frame.f_code.co_filename, at.tb_lineno, bounds.root) or found
        at = at.tb_next
    return found


def _line(filename: str, line: int | None, root: str) -> str:
    inside = filename.removeprefix(root + os.sep)
    return "" if inside == filename else f"{inside.partition(os.sep)[2] or inside}:{line}"


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
