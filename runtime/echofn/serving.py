"""How a worker's runs are begun and ended: one after the other for a sync function, side by side on one loop for an
async one.

Both keep the order that frames promise, listen before they begin anything (a Stop comes before the next job, not after
the batch), and end what a run left running: the sync worker after each run, the async one whenever nobody runs, since
what runs side by side cannot be told apart from outside. A process is killed; a thread cannot be, so the worker that
has one takes no more jobs and ends. So does one whose folder is filling: what is in it may be the module's own.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, NoReturn, cast

from echofn import processes
from echofn.channel import Inbox
from echofn.faults import message_of, raw, type_of
from echofn.frames import OUTSIDE, Begun, Job, Listens, framed
from echofn.room import BYTES_A_FILE, used_bytes
from echofn.run import Run, disarm

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Collection

    from echofn.worker import Session


THREAD_ENDS_S = 0.05  # one that has done its work is a moment from its end


LEFT_SHARE = 8  # of tmp=: what runs may leave in a worker's folder before it ends, so that the next has its own room


class Litter:
    """The processes, threads and files that runs leave behind."""

    def __init__(self, level: str, tmp_bytes: int) -> None:
        self._pid = os.getpid()
        self._tmp = os.environ["TMPDIR"]
        self._is_private = level == "strict"  # a filesystem of its own, which counts by itself
        self._first_change = os.stat(self._tmp).st_mtime_ns
        self._most_left = self._used_bytes(tmp_bytes) + tmp_bytes // LEFT_SHARE  # beside what was there at first
        self._sees_processes = level in {"off", "minimal"}
        self._spared: frozenset[int] = frozenset()  # processes started at import: part of the module's state
        self._beside: set[int] = set()  # children of the base that it has been told of
        self._threads = set(threading.enumerate())  # likewise spared
        if self._sees_processes and processes.has_children():
            self._spared = frozenset(processes.descendants(self._pid))

    def is_child(self) -> bool:
        """Whether this is a child that a handler forked, and that came back here."""
        return os.getpid() != self._pid

    def is_left(self) -> bool:
        """Clear up. True where something is left that cannot be seen from in here: it ends with this process."""
        if not self._sees_processes:
            return processes.has_children() and not processes.reaped_all()
        if processes.has_children():
            processes.end_below(self._spared)
        self._tell_of_strangers()  # last: what did not stay below this process is there by now
        return False

    def has_threads(self) -> bool:
        """Whether runs left threads that Python would wait for at its end. One that is to outlive its run says so by
        being a daemon; a pool's (concurrent.futures) are the module's, and wait for more.
        """
        threads = threading.enumerate()
        if len(threads) == 1:
            return False
        pooled: object = getattr(sys.modules.get("concurrent.futures.thread"), "_threads_queues", ())
        spared = {*self._threads, *cast("Collection[threading.Thread]", pooled)}
        until = time.monotonic() + THREAD_ENDS_S
        for thread in threads:
            if not thread.daemon and thread not in spared:
                thread.join(max(until - time.monotonic(), 0))
                if thread.is_alive():
                    return True
        return False

    def is_full(self) -> bool:
        """Whether runs left so much in the worker's folder that the next would be ended for it."""
        try:
            if not self._is_private and os.stat(self._tmp).st_mtime_ns == self._first_change:
                return False  # nothing was ever made there
            return self._used_bytes(self._most_left) > self._most_left
        except OSError:
            return True  # a handler has seen to it that nobody can look

    def _used_bytes(self, enough: int) -> int:
        if not self._is_private:
            return used_bytes(self._tmp, enough)
        room = os.statvfs(self._tmp)
        return (room.f_blocks - room.f_bfree) * room.f_frsize + (room.f_files - room.f_ffree) * BYTES_A_FILE

    def _tell_of_strangers(self) -> None:
        """Where no filter refuses CLONE_PARENT, a handler can start a process beside this one. Only the base knows
        which of its children are workers: of a new one it is told, by the signal that has it look after them.
        """
        base = os.getppid()
        beside = processes.children_of_one_thread(base)
        if beside is None or not beside <= self._beside:
            os.kill(base, signal.SIGCHLD)
        self._beside = beside or set()


class OneByOne:
    """Serves a sync function."""

    def __init__(self, session: Session, inbox: Inbox, litter: Litter) -> None:
        self._session, self._inbox, self._litter = session, inbox, litter
        self._current: Run | None = None
        inbox.on_cancel = self._told
        session.is_asked = self._is_asked

    def serve(self) -> None:
        """Run jobs until told to stop."""
        inbox, taken = self._inbox, None
        while True:
            while taken is None:
                if inbox.stopping:
                    return
                if (taken := inbox.take()) is None:
                    inbox.listen(wait=True)
                else:
                    self._session.send(framed(Begun(taken[0])))
            taken = self._run(*taken)

    def _run(self, index: int, job: Job) -> tuple[int, Job] | None:
        """One run and its answer. Gives the next job where its Begun went out in the same write."""
        self._current = run = self._session.run_of(index, job, self._inbox.now_ms)
        self._session.marks.follow(index)
        ended = run.go()
        if self._litter.is_child():
            os._exit(0)
        is_left = self._litter.is_left()
        is_last = is_left or self._litter.has_threads() or self._litter.is_full()
        run.lines.close()
        self._current = None
        if is_last:
            self._session.send(framed(ended))
            if not is_left:
                self._session.leave()
            os._exit(0)
        if self._inbox.waiting:
            self._inbox.listen(wait=False)
        following = self._inbox.take()
        self._session.send(framed(ended) if following is None else framed(ended) + framed(Begun(following[0])))
        return following

    def _told(self, index: int) -> None:
        if self._current is not None and self._current.index == index:
            self._current.asked = True

    def _is_asked(self, run: Run) -> bool:
        """The answer to ctx.cancelled: what the supervisor has written is there to be read, in any thread."""
        if not run.listens:
            run.listens = True
            run.lines.send(framed(Listens(run.index)))
        if not run.asked and not run.lines.closed:
            self._inbox.glance()
        run.saw = run.saw or run.asked
        return run.asked


class SideBySide:
    """Serves an async function: up to `at_once` runs on the worker's loop."""

    def __init__(self, session: Session, inbox: Inbox, litter: Litter, descriptor: int) -> None:
        self._session, self._inbox, self._litter = session, inbox, litter
        self._at_once = session.function.at_once
        self._descriptor = descriptor
        self._runs: dict[int, tuple[Run, asyncio.Task[None]]] = {}
        self._marked = OUTSIDE
        self._thread = threading.get_ident()
        self._loop = session.loop.get()
        inbox.on_cancel = self._told
        session.is_asked = self._is_asked

    def serve(self) -> None:
        """Run jobs until told to stop and nothing runs any more."""
        self._loop.add_reader(self._descriptor, self._readable)
        while not (self._inbox.stopping and not self._runs):
            try:
                self._loop.run_forever()
            except BaseException as error:  # an exit in a task of a handler's: its own affair
                mask = self._session.mask
                raw(2, f"echod worker: the loop goes on after {type_of(error, mask)}: {message_of(error, mask)}\n")
            if self._litter.is_child():
                os._exit(0)
        self._loop.remove_reader(self._descriptor)

    def _readable(self) -> None:
        self._inbox.listen(wait=False)
        self._begin(b"")

    def _begin(self, data: bytes) -> None:
        """Begin what there is room for; `data` goes out before, in the same write."""
        fresh: list[Run] = []
        while len(self._runs) + len(fresh) < self._at_once and (taken := self._inbox.take()) is not None:
            index, job = taken
            fresh.append(self._session.run_of(index, job, self._inbox.now_ms))
            data += framed(Begun(index))
        if data:
            self._session.send(data)
        for run in fresh:
            task = self._loop.create_task(run.attend(), context=run.within)
            self._runs[run.index] = (run, task)
            task.add_done_callback(partial(self._done, run), context=self._session.context)
        self._mark()
        if self._inbox.stopping and not self._runs:
            self._loop.stop()

    def _done(self, run: Run, task: asyncio.Task[None]) -> None:
        """A run is over: its answer, and the next ones begun."""
        if self._litter.is_child():
            os._exit(0)
        if not task.cancelled():
            task.exception()  # noted in the run; asked for, so that asyncio does not warn
        ended = run.over()
        run.lines.close()
        del self._runs[run.index]
        if not self._runs:
            disarm()
            if self._litter.is_left():
                self._session.send(framed(ended))
                os._exit(0)
            self._inbox.stopping = self._inbox.stopping or self._litter.has_threads() or self._litter.is_full()
        if self._inbox.waiting:
            self._inbox.listen(wait=False)
        self._begin(framed(ended))

    def _mark(self) -> None:
        """Of several runs nobody can say which writes past Python."""
        whose = next(iter(self._runs)) if len(self._runs) == 1 else OUTSIDE
        if whose != self._marked and self._runs:
            self._session.marks.follow(whose)
            self._marked = whose

    def _told(self, index: int) -> None:
        run, task = self._runs.get(index, (None, None))
        if run is not None and task is not None and task.cancel():
            run.asked = run.saw = True
            self._session.send(framed(Listens(index)))

    def _is_asked(self, run: Run) -> bool:
        """The answer to ctx.cancelled. A handler that keeps the loop busy looks for itself; a thread leaves that to
        the loop."""
        if not run.asked and not run.lines.closed and threading.get_ident() == self._thread:
            self._inbox.glance()
            if self._inbox.waiting or self._inbox.stopping:
                self._loop.call_soon(self._begin, b"", context=self._session.context)
        return run.asked


def serve(session: Session, inbox: Inbox, level: str, descriptor: int) -> NoReturn:
    """The rest of a worker's life, once it is ready."""
    litter = Litter(level, session.function.policy.tmp_bytes)
    if session.function.is_async:
        SideBySide(session, inbox, litter, descriptor).serve()
    else:
        OneByOne(session, inbox, litter).serve()
    session.leave()
    os._exit(0)
