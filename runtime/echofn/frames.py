"""Frames: the one protocol between a supervisor and its base and workers.

A frame is a 4-byte big-endian length and that many bytes of msgpack. Between supervisor and base it is one datagram
of a SOCK_SEQPACKET pair without the length (descriptors ride along by SCM_RIGHTS). The supervisor trusts nothing a
worker sends: the length is checked against a cap before anything is read, the kinds are a closed union, an answer
belongs to the channel it came on and is matched by position (`index`: how many jobs were handed over on this channel
before), never by an id inside.

Order on a worker's channel: `Imported` where the module has a lifespan, then `Ready`, or `Failed`, once; then, for
each job in the order in which they were handed over, `Begun(index)` and one `Ended(index, …)`, or, where that was
asked for, `Skipped(index)`; at last `Left` where the rest of the lifespan failed. A sync worker ends a
job before it begins the next; an async one has at most `per_worker` begun and not ended, and ends them in any order.
`Begun` of a next job rides in the same write as the `Ended` that made room for it, so a row of them costs one write a
job. `Part`, `Output`, `Progress`, `Extend` and `Listens` may come at any time between a job's `Begun` and its `Ended`;
`Output` of no run (`index` is OUTSIDE: import, lifespan) at any time.
A batch is handed over, begun and ended as one job. Times in a frame are durations or monotonic differences in
microseconds, never wall time: the supervisor puts them on the bus's clock.
"""

from __future__ import annotations

import struct
from typing import Literal

import msgspec

from echofn.codec import NIL
from echofn.manifest import Function

HEADER = struct.Struct(">I")
POSITION = struct.Struct(">q")
MARK = b"\0\x1eechofn\x1e\0"  # in the pipes of stdout and stderr, before the position of the run whose bytes follow
MARK_BYTES = len(MARK) + POSITION.size
MAX_FRAME_BYTES = 4 * 1024 * 1024  # payloads, results and logs are at most 1 MiB each
OUTSIDE = -1  # the position of what no run wrote
MAX_PAYLOAD_BYTES = 1024 * 1024
MAX_RESULT_BYTES = 1024 * 1024
MAX_LOG_BYTES = 1024 * 1024
MAX_CHILDREN = 1000
MAX_RUN_MS = 7 * 86_400_000  # of one run, however often it asks for more: a worker's CPU is bounded by as much
MAX_BATCH = 1000  # jobs of one run
MAX_RESULTS_BYTES = 8 * 1024 * 1024  # of all jobs of a batch

# What a caller may ask for a job, whoever he is: a run, a program, a request.
FURTHEST_DAYS = 3660
FURTHEST_MS = FURTHEST_DAYS * 86_400_000  # how far ahead it may be due
FURTHEST_PRIORITY = 1_000_000
MAX_KEY = 255  # characters; as in the draft of Idempotency-Key's standard, and at those who made it common


# ---- supervisor -> base -------------------------------------------------------------------------------------------


class Spawn(msgspec.Struct, frozen=True, tag="spawn", array_like=True):
    """Fork a worker. Descriptors with it: [its channel, pipes for its stdout and stderr], and of one with secrets their
    file (`echofn.sealed`), which is the worker's alone to read."""

    number: int  # the supervisor's own count, echoed in Spawned and Exited
    function: Function
    package: str  # name of the served folder's package
    root: str  # folder that holds the package: <root>/<package>/shop.py
    version: str
    generation: int
    tmp: str  # the worker's private writable folder: cwd and HOME
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
    timeout_ms: int  # from its Begun
    first_child: int  # snowflakes reserved for ctx.enqueue: first, first + 1, …
    manual: bool = False
    # A batch: the jobs that the one call is for. What is said above is then the first's, but for attempt (the largest),
    # last_attempt (of any) and payload (none).
    members: tuple[Job, ...] = ()  # each with its own payload


class Run(msgspec.Struct, frozen=True, tag="run", array_like=True):
    jobs: tuple[Job, ...]
    now_ms: int  # bus clock when this frame was written


class Stop(msgspec.Struct, frozen=True, tag="stop", array_like=True):
    """Finish what has begun, begin nothing more, exit 0."""


class Cancel(msgspec.Struct, frozen=True, tag="cancel", array_like=True):
    """End this run: what has begun is told, what has not is skipped. The kill follows after the grace."""

    index: int


class Withdraw(msgspec.Struct, frozen=True, tag="withdraw", array_like=True):
    """Skip this job if it has not begun."""

    index: int


ToWorker = Run | Stop | Cancel | Withdraw


# ---- worker -> supervisor -----------------------------------------------------------------------------------------


class Imported(msgspec.Struct, frozen=True, tag="imported", array_like=True):
    """The module is there; its lifespan starts."""


class Ready(msgspec.Struct, frozen=True, tag="ready", array_like=True):
    walls: tuple[str, ...] = ()  # names of the walls that are up


class Failed(msgspec.Struct, frozen=True, tag="failed", array_like=True):
    """The walls, the import or the lifespan's start failed; the worker exits."""

    exception: str
    message: str
    traceback: str
    cause: str = "error"  # error | wall:…


class Left(msgspec.Struct, frozen=True, tag="left", array_like=True):
    """The last job has ended, and the rest of the lifespan failed; the worker exits all the same."""

    exception: str
    message: str
    traceback: str


class Begun(msgspec.Struct, frozen=True, tag="begun", array_like=True):
    index: int


class Skipped(msgspec.Struct, frozen=True, tag="skipped", array_like=True):
    """This job will not begin, as was asked."""

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
    """The one answer to one job, or to one batch."""

    index: int
    outcome: Literal["done", "retry", "dead", "delay", "cancelled"]
    wall_us: int
    cpu_us: int
    peak_bytes: int
    result: bytes = NIL  # msgpack; done only
    fault: Fault | None = None
    after_ms: int | None = None  # Retry(after=), Snooze
    reason: str = ""  # Fail, Cancel
    children: tuple[Child, ...] = ()
    obeyed: bool = False  # it knew that it was to end: by ctx.cancelled, or by a CancelledError


class Part(msgspec.Struct, frozen=True, tag="part", array_like=True):
    """How one job of a batch ends. `Ended` speaks for those that have none."""

    index: int
    member: int  # its position in the batch
    outcome: Literal["done", "retry", "dead", "delay", "cancelled"]
    result: bytes = NIL
    fault: Fault | None = None
    after_ms: int | None = None
    reason: str = ""
    children: tuple[Child, ...] = ()


class Output(msgspec.Struct, frozen=True, tag="output", array_like=True):
    """Lines of one job, or of none. Stream is "stdout", "stderr", or "log"."""

    index: int  # or OUTSIDE
    stream: str
    level: str
    logger: str
    text: str
    since_us: int  # since the job began


class Progress(msgspec.Struct, frozen=True, tag="progress", array_like=True):
    index: int
    fraction: float
    note: str


class Extend(msgspec.Struct, frozen=True, tag="extend", array_like=True):
    """The run asks for a later deadline."""

    index: int
    by_ms: int


class Listens(msgspec.Struct, frozen=True, tag="listens", array_like=True):
    """The run hears a Cancel. A sync one says so when it first asks, an async one when it is told."""

    index: int


FromWorker = Imported | Ready | Failed | Left | Begun | Skipped | Part | Ended | Output | Progress | Extend | Listens

encode = msgspec.msgpack.Encoder().encode
decode_to_base = msgspec.msgpack.Decoder(ToBase).decode
decode_from_base = msgspec.msgpack.Decoder(FromBase).decode
decode_to_worker = msgspec.msgpack.Decoder(ToWorker).decode
decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode


def framed(message: ToWorker | FromWorker) -> bytes:
    """Header and body of one frame."""
    body = encode(message)
    return HEADER.pack(len(body)) + body
