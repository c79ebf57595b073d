"""`Client` and `Job` for programs without a loop: a facade over the one core, which runs in a thread of its own.

Any number of threads may share a client. A process that forked (a web server's workers, say) gets a core of its own at
the first call: connections and node numbers are never shared.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack

from echod.client import signatures
from echod.client.asynchronous import PATIENCE_S, AsyncClient, AsyncJob, moved
from echod.client.connection import CLOSED
from echod.client.orders import Duration, ManyOptions, Options, Record
from echod.client.repeats import RepeatOptions, Schedule
from echod.errors import OrdersRefused, Refused
from echod.model.job import State

R = TypeVar("R")
T = TypeVar("T")


class _Core:
    """A loop in a thread, and the client that lives in it."""

    def __init__(self, made: Callable[[], AsyncClient]) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="echod-client", daemon=True)
        self._thread.start()

        async def make() -> AsyncClient:
            return made()

        try:
            self.client = self.run(make())
        except BaseException:
            self._stop()
            raise

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """The call's answer; interrupted, the call is given up."""
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        try:
            self.run(self.client.close())
        finally:
            self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Client:
    """Calls to one echod. Close it, or use `with`. The arguments are those of `AsyncClient`."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        app: str | None = None,
        timeout: Duration = PATIENCE_S,
        package: str | None = None,
    ) -> None:
        self._made = lambda: AsyncClient(url, token, app=app, timeout=timeout, package=package)
        self._starting = threading.Lock()
        self._running: _Core | None = None
        self._is_closed = False
        self._core()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up, for good, and end the thread."""
        self._is_closed = True
        core, self._running = self._running, None
        if core is not None and core.pid == os.getpid():
            core.close()

    @signatures.enqueue
    def enqueue(self, function: Callable[..., Any] | str, payload: Any = None, **options: Unpack[Options]) -> Job[Any]:
        """As `AsyncClient.enqueue`."""
        core = self._core()
        return Job(self, core.run(core.client.enqueue(function, payload, **options)))

    @signatures.enqueue_many
    def enqueue_many(
        self, function: Callable[..., Any] | str, payloads: Iterable[Any], **options: Unpack[ManyOptions]
    ) -> list[Job[Any]]:
        """As `AsyncClient.enqueue_many`."""
        core = self._core()
        try:
            return [Job(self, job) for job in core.run(core.client.enqueue_many(function, payloads, **options))]
        except OrdersRefused as error:
            error.jobs = [None if job is None else Job(self, job) for job in error.jobs]
            raise

    def job(self, id: str, function: str | None = None) -> Job[Any]:
        """A job by its id; `function` saves a search over all queues. Raises TypeError for what is no text."""
        return Job(self, self._core().client.job(id, function))

    @signatures.repeat
    def repeat(self, name: str, function: Callable[..., Any] | str, **options: Unpack[RepeatOptions]) -> Schedule:
        """As `AsyncClient.repeat`."""
        core = self._core()
        said: Any = options  # what may stand beside what, its own caller was told
        made: Schedule = core.run(core.client.repeat(name, function, **said))
        return made

    def cancel_repeat(self, name: str) -> bool:
        """As `AsyncClient.cancel_repeat`."""
        core = self._core()
        return core.run(core.client.cancel_repeat(name))

    def _core(self) -> _Core:
        if self._is_closed:
            raise Refused(CLOSED)
        core = self._running
        if core is not None and core.pid == os.getpid():
            return core
        with self._starting:
            if self._running is None or self._running.pid != os.getpid():
                self._running = _Core(self._made)
            return self._running


class Job(Generic[R]):
    """A job, by its id. What is known of it is as of the last `refresh`, `result` or `cancel`."""

    def __init__(self, client: Client, job: AsyncJob[R]) -> None:
        self._client, self._job = client, job

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return repr(self._job).replace("AsyncJob", "Job", 1)

    @property
    def id(self) -> str:
        return self._job.id

    @property
    def function(self) -> str | None:
        """Its function's name, once it is known."""
        return self._job.function

    @property
    def state(self) -> State | None:
        """pending, scheduled, active, done, dead or cancelled, as last heard; None before."""
        return self._job.state

    @property
    def record(self) -> Record | None:
        """All that was last heard of it; None before."""
        return self._job.record

    def refresh(self) -> Self:
        """As `AsyncJob.refresh`."""
        self._of_this_process()
        self._client._core().run(self._job.refresh())
        return self

    def result(self, timeout: Duration | None = None) -> R:
        """As `AsyncJob.result`."""
        self._of_this_process()
        return self._client._core().run(self._job.result(timeout))

    def cancel(self) -> bool:
        """As `AsyncJob.cancel`."""
        self._of_this_process()
        return self._client._core().run(self._job.cancel())

    def _of_this_process(self) -> None:
        """After a fork, the same job by the new core's way."""
        self._job = moved(self._job, self._client._core().client)
