"""What becomes of the runs of one queue: from what workers and pools say to verdicts, each said once.

A crash is charged to the job that had begun and to no other; what had not begun goes back uncharged, and so do those
that ran beside it; a lease that was lost says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from echod import log
from echod.model.job import Dead, Error, Release, Retry, RunRecord, Verdict
from echod.policy import slots
from echod.supervisor import batches, outcomes
from echod.supervisor.channel import Fault
from echod.supervisor.crews import Crews
from echod.supervisor.events import Departure
from echod.supervisor.handover import batch_frame, job_frame
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
        self.limited = False  # the queue has limits, as the bus answered last: jobs in a line would fill them up
        self._queue, self._means = queue, means
        self._on_moved, self._on_released = on_moved, on_released
        self._journal = Journal(queue, means.bus, means.spawn, means.environ)

    @property
    def depth(self) -> int:
        """How many jobs one worker may hold now."""
        pool = self.crews.active
        if pool is None:
            return 1
        function = pool.function
        policy = function.policy
        most = slots.MOST_JOBS // (policy.batch or 1)
        is_ordered = policy.priority != 0 or self.limited or policy.isolation == "job"
        return slots.depth(self.pace, at_once=function.at_once, ordered=is_ordered, most=most)

    async def shut(self) -> None:
        """After the last worker is gone."""
        await self._journal.close()
        await self.crews.shut()

    # ---- of workers ---------------------------------------------------------------------------------------------

    def began(self, worker: Worker, lease: Lease) -> None:
        lease.began_ms = self._now_ms(lease)
        for other in lease.others:
            other.begun, other.began_ms = lease.begun, lease.began_ms
        if lease.is_lost:
            worker.kill("expired", culprits=[lease])

    def answered(self, worker: Worker, lease: Lease, ended: frames.Ended) -> None:
        """The hot path: once per job."""
        means = self._means
        now_ms = self._now_ms(lease)
        most_us = (now_ms - lease.job.claimed_ms) * 1000 + 999
        wall_us = ended.wall_us if 0 <= ended.wall_us <= most_us else most_us
        run = outcomes.record(worker.id, lease, now_ms, wall_us, ended, cold=worker.life.ended == 1)
        payload_bytes = len(lease.job.payload) + sum(len(other.job.payload) for other in lease.others)
        self.pace = slots.observed(self.pace, wall_us, payload_bytes)
        if lease.first_child:
            is_used = bool(ended.children or any(part.children for part in lease.parts.values()))
            means.blocks.give_back(lease.first_child, used=is_used)
        try:
            if lease.function.policy.batch is None:
                said = [(lease, outcomes.of(lease, run, ended, means.registry.function, roll=means.roll()))]
            else:
                said = batches.answered(lease, run, ended, means.registry.function, roll=means.roll())
        except Exception as error:
            raise self._disbelieved(lease, run, error) from error
        self._say_all(said)
        pool = self.crews.pool_of(lease)
        if pool is not None:
            pool.answered(worker, lease, spoilt=ended.fault is not None and ended.fault.cause == "memory")

    def wrote(self, lease: Lease, output: frames.Output) -> None:
        self._journal.wrote(lease, output)

    def progressed(self, lease: Lease, progress: frames.Progress) -> None:
        for member in lease.members:
            self._journal.progressed(member, progress)

    def left(self, worker: Worker, last: Lease | None, left: frames.Left) -> None:
        error = outcomes.error_of_leaving(left)
        _log.error("lifespan.not_left", queue=self._queue, worker=worker.id, error=f"{error.type}: {error.message}")
        if last is not None:
            self._journal.explain(last, error)

    def spilled(self, lease: Lease, stream: str, data: bytes) -> None:
        self._journal.spilled(lease, stream, data)

    # ---- of pools -----------------------------------------------------------------------------------------------

    def prepare(self, lease: Lease) -> frames.Job:
        if lease.function.takes_context and not lease.first_child:
            lease.first_child = self._means.blocks.take(instant())
        if lease.function.policy.batch is not None:
            return batch_frame([member.job for member in lease.members], lease.function, lease.first_child)
        return job_frame(lease.job, lease.function, lease.first_child)

    def crashed(self, worker: Worker, lease: Lease, departure: Departure) -> None:
        now_ms = self._now_ms(lease)
        ran_ms = 0 if lease.begun is None else round((instant() - lease.begun) * 1000)
        run = RunRecord(
            worker=worker.id,
            version=lease.version,
            started_ms=max(min(now_ms - ran_ms, lease.began_ms or now_ms), lease.job.claimed_ms),
            ended_ms=now_ms,
            cpu_us=departure.cpu_us,
            peak_bytes=departure.peak_bytes,
            cold=worker.life.ended == 0,
        )
        self._means.blocks.give_back(lease.first_child, used=True)
        function_of, roll = self._means.registry.function, self._means.roll()
        try:
            self._say_all(batches.crashed(lease, run, departure, function_of, roll=roll))
        except Exception as error:  # in what was told before
            self._disbelieved(lease, run, error)

    def not_started(self, lease: Lease, failed: frames.Failed, cause: str) -> None:
        self._means.blocks.give_back(lease.first_child, used=False)
        run, roll = self._no_run(lease), self._means.roll()
        self._say_all((each, outcomes.not_started(each, run, failed, cause, roll=roll)) for each in lease.members)

    def released(self, leases: list[Lease]) -> None:
        """These go back to their lanes, uncharged."""
        for lease in leases:
            self._means.blocks.give_back(lease.first_child, used=lease.begun is not None)
            self._say_all((member, Release(member.hold)) for member in lease.members)
        if leases:
            self._on_released()

    def moved(self) -> None:
        self.crews.succeed()
        self.crews.keep_minimum()
        self.crews.place(self.depth)
        self._on_moved()

    # ---- of the feed --------------------------------------------------------------------------------------------

    def refused(self, lease: Lease, error: Exception) -> None:
        """It can never run: its version is gone."""
        self._say(lease, Dead(lease.hold, self._no_run(lease), Error(type="Refused", message=str(error))))

    def lost(self, lease: Lease) -> None:
        """Somebody else may run it by now: stop ours. One that has not begun is stopped when it does.

        A batch goes on for those that are left; for the others its answer comes too late, as any stale holder's.
        """
        lead = lease.lead
        worker = lead.worker
        if not lead.is_lost:
            return
        if worker is not None and lead in worker.life.running.values():
            worker.kill("expired", culprits=[lead])
        elif worker is None and not lease.settling:
            self.crews.unqueue(lead)

    def cancel(self, lease: Lease) -> None:
        """Somebody asked for a stop: the run is told, and its worker killed where it has not ended after its grace.

        A batch goes back whole if it has not begun, and is told when all of its jobs are to stop. Until then one of
        them is done if its run says so, and is cancelled where it would be tried again.
        """
        if lease.settling or lease.cancelling:
            return
        lead = lease.lead
        worker = lead.worker
        if worker is None:
            if self.crews.unqueue(lead):
                lease.cancelling = True
                self.released([lead])  # the bus ends a released job that was to be cancelled
            return  # else its version is on its way: the next extend says it again
        lease.cancelling = True
        if lead.is_cancelling:
            worker.cancel(lead)
        elif lead.begun is None:
            worker.ask_back(lead)  # all of it goes back, and the bus ends this one

    def drop(self, lease: Lease) -> None:
        """Its verdict came after its lease was over."""
        _log.warning("settle.dropped", queue=self._queue, job=lease.job.id, why="its lease was over")

    def _disbelieved(self, lease: Lease, run: RunRecord, error: Exception) -> Fault:
        """No verdict can be made of what a worker said: its jobs end as those of one that broke the protocol do."""
        fault = error if isinstance(error, Fault) else Fault(f"the answer could not be taken: {type(error).__name__}")
        if fault is not error:  # a defect of ours: it may not keep the jobs for ever
            _log.error("answer.not_taken", exc_info=error, queue=self._queue, job=lease.job.id)
        roll = self._means.roll()
        self._say_all((each, outcomes.crashed(each, run, "protocol", str(fault), roll=roll)) for each in lease.members)
        return fault

    def _say_all(self, said: Iterable[tuple[Lease, Verdict]]) -> None:
        """What became of all that ran as one. Their output is in the first one's log; the others' say so."""
        for lease, verdict in said:
            if lease.lead.output_bytes and lease.lead is not lease:
                self._journal.pointed(lease, lease.lead)
            self._say(lease, verdict)

    def _say(self, lease: Lease, verdict: Verdict) -> None:
        """This is what became of a job."""
        self._journal.ended(lease)
        if isinstance(verdict, Retry | Dead) and not lease.lost:
            self._journal.explain(lease, verdict.error)
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
