"""A small model of the bus: what must come of each call, without rings, rows or scripts."""

from __future__ import annotations

import collections
import math
from dataclasses import dataclass, field
from typing import Any

from audit import Books
from echod.bus.keys import escape
from echod.model.job import Hold, Unique

TURN = 5040
CALL_MS = 10_000  # longer than any call takes
ASKED_MS = 1_000  # and than lies between a call and the next, which is asked for its instant


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
    counted: bool = False  # among its lane's active jobs
    parent: str | None = None
    unique: Unique | None = None  # until done or started


@dataclass
class Window:
    """Starts that a rate counts."""

    ends_ms: int
    started: int


Rate = tuple[int, int]


@dataclass
class Limits:
    """Of a queue: what code says, or what was set by hand; False there: lifted."""

    concurrency: int | bool | None = None
    rate: Rate | bool | None = None
    lane_concurrency: int | bool | None = None
    lane_rate: Rate | bool | None = None
    weight: int | None = None
    weights: dict[str, int] = field(default_factory=dict)  # by lane, code only


@dataclass
class Model:
    """One queue."""

    retries: int
    batch: int | None = None
    wait_ms: int = 0
    jobs: dict[str, ModelJob] = field(default_factory=dict)
    coded: Limits = field(default_factory=Limits)
    hand: Limits = field(default_factory=Limits)
    weights: dict[str, int] = field(default_factory=dict)  # these four by lane, set by hand
    concurrencies: dict[str, int | bool] = field(default_factory=dict)
    rates: dict[str, Rate | bool] = field(default_factory=dict)
    paused_lanes: set[str] = field(default_factory=set)
    paused: bool = False
    seats: dict[str, int] = field(default_factory=dict)  # the virtual time of every lane that has work
    later: dict[str, int] = field(default_factory=dict)  # lanes that wait for an instant
    held: set[str] = field(default_factory=set)  # lanes that are paused or have as many active jobs as they may
    picked_at: int = 0  # V
    window: Window | None = None
    windows: dict[str, Window] = field(default_factory=dict)
    seen_ms: int | None = None  # by the last tick under limits of lanes, or where lanes gather
    counts: collections.Counter[str] = field(default_factory=collections.Counter)

    def pending(self, lane: str) -> list[str]:
        """A lane's jobs in the order in which they are served."""
        found = [(job.priority, id) for id, job in self.jobs.items() if job.state == "pending" and job.lane == lane]
        return [id for _, id in sorted(found)]

    # --- limits ----------------------------------------------------------------------------------------------------

    def limit(self, name: str) -> Any:
        """What counts of a limit: an operator's word before code's."""
        by_hand = getattr(self.hand, name)
        return (getattr(self.coded, name) if by_hand is None else by_hand) or None

    @property
    def is_limited(self) -> bool:
        return bool(self.limit("concurrency") or self.limit("rate") or self.of_lanes)

    @property
    def of_lanes(self) -> bool:
        return bool(self.limit("lane_concurrency") or self.limit("lane_rate") or self.concurrencies or self.rates)

    @property
    def counts_active(self) -> bool:
        """Of each lane: where a limit asks for it."""
        return bool(self.limit("lane_concurrency") or self.concurrencies or self.rates)

    def weight(self, lane: str) -> int:
        if lane in self.weights:
            return self.weights[lane]
        if self.hand.weight is None and lane in self.coded.weights:
            return self.coded.weights[lane]
        return self.limit("weight") or 1

    def charge(self, lane: str, jobs: int = 1) -> int:
        return TURN * jobs // self.weight(lane)

    def active(self, lane: str | None = None) -> int:
        return sum(job.state == "active" and lane in (None, job.lane) for job in self.jobs.values())

    @staticmethod
    def left(rate: Rate | None, window: Window | None, now_ms: int) -> tuple[float, int | None]:
        """How many may start under a rate, and when the window that is open ends."""
        if rate is None:
            return math.inf, None
        if window is None or not now_ms < window.ends_ms <= now_ms + rate[1]:
            return rate[0], None
        return rate[0] - window.started, window.ends_ms

    @staticmethod
    def started(rate: Rate | None, window: Window | None, now_ms: int) -> Window | None:
        """The window after one start more."""
        if rate is None:
            return window
        if window is None or not now_ms < window.ends_ms <= now_ms + rate[1]:
            return Window(now_ms + rate[1], 1)
        return Window(window.ends_ms, window.started + 1)

    def concurrency_of(self, lane: str) -> int | None:
        return self.concurrencies.get(lane, self.limit("lane_concurrency")) or None

    def rate_of(self, lane: str) -> Rate | None:
        return self.rates.get(lane, self.limit("lane_rate")) or None  # type: ignore[return-value]

    def free(self, lane: str) -> float:
        """How many more of a lane's jobs may be active."""
        most = self.concurrency_of(lane)
        return math.inf if most is None else most - self.active(lane)

    def room(self, now_ms: int) -> float:
        """How many jobs of the queue may start."""
        most = self.limit("concurrency")
        free = math.inf if most is None else most - self.active()
        return min(free, self.left(self.limit("rate"), self.window, now_ms)[0])

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
            self.place(job.lane, now_ms)
        elif self.batch is not None and self.wait_ms and len(self.pending(job.lane)) == self.batch:
            self.judge(job.lane, now_ms)

    def leave_lane(self, lane: str, now_ms: int) -> None:
        """After a job left its lane: nothing of an emptied lane remains, and V ends with the last."""
        if not self.pending(lane):
            self.forget(lane)
        elif self.wait_ms:
            self.judge(lane, now_ms)
        if not self.seats:
            self.picked_at = 0

    def forget(self, lane: str) -> None:
        self.seats.pop(lane, None)
        self.later.pop(lane, None)
        self.held.discard(lane)

    def vacate(self, id: str, now_ms: int) -> None:
        """A job leaves `active`: its lane may be served again."""
        job = self.jobs[id]
        job.state = "leaving"
        if job.counted and job.lane in self.held:
            self.judge(job.lane, now_ms)
        job.counted = False

    def gathers_until(self, lane: str, now_ms: int) -> int | None:
        """A lane with less than a batch waits until its first job has waited; one of the future waits from now on."""
        waiting = self.pending(lane)
        if self.batch is None or len(waiting) >= self.batch or not self.wait_ms:
            return None
        return min(now_ms, *(self.jobs[id].since_ms for id in waiting)) + self.wait_ms

    def instants(self, lane: str, now_ms: int) -> list[int]:
        """When a lane that nobody touches would be judged otherwise."""
        window, rate = self.windows.get(lane), self.rate_of(lane)
        opens_ms = window.ends_ms - rate[1] if window and rate else None
        gathers = self.gathers_until(lane, now_ms) if self.pending(lane) else None
        return [each for each in (gathers, opens_ms, window and window.ends_ms) if each is not None]

    def is_at(self, lane: str, books: Books) -> bool:
        """Whether the bus has a lane where the model has it."""
        name = escape(lane)
        return (self.later.get(lane), lane in self.held) == (books.later.get(name), name in books.held)

    def place_of(self, lane: str) -> str:
        return "held" if lane in self.held else "later" if lane in self.later else "ring"

    def place(self, lane: str, now_ms: int, *, gathered: bool = False) -> None:
        """Where a lane belongs. `gathered`: it has waited for its jobs."""
        self.later.pop(lane, None)
        self.held.discard(lane)
        if lane in self.paused_lanes or self.free(lane) <= 0:
            self.held.add(lane)
            return
        left, ends_ms = self.left(self.rate_of(lane), self.windows.get(lane), now_ms)
        waits = [None if gathered else self.gathers_until(lane, now_ms), ends_ms if left <= 0 else None]
        until_ms = max((each for each in waits if each is not None), default=0)
        if until_ms > now_ms:
            self.later[lane] = until_ms

    def judge(self, lane: str, now_ms: int, *, gathered: bool = False) -> None:
        """After its settings, its jobs or what limits it changed."""
        if lane in self.seats:
            self.seats[lane] = max(self.seats[lane], self.picked_at)
            self.place(lane, now_ms, gathered=gathered)

    def judge_all(self, now_ms: int) -> None:
        for job in self.jobs.values():
            job.counted |= job.state == "active" and self.counts_active
        # One that can be served and has nothing to count is left alone: its window stays over if the clock goes back.
        active = {job.lane for job in self.jobs.values() if job.state == "active"}
        judged = {*self.later, *self.held, *self.windows, *active}
        for lane in list(self.seats):
            self.judge(lane, now_ms, gathered=lane not in judged)

    def ticked(self, now_ms: int) -> None:
        """What waited until now is judged again; windows that are over are forgotten."""
        self.windows = {lane: window for lane, window in self.windows.items() if window.ends_ms > now_ms}
        if self.of_lanes or self.wait_ms:
            if self.seen_ms is not None and now_ms < self.seen_ms - 1000:
                for lane in {*self.later, *self.held, *self.windows}:
                    self.judge(lane, now_ms)
            self.seen_ms = now_ms
        for lane in [lane for lane, until_ms in self.later.items() if until_ms <= now_ms]:
            self.judge(lane, now_ms, gathered=True)

    def end(self, id: str, state: str) -> None:
        self.jobs[id].state = state
        self.counts[state] += 1

    # --- calls -----------------------------------------------------------------------------------------------------

    def mint(self, id: str, lane: str, priority: int, due_ms: int | None, now_ms: int) -> None:
        self.jobs[id] = ModelJob(lane, priority, "scheduled", due_ms)
        self.counts["minted"] += 1
        if due_ms is None:
            self.to_lane(id, now_ms)

    def claim(self, count: int, now_ms: int) -> list[list[str]]:
        """Turn by turn: the lane of the least virtual time serves one job, or one batch, and is charged for each."""
        turns: list[list[str]] = []
        room = self.room(now_ms)
        while len(turns) < count and room > 0 and not self.paused:
            ready = [lane for lane in self.seats if lane not in self.later and lane not in self.held]
            if not ready:
                break
            lane = min(ready, key=lambda name: (self.seats[name], escape(name)))
            rate = self.rate_of(lane)
            most = min(self.batch or 1, room, self.free(lane), self.left(rate, self.windows.get(lane), now_ms)[0])
            ids = self.pending(lane)[: int(most)]
            room -= len(ids)
            self.picked_at = self.seats[lane]
            self.seats[lane] += self.charge(lane, len(ids))
            for id in ids:
                job = self.jobs[id]
                job.state, job.begun, job.counted = "active", False, self.counts_active
                job.attempts += 1
                self.window = self.started(self.limit("rate"), self.window, now_ms)
                if window := self.started(rate, self.windows.get(lane), now_ms):
                    self.windows[lane] = window
            turns.append(ids)
            if self.pending(lane):
                self.place(lane, now_ms)
            else:
                self.forget(lane)
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
        self.vacate(id, now_ms)
        if job.cancelling and kind in {"retry", "delay", "release"}:
            kind = "cancelled"
        elif kind == "retry" and job.failures + 1 > self.retries:
            kind = "dead"
        if kind in {"retry", "dead"}:
            job.failures += 1
            self.counts["failed"] += 1
        if kind in {"done", "dead", "cancelled"}:
            self.end(id, kind)
        elif kind == "release":
            self.to_lane(id, now_ms)
        else:
            self.counts["retried" if kind == "retry" else "snoozed"] += 1
            job.state, job.due_ms = "scheduled", back_ms

    def lost(self, id: str, back_ms: int, now_ms: int) -> None:
        job = self.jobs[id]
        self.vacate(id, now_ms)
        self.counts["lost"] += 1
        if job.cancelling:
            self.end(id, "cancelled")
            return
        job.failures += job.begun
        job.losses += not job.begun
        self.counts["failed"] += job.begun
        if job.failures > self.retries or job.losses > 10:
            self.end(id, "dead")
        elif job.begun:
            self.counts["retried"] += 1
            job.state, job.due_ms = "scheduled", back_ms
        else:
            self.to_lane(id, now_ms)

    def cancel(self, id: str, now_ms: int) -> str:
        job = self.jobs.get(id)
        if job is None:
            return "unknown"
        if job.state in {"done", "dead"}:
            return "ended"
        if job.state == "cancelled":
            return "cancelled"
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
        self.counts["redriven"] += 1
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
        self.counts["purged"] += 1

    def pause(self, lane: str | None, paused: bool, now_ms: int) -> None:
        if lane is None:
            self.paused = paused
        elif paused:
            self.paused_lanes.add(lane)
            self.judge(lane, now_ms)
        else:
            self.paused_lanes.discard(lane)
            self.judge(lane, now_ms)

    def weigh(self, lane: str, weight: int, now_ms: int) -> None:
        self.weights[lane] = weight
        self.judge(lane, now_ms)

    def set_limit(self, name: str, value: Any, now_ms: int) -> None:
        """By hand, of the queue."""
        setattr(self.hand, name, value)
        self.limits_changed(now_ms, is_of_lanes=name.startswith("lane_"))

    def set_lane_limit(self, name: str, lane: str, value: Any, now_ms: int) -> None:
        """By hand, of a lane."""
        own = self.concurrencies if name == "concurrency" else self.rates
        had = lane in self.concurrencies or lane in self.rates
        if value is None:
            own.pop(lane, None)
        else:
            own[lane] = value
        if had != (lane in self.concurrencies or lane in self.rates):
            self.limits_changed(now_ms, is_of_lanes=True)
        else:
            self.judge(lane, now_ms)

    def code_says(self, coded: Limits, now_ms: int) -> None:
        if coded != self.coded:
            self.coded = coded
            self.limits_changed(now_ms, is_of_lanes=True)

    def limits_changed(self, now_ms: int, *, is_of_lanes: bool) -> None:
        is_any = self.is_limited or self.limit("weight") or (self.coded.weights and self.hand.weight is None)
        if not is_any:
            self.seen_ms, self.window = None, None
        if is_of_lanes:
            self.judge_all(now_ms)

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
        assert books.lanes == {escape(lane): self.pending(lane) for lane in self.seats}
        assert books.held == {escape(lane) for lane in self.held}
        for lane, until_ms in self.later.items():
            if self.wait_ms and until_ms < min(self.jobs[id].since_ms for id in self.pending(lane)) + self.wait_ms:
                # It waits since a call that need not have told its instant, or that came before the one that did.
                seen_ms = int(books.later.get(escape(lane), 0))
                self.later[lane] = min(max(seen_ms, until_ms - ASKED_MS), until_ms + CALL_MS)
        assert books.later == {escape(lane): until_ms for lane, until_ms in self.later.items()}
        ring = self.seats.keys() - self.held - self.later.keys()
        assert books.ring == {escape(lane): self.seats[lane] for lane in ring}
        assert int(float(books.meta.get("V", 0))) == self.picked_at
        counted = collections.Counter(escape(job.lane) for job in self.jobs.values() if job.counted)
        assert books.of_lanes(":a") == {lane: str(count) for lane, count in counted.items()}
        windows = {escape(lane): f"{window.ends_ms} {window.started}" for lane, window in self.windows.items()}
        assert books.of_lanes(":s") == windows
        window = books.meta.get("window")
        assert window == (self.window and f"{self.window.ends_ms} {self.window.started}")
