"""The workers of one (function, version): how many, when one is added, replaced or let go, and who gets which job.

A worker is started for a job that waits for it, at most `workers_max` at a time, and is then kept warm. One that has
run its share (`recycle_jobs` give or take a fifth; with isolation="job" one run) is replaced first and retired then: at
most `workers_max` run jobs, and as many again stand by or are on their way out.
"""

from __future__ import annotations

import asyncio

from echod import log, scratch
from echod.errors import LeaseGone
from echod.model.ids import VersionId
from echod.policy import slots
from echod.supervisor.events import Departure, PoolEvents
from echod.supervisor.handover import frame_sizes, payload_bytes
from echod.supervisor.hiring import Hiring
from echod.supervisor.leases import Lease
from echod.supervisor.life import Phase
from echod.supervisor.line import Line
from echod.supervisor.losses import Losses
from echod.supervisor.means import Means
from echod.supervisor.worker import Worker
from echofn import frames
from echofn.manifest import Function

_log = log.get("supervisor")

NUMBERLESS_S = 0.5
SLOW_S = 0.25  # a job that runs longer has nothing waiting behind it
BEGIN_WITHIN_S = 10.0


class Pool:
    def __init__(
        self, means: Means, events: PoolEvents, hiring: Hiring, function: Function, version: VersionId
    ) -> None:
        self.function = function
        self.version = version
        self.waiting = Line()
        self.cold_starts = 0
        self.most = max(means.cpus if function.policy.workers_max is None else function.policy.workers_max, 1)
        self.serving = True
        self._means, self._events, self._hiring = means, events, hiring
        self._loop = asyncio.get_running_loop()
        self._workers: list[Worker] = []
        self._losses = Losses(function.name, events, self.waiting)
        self._wipes: set[asyncio.Task[None]] = set()

    # ---- what planning sees -------------------------------------------------------------------------------------

    @property
    def workers(self) -> tuple[Worker, ...]:
        return tuple(self._workers)

    @property
    def is_empty(self) -> bool:
        return not self._workers and not self.waiting and not self._wipes

    @property
    def alive(self) -> list[Worker]:
        """Workers that take jobs now or soon."""
        return [worker for worker in self._workers if _lives(worker) and not worker.spent]

    def fit(self) -> list[Worker]:
        """Workers to hand jobs to. Those that are only finishing count towards the limit."""
        ready = [worker for worker in self._workers if _takes(worker)]
        return ready[: self._room()]

    def load(self, depth: int, waiting: int) -> slots.Load:
        fit = self.fit()
        starting = sum(worker.life.phase is Phase.STARTING for worker in self._workers)
        return slots.Load(
            held=tuple(worker.load(depth) for worker in fit),
            starting=min(starting, self._room() - len(fit)),  # a successor has no hands before there is room for it
            waiting=waiting,
            startable=self.startable(),
            depth=depth,
            at_once=self.function.at_once,
        )

    def startable(self) -> int:
        """How many workers may be started now."""
        if not self.serving or not self._means.base.is_up or not self._losses.may_start:
            return 0
        taken = sum(1 for worker in self._workers if not worker.spent or worker.life.held)
        return max(min(self.most - taken, 2 * self.most - len(self._workers)), 0)

    # ---- work ---------------------------------------------------------------------------------------------------

    def place(self, depth: int) -> None:
        """Hand out what waits, and start workers for what nobody has hands for."""
        if self.waiting:
            self._hand_out(depth)
        alone = len(self.waiting.alone)
        # One that has said why it cannot start counts until it is gone: then is judged when the next may.
        starting = sum(worker.life.phase in {Phase.STARTING, Phase.FAILED} for worker in self._workers)
        needed = alone - (alone - len(self.waiting)) // self.function.at_once  # one each, and as many as carry the rest
        short = min(needed - starting, self.startable())
        for _ in range(short):
            self._start()
        self._succeed(depth)

    def staff(self, count: int) -> None:
        """Have at least `count` workers ready or on their way."""
        for _ in range(min(count - len(self.alive), self.startable())):
            self._start()

    def answered(self, worker: Worker, lease: Lease, *, spoilt: bool) -> None:
        """A job of it has ended. `spoilt`: it ran out of memory, so its next job would suffer."""
        self._losses.answered()
        worker.is_alone = worker.is_slow = False
        self.waiting.clear(lease)
        if spoilt:
            worker.limit = 0
        _end_if_done(worker)

    def relieve(self, now: float) -> None:
        """A worker that is stuck in long jobs gives back what waits behind them; one that does not begin is killed."""
        for worker in self._workers:
            newest = worker.life.newest  # of what runs side by side: has any made room lately?
            is_slow = newest is not None and newest.begun is not None and now - newest.begun > SLOW_S
            if is_slow and worker.life.phase is Phase.READY and worker.life.unbegun:
                _log.info("worker.relieved", worker=worker.id, unbegun=len(worker.life.unbegun))
                worker.withdraw()
            elif newest is None and worker.life.held and now - worker.stirred > BEGIN_WITHIN_S:
                worker.kill("protocol", "the worker did not begin the job it was given")

    def reap(self, now: float) -> None:
        """Let go of workers that nobody needed for a while, and of suspicions that came to nothing."""
        self.waiting.forget(now)
        finishing = sum(worker.spent and worker.life.held > 0 for worker in self._workers)  # each has one standing by
        spare = len(self.alive) - (max(self.function.policy.workers_min, finishing) if self.serving else 0)
        for worker in self.alive:
            is_idle = worker.life.phase is Phase.READY and not worker.life.held
            if spare > 0 and is_idle and now - worker.stirred > self._means.idle_s:
                worker.stop()
                spare -= 1

    def retire(self) -> None:
        """Begin nothing more. What runs ends here, on this version; the rest goes back."""
        self.serving = False
        self._losses.give_back()
        for worker in self.workers:
            worker.stop()

    def kill(self) -> None:
        """End everything now."""
        self.serving = False
        self._losses.give_back()
        for worker in self.workers:
            worker.kill("released")

    async def shut(self) -> None:
        """After the last worker is gone: wait until its folder is too."""
        self._losses.close()
        await asyncio.gather(*self._wipes)

    # ---- what workers say ---------------------------------------------------------------------------------------

    def ready(self, worker: Worker) -> None:
        _log.info("worker.ready", worker=worker.id, function=self.function.name, pid=worker.pid, version=self.version)
        self._events.moved()

    def withdrawn(self, worker: Worker, leases: list[Lease]) -> None:
        self._events.released(leases)
        _end_if_done(worker)

    def gone(self, worker: Worker, departure: Departure) -> None:
        self._workers.remove(worker)
        wipe = self._loop.create_task(asyncio.to_thread(scratch.wipe, worker.folder))
        self._wipes.add(wipe)
        wipe.add_done_callback(self._wiped)
        unbegun = list(departure.unbegun)
        if departure.begun:
            self._losses.mourn(worker, departure)
            if departure.why != "released" and self.startable() and not self._stands_by():
                self._start()  # its next run finds a worker that is ready
        elif worker.life.ended == 0 and not worker.was_stopped and departure.why in {None, "protocol", "startup"}:
            self._losses.barren(worker, departure, unbegun, is_last=not self.alive)
        if unbegun:
            self._events.released(unbegun)
        self._events.moved()

    # ---- hands --------------------------------------------------------------------------------------------------

    def _hand_out(self, depth: int) -> None:
        """Give the waiting jobs to those who have room. One that may have no neighbours gets a worker to itself."""
        workers = [worker for worker in self.fit() if not worker.is_alone]
        alone = self.waiting.alone
        for lease in alone[: len(workers)]:
            worker = min(workers, key=lambda worker: worker.life.held)
            workers.remove(worker)  # where it is busy, it gets nothing more until it is not
            if not worker.life.held:
                self.waiting.remove(lease)
                worker.is_alone = self._hand(worker, [lease])
        free = len(self.waiting) - len(self.waiting.alone)
        given = slots.shares(free, [worker.load(depth) for worker in workers], depth)
        for worker, count in zip(workers, given, strict=True):
            self._hand(worker, self.waiting.take(min(count, worker.limit - worker.handed)))

    def _hand(self, worker: Worker, leases: list[Lease]) -> bool:
        """Give a worker jobs that are out of the line. False: they are back in it."""
        try:
            jobs = [self._events.prepare(lease) for lease in leases]
        except LeaseGone as error:
            # Without a node number there are no ids for what a run may enqueue. The next beat brings one.
            _log.warning("job.not_handed", function=self.function.name, error=str(error))
            self.waiting.put_back(leases)
            self._losses.wake_in(NUMBERLESS_S)
            return False
        for lease in leases:
            lease.worker = worker
        now_ms = self._means.bus.clock.now_ms()
        for start, end in frame_sizes([payload_bytes(job) for job in jobs]):
            worker.hand(leases[start:end], frames.Run(tuple(jobs[start:end]), now_ms))
        return True

    def _start(self) -> None:
        """Start one worker. A machine that cannot (no descriptors, no space, no base) makes the pool wait."""
        try:
            worker = self._hiring.hire(self)
        except (LeaseGone, OSError) as error:
            self._losses.not_hired(error, is_last=not self.alive)
        else:
            self.cold_starts += 1
            self._workers.append(worker)

    def _succeed(self, depth: int) -> None:
        """Start the successor of a worker that will soon have run its share."""
        if not self.serving or not self._means.base.is_up:
            return
        alive = [worker for worker in self._workers if _lives(worker)]
        fresh = [worker for worker in alive if not _is_old(worker, depth)]
        standing_by = sum(not worker.life.held for worker in fresh)
        if (
            len(fresh) < self.most
            and standing_by < len(alive) - len(fresh)
            and len(self._workers) < 2 * self.most
            and self._losses.may_start
        ):
            self._start()

    def _stands_by(self) -> bool:
        return any(_takes(worker) and not worker.life.held for worker in self._workers)

    def _room(self) -> int:
        """Workers that may still take jobs, under the limit of this node."""
        return max(self.most - sum(worker.life.held > 0 and not _takes(worker) for worker in self._workers), 0)

    def _wiped(self, task: asyncio.Task[None]) -> None:
        self._wipes.discard(task)


def _lives(worker: Worker) -> bool:
    return worker.life.phase in {Phase.STARTING, Phase.READY} and worker.life.why is None


def _takes(worker: Worker) -> bool:
    return worker.life.phase is Phase.READY and worker.life.why is None and not worker.spent


def _end_if_done(worker: Worker) -> None:
    """One that gets no more jobs and has none has no reason to be here."""
    if worker.spent and not worker.life.held:
        worker.stop()


def _is_old(worker: Worker, depth: int) -> bool:
    return worker.handed + 4 * depth >= worker.limit and worker.handed * 2 >= worker.limit
