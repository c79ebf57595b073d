"""One run: from a job to the one answer it gets.

The handler is user code: whatever it raises, returns or leaves behind becomes an `Ended`, and nothing of it touches
the next run. A result that cannot be stored ends the job as dead with cause `result`: its side effects have happened,
and a blind retry would repeat them to fail the same way again.
"""

from __future__ import annotations

import contextvars
import inspect
import resource
import signal
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from echofn import capture, codec, delivery
from echofn.children import Children
from echofn.context import Context
from echofn.faults import MAX_MESSAGE, fault_of, message_of, safe, traceback_of, type_of
from echofn.frames import MAX_RESULT_BYTES, Ended, Fault, Job, Progress, framed
from echofn.masking import Mask, leaves_of
from echofn.refusals import Refusal, told
from echofn.verdicts import Cancel, Fail, Retry, Snooze, Verdict

if TYPE_CHECKING:
    import asyncio

    from echofn.worker import Session


class Run:
    """What belongs to one run and is over with it."""

    __slots__ = ("_children", "_cpu", "_late_progress", "_start", "index", "job", "lines", "mask", "now_ms", "session")

    def __init__(self, session: Session, index: int, job: Job, now_ms: int) -> None:
        self.session = session
        self.index = index
        self.job = job
        self.now_ms = now_ms  # the bus's clock when this run began
        self._start = time.perf_counter()
        self._cpu = time.process_time()
        redact = session.function.policy.redact
        self.mask = Mask(leaves_of(job.payload, redact), also=session.mask) if redact else session.mask
        self.lines = capture.Lines(index, session.send, self._start, self.mask)
        self._children: Children | None = None
        self._late_progress: tuple[float, str] | None = None

    @property
    def children(self) -> Children:
        """Where ctx.enqueue puts the jobs it makes. Few runs make any."""
        with self.lines.lock:
            if self._children is None:
                self._children = Children(self.job.first_child, self.session.folder.package)
                if self.lines.closed:
                    self._children.close()
            return self._children

    def progress(self, fraction: float, note: str, *, at_once: bool) -> None:
        """Told now, or with the end if nothing newer comes."""
        with self.lines.lock:
            self._late_progress = None if at_once else (fraction, note)
            if at_once:
                self.lines.send(framed(Progress(self.index, fraction, safe(self.mask.text(note), 1_000))))

    def go(self) -> Ended:
        """Run the handler. Nothing it does comes out of here as an exception."""
        within = contextvars.Context()
        within.run(capture.current.set, self.lines)
        self.session.refusals.begin()
        try:
            told = self._outcome(within)
        except BaseException as error:
            told = within.run(self._failed, error)
        if signal.getitimer(signal.ITIMER_REAL)[0]:
            signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm that a handler set goes off in its own run or never
        return self._ended(told)

    def _outcome(self, within: contextvars.Context) -> dict[str, Any]:
        """Payload in, call, result out. Raises what the handler raises."""
        shape = self.session.shape
        payload = None
        if shape.takes_payload:
            try:
                payload = codec.decode(self.job.payload)
                if self.session.hears_webhooks and delivery.is_request(payload):
                    payload = within.run(delivery.delivered, payload, shape.payload_type)
                elif shape.payload_type is not Any:
                    payload = within.run(codec.convert, payload, shape.payload_type)
            except (codec.Unfit, msgspec.DecodeError) as error:
                text = f"payload does not fit {self.session.function.name}: {message_of(error, self.mask)}"
                return {"outcome": "dead", "fault": Fault("PayloadError", safe(text, MAX_MESSAGE), "", "payload")}
        value = within.run(shape.call, payload, Context(self) if shape.takes_context else None)
        if inspect.iscoroutine(value):
            value = self.session.loop.run(value, within)
        try:
            data = codec.encode(value, MAX_RESULT_BYTES, "result")
        except codec.Unfit as error:
            text = message_of(error, self.mask)
            return {"outcome": "dead", "fault": Fault("ResultError", text, "", "result")}
        return {"outcome": "done", "result": data, "children": self._children.close() if self._children else ()}

    def _failed(self, error: BaseException) -> dict[str, Any]:
        try:
            if not isinstance(error, (Snooze, Cancel)) and (refusal := self.session.refusals.behind(error)):
                return self._blocked(refusal, error)
            if isinstance(error, Verdict):
                return self._verdict(error)
        except BaseException as broken:  # a subclass of a verdict with ideas of its own
            error = broken
        return {"outcome": "retry", "fault": fault_of(error, self.session.folder, self.session.asker, self.mask)}

    def _blocked(self, refusal: Refusal, error: BaseException) -> dict[str, Any]:
        """A wall stood in the way: another run would meet it again."""
        function, ending = self.session.function, f"{type_of(error)}: {message_of(error, self.mask)}"
        message = safe(self.mask.text(told(refusal, function.file, function.line, ending)), MAX_MESSAGE)
        trace = traceback_of(error, self.session.folder, self.mask)
        return {"outcome": "dead", "fault": Fault(type_of(error), message, trace, f"wall:{refusal.wall}")}

    def _verdict(self, verdict: Verdict) -> dict[str, Any]:
        after_ms, reason = verdict.after_ms, safe(self.mask.text(verdict.reason), MAX_MESSAGE)
        if not (after_ms is None or type(after_ms) is int):
            raise TypeError(f"expected whole milliseconds in a verdict, got {after_ms!r:.100}")
        match verdict:
            case Snooze():
                return {"outcome": "delay", "after_ms": after_ms, "reason": reason}
            case Cancel():
                return {"outcome": "cancelled", "reason": reason}
            case Fail() | Retry() | _:
                text = reason or ("the handler asked for another run" if isinstance(verdict, Retry) else "")
                trace = traceback_of(verdict, self.session.folder, self.mask)
                fault = Fault(type_of(verdict), text, trace, "error")
                if isinstance(verdict, Fail):
                    return {"outcome": "dead", "reason": reason, "fault": fault}
                return {"outcome": "retry", "after_ms": after_ms, "reason": reason, "fault": fault}

    def _ended(self, told: dict[str, Any]) -> Ended:
        if self._children:
            self._children.close()
        if self._late_progress is not None:
            self.progress(*self._late_progress, at_once=True)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return Ended(
            self.index,
            wall_us=int((time.perf_counter() - self._start) * 1_000_000),
            cpu_us=max(int((usage.ru_utime + usage.ru_stime - self._cpu) * 1_000_000), 0),
            peak_bytes=usage.ru_maxrss * 1024,  # of the process so far: in a warm worker, of earlier runs too
            **told,
        )


class Loop:
    """The one event loop of a worker, made when the first coroutine comes."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any], within: contextvars.Context) -> Any:
        """Await the coroutine in the run's own context."""
        if self._loop is None or self._loop.is_closed():
            import asyncio  # a sync function never pays for it

            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        task = self._loop.create_task(coroutine, context=within)
        while True:
            try:
                return self._loop.run_until_complete(task)
            except RuntimeError:
                if task.done() or self._loop.is_closed():
                    raise
                # A handler stopped the loop; that is not its to do, and the next run must not feel it.
            except BaseException:
                task.cancel()  # an exit from another task went through the loop: ours must not wake up in a later run
                raise
