"""From what a run said, or how it ended, to the verdict the bus gets. Pure; a worker's word is taken with measure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, assert_never

import msgspec

from echod.errors import Refused
from echod.model.job import Cancelled, Child, Dead, Delay, Done, Error, Retry, RunRecord, Verdict
from echod.policy import backoff
from echod.supervisor.channel import Fault
from echod.supervisor.children import mints_of
from echod.supervisor.leases import Lease
from echofn import frames
from echofn.codec import NIL
from echofn.manifest import Function, Policy

MAX_TYPE = 256
MAX_MESSAGE = 16 * 1024
MAX_TRACEBACK = 64 * 1024
MAX_WAIT_MS = 366 * 86_400_000
MOST_VERDICTS = 256  # in one call: some ten milliseconds of the server, and what is claimed beside them takes as long
MOST_BYTES = 2 * 1024 * 1024  # of results, errors and children in one call
CHILD_BYTES = 2000  # as which a child counts beside its payload: the server keeps each apart
_MOST = 10**15  # of microseconds or bytes
_CAUSES = frozenset({"error", "payload", "result", "memory", "protocol"})


def of(
    lease: Lease, run: RunRecord, ended: frames.Ended, function_of: Callable[[str], Function | None], *, roll: float
) -> Verdict:
    """The verdict of a run that answered. A run that somebody asked to stop is not tried again.

    One that knew that it was to end, and ended, has obeyed, whatever it returned: only its own verdicts stand beside
    that. Raises Fault for an answer that no honest worker gives.
    """
    hold = lease.hold
    if ended.obeyed and lease.lead.told is not None and ended.outcome == "done":
        return _retry(lease, run, _late(lease.function.policy), None, roll)
    match ended.outcome:
        case "done":
            _check_result(ended.result)
            children: tuple[Child, ...] = ()
            if ended.children:
                try:
                    children = mints_of(lease.job.id, lease.lead.first_child, ended.children, function_of)
                except Refused as error:
                    return _retry(lease, run, Error(type="Refused", message=str(error)[:MAX_MESSAGE]), None, roll)
            return Done(hold, run, ended.result, children)
        case "dead":
            return Dead(hold, run, _error_of(ended))
        case "cancelled":
            return Cancelled(hold, run, ended.reason[:MAX_MESSAGE])
        case "delay":
            return _stopped(lease, run) if lease.cancelling else Delay(hold, run, _wait_of(ended.after_ms or 0))
        case "retry":
            fault = _error_of(ended)
            if ended.obeyed and lease.lead.told == "timeout":
                fault = _timed_out(fault, lease.function.policy)
            return _retry(lease, run, fault, ended.after_ms, roll)
        case _:
            assert_never(ended.outcome)


def crashed(lease: Lease, run: RunRecord, cause: str, detail: str, *, roll: float) -> Verdict:
    """The verdict of a run that ended without an answer. Charged, with an error's backoff; dead at a wall."""
    if cause.startswith("wall:"):
        message = detail or _out_of_tmp(lease.function)
        return Dead(lease.hold, run, Error(type="Blocked", message=message, cause=cause))
    message = detail or _sentence(cause, lease.function.policy)
    return _retry(lease, run, Error(type=_title(cause), message=message, cause=cause), None, roll)


def not_started(lease: Lease, run: RunRecord, failed: frames.Failed, cause: str, *, roll: float) -> Verdict:
    """The verdict of a job whose worker could not start: by what it said, or by how it ended. Dead at a wall."""
    error = Error(
        type=failed.exception[:MAX_TYPE],
        message=failed.message[:MAX_MESSAGE],
        traceback=failed.traceback[-MAX_TRACEBACK:],
        cause=cause[:MAX_TYPE],
    )
    return Dead(lease.hold, run, error) if cause.startswith("wall:") else _retry(lease, run, error, None, roll)


def error_of_leaving(left: frames.Left) -> Error:
    """Of a lifespan that did not end well: for people, charged to nobody."""
    return Error(
        type=left.exception[:MAX_TYPE],
        message=left.message[:MAX_MESSAGE],
        traceback=left.traceback[-MAX_TRACEBACK:],
        cause="error",
    )


def size_of(verdict: Verdict) -> int:
    """About how many bytes a verdict takes on its way, or costs as much as, beside a few dozen."""
    match verdict:
        case Done():
            return len(verdict.result) + sum(len(child.mint.payload) + CHILD_BYTES for child in verdict.children)
        case Retry() | Dead():
            return len(verdict.error.traceback) + len(verdict.error.message)
        case _:
            return 0


def fitting(verdicts: Sequence[Verdict]) -> int:
    """How many of the first of these go in one call: at least one, however large it is."""
    size = 0
    for count, verdict in enumerate(verdicts[:MOST_VERDICTS]):
        size += size_of(verdict)
        if count and size > MOST_BYTES:
            return count
    return min(len(verdicts), MOST_VERDICTS)


def record(worker: str, lease: Lease, now_ms: int, wall_us: int, ended: frames.Ended, *, cold: bool) -> RunRecord:
    """The bill of a run that answered. `wall_us` is the worker's own stop-watch, checked by the caller.

    The start is capped at when we heard of it, since the bus's clock may have been driven on meanwhile.
    """
    return RunRecord(
        worker,
        lease.version,
        min(now_ms - wall_us // 1000, lease.began_ms or now_ms),
        now_ms,
        ended.cpu_us if 0 <= ended.cpu_us <= _MOST else 0,
        ended.peak_bytes if 0 <= ended.peak_bytes <= _MOST else 0,
        cold,
    )


def _retry(lease: Lease, run: RunRecord, error: Error, after_ms: int | None, roll: float) -> Verdict:
    if lease.cancelling:
        return _stopped(lease, run)
    if after_ms is None:
        after_ms = backoff.wait_ms(lease.function.policy.backoff, lease.job.failures + 1, roll)
    return Retry(lease.hold, run, error, _wait_of(after_ms))


def _late(policy: Policy) -> Error:
    text = f"still running after its timeout of {policy.timeout_ms} ms; it ended when it was told"
    return Error(type=_title("timeout"), message=text, cause="timeout")


def _timed_out(error: Error, policy: Policy) -> Error:
    """What a run ended with that was told that its time was over: a CancelledError says nothing more than that."""
    if error.type != "CancelledError":
        return msgspec.structs.replace(error, cause="timeout")
    return msgspec.structs.replace(_late(policy), traceback=error.traceback)


def _stopped(lease: Lease, run: RunRecord) -> Verdict:
    return Cancelled(lease.hold, run, "stopped on request")


def _no_extension(code: int, _: memoryview) -> NoReturn:
    raise ValueError(f"an extension of type {code}")


_decode_result = msgspec.msgpack.Decoder(Any, ext_hook=_no_extension).decode


def _check_result(result: bytes) -> None:
    if result == NIL:
        return
    if len(result) > frames.MAX_RESULT_BYTES:
        raise Fault(f"expected a result of at most {frames.MAX_RESULT_BYTES} bytes, got {len(result)}")
    try:
        _decode_result(result)
    except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError) as error:
        raise Fault(f"expected a result in msgpack, got {type(error).__name__}: {str(error)[:200]}") from None


def _wait_of(wait_ms: int) -> int:
    return min(max(wait_ms, 0), MAX_WAIT_MS)


def _error_of(ended: frames.Ended) -> Error:
    fault = ended.fault
    if fault is None:
        return Error(type=ended.outcome.capitalize(), message=ended.reason[:MAX_MESSAGE])
    cause = fault.cause if fault.cause in _CAUSES or fault.cause.startswith("wall:") else "error"
    return Error(
        type=fault.exception[:MAX_TYPE],
        message=(fault.message or ended.reason)[:MAX_MESSAGE],
        traceback=fault.traceback[-MAX_TRACEBACK:],
        cause=cause[:MAX_TYPE],
    )


def _title(cause: str) -> str:
    known = {"timeout": "Timeout", "memory": "OutOfMemory", "protocol": "ProtocolError", "lost": "Lost"}
    return known.get(cause, "Crash")


def _out_of_tmp(function: Function) -> str:
    size = function.policy.tmp_bytes // 1024**2
    place = f"{function.file}:{function.line}"
    return f'blocked by echod: more than {size} MB in /tmp. Add tmp="{2 * size}MB" to @queue ({place}). It was ended'


def _sentence(cause: str, policy: Policy) -> str:
    kind, _, what = cause.partition(":")
    match kind:
        case "timeout":
            return f"still running after its timeout of {policy.timeout_ms} ms; killed with all its processes"
        case "memory":
            return f"killed by the system with more than its {policy.memory_bytes} bytes of memory in use"
        case "signal":
            return f"the worker was ended by SIG{what} in mid-run"
        case "exit":
            return f"the worker exited with status {what} in mid-run, without an answer"
        case _:
            return "the worker ended in mid-run and nobody saw how"
