"""Exceptions as text: bounded, safe to encode, and never able to fail themselves.

A traceback begins at the handler's own code (the runtime's frames say nothing to its author) and names files by their
path in the folder. What an exception says about itself is user code: every call into it is guarded.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Set
from types import TracebackType
from typing import NamedTuple

from echofn.frames import Fault
from echofn.masking import Mask
from echofn.package import Folder

MAX_MESSAGE = 8_000
MAX_TRACEBACK = 32_000
NO_THREAD = "can't start new thread"
_STDLIB = os.path.dirname(os.__file__) + os.sep
_MACHINERY = (
    os.path.dirname(os.path.abspath(__file__)) + os.sep,
    "<frozen importlib",
    *(_STDLIB + n for n in ("importlib", "asyncio")),
)
_LOOK_UP = type(os.environ).__getitem__.__code__
_PREFIXES = sorted({p + os.sep for p in (*sys.path, sys.prefix, sys.base_prefix) if p}, key=len, reverse=True)


class Asker(NamedTuple):
    """Whose code asks for variables: those it names, and the annotation where another can be named."""

    named: Set[str]
    kind: str  # queue | webhook | cron | every
    file: str
    line: int
    memory_bytes: int = 0  # that it may have; 0 where nothing bounds it, or no option opens it


def safe(text: str, limit: int) -> str:
    """Text that UTF-8 can hold, of at most `limit` characters, saying so where it was cut."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= limit else f"{text[: limit - 40]}… ({len(text):,} characters, cut)"


def message_of(error: BaseException, mask: Mask) -> str:
    """str() of an exception, whatever that does."""
    try:
        text = str(error)
        return safe(mask.text(text if type(text) is str else str.__str__(text)), MAX_MESSAGE)
    except BaseException as again:
        return f"<an exception whose text cannot be had: str() raised {type_of(again, mask)}>"


def type_of(error: BaseException, mask: Mask | None = None) -> str:
    """The name of its type, which user code may have made of anything."""
    try:
        name = str(type(error).__qualname__)
        return safe(mask.text(name) if mask is not None else name, 200)
    except BaseException:
        return "exception"


def fault_of(error: BaseException, folder: Folder, asker: Asker, mask: Mask) -> Fault:
    """The exception as a reader sees it."""
    return Fault(
        type_of(error, mask), explained(error, asker, mask), traceback_of(error, folder, mask), cause_of(error, asker)
    )


def cause_of(error: BaseException, asker: Asker) -> str:
    """`memory` for what runs out of it, else `error`."""
    return "memory" if isinstance(error, MemoryError) or _is_starved(error, asker) else "error"


def explained(error: BaseException, asker: Asker, mask: Mask) -> str:
    """What an exception says, with what to do about it where that is known."""
    text = message_of(error, mask)
    if _is_starved(error, asker):
        size = asker.memory_bytes // 1024**2
        what = "its stack and all else take more" if isinstance(error, RuntimeError) else "asked for more"
        limit = f'{what} than {size} MB of memory. Add memory="{2 * size}MB" to @queue ({asker.file}:{asker.line})'
        return f"{text}: {limit}" if text else limit
    return text + _advice(error, asker, mask)


def _is_starved(error: BaseException, asker: Asker) -> bool:
    """Whether a run met the limit of its memory. Of threads, where it is not their number (see traces.py)."""
    if not asker.memory_bytes:
        return False
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and error.args == (NO_THREAD,))


def traceback_of(error: BaseException, folder: Folder, mask: Mask) -> str:
    """The formatted traceback from the first frame of user code on."""
    try:
        told = traceback.TracebackException(type(error), error, _from_user_code(error.__traceback__), limit=-60)
        _rename(told, folder, depth=0)
        text = "".join(told.format())
    except BaseException:
        return f"{type_of(error, mask)}: {message_of(error, mask)}\n"
    text = mask.text(text).encode("utf-8", "backslashreplace").decode()
    if len(text) > MAX_TRACEBACK:
        half = MAX_TRACEBACK // 2
        text = f"{text[:half]}\n… {len(text) - 2 * half:,} characters cut …\n{text[-half:]}"
    return text


def line_in(error: BaseException, file: str) -> int | None:
    """The line of `file` that an exception went through last."""
    line, at = None, error.__traceback__
    while at is not None:
        if at.tb_frame.f_code.co_filename == file:
            line = at.tb_lineno
        at = at.tb_next
    return line


def _advice(error: BaseException, asker: Asker, mask: Mask) -> str:
    """What to do about a variable that is not there: only those that secrets= names are."""
    name = missing_variable(error)
    if name is None:
        return ""
    if name in asker.named:
        return " is named in secrets=, but not set where echod runs: set it there (`echod dev` reads .env)"
    option = f'secrets=["{safe(mask.text(name), 100)}"]'
    what = f"{option} to @{asker.kind}" if asker.kind in ("queue", "webhook") else f"@queue({option})"
    return f" is not in the environment here; add {what} ({asker.file}:{asker.line}) and set it where echod runs"


def missing_variable(error: BaseException) -> str | None:
    """The variable whose `os.environ["…"]` an exception is."""
    if not isinstance(error, KeyError) or len(error.args) != 1 or not isinstance(error.args[0], str):
        return None
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return str(error.args[0]) if at is not None and at.tb_frame.f_code is _LOOK_UP else None


def raw(descriptor: int, text: str | bytes) -> None:
    """All of the text, past any buffer, to a descriptor."""
    data = memoryview(text.encode("utf-8", "backslashreplace") if isinstance(text, str) else text)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        pass  # nobody reads any more


def _from_user_code(at: TracebackType | None) -> TracebackType | None:
    first = at
    while at is not None and at.tb_frame.f_code.co_filename.startswith(_MACHINERY):
        at = at.tb_next
    return at or first


def _rename(told: traceback.TracebackException, folder: Folder, depth: int) -> None:
    for frame in told.stack:
        frame.filename = path_shown(frame.filename, folder)
    if depth < 20:
        for other in (told.__cause__, told.__context__, *(told.exceptions or ())):
            if other is not None:
                _rename(other, folder, depth + 1)


def path_shown(file: str, folder: Folder) -> str:
    """A file in a traceback: by its path in the folder, or below where packages and the library are."""
    inside = folder.relative(file)
    if inside is not None:
        return inside
    return next((file[len(prefix) :] for prefix in _PREFIXES if file.startswith(prefix)), os.path.basename(file))
