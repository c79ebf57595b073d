"""What becomes of the runs of one queue: from what workers and pools say to verdicts, each said once.

A crash is charged to the job that had begun and to no other; what had not begun goes back uncharged, and so do those
that ran beside it; a lease that was lost says nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from echod import log
from echod.model.job import Dead, Error, Release, RunRecord, Verdict
from echod.policy import slots
from echod.supervisor import outcomes
from echod.supervisor.channel import Fault
from echod.supervisor.crews import Crews
from echod.supervisor.events import Departure
from echod.supervisor.handover import job_frame
from echod.supervisor.journal import Journal
from echod.supervisor.leases import Lease, instant
from echod.supervisor.means import Means
from echod.supervisor.worker import Worker
from echofn import frames

_log = log.get("supervisor")


class Runs:
    """Implements PoolEvents. `verdicts` are for the feed to send; `on_moved` asks it to plan again."""

    def __init__(self, queue: str, means: Means, on_moved: Callable[[], None], on_released: Callable[[], None]) -> None:
        self.crews = Crews(queue, means, self)
        self.verdicts: list[tuple[Lease, Verdict]] = []
        self.pace = slots.Pace()
        self._queue, self._means = queue, means
        self._on_moved, self._on_released = on_moved, on_released
        self._journal = Journal(queue, means.bus, means.spawn, means.environ)

    @property
    def batch(self) -> int:
        """How many jobs one worker may hold now."""
        pool = self.crews.active
        if pool is None:
            return 1
        function = pool.function
        return slots.batch_size(self.pace, at_once=function.at_once, ordered=function.policy.priority != 0)

    async def shut(self) -> None:
        """After the last worker is gone."""
        await self._journal.close()
        await self.crews.shut()

    # ---- of workers ---------------------------------------------------------------------------------------------

    def began(self, worker: Worker, lease: Lease) -> None:
        if lease.lost:
            worker.kill("expired", culprits=[lease])

    def answered(self, worker: Worker, lease: Lease, ended: frames.Ended) -> None:
        """The hot path: once per job."""
        means = self._means
        now_ms = self._now_ms(lease)
        most_us = (now_ms - lease.job.claimed_ms) * 1000 + 999
        wall_us = ended.wall_us if 0 <= ended.wall_us <= most_us else most_us
        run = outcomes.record(worker.id, lease.version, now_ms, wall_us, ended, cold=worker.life.ended == 1)
        self.pace = slots.observed(self.pace, wall_us, len(lease.job.payload))
        if lease.first_child:
            means.blocks.give_back(lease.first_child, used=bool(ended.children))
        try:
            verdict = outcomes.of(lease, run, ended, means.registry.function, roll=means.roll())
        except Fault as fault:
            self._say(lease, outcomes.crashed(lease, run, "protocol", str(fault), roll=means.roll()))
            raise
        self._say(lease, verdict)
        pool = self.crews.pool_of(lease)
        if pool is not None:
            pool.answered(worker, lease, spoilt=ended.fault is not None and ended.fault.cause == "memory")

    def wrote(self, worker: Worker, lease: Lease, output: frames.Output) -> None:
        self._journal.wrote(lease, output)

    def progressed(self, worker: Worker, lease: Lease, progress: frames.Progress) -> None:
        self._journal.progressed(lease, progress)

    def spilled(self, worker: Worker, lease: Lease, data: bytes) -> None:
        self._journal.spilled(lease, data)

    # ---- of pools -----------------------------------------------------------------------------------------------

    def prepare(self, lease: Lease) -> frames.Job:
        if lease.function.takes_context and not lease.first_child:
            lease.first_child = self._means.blocks.take(instant())
        return job_frame(lease.job, lease.function, lease.first_child)

    def crashed(self, worker: Worker, lease: Lease, departure: Departure) -> None:
        now_ms = self._now_ms(lease)
        ran_ms = 0 if lease.begun is None else round((instant() - lease.begun) * 1000)
        run = RunRecord(
            worker=worker.id,
            version=lease.version,
            started_ms=max(now_ms - ran_ms, lease.job.claimed_ms),
            ended_ms=now_ms,
            cpu_us=departure.cpu_us,
            peak_bytes=departure.peak_bytes,
            cold=worker.life.ended == 0,
        )
        self._means.blocks.give_back(lease.first_child, used=True)
        self._say(lease, outcomes.crashed(lease, run, departure.cause, departure.detail, roll=self._means.roll()))

    def not_started(self, lease: Lease, failed: frames.Failed, cause: str) -> None:
        self._means.blocks.give_back(lease.first_child, used=False)
        self._say(lease, outcomes.not_started(lease, self._no_run(lease), failed, cause, roll=self._means.roll()))

    def released(self, leases: list[Lease]) -> None:
        """These go back to their lanes, uncharged."""
        for lease in leases:
            self._means.blocks.give_back(lease.first_child, used=lease.begun is not None)
            self._say(lease, Release(lease.hold))
        if leases:
            self._on_released()

    def moved(self) -> None:
        self.crews.succeed()
        self.crews.keep_minimum()
        self.crews.place(self.batch)
        self._on_moved()

    # ---- of the feed --------------------------------------------------------------------------------------------

    def refused(self, lease: Lease, error: Exception) -> None:
        """It can never run: its version is gone."""
        self._say(lease, Dead(lease.hold, self._no_run(lease), Error(type="Refused", message=str(error))))

    def lost(self, lease: Lease) -> None:
        """Somebody else may run it by now: stop ours. One that has not begun is stopped when it does."""
        worker = lease.worker
        if worker is not None and lease in worker.life.running.values():
            worker.kill("expired", culprits=[lease])
        elif worker is None and not lease.settling:
            self.crews.unqueue(lease)

    def cancel(self, lease: Lease) -> None:
        """Somebody asked for a stop: the run is told, and its worker killed where it has not ended after its grace."""
        if lease.settling or lease.cancelling:
            return
        worker = lease.worker
        if worker is None:
            if self.crews.unqueue(lease):
                lease.cancelling = True
                self.released([lease])  # the bus ends a released job that was to be cancelled
            return  # else its version is on its way: the next extend says it again
        lease.cancelling = True
        worker.cancel(lease)

    def drop(self, lease: Lease) -> None:
        """Its verdict came after its lease was over."""
        _log.warning("settle.dropped", queue=self._queue, job=lease.job.id, why="its lease was over")

    def _say(self, lease: Lease, verdict: Verdict) -> None:
        """This is what became of a job."""
        self._journal.ended(lease)
        lease.settling = True
        lease.worker = None
        if lease.lost:
            self.drop(lease)
            return
        self.verdicts.append((lease, verdict))
        self._on_moved()

    def _now_ms(self, lease: Lease) -> int:
        """The bus's time as we guess it, but never before the claim that the bus itself dated."""
        return max(self._means.bus.clock.now_ms(), lease.job.claimed_ms)

    def _no_run(self, lease: Lease) -> RunRecord:
        now_ms = self._now_ms(lease)
        return RunRecord(worker="", version=lease.version, started_ms=now_ms, ended_ms=now_ms)
