"""What discovery says about a folder, as data: functions, their policies and triggers, and what could not be loaded.

Written in the confined discovery process, read by the control plane, stored in the bus with the version. Nothing in it
can run: a rule is text, a path is text, a schema is JSON. Durations are integer milliseconds, sizes bytes.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from echofn.codec import NIL


class Exponential(msgspec.Struct, frozen=True, tag="exponential", omit_defaults=True):
    """Full jitter over min(cap, base * 2^(failures - 1))."""

    base_ms: int = 500
    cap_ms: int = 600_000


class Linear(msgspec.Struct, frozen=True, tag="linear"):
    """min(cap, base * failures)."""

    base_ms: int
    cap_ms: int


class Constant(msgspec.Struct, frozen=True, tag="constant"):
    """The same wait each time."""

    wait_ms: int


class Waits(msgspec.Struct, frozen=True, tag="list"):
    """Waits by number of failures; the last one repeats."""

    waits_ms: tuple[int, ...]


Backoff = Exponential | Linear | Constant | Waits


Isolation = Literal["worker", "job"]  # what has a process of its own: jobs one after the other, or each run


class Policy(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the jobs of one function are run."""

    retries: int = 3
    backoff: Backoff = Exponential()
    fail_on: tuple[str, ...] = ()  # names of exceptions, to be read; the worker has the classes
    timeout_ms: int = 60_000
    grace_ms: int = 5_000
    lane: str | None = None
    workers_min: int = 0
    workers_max: int | None = None  # None: as many as this node has CPUs
    recycle_jobs: int = 500
    memory_bytes: int = 512 * 1024 * 1024
    tmp_bytes: int = 64 * 1024 * 1024
    network: bool | tuple[int, ...] = False  # True: any; ports: TCP to these
    processes: int = 0
    keep_ms: int = 7 * 86_400_000
    unique: str | bool | None = None
    until: Literal["done", "started"] | int = "done"
    max_pending: int | None = None
    priority: int = 0
    concurrency: int | None = (
        None  # jobs that are active at once, on all nodes together; None: as many as there are hands
    )
    rate: str | None = None  # "100/s": at most so many start in a window; units.rate reads it
    lane_concurrency: int | None = None  # the same of each lane
    lane_rate: str | None = None
    lane_weight: int | dict[str, int] = 1  # of lanes without a weight of their own; by lane: of those that are named
    batch: int | None = None  # at most so many payloads of one lane a run, as a list; None: one, as it is
    batch_wait_ms: int = 0  # how long a lane with fewer waits for more
    redact: tuple[str, ...] = ()  # paths into the payload, or into a webhook's request: what nobody is shown
    per_worker: int = 10  # runs at once on the loop of one worker, async functions only
    isolation: Isolation = "worker"


class QueueTrigger(msgspec.Struct, frozen=True, tag="queue", omit_defaults=True):
    """`@queue`: callable at POST /functions/{name} and by enqueue. A job minted without a payload gets this one."""

    payload: bytes = NIL


Overlap = Literal["allow", "skip", "queue", "replace"]  # while an earlier job of the recurrence has not ended


class CronTrigger(msgspec.Struct, frozen=True, tag="cron", omit_defaults=True):
    """`@cron(rule, tz=…)`; `name` is the recurrence's own within the function (given, else canonical rule + zone)."""

    name: str
    rule: str
    tz: str = "UTC"
    missed: Literal["skip", "last", "all"] = "last"
    cap: int = 100
    payload: bytes = NIL
    line: int = 0
    overlap: Overlap = "allow"
    jitter_ms: int = 0  # its jobs' own dues are up to so much later


class EveryTrigger(msgspec.Struct, frozen=True, tag="every", omit_defaults=True):
    """`@every(period)`; dues are anchor + n * period."""

    name: str
    period_ms: int
    anchor_ms: int = 0
    missed: Literal["skip", "last", "all"] = "last"
    cap: int = 100
    payload: bytes = NIL
    line: int = 0
    overlap: Overlap = "allow"
    jitter_ms: int = 0  # its jobs' own dues are up to so much later


class Hmac(msgspec.Struct, frozen=True, tag="hmac"):
    """A signature by HMAC over the raw body; the header's name in lower case."""

    header: str
    algorithm: Literal["sha1", "sha256", "sha384", "sha512"] = "sha256"
    encoding: Literal["hex", "base64"] = "hex"
    prefix: str = ""


Scheme = Literal["github", "stripe", "slack", "standard-webhooks", "bearer", "basic"]
Verify = Scheme | Hmac | None  # None: whoever reaches the path is believed


class WebhookTrigger(msgspec.Struct, frozen=True, tag="webhook"):
    """`@webhook(path, verify=…)`. Of secrets the manifest has the names; lane and unique are paths into the request."""

    path: str  # "/hooks/{tenant}/github"
    verify: Verify
    secrets: tuple[str, ...] = ()  # names of variables; each of them may have signed
    lane: str | None = None
    unique: str | bool | None = None  # None: the sender's own delivery id
    until: Literal["done", "started"] | int = 86_400_000
    line: int = 0


Trigger = QueueTrigger | CronTrigger | EveryTrigger | WebhookTrigger
Recurring = CronTrigger | EveryTrigger


class Function(msgspec.Struct, frozen=True, omit_defaults=True):
    """One function: where it is, how it is called, what starts it."""

    name: str  # module.function, or name=
    module: str  # without the folder's name: "shop", "sub.shop"
    attribute: str
    file: str  # relative to the folder: "sub/shop.py"
    line: int
    policy: Policy
    triggers: tuple[Trigger, ...]
    takes_payload: bool = False
    takes_context: bool = False
    is_async: bool = False
    payload_schema: dict[str, Any] | None = None  # JSON Schema; None: anything
    result_schema: dict[str, Any] | None = None
    doc: str = ""  # first line of the docstring
    secrets: tuple[str, ...] = ()  # the names in secrets= and secret= of its whole module
    startup_ms: int | None = None  # time for the start of its module's lifespan; None: there is none
    code: str = ""  # digest of its module's code and of what that imports from the folder
    default: bytes = NIL  # what its parameter says, for jobs without a payload, where no @queue does

    @property
    def at_once(self) -> int:
        """How many jobs one worker runs at a time."""
        return self.policy.per_worker if self.is_async and self.policy.isolation == "worker" else 1

    @property
    def default_payload(self) -> bytes:
        """What a job carries that is minted with none, or null."""
        return next((each.payload for each in self.triggers if isinstance(each, QueueTrigger)), self.default)


class LoadError(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a module (or one function of it) is left out. `line` is in the module's own code; None: none can be named."""

    module: str
    file: str
    message: str
    line: int | None = None
    column: int | None = None
    kind: str = "error"  # syntax | error | hang | exit | crash | refused


class Off(msgspec.Struct, frozen=True):
    """An annotation that does not count here, as if it were not written."""

    function: str
    kind: str  # queue, cron, every, webhook
    file: str
    line: int
    why: str  # enabled=False, env="prod"
    module: str = ""


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A folder, described. `package` is the folder's own name, by which its modules import each other."""

    package: str
    functions: tuple[Function, ...] = ()
    errors: tuple[LoadError, ...] = ()
    off: tuple[Off, ...] = ()
