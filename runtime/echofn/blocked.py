"""What a wall refused a run, in the words of its author: what it was, where, and what opens it or stands in for it."""

from __future__ import annotations

from typing import NamedTuple

from echofn.quoting import hidden

_MAX_WHAT = 300
FEWER_THREADS = "Nothing opens more: a pool (concurrent.futures.ThreadPoolExecutor) or asyncio does with fewer"
_ELSEWHERE = "write below $TMPDIR, as tempfile does"


class Refusal(NamedTuple):
    """What was refused, by which wall, and what to do about it."""

    wall: str  # network | unix | processes | threads | files | tmp | calls
    what: str  # "network to api.stripe.com:443"; whole, however long: `said` is for people
    remedy: str  # "Add network=[443]"; where no option opens it, what to do instead
    is_option: bool = True  # the remedy is an option of @queue
    at: str = ""  # "billing.py:12", the line that ran into it, where no option has a place

    @property
    def said(self) -> str:
        """What was refused, masked and then cut."""
        return hidden(self.what, _MAX_WHAT)


def told(refusal: Refusal, file: str, line: int, ending: str) -> str:
    """The sentence that an error starts with."""
    where = f" to @queue ({file}:{line})" if refusal.is_option else ""
    at = f" ({refusal.at})" if refusal.at else ""
    return f"blocked by echod: {refusal.said}{at}. {refusal.remedy}{where}. It ended as {ending}"


def network(host: str, port: int | None, ports: tuple[int, ...] = ()) -> Refusal:
    place = "" if not host else f" to {host}" if port is None else f" to {host}:{port}"
    wanted = "True" if port is None else str(sorted({*ports, port}))
    return Refusal("network", f"network{place}", f"Add network={wanted}")


def unix_socket(at: str) -> Refusal:
    hint = (
        "Unix sockets are always closed, the bus is behind one: reach the service over TCP, with network=[PORT]; "
        "within a run socket.socketpair() works"
    )
    return Refusal("unix", "a unix socket", hint, is_option=False, at=at)


def program(name: str, at: str) -> Refusal:
    hint = (
        "Only system programs and the interpreter run, nothing of the function's folder or $TMPDIR: hand it to one, as "
        'in ["sh", "run.sh"] or [sys.executable, "run.py"]'
    )
    return Refusal("processes", f"running {name}", hint, is_option=False, at=at)


def threads(most: int, at: str) -> Refusal:
    return Refusal("threads", f"more than {most} threads", FEWER_THREADS, is_option=False, at=at)


def file(path: str, at: str) -> Refusal:
    hint = f"A function reads its own folder: put the file beside the code, or send it as payload; {_ELSEWHERE}"
    return Refusal("files", f"the file {path}", hint, is_option=False, at=at)


def writing(path: str, at: str) -> Refusal:
    """Into what can be read: the function's own folder, packages."""
    hint = f"A function's code and packages are for reading, each run has them in common: {_ELSEWHERE}"
    return Refusal("files", f"writing to {path}", hint, is_option=False, at=at)


def shared_tmp(path: str, tmp: str, at: str) -> Refusal:
    hint = (
        f"Here /tmp is the machine's, and closed: {_ELSEWHERE}, or by a relative path. $TMPDIR, $HOME and the working "
        f"folder are {tmp}, this function's own; only at strict is that /tmp"
    )
    return Refusal("files", f"the file {path}", hint, is_option=False, at=at)


def shared_memory(at: str) -> Refusal:
    hint = (
        "Locks, queues and pools of multiprocessing need it: use those of threading, queue and concurrent.futures, "
        "or processes of their own (subprocess) and pipes"
    )
    return Refusal("calls", "shared memory", hint, is_option=False, at=at)


def unnamed(wall: str, what: str, at: str) -> Refusal:
    """Of which no more is known than that the system said no, and where."""
    hint = "No option opens it; docs/sandbox.md lists what is closed, and what to use instead"
    return Refusal(wall, what, hint, is_option=False, at=at)
