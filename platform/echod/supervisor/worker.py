"""The handle of one worker: what it is given and says, and its clock. What it decides is in life.py.

A worker is gone when nothing of its process tree is left: the base says so (`Exited`), or died. Only then are its
unanswered jobs accounted for, after everything it wrote before has been read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from echod import log
from echod.model.ids import WorkerId
from echod.supervisor.base import Base
from echod.supervisor.channel import Fault
from echod.supervisor.deadlines import Deadlines
from echod.supervisor.events import Departure, JobEvents, LifeEvents
from echod.supervisor.leases import Lease, instant
from echod.supervisor.life import Life, Phase, Why, cause_of
from echod.supervisor.outside import Outside
from echod.supervisor.process import Process
from echod.supervisor.watch import Looks, Watch
from echofn import frames
from echofn.manifest import Function

_log = log.get("supervisor")

START_WITHIN_S = 30.0
HUNG_UP_S = 0.3  # between the end of its channel and its exit; longer, and it closed the channel itself
IDLE_WITHIN_S = 10.0  # the time that an idle worker has to exit when told, the rest of its lifespan included
SETTLE_DOWN_S = 0.1  # after a Stop: a worker that has begun nothing since then is past it and never will


class Worker:
    """One forked process. Made by its pool; `start` may raise OSError."""

    def __init__(
        self,
        worker_id: WorkerId,
        base: Base,
        jobs: JobEvents,
        owner: LifeEvents,
        *,
        folder: Path,
        limit: int,
        function: Function,
        looks: Callable[[Worker], Looks],
    ) -> None:
        self.id = worker_id
        self.life: Life[Lease] = Life(function.at_once)
        self.is_alone = False  # it runs a job that may have no neighbours
        self.is_slow = False  # nothing of what it runs has ended for a while
        self.folder = folder
        self.limit = limit  # jobs after which it is replaced
        self.handed = 0  # jobs ever given to it
        self.was_stopped = False
        self.has_left = False  # its lifespan, and not well
        self.charged_cpu_us = 0  # reported by its runs so far
        self.stirred = instant()  # when it was last handed a job or said something
        self._jobs, self._owner = jobs, owner
        self._process = Process(base, self)
        self._function = function
        self._deadlines = Deadlines(self.life.running, look=self._look, tell=self._tell, over=self._over)
        self._culprits: tuple[Lease, ...] = ()
        busy, self._strays = looks(self)
        idle = self._strays.look if self._strays is not None else None
        self._watch = Watch(busy, over=lambda seen: self.kill(*seen), busy=lambda: self.life.held > 0, idle=idle)
        self._loop = asyncio.get_running_loop()
        self._was_ready = False
        self._failed: frames.Failed | None = None
        self._answered: Lease | None = None  # the last that was
        self._outside = Outside(self, jobs)
        self._detail = ""
        self._starting: asyncio.TimerHandle | None = None
        self._waits: list[asyncio.TimerHandle] = []

    @property
    def pid(self) -> int | None:
        """None until the base has told."""
        return self._process.pid

    @property
    def spent(self) -> bool:
        """It gets no more jobs."""
        return self.handed >= self.limit

    def load(self, depth: int) -> int:
        """Jobs in its hands, of the `depth` it may hold; what it cannot use counts as taken."""
        if self.is_alone:
            return depth
        return self.life.held + (depth - self._function.at_once if self.is_slow else 0)

    def start(self, order: Callable[[int], frames.Spawn], secrets: Mapping[str, str]) -> None:
        """Have it forked, with its variables. Raises OSError when there are no descriptors left or no base."""
        self._process.start(order, secrets)
        self._expect_start(START_WITHIN_S, "its module's import does not end")

    # ---- orders -------------------------------------------------------------------------------------------------

    def hand(self, leases: Sequence[Lease], run: frames.Run) -> None:
        """Give it the jobs of one frame."""
        for index, lease in enumerate(leases, self.life.hand(leases)):
            lease.index = index
        self.handed += sum(len(lease.members) for lease in leases)
        self.stirred = instant()
        self._process.send(run)

    def stop(self) -> None:
        """Let it finish what has begun and exit; what it has not begun comes back through `withdrawn`."""
        if self.life.phase is Phase.STARTING:
            self.kill("released")
        if self.life.phase is not Phase.READY:
            return
        self.life.stop()
        self.was_stopped = True
        self._process.send(frames.Stop())
        if self.life.unbegun:
            self._waits.append(self._loop.call_later(SETTLE_DOWN_S, self._withdraw, self.life.began))
        self._waits.append(self._loop.call_later(IDLE_WITHIN_S, self._expect_exit))

    def cancel(self, lease: Lease) -> None:
        """Ask a run to end. One that has not begun never does; one that has is given its grace."""
        self._deadlines.interrupt(lease, "cancelled")

    def withdraw(self) -> None:
        """Ask back what waits behind slow runs. A worker that cannot hear it, or does not, is stopped."""
        waiting = [lease for lease in self.life.unbegun if not lease.withdrawn]
        if not self._function.is_async or not waiting:
            self.stop()
            return
        self.is_slow = True
        for lease in waiting:
            self.ask_back(lease)

    def ask_back(self, lease: Lease) -> None:
        """Have it come back through `withdrawn`, unless it has begun by then."""
        if not lease.withdrawn:
            lease.withdrawn = True
            self._process.send(frames.Withdraw(lease.index))

    def kill(self, why: Why, detail: str = "", culprits: Sequence[Lease] = ()) -> None:
        """End it and all its descendants now; because of these runs, where that is known."""
        self._detail = self._detail or detail
        if self.life.kill(why):
            self._culprits = tuple(culprits)
            self._deadlines.close()
            _log.info("worker.killed", worker=self.id, pid=self.pid, why=why)
            self._process.kill()

    # ---- what the base says -------------------------------------------------------------------------------------

    def exited(self, exited: frames.Exited | None) -> None:
        if self.life.phase is Phase.GONE:
            return
        if exited is None:
            self.life.kill("base")
        self._process.drain()
        self._outside.close(self._function.name, failed=self._failed is not None)
        begun, unbegun = self.life.gone()
        peak = exited.peak_bytes if exited else 0
        cause = cause_of(
            exited.status if exited else None,
            why=self.life.why,
            peak_bytes=peak,
            memory_bytes=self._function.policy.memory_bytes,
        )
        self._close()
        self._owner.gone(
            self,
            Departure(
                begun=tuple(begun),
                culprits=self._culprits,
                unbegun=tuple(unbegun),
                was_ready=self._was_ready,
                failed=self._failed,
                why=self.life.why,
                cause=cause,
                detail=self._detail,
                cpu_us=max(exited.cpu_us - self.charged_cpu_us, 0) if exited else 0,
                peak_bytes=peak,
            ),
        )

    # ---- what the worker says -----------------------------------------------------------------------------------

    def heard(self, found: list[frames.FromWorker]) -> None:
        life, jobs = self.life, self._jobs
        has_drained = False
        try:
            for frame in found:
                match frame:
                    case frames.Skipped():
                        if (lease := life.skipped(frame.index)) is not None:
                            self._skipped(lease)
                    case frames.Ended():
                        self._process.hear_pipes(again=has_drained)
                        has_drained = True
                        lease = self._answered = life.answered(frame.index)
                        self.charged_cpu_us += max(frame.cpu_us, 0)
                        jobs.answered(self, lease, frame)
                    case frames.Part():
                        life.of(frame.index).hear(frame)
                    case frames.Begun():
                        lease = life.begun(frame.index)
                        lease.begun = instant()
                        self._outside.begun(lease)
                        self._process.begun()
                        self._deadlines.begin(lease)
                        self._watch.wake()
                        jobs.began(self, lease)
                    case frames.Output(index=frames.OUTSIDE):
                        self._outside.wrote(frame, life.running.values(), self._answered)
                    case frames.Output():
                        jobs.wrote(life.of(frame.index), frame)
                    case frames.Progress():
                        jobs.progressed(life.of(frame.index), frame)
                    case frames.Extend():
                        self._deadlines.extend(life.of(frame.index), frame.by_ms)
                    case frames.Listens():
                        life.of(frame.index).listens = True
                    case frames.Imported():
                        self._imported()
                    case frames.Ready():
                        life.became_ready()
                        self._became_ready()
                    case frames.Failed():
                        life.failed()
                        self._failed = frame
                    case frames.Left():
                        self._left(frame)
        except Fault as fault:
            self.broke(fault)
        except Exception as error:  # a defect of ours, found by what it sent: that costs this worker and nothing else
            _log.exception("frame.not_taken", worker=self.id, pid=self.pid)
            self.broke(Fault(f"what the worker sent could not be taken: {type(error).__name__}"))
        self.stirred = instant()

    def _left(self, left: frames.Left) -> None:
        if self.life.running or self.has_left:
            raise Fault("expected a lifespan to be left once, after the last job")
        self.has_left = True
        self._jobs.left(self, self._answered, left)

    def _skipped(self, lease: Lease) -> None:
        if lease.told is None and not lease.withdrawn:
            raise Fault("expected a job to be skipped only where that was asked for")
        self._owner.withdrawn(self, [lease])

    def _became_ready(self) -> None:
        self._was_ready = True
        if self._strays is not None:
            self._strays.spare()
        if self._starting is not None:
            self._starting.cancel()
        self._owner.ready(self)

    def broke(self, fault: Fault) -> None:
        """It broke the protocol: nothing more of it is believed."""
        if self.life.phase is Phase.GONE:
            return
        if self.life.why is None:
            self._detail = str(fault)
            _log.warning("worker.broke_protocol", worker=self.id, pid=self.pid, detail=self._detail)
        self._process.hang_up()
        self.kill("protocol")

    def hung_up(self) -> None:
        """Its end of the channel is closed: by its exit, which the base will tell, or by the handler's own hand."""
        if self.life.phase is not Phase.GONE and not self._process.is_gone:
            self._waits.append(self._loop.call_later(HUNG_UP_S, self.broke, Fault("the worker closed its channel")))

    def ended(self) -> None:
        """What it might yet have done it will not."""
        for wait in self._waits:
            wait.cancel()

    # ---- time and end -------------------------------------------------------------------------------------------

    def _expect_start(self, within_s: float, why_not: str) -> None:
        if self._starting is not None:
            self._starting.cancel()
        detail = f"the worker was not ready within {within_s:g} s: {why_not}"
        self._starting = self._loop.call_later(within_s, self.kill, "startup", detail)

    def _imported(self) -> None:
        """Its module is there; its lifespan has a time of its own."""
        if self.life.phase is not Phase.STARTING or self._function.startup_ms is None:
            raise Fault("expected word of an import only while a worker with a lifespan starts")
        self._expect_start(
            self._function.startup_ms / 1000, f"the @lifespan of {self._function.file} has not come to its yield"
        )

    def _look(self) -> None:
        if self.life.phase is not Phase.GONE:
            self._process.look()

    def _tell(self, lease: Lease) -> None:
        self._process.send(frames.Cancel(lease.index))

    def _over(self, leases: list[Lease]) -> None:
        """These were to end and did not. Where they did not even hear it, a neighbour may be blocking their loop."""
        is_known = len(self.life.running) == 1
        culprits = [lease for lease in leases if is_known or lease.listens or lease.is_cancelling]
        self.kill("cancelled" if all(lease.is_cancelling for lease in leases) else "timeout", culprits=culprits)

    def _expect_exit(self) -> None:
        """It was told to stop. While its job runs it may; with nothing to do it has no reason to be here."""
        idle_s = 0.0 if self.life.running else instant() - self.stirred
        if idle_s >= IDLE_WITHIN_S - 0.01:
            self.kill("released")
        else:
            self._waits.append(self._loop.call_later(IDLE_WITHIN_S - idle_s, self._expect_exit))

    def _withdraw(self, had_begun: int) -> None:
        """The Stop has long been in its channel. Nothing new has begun since: what it has not begun, it never will."""
        if self.life.phase is not Phase.STOPPING:
            return
        self._process.look()
        if self.life.phase is not Phase.STOPPING or not self.life.unbegun:
            return
        if not self.life.running or self.life.began != had_begun:  # it is about to exit, or has just begun one more
            self._waits.append(self._loop.call_later(SETTLE_DOWN_S, self._withdraw, self.life.began))
        else:
            self._owner.withdrawn(self, self.life.withdraw())

    def spilled(self, stream: str, index: int, data: bytes) -> bool:
        lease = self.life.running.get(index)
        if lease is None:
            return not self.life.is_ahead(index)  # what was written after its run, or by no single one, is dropped
        self._jobs.spilled(lease, stream, data)
        return True

    def _close(self) -> None:
        self._deadlines.close()
        for wait in (*self._waits, self._starting):
            if wait is not None:
                wait.cancel()
        self._watch.close()
        self._process.close()
