"""Frames: the one protocol between a supervisor and its base and workers.

A frame is a 4-byte big-endian length and that many bytes of msgpack. Between supervisor and base it is one datagram
of a SOCK_SEQPACKET pair without the length (descriptors ride along by SCM_RIGHTS). The supervisor trusts nothing a
worker sends: the length is checked against a cap before anything is read, the kinds are a closed union, an answer
belongs to the channel it came on and is matched by position (`index` within the run frame), never by an id inside.

Order on a worker's channel: `Ready` or `Failed` once; then per `Run` frame, for each job in turn, `Begun(index)` and
one `Ended(index, …)`. A sync worker sends `Begun` for job k+1 in the same write as `Ended` for job k, so a batch
costs one write a job. `Output` and `Progress` may come at any time between a job's `Begun` and its `Ended`. Times in
a frame are durations or monotonic differences in microseconds, never wall time: the supervisor puts them on the bus's
clock.
"""

from __future__ import annotations

import struct
from typing import Literal

import msgspec

from echofn.manifest import Function

HEADER = struct.Struct(">I")
MAX_FRAME_BYTES = 4 * 1024 * 1024  # payloads, results and logs are at most 1 MiB each
MAX_PAYLOAD_BYTES = 1024 * 1024
MAX_RESULT_BYTES = 1024 * 1024
MAX_LOG_BYTES = 1024 * 1024
MAX_CHILDREN = 1000


# ---- supervisor -> base -------------------------------------------------------------------------------------------


class Spawn(msgspec.Struct, frozen=True, tag="spawn", array_like=True):
    """Fork a worker. Descriptors with it: [its channel, its stdout/stderr pipe]."""

    number: int  # the supervisor's own count, echoed in Spawned and Exited
    function: Function
    package: str  # name of the served folder's package
    root: str  # folder that holds the package: <root>/<package>/shop.py
    version: str
    generation: int
    tmp: str  # the worker's private writable folder: cwd and HOME
    secrets: dict[str, str]
    env: str  # "dev" or "prod"
    level: str  # sandbox level


class Kill(msgspec.Struct, frozen=True, tag="kill", array_like=True):
    """SIGKILL a worker and every descendant it left."""

    number: int


ToBase = Spawn | Kill


# ---- base -> supervisor -------------------------------------------------------------------------------------------


class Up(msgspec.Struct, frozen=True, tag="up", array_like=True):
    pid: int
    python: str  # sys.version: must equal the supervisor's


class Spawned(msgspec.Struct, frozen=True, tag="spawned", array_like=True):
    """Descriptor with it: [a pidfd that the base opened as parent]."""

    number: int
    pid: int


class Exited(msgspec.Struct, frozen=True, tag="exited", array_like=True):
    """A worker ended and nothing of its tree is left."""

    number: int
    pid: int
    status: int  # as os.wait4 gives it
    cpu_us: int
    peak_bytes: int


FromBase = Up | Spawned | Exited


# ---- supervisor -> worker -----------------------------------------------------------------------------------------


class Job(msgspec.Struct, frozen=True, array_like=True):
    """One job to run. Instants are bus milliseconds."""

    id: str
    payload: bytes  # msgpack
    attempt: int  # charged runs so far + 1
    last_attempt: bool
    fence: int  # claim count
    lane: str
    due_ms: int
    previous_ms: int | None  # recurrences: the due instants around this one
    next_ms: int | None
    timeout_ms: int
    first_child: int  # snowflakes reserved for ctx.enqueue: first, first + 1, …
    manual: bool = False


class Run(msgspec.Struct, frozen=True, tag="run", array_like=True):
    jobs: tuple[Job, ...]
    now_ms: int  # bus clock when this frame was written


class Stop(msgspec.Struct, frozen=True, tag="stop", array_like=True):
    """Finish what has begun, begin nothing more, exit 0."""


ToWorker = Run | Stop


# ---- worker -> supervisor -----------------------------------------------------------------------------------------


class Ready(msgspec.Struct, frozen=True, tag="ready", array_like=True):
    import_us: int
    walls: tuple[str, ...] = ()  # names of the walls that are up


class Failed(msgspec.Struct, frozen=True, tag="failed", array_like=True):
    """The walls or the import failed; the worker exits."""

    exception: str
    message: str
    traceback: str


class Begun(msgspec.Struct, frozen=True, tag="begun", array_like=True):
    index: int


class Child(msgspec.Struct, frozen=True, array_like=True):
    """A job that a run asked for with ctx.enqueue; minted when the run settles as done."""

    number: int  # a snowflake of the reserved block
    function: str
    payload: bytes
    lane: str | None = None  # None: by the function's policy
    delay_ms: int | None = None
    at_ms: int | None = None
    unique: str | None = None
    priority: int | None = None


class Fault(msgspec.Struct, frozen=True, array_like=True):
    """An exception as text; never rebuilt into one by a reader."""

    exception: str
    message: str
    traceback: str
    cause: str  # error | payload | result | memory | protocol | wall:…


class Ended(msgspec.Struct, frozen=True, tag="ended", array_like=True):
    """The one answer to one job."""

    index: int
    outcome: Literal["done", "retry", "dead", "delay", "cancelled"]
    wall_us: int
    cpu_us: int
    peak_bytes: int
    result: bytes = b"\xc0"  # msgpack; done only
    fault: Fault | None = None
    after_ms: int | None = None  # Retry(after=), Snooze
    reason: str = ""  # Fail, Cancel
    children: tuple[Child, ...] = ()


class Output(msgspec.Struct, frozen=True, tag="output", array_like=True):
    """Lines of one job. Stream is "stdout", "stderr", or "log"."""

    index: int
    stream: str
    level: str
    logger: str
    text: str
    since_us: int  # since the job began


class Progress(msgspec.Struct, frozen=True, tag="progress", array_like=True):
    index: int
    fraction: float
    note: str


FromWorker = Ready | Failed | Begun | Ended | Output | Progress

encode = msgspec.msgpack.Encoder().encode
decode_to_base = msgspec.msgpack.Decoder(ToBase).decode
decode_from_base = msgspec.msgpack.Decoder(FromBase).decode
decode_to_worker = msgspec.msgpack.Decoder(ToWorker).decode
decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode


def framed(message: ToWorker | FromWorker) -> bytes:
    """Header and body of one frame."""
    body = encode(message)
    return HEADER.pack(len(body)) + body
