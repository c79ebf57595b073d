"""The bus of a test: what is loaded, what time it is, what is due, what became of it."""

from __future__ import annotations

import difflib
import tempfile
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeVar, get_args

import msgspec

from echod.bus import Bus as EchodBus
from echod.errors import Refused
from echod.model.ids import JobId, VersionId, branded
from echod.model.job import Conflict, Error, Full, Mint, Minted, State
from echod.model.job import Job as Record
from echod.pump.pump import Pump
from echod.registry.registry import Registry
from echod.supervisor.children import mints_of
from echod.supervisor.leases import Lease
from echofn import codec
from echofn.annotations import name_of
from echofn.children import Children, instant_ms
from echofn.enqueueing import typed
from echofn.manifest import Manifest
from echofn.package import package_around
from echofn.testing.hands import Hands
from echofn.testing.loading import Source, load
from echofn.units import duration_ms

MOST_JOBS = 10_000
MOST_INSTANTS = 100_000
STATES: tuple[State, ...] = get_args(State)
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
T = TypeVar("T")
Handler = Callable[..., Any]
Duration = str | float | timedelta


class Call(Protocol):
    """Runs a coroutine on the bus's loop and answers what it does."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


class Bus:
    """Made by the fixture `bus`, or by `running_bus()`.

    The clock stands still, so nothing happens by itself and every run of a test is the same: ids, instants and waits
    (retries wait the longest that their jitter allows). `advance` lets time pass, `run_due` runs what is due.
    """

    def __init__(self, bus: EchodBus, call: Call) -> None:
        self._bus = bus
        self._call = call
        self._registry = Registry(bus, Path(tempfile.gettempdir()))  # nothing is written there: no files are served
        self._pump = Pump(bus, self._registry)
        self._hands = Hands(bus, self._registry)
        self._sources: dict[str, Source] = {}
        self._modules: tuple[ModuleType, ...] = ()
        self._package: str | None = None
        self._env = "dev"
        self._versions = 0

    # ---- what is served ----

    def load(self, *modules: ModuleType, package: str | None = None, env: str | None = None) -> None:
        """Serve these modules, beside those loaded before: their queues, schedules and policies.

        A package stands for every module in it. Functions get the names they have under `echod dev`: the folder is the
        module's package up to a part called `functions`, else the first part of its name; `package` names another.
        `env`: which annotations count, and what `ctx.env` says ("dev" at first). Raises Refused, with file and line,
        for what echod would refuse.
        """
        modules = (*self._modules, *(module for module in modules if module not in self._modules))
        package = self._package if package is None else package
        env = self._env if env is None else env
        loaded = load(modules, package, env)
        self._modules, self._package, self._env, self._sources = modules, package, env, loaded.sources
        self._versions += 1
        version = VersionId(branded("DEP", self._versions))
        self._call(self._serve(version, Manifest("", loaded.functions)))

    async def _serve(self, version: VersionId, manifest: Manifest) -> None:
        await self._bus.put_version(version, [], msgspec.msgpack.encode(manifest))
        await self._bus.activate(version)
        await self._registry.refresh()
        await self._turns()

    # ---- time ----

    @property
    def now(self) -> datetime:
        """What time it is, in UTC."""
        return _instant(self._bus.clock.now_ms())

    def advance(self, duration: Duration, *, pump: bool = True) -> None:
        """Let time pass ("1d", "90m", seconds, timedelta): at each due instant on the way its job is minted, and what
        was scheduled becomes due. Nothing is run before `run_due`.

        `pump=False` plays an outage: everything that was due meanwhile is found at the end, all at once, and each
        schedule's `missed=` decides about the instants that it missed.
        """
        self._advance_to(self._bus.clock.now_ms() + duration_ms(duration), pump)

    def advance_to(self, instant: datetime | str, *, pump: bool = True) -> None:
        """The same up to an instant: a datetime with its zone, or "2026-03-29T01:00:00Z". Raises ValueError for one
        that is past.
        """
        to_ms = instant_ms(instant)
        if to_ms < self._bus.clock.now_ms():
            raise ValueError(f"expected an instant from {self.now.isoformat()} on, got {instant}: time goes one way")
        self._advance_to(to_ms, pump)

    def _advance_to(self, to_ms: int, pump: bool) -> None:
        steps = 0
        while pump and (event := self._call(self._bus.next_event())) is not None and event[0] <= to_ms:
            self._call(self._move(event[0]))
            steps += 1
            if steps > MOST_INSTANTS:
                raise RuntimeError(f"more than {MOST_INSTANTS:,} due instants on the way: advance less, or pump=False")
        self._call(self._move(to_ms))

    async def _move(self, to_ms: int) -> None:
        await self._bus.drive("to", to_ms)
        await self._turns()

    async def _turns(self) -> None:
        """A beat, and turns of the pump until nothing is left to do."""
        self._pump.heard(await self._bus.beat(pump=True))
        while (await self._pump.turn()).more:
            pass

    # ---- jobs ----

    @typed
    def enqueue(
        self,
        function: Handler | str,
        payload: object = None,
        *,
        lane: str | None = None,
        delay: Duration | None = None,
        at: datetime | str | None = None,
        unique: str | None = None,
        priority: int | None = None,
    ) -> Job:
        """Make a job as a caller does; under a `unique` key that is taken, returns the job that has it. Arguments are
        those of `ctx.enqueue`. Raises LookupError for a function that is not loaded, ValueError for a payload that does
        not fit its type, Refused for one that does not fit the function of that name, and for a queue at its
        `max_pending`.
        """
        first = self._bus.reserve(1)
        package = package_around(function) if self._package is None else self._package
        children = Children(first, package, self._bus.clock.now_ms())
        children.add(function, payload, lane=lane, delay=delay, at=at, unique=unique, priority=priority)
        asked = children.close()
        self._name(asked[0].function)
        (child,) = mints_of(JobId(""), first, asked, self._registry.function)
        return self._minted(child.queue, msgspec.structs.replace(child.mint, parent=None))

    def post(
        self, path: str, body: Any = b"", *, headers: Mapping[str, str] | None = None, method: str = "POST"
    ) -> Job:
        """The job of a request to a webhook: `bus.post("/hooks/github", {"ref": "main"}, headers={"X-GitHub-Event":
        "push"})`. Of the same delivery again, the first one's.

        `body`: bytes or text as they are; anything else as JSON. `path` may have a query. The request counts as
        verified: no secret and no signature is asked for. Raises LookupError where no loaded webhook has the path,
        ValueError for a method that no webhook takes.
        """
        from echofn.testing.requests import Sent  # brings the gateway along

        active = self._registry.active
        sent = Sent(active.manifest if active else Manifest(""), method, path, body, headers)
        return self._minted(sent.function, sent.mint(self._bus.new_job_id()))

    def _minted(self, queue: str, mint: Mint) -> Job:
        (answer,) = self._call(self._bus.mint(queue, [mint], outside=True))
        match answer:
            case Minted(id):
                return Job(self, queue, id)
            case Full(pending):
                raise Refused(f"{queue} is full: {pending} jobs wait")
            case Conflict(id):
                raise Refused(f"another job, {id}, has this unique key")
            case _:
                raise AssertionError(answer)

    def run_due(self, *, most: int = MOST_JOBS) -> list[Job]:
        """Run the due jobs, and those that they enqueue, until none is due. Returns the jobs in the order they ran.

        A job that failed and was retried without a wait is in the list once for each run. An exception of a handler
        does to its job what it does in production; ctrl-c, a debugger's quit and pytest's own `fail` and `skip` go
        through. Raises RuntimeError after `most` runs: functions that enqueue each other have no end.
        """
        ran: list[Job] = []
        names = self._registry.names()
        while leases := self._call(self._claimed(names)):
            for lease, queue in leases:
                if len(ran) >= most:
                    raise RuntimeError(f"{most:,} jobs ran and more are due: do functions enqueue each other for ever?")
                ended, said = self._hands.run(lease, self._sources[queue])
                self._call(self._hands.settle(queue, lease, ended, said))
                ran += [Job(self, queue, member.job.id) for member in lease.members]
        return ran

    async def _claimed(self, queues: list[str]) -> list[tuple[Lease, str]]:
        """One job of each queue. The pump turns first: a retry without a wait is due at once."""
        await self._turns()
        return [(lease, lease.function.name) for lease in await self._hands.claim(queues)]

    def jobs(self, function: Handler | str | None = None, *, state: str | Iterable[str] | None = None) -> list[Job]:
        """Jobs of a function (its name, or itself) or of all, in the order they were minted. `state`: only those.

        Raises LookupError for a function that is not loaded, ValueError for a state that no job can have.
        """
        names = self._registry.names() if function is None else [self._name(function)]
        states = None if state is None else {state} if isinstance(state, str) else set(state)
        for unknown in (states or set()) - set(STATES):
            near = difflib.get_close_matches(unknown, STATES, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"state: expected {', '.join(STATES)}, got {unknown!r}{hint}")
        return self._call(self._listed(names, states))

    async def _listed(self, names: Sequence[str], states: set[str] | None) -> list[Job]:
        found: list[Job] = []
        for name in names:
            cursor: str | None = None
            while True:
                records, cursor = await self._bus.jobs(name, limit=500, cursor=cursor)
                found += [Job(self, name, each.id) for each in records if states is None or each.state in states]
                if cursor is None:
                    break
        return sorted(found, key=lambda job: job.id)

    def _name(self, function: Handler | str) -> str:
        if isinstance(function, str):
            name = function
        else:
            name = name_of(function, package_around(function) if self._package is None else self._package)
        known = self._registry.names()
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"loaded: {', '.join(known) or 'none'}"
            raise LookupError(f"expected a loaded function, got {name!r}; {hint}")
        return name

    # ---- the machinery ----

    def close(self) -> None:
        """End the bus. The fixture calls it."""
        self._hands.close()
        self._registry.close()

    def _record(self, function: str, id: JobId) -> Record:
        found = self._call(self._bus.job(id, queue=function))
        if found is None:
            raise LookupError(f"job {id} of {function} is not kept any more")
        return found

    def _lines(self, function: str, id: JobId) -> list[str]:
        return [line.text for _, line in self._call(self._bus.logs(function, id, limit=10_000))]


class Job:
    """A job of a test's bus. Attributes are read when you ask: a job from before `run_due` shows what became of it."""

    __slots__ = ("_bus", "function", "id")

    def __init__(self, bus: Bus, function: str, id: JobId) -> None:
        self._bus = bus
        self.function = function
        self.id = id

    @property
    def state(self) -> str:
        """ "pending", "scheduled", "active", "done", "dead" or "cancelled"."""
        return self._now.state

    @property
    def reason(self) -> str | None:
        """Why it is scheduled: "delay", "at", "retry" or "snooze"."""
        return self._now.reason

    @property
    def payload(self) -> Any:
        """In builtins, as stored: dicts, lists, text, numbers, bytes."""
        return codec.decode(self._now.payload)

    @property
    def result(self) -> Any:
        """In builtins, as stored; None before it is done."""
        result = self._now.result
        return None if result is None else codec.decode(result)

    @property
    def error(self) -> Error | None:
        """The last failure: `type`, `message`, `traceback`, `cause`."""
        return self._now.error

    @property
    def lane(self) -> str:
        return self._now.lane

    @property
    def attempts(self) -> int:
        """How often it was claimed."""
        return self._now.attempts

    @property
    def failures(self) -> int:
        """How many runs were charged."""
        return self._now.failures

    @property
    def due(self) -> datetime:
        return _instant(self._now.due_ms)

    @property
    def minted(self) -> datetime:
        return _instant(self._now.minted_ms)

    @property
    def started(self) -> datetime | None:
        """When its last run began."""
        started_ms = self._now.started_ms
        return None if started_ms is None else _instant(started_ms)

    @property
    def ended(self) -> datetime | None:
        ended_ms = self._now.ended_ms
        return None if ended_ms is None else _instant(ended_ms)

    @property
    def progress(self) -> tuple[float, str] | None:
        """The last word of `ctx.progress`."""
        return self._now.progress

    @property
    def log(self) -> list[str]:
        """Lines that its runs logged and printed."""
        return self._bus._lines(self.function, self.id)

    @property
    def children(self) -> list[Job]:
        """The jobs that its run enqueued."""
        return [job for job in self._bus.jobs() if job._now.parent == self.id]

    @property
    def _now(self) -> Record:
        return self._bus._record(self.function, self.id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        try:
            now = self._now
        except Exception:
            return f"<Job {self.id} of {self.function}>"
        told = f" result={self.result!r:.100}" if now.state == "done" else ""
        told = f" {now.error.type}: {now.error.message:.100}" if now.error and not told else told
        return f"<Job {self.id} of {self.function}: {now.state}{told}>"


def _instant(ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=ms)
