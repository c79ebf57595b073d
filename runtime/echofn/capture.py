"""Output of a run: print, logging and progress, each to the job it belongs to.

Whose line it is, a context variable says: it is set for the run, inherited by tasks, and by threads that the run
starts. A line of a run that has ended is dropped. What no run writes (the import, the lifespan and what they start) has
lines of its own, which the supervisor puts into the log of a job beside it. At most 1 MiB a run is kept, the first; the
end says what was cut. Secrets and redacted values are masked here, while a line is whole, and paths of the folder are
shown as its author knows them in lines of tracebacks; a very long line goes out in parts, none of which ends within a
value. Bytes written past us to descriptors 1 and 2 reach the supervisor's pipes, with marks between them that say whose
they are.
"""

from __future__ import annotations

import codecs
import concurrent.futures
import contextvars
import fcntl
import io
import logging
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from echofn.faults import path_shown, raw
from echofn.frames import MARK, MAX_LOG_BYTES, POSITION, Output, framed
from echofn.masking import MASK, Mask
from echofn.package import Folder
from echofn.quoting import hidden, hide_by

_MOST_UNFINISHED = 65_536  # characters of a line that wait for its end
_LINE_COST = 64  # a frame's own weight, so that a million empty lines are not free
_FIELDS = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime", "taskName"}
_FREE = 4  # the first descriptor past those that a worker has
_Decoder = codecs.getincrementaldecoder("utf-8")


class Lines:
    """The output of one run, sent as it comes."""

    __slots__ = (
        "_budget",
        "_cut_bytes",
        "_decoders",
        "_index",
        "_partial",
        "_send",
        "_start",
        "closed",
        "lock",
        "mask",
    )

    def __init__(self, index: int, send: Callable[[bytes], None], start: float, mask: Mask) -> None:
        self.lock = threading.RLock()
        self.closed = False
        self._index = index
        self._send = send
        self._start = start
        self.mask = mask
        self._budget = MAX_LOG_BYTES
        self._cut_bytes = 0
        self._partial: dict[str, str] = {}
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}

    def write(self, stream: str, text: str) -> None:
        """Text as print hands it over: whole lines go out, the rest waits for its end."""
        with self.lock:
            if self.closed:
                return
            whole, newline, rest = (self._partial.pop(stream, "") + text).rpartition("\n")
            if newline:
                self._line(stream, "", "", whole)
            if len(rest) > _MOST_UNFINISHED and (at := self.mask.seam(rest)):
                self._line(stream, "", "", rest[:at])
                rest = rest[at:]
            if rest:
                self._partial[stream] = rest

    def write_bytes(self, stream: str, data: bytes) -> None:
        """The same of text that comes as bytes: a character may be split over two writes."""
        with self.lock:
            if (decoder := self._decoders.get(stream)) is None:
                decoder = self._decoders[stream] = _Decoder("backslashreplace")
            self.write(stream, decoder.decode(data))

    def log(self, level: str, logger: str, text: str) -> None:
        with self.lock:
            if not self.closed:
                self._line("log", self.shown(level, 20), self.shown(logger, 200), text)

    def shown(self, text: str, limit: int) -> str:
        """At most `limit` characters of a text, masked while it is whole."""
        return (MASK if text and self.mask.is_all else self.mask.text(text))[:limit]

    def send(self, frame: bytes) -> bool:
        """A frame of this run that is no output (progress). False after the run's end."""
        with self.lock:
            if not self.closed:
                self._send(frame)
            return not self.closed

    def renew(self) -> None:
        """A budget as at the start: what came before must not cost the words of the end."""
        with self.lock:
            self._budget = MAX_LOG_BYTES

    def close(self) -> None:
        """The run has ended: what waits goes out, what comes later is dropped."""
        with self.lock:
            for stream, decoder in self._decoders.items():
                self.write(stream, decoder.decode(b"", final=True))
            if self._partial:
                for stream, rest in self._partial.items():
                    self._line(stream, "", "", rest)
            if self._cut_bytes:
                self._put("log", "WARNING", "echod", f"output limit of 1 MiB a run: {self._cut_bytes:,} bytes cut")
            self.closed = True

    def _line(self, stream: str, level: str, logger: str, text: str) -> None:
        text = self.mask.text(_with_known_paths(text)).encode("utf-8", "backslashreplace").decode()
        size = len(text) if text.isascii() else len(text.encode())
        cost = size + _LINE_COST * (1 + text.count("\n"))
        if cost > self._budget:
            if not self._cut_bytes:
                kept = text.encode()[: max(self._budget - _LINE_COST, 0)].decode(errors="ignore")
                kept = "\n".join(kept.split("\n", self._budget // _LINE_COST)[: self._budget // _LINE_COST])
                if kept:
                    self._put(stream, level, logger, kept)
                size -= len(kept.encode())
                self._budget = 0
            self._cut_bytes += size
            return
        self._budget -= cost
        self._put(stream, level, logger, text)

    def _put(self, stream: str, level: str, logger: str, text: str) -> None:
        since_us = int((time.perf_counter() - self._start) * 1_000_000)
        self._send(framed(Output(self._index, stream, level, logger, text, since_us)))


_FRAME = re.compile(r'^( *File ")([^"\n]+)(", line \d)', re.M)
_folder: Folder | None = None


def _with_known_paths(text: str) -> str:
    """The files in lines of a traceback, whoever wrote it, by their path in the folder, as in that of an error."""
    folder = _folder
    if folder is None or 'File "' not in text:
        return text
    return _FRAME.sub(lambda found: f"{found[1]}{path_shown(found[2], folder)}{found[3]}", text)


current: contextvars.ContextVar[Lines | None] = contextvars.ContextVar("echofn_lines", default=None)


class Marks:
    """Says between the bytes that are written past Python whose they are; the supervisor has no other sign of it.

    By descriptors of its own: a handler may have put a file of its own at 1 and 2.
    """

    def __init__(self) -> None:
        self._pipes = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, _FREE) for each in (1, 2)]

    def follow(self, index: int) -> None:
        """What follows is written by the run at this position, or by none that can be told (`OUTSIDE`)."""
        mark = MARK + POSITION.pack(index)
        for pipe in self._pipes:
            try:
                os.write(pipe, mark)
            except OSError:
                pass  # the handler has closed it


class Stream(io.TextIOBase):
    """sys.stdout and sys.stderr of a worker."""

    def __init__(self, name: str, descriptor: int) -> None:
        self._name = name
        self._descriptor = descriptor
        self._bytes = _Bytes(self)

    @property
    def stream(self) -> str:
        """stdout | stderr"""
        return self._name

    @property
    def name(self) -> str:
        return f"<{self._name}>"

    @property
    def encoding(self) -> str:  # type: ignore[override] # read-only is all there is to it
        return "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        return "backslashreplace"

    @property
    def buffer(self) -> _Bytes:
        return self._bytes

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, text: str, /) -> int:
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] # user code calls this
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        lines = current.get()
        if lines is None:
            raw(self._descriptor, text)
        elif text:
            lines.write(self._name, text if type(text) is str else str.__str__(text))
        return len(text)


class _Bytes(io.RawIOBase):
    """`sys.stdout.buffer`."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, data: Any, /) -> int:
        held, lines = bytes(data), current.get()
        if lines is None:
            raw(self.fileno(), held)
        else:
            lines.write_bytes(self._stream.stream, held)
        return len(data)


class Records(logging.Handler):
    """The root handler: level, logger, extra fields and traceback are kept."""

    def emit(self, record: logging.LogRecord) -> None:
        lines = current.get()
        try:
            text = self._text(record)
        except Exception:
            text = f"a log record that cannot be formatted: {hidden(repr(record.msg), 200)}"
        if lines is None:
            raw(2, f"{record.levelname} {record.name}: {text}\n")
        else:
            lines.log(record.levelname, record.name, text)

    def _text(self, record: logging.LogRecord) -> str:
        parts = [record.getMessage()]
        extra = [(key, value) for key, value in vars(record).items() if key not in _FIELDS]
        parts += [f"{key}={hidden(repr(value), 1000)}" for key, value in extra]
        text = " ".join(parts)
        if record.exc_info and record.exc_info[0] is not None:
            text += "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip()
        if record.stack_info:
            text += "\n" + record.stack_info
        return text


def hide(mask: Mask) -> None:
    """Have what messages quote masked by the run that they belong to, outside any by `mask`."""
    hide_by(lambda text: (mask if (lines := current.get()) is None else lines.mask).text(text))


def install(outside: Lines, folder: Folder) -> None:
    """Take over print and logging of this process, and let threads know whose they are.

    `outside` has what is written from here on and in no run; paths are shown as `folder` has them.
    """
    global _folder
    _folder = folder
    current.set(outside)
    sys.stdout, sys.stderr = Stream("stdout", 1), Stream("stderr", 2)
    root = logging.getLogger()
    root.handlers[:] = [Records()]
    root.setLevel(logging.INFO)
    logging.captureWarnings(False)
    _let_threads_inherit()


def _let_threads_inherit() -> None:
    """Threads start with an empty context, pool threads with that of whoever came first: give each the caller's."""
    start = threading.Thread.start

    def start_with_context(self: threading.Thread) -> None:
        context, run = contextvars.copy_context(), self.run

        def run_in_context() -> None:
            try:
                context.run(run)
            except BaseException:  # what threading would tell of it, outside the context
                context.run(threading.excepthook, threading.ExceptHookArgs((*sys.exc_info(), self)))

        self.run = run_in_context  # type: ignore[method-assign] # run() is the documented place to override
        start(self)

    submit: Any = concurrent.futures.ThreadPoolExecutor.submit

    def submit_with_context(self: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        return submit(self, contextvars.copy_context().run, function, *args, **kwargs)

    threading.Thread.start = start_with_context  # type: ignore[method-assign]
    concurrent.futures.ThreadPoolExecutor.submit = submit_with_context  # type: ignore[method-assign]
