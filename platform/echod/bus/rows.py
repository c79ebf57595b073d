"""Between values and what the scripts store: mints and verdicts on their way in, rows on their way out."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, assert_never

import msgspec

from echod.bus.keys import escape
from echod.model.ids import JobId, VersionId
from echod.model.job import (
    NO_LANE,
    Cancelled,
    Child,
    Claimed,
    Dead,
    Delay,
    Done,
    Error,
    History,
    Hold,
    Job,
    Mint,
    Occurrence,
    Reason,
    Release,
    Retry,
    RunRecord,
    State,
    Unique,
    Verdict,
)
from echofn.codec import NIL

pack = msgspec.msgpack.Encoder().encode
_child = msgspec.msgpack.Decoder(Child)
_error = msgspec.msgpack.Decoder(Error)
_plain = msgspec.msgpack.Decoder()
_past = msgspec.msgpack.Decoder(list[tuple[int, str, str, int, msgspec.Raw]])
NEVER_MS = (1 << 53) - 1  # where in `schedule` a job lies that waits for another to end; as lua/include/rows.lua
_STATES: dict[bytes | None, State] = {
    None: "pending",
    b"s": "scheduled",
    b"a": "active",
    b"d": "done",
    b"x": "dead",
    b"c": "cancelled",
}
STATE_LETTERS: dict[str, str] = {state: letter.decode() if letter else "p" for letter, state in _STATES.items()}
_REASONS: dict[bytes, Reason] = {b"delay": "delay", b"at": "at", b"retry": "retry", b"snooze": "snooze"}
_HISTORY_FIELDS = len(History.__struct_fields__)


def ids_of(reply: Sequence[bytes]) -> tuple[JobId, ...]:
    """Ids of jobs, as scripts answer them."""
    return tuple(JobId(id.decode()) for id in reply)


def utf8(text: str) -> bytes:
    """`text` for the wire; lone surrogates pass, as they do in names."""
    return text.encode("utf-8", "surrogatepass")


def blob(data: bytes) -> msgspec.Raw:
    """Bytes as a msgpack string: the server's cmsgpack knows no other kind of bytes."""
    size = len(data)
    if size < 1 << 8:
        return msgspec.Raw(b"\xd9" + size.to_bytes(1) + data)
    if size < 1 << 16:
        return msgspec.Raw(b"\xda" + size.to_bytes(2) + data)
    return msgspec.Raw(b"\xdb" + size.to_bytes(4) + data)


def unblob(raw: bytes) -> bytes:
    """The bytes of a msgpack string, whatever they are."""
    head = raw[0]
    return raw[1 if head < 0xC0 else {0xD9: 2, 0xDA: 3, 0xDB: 5}[head] :]


def own_word() -> str:
    """Our own word for one call, under which it is answered as before where it is sent again."""
    return f"call-{secrets.token_urlsafe(9)}"


def lane_key(lane: str) -> tuple[str, str]:
    """A lane's part of its key, and the original where that differs (else '')."""
    key = escape(lane)
    return key, "" if key == lane else lane


def mint_row(mint: Mint, token: str) -> list[Any]:
    """A mint as mint.lua reads it."""
    lane, original = lane_key(mint.lane or NO_LANE)
    when, ms = (
        (1, max(mint.in_ms, 0)) if mint.in_ms is not None else (2, mint.at_ms) if mint.at_ms is not None else (0, 0)
    )
    return [
        mint.id,
        blob(mint.payload),
        lane,
        blob(utf8(original)) if original else False,
        when,
        ms,
        mint.priority,
        _key(mint.unique),
        mint.parent or False,
        mint.version or False,
        mint.wait or False,
        "0" if mint.parent else token,
        _key(mint.once),
    ]


def _key(unique: Unique | None) -> Any:
    if unique is None:
        return False
    until = unique.until
    mode, fixed_ms = ("t", until) if isinstance(until, int) else ("d" if until == "done" else "s", 0)
    return [escape(unique.key), mode, fixed_ms, unique.body]


def _fence(verdict: Verdict) -> list[Any]:
    hold = verdict.hold
    return [hold.id, hold.attempts, hold.holder]


def _run(run: RunRecord) -> list[Any]:
    packed = pack([run.worker, run.version, run.started_ms, run.ended_ms, run.cpu_us, run.peak_bytes, run.cold])
    return [blob(packed), run.started_ms, run.ended_ms]


def verdict_row(verdict: Verdict) -> list[Any]:
    """A verdict as settle.lua reads it."""
    match verdict:
        case Done():
            children = [[child.mint.id, blob(pack(child))] for child in verdict.children]
            return ["done", *_fence(verdict), *_run(verdict.run), blob(verdict.result), children or False]
        case Retry():
            error = verdict.error
            return [
                "retry",
                *_fence(verdict),
                *_run(verdict.run),
                _packed(error),
                error.cause,
                max(verdict.after_ms, 0),
            ]
        case Dead():
            return ["dead", *_fence(verdict), *_run(verdict.run), _packed(verdict.error), verdict.error.cause]
        case Delay():
            return ["delay", *_fence(verdict), *_run(verdict.run), max(verdict.after_ms, 0)]
        case Release():
            return ["release", *_fence(verdict), False, 0, 0, False]
        case Cancelled():
            error = Error(type="Cancelled", message=verdict.reason, cause="cancelled")
            return ["cancelled", *_fence(verdict), *_run(verdict.run), _packed(error) if verdict.reason else False]
        case _:
            assert_never(verdict)


def _packed(error: Error) -> msgspec.Raw:
    """An error as stored. Lone surrogates, for which UTF-8 has no bytes, are replaced: failing must not fail."""
    try:
        return blob(pack(error))
    except UnicodeEncodeError:
        texts = (error.type, error.message, error.traceback, error.cause)
        clean = [text.encode("utf-8", "replace").decode() for text in texts]
        return blob(pack(Error(*clean)))


def hold_row(hold: Hold) -> list[Any]:
    return [hold.id, hold.attempts, hold.holder]


def child_of(stored: bytes) -> tuple[int, Child]:
    """A child in `out`: since when (13 digits), and what to mint where."""
    return int(stored[:13]), _child.decode(stored[13:])


def _text(raw: bytes | None, default: str = "") -> str:
    return default if raw is None else raw.decode("utf-8", "surrogatepass")


def _number(raw: bytes | int | None, default: int = 0) -> int:
    return default if raw is None else int(float(raw))


def _occurrence(raw: bytes | None, queue: str) -> Occurrence | None:
    if raw is None:
        return None
    name, due_ms, manual = _plain.decode(raw)
    return Occurrence(f"{queue}/{name}", int(due_ms), bool(manual))


def claimed(reply: Sequence[Any], queue: str, now_ms: int) -> Claimed:
    """A claimed job: [id, attempts, holder, failures, payload, lane, due, minted, version, occurrence, turn|absent]."""
    minted_ms = _number(reply[7])
    return Claimed(
        id=JobId(reply[0].decode()),
        attempts=_number(reply[1]),
        holder=_text(reply[2]),
        failures=_number(reply[3]),
        payload=reply[4],
        lane=_text(reply[5], NO_LANE),
        due_ms=_number(reply[6], minted_ms),
        minted_ms=minted_ms,
        claimed_ms=now_ms,
        version=VersionId(reply[8].decode()) if reply[8] else None,
        occurrence=_occurrence(reply[9], queue),
        turn=_number(reply[10]) if len(reply) > 10 else 0,
    )


def job(id: str, row: dict[bytes, bytes], queue: str) -> Job:
    """A whole record. `row` is the hash; fields that were not asked for count as absent."""
    get = row.get
    state = _STATES.get(get(b"s"), "pending")
    minted_ms = _number(get(b"m"))
    progress, error, ended = get(b"pg"), get(b"er"), get(b"e")
    history = _histories(row, state, minted_ms)
    begun = get(b"st") if state in {"active", "pending", "scheduled"} or not history else None
    started_ms = _number(begun) if begun else history[-1].started_ms if history else None
    ended_ms = _number(ended) if ended else None
    return Job(
        id=JobId(id),
        function=queue,
        lane=_text(get(b"ln", get(b"l")), NO_LANE),
        state=state,
        reason=_REASONS.get(get(b"r", b"")) if state == "scheduled" else None,
        attempts=_number(get(b"a")),
        failures=_number(get(b"f")),
        payload=get(b"p", NIL),
        result=get(b"o", NIL) if state == "done" else None,
        error=_error.decode(error) if error and state != "done" else None,
        due_ms=_number(get(b"d"), minted_ms),
        minted_ms=minted_ms,
        started_ms=started_ms,
        ended_ms=None if ended_ms is None else max(ended_ms, started_ms or 0),
        occurrence=_occurrence(get(b"oc"), queue),
        parent=JobId(_text(get(b"pa"))) if get(b"pa") else None,
        version=_text(get(b"v")) or (history[-1].version if history else "") or None,
        progress=_progress(progress) if progress else None,
        cancelling=state == "active" and b"x" in row,
        waits_for=tuple(JobId(id) for id in _text(get(b"bh")).split()) if state == "scheduled" else (),
        history=history,
    )


def _progress(raw: bytes) -> tuple[float, str]:
    fraction, note = _plain.decode(raw)
    return float(fraction), str(note)


def _histories(row: dict[bytes, bytes], state: State, minted_ms: int) -> tuple[History, ...]:
    """Runs that did not end the job, each as stored; and the one that did, told by the row itself."""
    past = row.get(b"y")
    entries = [
        _history(attempt, outcome, cause, wait_ms, unblob(bytes(run)))
        for attempt, outcome, cause, wait_ms, run in (_past.decode(past) if past else ())
    ]
    last = row.get(b"z")
    if last is not None and state in {"done", "dead", "cancelled"}:
        error = row.get(b"er")
        cause = _error.decode(error).cause if error and state != "done" else ""
        run = _history(_number(row.get(b"a")), state, cause, 0, last)
        wait_ms = max(run.started_ms - _number(row.get(b"w"), minted_ms), 0)
        entries.append(msgspec.structs.replace(run, wait_ms=wait_ms))
    return tuple(entries)


def _history(attempt: int, outcome: str, cause: str, wait_ms: int, run: bytes) -> History:
    worker, version, started_ms, ended_ms, cpu_us, peak_bytes, cold = _plain.decode(run)
    return History(
        attempt=attempt,
        outcome=outcome,
        worker=worker,
        version=version,
        started_ms=started_ms,
        ended_ms=ended_ms,
        cause=cause,
        wait_ms=wait_ms,
        cpu_us=cpu_us,
        peak_bytes=peak_bytes,
        cold=bool(cold),
    )
