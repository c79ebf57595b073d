"""The pools of one queue, by version: the active one, those that jobs are pinned to, and old ones that drain.

From a switch on the old version's workers begin nothing more, and what they had not begun goes back, so that the next
claim runs on the new code. On the deployer's request the new workers start before the switch (decision 0040); without a
switch they go again.
"""

from __future__ import annotations

import asyncio

from echod.errors import Refused
from echod.model.ids import VersionId
from echod.policy import slots
from echod.supervisor.events import PoolEvents
from echod.supervisor.hiring import Hiring
from echod.supervisor.leases import Lease, instant
from echod.supervisor.life import Phase
from echod.supervisor.means import Active, Means
from echod.supervisor.pool import Pool
from echofn.manifest import Function

WARM_S = 60.0  # for which workers wait for a switch to their version
SUCCEED_WITHIN_S = 10.0  # after which old workers go, whether the new ones are ready or not


class Crews:
    def __init__(self, queue: str, means: Means, events: PoolEvents) -> None:
        self.active: Pool | None = None
        self._past_starts = 0  # of pools that are forgotten
        self._queue, self._means, self._events = queue, means, events
        self._loop = asyncio.get_running_loop()
        self._pools: dict[VersionId, Pool] = {}
        self._leaving: set[Pool] = set()
        self._warm: dict[VersionId, float] = {}  # versions not switched to yet, and until when they are kept ready
        self._timers: set[asyncio.TimerHandle] = set()

    @property
    def pools(self) -> tuple[Pool, ...]:
        return tuple(self._pools.values())

    @property
    def cold_starts(self) -> int:
        """Workers started so far."""
        return self._past_starts + sum(pool.cold_starts for pool in self._pools.values())

    @property
    def is_empty(self) -> bool:
        return all(pool.is_empty for pool in self._pools.values())

    async def switch(self, active: Active, function: Function) -> None:
        """Serve this version from the next claim on. Raises Refused or BusError when its folder cannot be had."""
        before = self.active
        pool = await self._opened(active.version, active.generation, function, active.manifest.package)
        pool.serving = True
        self._leaving.discard(pool)
        self._warm.pop(active.version, None)
        self.active = pool
        busy = len(before.alive) if before is not None and before is not pool else 0
        pool.staff(max(function.policy.workers_min, busy))
        if before is not None and before is not pool:
            self._leaving.add(before)
            self._timers.add(self._loop.call_later(SUCCEED_WITHIN_S, self._let_go))
            self.succeed()

    async def warm(self, version: VersionId, function: Function, package: str) -> None:
        """Make as many workers of a version ready as the active one has. Raises Refused or BusError, as `switch`."""
        if self.active is None or self.active.version == version or not self.active.alive:
            return
        generation = self._means.registry.active.generation if self._means.registry.active else 0
        pool = await self._opened(version, generation, function, package)
        pool.serving = True
        self._leaving.discard(pool)
        self._warm[version] = instant() + WARM_S
        pool.staff(max(function.policy.workers_min, len(self.active.alive)))

    def is_warming(self, version: VersionId) -> bool:
        """Whether workers of this version are on their way."""
        pool = self._pools.get(version)
        return pool is not None and any(worker.life.phase is Phase.STARTING for worker in pool.workers)

    def succeed(self) -> None:
        """Let the old version's workers go as soon as the new one has any, or needs none."""
        if self._leaving and self.active is not None and (self.active.fit() or not self.active.alive):
            self._let_go()

    async def pinned(self, version: VersionId) -> Pool:
        """The pool of a version that a job names. Raises Refused when that version cannot run it, or BusError."""
        pool = self._pools.get(version)
        if pool is None:
            manifest = await self._means.registry.manifest(version)
            if manifest is None:
                raise Refused(
                    f"expected a stored version, got {version}, which is no longer kept; enqueue without a version"
                )
            function = next((each for each in manifest.functions if each.name == self._queue), None)
            if function is None:
                raise Refused(f"expected a version that has {self._queue}, got {version}, which does not")
            generation = self._means.registry.active.generation if self._means.registry.active else 0
            pool = await self._opened(version, generation, function, manifest.package)
        pool.serving = True
        return pool

    def load(self, depth: int) -> slots.Load:
        """What may be claimed is measured at the active version; what waits, at all of them."""
        waiting = sum(len(pool.waiting) for pool in self._pools.values())
        if self.active is None:
            return slots.Load(held=(), starting=0, waiting=waiting, startable=0, depth=depth)
        return self.active.load(depth, waiting)

    def place(self, depth: int) -> None:
        for pool in self._pools.values():
            if pool.serving:
                pool.place(depth)

    def unqueue(self, lease: Lease) -> bool:
        """Take a job back that waits for a worker."""
        pool = self._pools.get(lease.version)
        if pool is None or lease not in pool.waiting:
            return False
        pool.waiting.remove(lease)
        return True

    def pool_of(self, lease: Lease) -> Pool | None:
        return self._pools.get(lease.version)

    def relieve(self, now: float) -> None:
        for pool in self._pools.values():
            pool.relieve(now)

    def keep_minimum(self) -> None:
        """The least workers that the function asks for are there, jobs or not."""
        if self.active is not None and self.active.serving:
            self.active.staff(self.active.function.policy.workers_min)

    def housekeep(self, now: float) -> None:
        """Let idle workers go, and those that waited for a switch in vain; forget pools that are done."""
        for version in [version for version, until in self._warm.items() if until < now]:
            del self._warm[version]
            self._pools[version].retire()
        for version, pool in list(self._pools.items()):
            pool.reap(now)
            if pool is not self.active and pool.is_empty and version not in self._warm:
                self._past_starts += pool.cold_starts
                del self._pools[version]
        self.keep_minimum()
        self._timers = {timer for timer in self._timers if not timer.cancelled() and timer.when() > self._loop.time()}

    def retire(self) -> None:
        for pool in self.pools:
            pool.retire()

    def kill(self) -> None:
        for pool in self.pools:
            pool.kill()

    async def shut(self) -> None:
        for timer in self._timers:
            timer.cancel()
        for pool in self.pools:
            await pool.shut()

    async def _opened(self, version: VersionId, generation: int, function: Function, package: str) -> Pool:
        pool = self._pools.get(version)
        if pool is not None:
            return pool
        root = await self._means.registry.folder(version)
        hiring = Hiring(self._means, self._events, function, version, generation, package=package, root=root)
        pool = Pool(self._means, self._events, hiring, function, version)
        return self._pools.setdefault(version, pool)

    def _let_go(self) -> None:
        leaving, self._leaving = self._leaving, set()
        for pool in leaving:
            if pool is not self.active:
                pool.retire()
