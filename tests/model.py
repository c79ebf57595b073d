"""A small model of the bus: what must come of each call, without rings, rows or scripts."""

from __future__ import annotations

from dataclasses import dataclass, field

from audit import Books
from echod.bus.keys import escape
from echod.model.job import Hold

TURN = 5040


@dataclass
class ModelJob:
    lane: str
    priority: int
    state: str
    due_ms: int | None = None
    attempts: int = 0
    failures: int = 0
    losses: int = 0
    holder: str = ""
    begun: bool = False
    cancelling: bool = False
    since_ms: int = 0  # pending since


@dataclass
class Model:
    """One queue."""

    retries: int
    batch: int | None = None
    wait_ms: int = 0
    jobs: dict[str, ModelJob] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)
    paused_lanes: set[str] = field(default_factory=set)
    paused: bool = False
    seats: dict[str, int] = field(default_factory=dict)  # the virtual time of every lane that has work
    picked_at: int = 0  # V
    purged: int = 0
    gathering: dict[str, int] = field(default_factory=dict)  # lanes with less than a batch, until when; paused ones too

    def pending(self, lane: str) -> list[str]:
        """A lane's jobs in the order in which they are served."""
        found = [(job.priority, id) for id, job in self.jobs.items() if job.state == "pending" and job.lane == lane]
        return [id for _, id in sorted(found)]

    def charge(self, lane: str) -> int:
        return TURN // self.weights.get(lane, 1)

    # --- places ----------------------------------------------------------------------------------------------------

    def to_lane(self, id: str, now_ms: int) -> None:
        self.jobs[id].since_ms = now_ms
        self.enter_lane(id, now_ms)

    def enter_lane(self, id: str, now_ms: int) -> None:
        """Its waiting goes on, or begins now."""
        job = self.jobs[id]
        was_empty = not self.pending(job.lane)
        job.state, job.due_ms = "pending", None
        if was_empty:
            self.seats[job.lane] = self.picked_at + self.charge(job.lane)
            self.gather(job.lane, now_ms)
        elif self.batch is not None and self.wait_ms and len(self.pending(job.lane)) == self.batch:
            self.judge(job.lane, now_ms)

    def leave_lane(self, lane: str, now_ms: int) -> None:
        """After a job left its lane: nothing of an emptied lane remains, and V ends with the last."""
        if not self.pending(lane):
            self.seats.pop(lane, None)
            self.gathering.pop(lane, None)
        elif self.wait_ms:
            self.judge(lane, now_ms)
        if not self.seats:
            self.picked_at = 0

    def gather(self, lane: str, now_ms: int) -> None:
        """A lane with less than a batch waits until its first job has waited."""
        self.gathering.pop(lane, None)
        waiting = self.pending(lane)
        until_ms = min(self.jobs[id].since_ms for id in waiting) + self.wait_ms
        if self.batch is not None and len(waiting) < self.batch and until_ms > now_ms:
            self.gathering[lane] = until_ms

    def judge(self, lane: str, now_ms: int) -> None:
        """After its settings or its jobs changed."""
        if lane in self.seats:
            self.seats[lane] = max(self.seats[lane], self.picked_at)
            self.gather(lane, now_ms)

    def instant_came(self, now_ms: int) -> None:
        """What gathered until now is served."""
        for lane in [lane for lane, until_ms in self.gathering.items() if until_ms <= now_ms]:
            if lane not in self.paused_lanes:
                del self.gathering[lane]
                self.seats[lane] = max(self.seats[lane], self.picked_at)

    def end(self, id: str, state: str) -> None:
        self.jobs[id].state = state

    # --- calls -----------------------------------------------------------------------------------------------------

    def mint(self, id: str, lane: str, priority: int, due_ms: int | None, now_ms: int) -> None:
        self.jobs[id] = ModelJob(lane, priority, "scheduled", due_ms)
        if due_ms is None:
            self.to_lane(id, now_ms)

    def claim(self, count: int, now_ms: int) -> list[list[str]]:
        """Turn by turn: the lane of the least virtual time serves one job, or one batch, and is charged for each."""
        turns: list[list[str]] = []
        while len(turns) < count and not self.paused:
            ready = [lane for lane in self.seats if lane not in self.paused_lanes and lane not in self.gathering]
            if not ready:
                break
            lane = min(ready, key=lambda name: (self.seats[name], escape(name)))
            ids = self.pending(lane)[: self.batch or 1]
            self.picked_at = self.seats[lane]
            self.seats[lane] += TURN * len(ids) // self.weights.get(lane, 1)
            for id in ids:
                job = self.jobs[id]
                job.state, job.begun = "active", False
                job.attempts += 1
            turns.append(ids)
            if not self.pending(lane):
                del self.seats[lane]
            else:
                self.gather(lane, now_ms)
        if not self.seats:
            self.picked_at = 0
        return turns

    def hold(self, hold: Hold) -> None:
        job = self.jobs[hold.id]
        assert job.attempts == hold.attempts
        job.holder = hold.holder

    def is_held(self, hold: Hold) -> bool:
        job = self.jobs.get(hold.id)
        return job is not None and job.state == "active" and (job.attempts, job.holder) == (hold.attempts, hold.holder)

    def settle(self, id: str, kind: str, back_ms: int, now_ms: int) -> None:
        job = self.jobs[id]
        if kind in {"done", "dead", "cancelled"}:
            job.failures += kind == "dead"
            self.end(id, kind)
        elif kind == "retry" and job.failures + 1 > self.retries:
            self.end(id, "dead")
        elif job.cancelling:
            self.end(id, "cancelled")
        elif kind == "release":
            self.to_lane(id, now_ms)
        else:
            job.failures += kind == "retry"
            job.state, job.due_ms = "scheduled", back_ms

    def lost(self, id: str, back_ms: int, now_ms: int) -> None:
        job = self.jobs[id]
        if job.cancelling:
            self.end(id, "cancelled")
        elif job.begun:
            job.failures += 1
            job.state, job.due_ms = ("dead", None) if job.failures > self.retries else ("scheduled", back_ms)
        else:
            job.losses += 1
            if job.losses > 10:
                self.end(id, "dead")
            else:
                self.to_lane(id, now_ms)

    def cancel(self, id: str, now_ms: int) -> str:
        job = self.jobs.get(id)
        if job is None:
            return "unknown"
        if job.state in {"done", "dead"}:
            return "ended"
        if job.state == "active":
            job.cancelling = True
            return "cancelling"
        was_pending = job.state == "pending"
        self.end(id, "cancelled")
        if was_pending:
            self.leave_lane(job.lane, now_ms)
        return "cancelled"

    def redrive(self, id: str, now_ms: int, due_ms: int = 0) -> bool:
        job = self.jobs.get(id)
        if job is None or job.state != "dead":
            return False
        job.failures, job.losses, job.cancelling = 0, 0, False
        if due_ms > now_ms:
            job.state, job.due_ms = "scheduled", due_ms
        else:
            self.to_lane(id, now_ms)
        return True

    def drain(self, id: str, now_ms: int) -> None:
        """Of a job that waits."""
        assert self.jobs[id].state in {"pending", "scheduled"}
        self.cancel(id, now_ms)

    def move(self, id: str, lane: str, now_ms: int) -> None:
        """Of a job that waits: it has waited since, whatever the lane."""
        job = self.jobs[id]
        before, was_pending = job.lane, job.state == "pending"
        if was_pending and before != lane:
            job.state = "moving"
            self.leave_lane(before, now_ms)
        job.lane = lane
        if was_pending and before != lane:
            self.enter_lane(id, now_ms)

    def purge(self, id: str) -> None:
        assert self.jobs[id].state in {"done", "dead", "cancelled"}
        del self.jobs[id]
        self.purged += 1

    def pause(self, lane: str | None, paused: bool, now_ms: int) -> None:
        if lane is None:
            self.paused = paused
        elif paused:
            self.paused_lanes.add(lane)
        else:
            self.paused_lanes.discard(lane)
            self.judge(lane, now_ms)

    def weigh(self, lane: str, weight: int, now_ms: int) -> None:
        self.weights[lane] = weight
        self.judge(lane, now_ms)

    # --- comparing -------------------------------------------------------------------------------------------------

    def take_over_seats(self, books: Books) -> None:
        """Where several lanes joined in one call, their order was the bus's to choose."""
        self.seats = {lane: seat for lane in self.seats if (seat := self.seat_of(books, lane)) is not None}
        self.picked_at = int(float(books.meta.get("V", 0)))

    def seat_of(self, books: Books, lane: str) -> int | None:
        score = books.ring.get(escape(lane))
        return self.seats[lane] if score is None else int(score)

    def compare(self, books: Books) -> None:
        """Same jobs in the same lanes in the same order, at the same virtual times."""
        lanes = {escape(lane): self.pending(lane) for lane in self.seats}
        assert books.lanes == lanes
        assert books.held == {escape(lane) for lane in self.seats if lane in self.paused_lanes}
        open_lanes = self.seats.keys() - self.paused_lanes
        assert books.later == {escape(lane): self.gathering[lane] for lane in open_lanes & self.gathering.keys()}
        assert books.ring == {escape(lane): self.seats[lane] for lane in open_lanes - self.gathering.keys()}
        assert int(float(books.meta.get("V", 0))) == self.picked_at
