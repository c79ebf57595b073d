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
from typing import TYPE_CHECKING, Any, cast

import msgspec

from echofn import capture, codec, delivery
from echofn.blocked import Refusal, told
from echofn.children import Children
from echofn.context import Context
from echofn.faults import MAX_MESSAGE, fault_of, message_of, safe, traceback_of, type_of
from echofn.frames import MAX_PAYLOAD_BYTES, MAX_RESULT_BYTES, MAX_RUN_MS, Ended, Extend, Fault, Job, Progress, framed
from echofn.masking import Mask, leaves_of
from echofn.quoting import quoted
from echofn.verdicts import Cancel, Fail, Retry, Snooze, Verdict

if TYPE_CHECKING:
    import asyncio

    from echofn.signature import Shape
    from echofn.worker import Session

TOO_LATE = "expected to extend a run that goes on, got one that is to end or has ended"


class Meter:
    """The process's CPU time, shared out equally among the runs that are under way.

    Exact for a run that is alone. Of runs side by side nobody can say whose an instant was: their bills are
    approximate, and add up.
    """

    def __init__(self) -> None:
        self._each_s = 0.0  # what a run would have been billed that was there from the start
        self._last_s = 0.0
        self._runs = 0

    def begin(self) -> float:
        """A run is there. Gives what `end` asks for."""
        self._turn(time.process_time())
        self._runs += 1
        return self._each_s

    def end(self, began_s: float, now_s: float) -> float:
        """A run is over: its CPU seconds, given the process's own."""
        self._turn(now_s)
        self._runs -= 1
        return max(self._each_s - began_s, 0.0)

    def _turn(self, now_s: float) -> None:
        if self._runs:
            self._each_s += (now_s - self._last_s) / self._runs
        self._last_s = now_s


class Run:
    """What belongs to one run and is over with it."""

    __slots__ = (
        "_children", "_cpu", "_late_progress", "_start", "_told", "asked", "extended_ms", "index", "job", "lines",
        "listens", "mask", "now_ms", "saw", "session", "within",
    )  # fmt: skip

    def __init__(self, session: Session, index: int, job: Job, now_ms: int) -> None:
        self.session = session
        self.index = index
        self.job = job
        self.now_ms = now_ms  # the bus's clock when this run began
        self.asked = False  # it is to end
        self.saw = False  # and its handler knows
        self.listens = False  # it has been told of that
        self.extended_ms = 0
        self._start = time.perf_counter()
        self._cpu = session.meter.begin()
        redact = session.function.policy.redact
        self.mask = session.mask
        if redact:
            payloads = [member.payload for member in job.members] or [job.payload]
            hidden = [leaf for each in payloads for leaf in leaves_of(each, redact)]
            self.mask = Mask(hidden, also=session.mask, is_bounded=True)
        self.lines = capture.Lines(index, session.send, self._start, self.mask)
        self.within = contextvars.Context()
        self.within.run(capture.current.set, self.lines)
        self._children: Children | None = None
        self._late_progress: tuple[float, str] | None = None
        self._told: dict[str, Any] | None = None

    @property
    def members(self) -> tuple[tuple[int | None, Job], ...]:
        """The jobs of this run, with what the children of each are kept under."""
        return ((None, self.job),)

    @property
    def children(self) -> Children:
        """Where ctx.enqueue puts the jobs it makes. Few runs make any."""
        with self.lines.lock:
            if self._children is None:
                self._children = Children(
                    self.job.first_child, self.session.folder.package, self.now_ms, self.session.mask
                )
                if self.lines.closed:
                    self._children.close()
            return self._children

    def progress(self, fraction: float, note: str, *, at_once: bool) -> None:
        """Told now, or with the end if nothing newer comes."""
        with self.lines.lock:
            self._late_progress = None if at_once else (fraction, note)
            if at_once:
                self.lines.send(framed(Progress(self.index, fraction, safe(self.mask.text(note), 1_000))))

    def extend(self, by_ms: int) -> None:
        """Ask for a later deadline. Raises RuntimeError where it is too late for that."""
        if self.asked or not self.lines.send(framed(Extend(self.index, by_ms))):
            raise RuntimeError(TOO_LATE)
        self.extended_ms = extended_ms(self.job.timeout_ms, self.extended_ms + by_ms)

    def is_asked(self) -> bool:
        """Whether this run is to end."""
        return self.session.is_asked(self)

    def go(self) -> Ended:
        """Run a sync handler. Nothing it does comes out of here as an exception."""
        within = self.within
        self.session.refusals.begin()
        try:
            told = self._outcome(within)
        except BaseException as error:
            told = within.run(self._failed, error)
        disarm()
        return self._ended(told)

    async def attend(self) -> None:
        """Run an async handler, in this run's context; `over` has the answer then. Raises nothing."""
        self.session.refusals.begin(apart=True)
        try:
            payload, unfit = self._payload()
            if unfit is None:
                value = self._call(payload)
                self._told = self._done(await value if inspect.iscoroutine(value) else value)
            else:
                self._told = unfit
        except BaseException as error:
            self._told = self._failed(error)

    def over(self) -> Ended:
        """The answer of a run that was attended."""
        return self._ended(self._told or {"outcome": "retry"})

    def _outcome(self, within: contextvars.Context) -> dict[str, Any]:
        """Payload in, call, result out. Raises what the handler raises."""
        payload, unfit = within.run(self._payload)
        if unfit is not None:
            return unfit
        value = within.run(self._call, payload)
        if inspect.iscoroutine(value):
            value = self.session.loop.run(value, within)
        return self._done(value)

    def _payload(self) -> tuple[Any, dict[str, Any] | None]:
        """What the handler is called with, or how the run ends that cannot be called."""
        return self._read(self.job) if self.session.shape.takes_payload else (None, None)

    def _read(self, job: Job) -> tuple[Any, dict[str, Any] | None]:
        """A job's payload, or how a job ends whose payload does not fit."""
        shape = self.session.shape
        try:
            payload = codec.decode(job.payload)
            if self.session.hears_webhooks and delivery.is_request(payload):
                payload = delivery.delivered(payload, shape.payload_type)
            elif shape.payload_type is not Any:
                payload = _as_asked(payload, shape)
        except (codec.Unfit, msgspec.DecodeError) as error:
            return None, self._unfit(error)
        return payload, None

    def _unfit(self, error: Exception) -> dict[str, Any]:
        """The payload does not fit; a check of the author's own that broke is told with its lines."""
        if refusal := self.session.refusals.behind(error):
            return self._blocked(refusal, error)
        text, trace = f"payload does not fit {self.session.function.name}: {message_of(error, self.mask)}", ""
        if error.__cause__ is not None:
            text += f": {message_of(error.__cause__, self.mask)}"
            trace = traceback_of(error.__cause__, self.session.folder, self.mask)
        return {"outcome": "dead", "fault": Fault("PayloadError", safe(text, MAX_MESSAGE), trace, "payload")}

    def _call(self, payload: Any) -> Any:
        shape = self.session.shape
        return shape.call(payload, Context(self) if shape.takes_context else None)

    def _done(self, value: Any) -> dict[str, Any]:
        end = self._result(value)
        if self._children and end["outcome"] == "done":
            end["children"] = self._children.close()
        return end

    def _result(self, value: Any) -> dict[str, Any]:
        try:
            result = codec.encode(value, MAX_RESULT_BYTES, "result")
            if self.session.mask.is_in(result):  # the work is done; what stays of it must not hold a secret
                result = codec.encode(self.session.mask.value(codec.decode(result)), MAX_RESULT_BYTES, "result")
            return {"outcome": "done", "result": result}
        except codec.Unfit as error:
            return {"outcome": "dead", "fault": Fault("ResultError", message_of(error, self.mask), "", "result")}

    def _failed(self, error: BaseException) -> dict[str, Any]:
        try:
            if not isinstance(error, (Snooze, Cancel)) and (refusal := self.session.refusals.behind(error)):
                return self._blocked(refusal, error)
            if isinstance(error, Verdict):
                return self._verdict(error)
            if _is_one_of(error, self.session.fail_on):
                return {"outcome": "dead", "fault": fault_of(error, self.session.folder, self.session.asker, self.mask)}
        except BaseException as broken:  # a subclass of a verdict with ideas of its own
            error = broken
        return {"outcome": "retry", "fault": fault_of(error, self.session.folder, self.session.asker, self.mask)}

    def _blocked(self, refusal: Refusal, error: BaseException) -> dict[str, Any]:
        """A wall stood in the way: another run would meet it again."""
        function, ending = self.session.function, f"{type_of(error, self.mask)}: {message_of(error, self.mask)}"
        message = safe(self.mask.text(told(refusal, function.file, function.line, ending)), MAX_MESSAGE)
        trace = traceback_of(error, self.session.folder, self.mask)
        return {"outcome": "dead", "fault": Fault(type_of(error, self.mask), message, trace, f"wall:{refusal.wall}")}

    def _verdict(self, verdict: Verdict) -> dict[str, Any]:
        after_ms, reason = verdict.after_ms, safe(self.mask.text(verdict.reason), MAX_MESSAGE)
        if not (after_ms is None or type(after_ms) is int):
            raise TypeError(f"expected whole milliseconds in a verdict, got {quoted(after_ms)}")
        match verdict:
            case Snooze():
                return {"outcome": "delay", "after_ms": after_ms, "reason": reason}
            case Cancel():
                return {"outcome": "cancelled", "reason": reason}
            case Fail() | Retry() | _:
                text = reason or ("the handler asked for another run" if isinstance(verdict, Retry) else "")
                trace = traceback_of(verdict, self.session.folder, self.mask)
                fault = Fault(type_of(verdict, self.mask), text, trace, "error")
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
            cpu_us=int(self.session.meter.end(self._cpu, usage.ru_utime + usage.ru_stime) * 1_000_000),
            peak_bytes=usage.ru_maxrss * 1024,  # of the process so far: in a warm worker, of earlier runs too
            obeyed=self.saw,
            **told,
        )


def _as_asked(payload: Any, shape: Shape) -> Any:
    """A payload as the handler's type; none as its default, where the type knows no None (a job may be of an older
    version, whose function had no default). Raises Unfit."""
    if payload is None and shape.has_default:
        try:
            return codec.convert(None, shape.payload_type)
        except codec.Unfit:
            payload = codec.decode(codec.encode(shape.default, MAX_PAYLOAD_BYTES, "payload"))  # no run gets another's
    return codec.convert(payload, shape.payload_type)


def _is_one_of(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    """Whether an exception is of these kinds, or a group that holds one: what failed for good would fail again."""
    if not kinds or isinstance(error, kinds):
        return bool(kinds)
    if not isinstance(error, BaseExceptionGroup):
        return False
    return cast("BaseExceptionGroup[BaseException]", error).subgroup(kinds) is not None


def extended_ms(timeout_ms: int, asked_ms: int) -> int:
    """By how much a run is extended that asked for so much in all: to MAX_RUN_MS after its start at most."""
    return min(asked_ms, max(timeout_ms, MAX_RUN_MS) - timeout_ms)


class Loop:
    """The one event loop of a worker, made when it is needed first."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def get(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._loop.is_closed():
            import asyncio  # a sync function never pays for it

            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        return self._loop

    def run(self, coroutine: Coroutine[Any, Any, Any], within: contextvars.Context) -> Any:
        """Await the coroutine in the given context."""
        loop = self.get()
        task = loop.create_task(coroutine, context=within)
        while True:
            try:
                return loop.run_until_complete(task)
            except RuntimeError:
                if task.done() or loop.is_closed():
                    raise
                # A handler stopped the loop; that is not its to do, and the next run must not feel it.
            except BaseException:
                task.cancel()  # an exit from another task went through the loop: ours must not wake up in a later run
                raise


def disarm() -> None:
    """An alarm that a handler set goes off in its own run or never."""
    if signal.getitimer(signal.ITIMER_REAL)[0]:
        signal.setitimer(signal.ITIMER_REAL, 0)
