"""One node's supervisor: a base, and a feed for every function of the version being served. Composition only.

    metronome --offer(queue)--> feed --claim, settle--> bus
                                 |  \\-- pools of workers <--fork-- base
    registry --on_change---------/

Owns every process that runs user code on this node, and every lease the node holds. When it is stopped it gives back
what it can; when it is killed the base ends every worker, and the bus takes the leases back when they end.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Coroutine, Mapping

from echod import log
from echod.bus import Bus
from echod.config import Config
from echod.model.ids import JobId, NodeId, VersionId
from echod.scratch import Scratch
from echod.supervisor import vitals
from echod.supervisor.base import Base
from echod.supervisor.bells import Bells
from echod.supervisor.children import Blocks
from echod.supervisor.fanout import Fanout
from echod.supervisor.feed import Feed
from echod.supervisor.following import Following
from echod.supervisor.leases import instant
from echod.supervisor.means import Means, Versions
from echod.supervisor.warming import Warming

_log = log.get("supervisor")

HOUSEKEEP_S = 5.0
IDLE_S = 60.0
LOOK_S = 0.02  # while going down
RELEASE_WITHIN_S = 5.0


class Supervisor:
    """Runs the jobs of the active version. Made and used inside one running loop, on the main thread."""

    def __init__(
        self,
        bus: Bus,
        registry: Versions,
        config: Config,
        *,
        node: NodeId,
        level: str,
        environ: Mapping[str, str] | None = None,
        cpus: int | None = None,
        idle_s: float = IDLE_S,
    ) -> None:
        self.room = asyncio.Event()  # set while has_room()
        self.on_told: Callable[[], None] = lambda: None  # called when `ails` or `warmth()` changed
        self._bus, self._registry = bus, registry
        self._loop = asyncio.get_running_loop()
        self._base = Base(self._base_changed)
        self._means = Means(
            bus=bus,
            registry=registry,
            base=self._base,
            claimer=str(node),
            lease_ms=config.lease_ms,
            env=config.env,
            level=level,
            scratch=Scratch(config.state.absolute() / "tmp", str(node)),
            cpus=cpus or len(os.sched_getaffinity(0)),
            idle_s=idle_s,
            environ=os.environ if environ is None else environ,
            roll=random.random,
            blocks=Blocks(bus.reserve),
            fanout=Fanout(bus, self._spawn),
            spawn=self._spawn,
        )
        self._feeds: dict[str, Feed] = {}
        self._following = Following(
            self._means,
            self._feeds,
            is_draining=lambda: self._is_draining,
            on_room=self._update_room,
            on_told=lambda: self.on_told(),
        )
        self._warming = Warming(registry, self._feeds, lambda: self.on_told())
        self._bells = Bells(bus, self._spawn)
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] = self._loop.create_future()
        self._stopping = asyncio.Event()
        self._is_draining = False

    # ---- the node's side ----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until `stop`; then give everything back, which takes a moment. Raises Refused on a machine that cannot.

        `drain` first, to let what runs end.
        """
        await asyncio.to_thread(self._means.scratch.open)
        forget = [
            self._registry.on_change(self._following.look),
            self._bus.on("cancel", self._heard_cancel),
            self._bus.on("warm", self._heard_warm),
            self._bus.on("connected", self._look_everywhere),
        ]
        self._following.look()
        duties = [
            self._loop.create_task(self._base.run(), name="supervisor-base"),
            self._loop.create_task(self._following.run(), name="supervisor-follow"),
            self._loop.create_task(self._housekeep(), name="supervisor-housekeep"),
        ]
        stopping = self._loop.create_task(self._stopped())
        ends: set[asyncio.Future[None]] = {stopping, self._failed, *duties}
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for ended in done:
                ended.result()  # raises what ended it
        finally:
            for stop in forget:
                stop()
            self._is_draining = True
            self._update_room()
            await self.release()
            self._base.close()
            for task in (stopping, *duties[1:]):
                task.cancel()
            self._bells.close()
            self._following.close()
            await asyncio.gather(stopping, *duties, return_exceptions=True)
            await asyncio.gather(*(feed.shut() for feed in self._feeds.values()))
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._failed.cancel()
            await asyncio.to_thread(self._means.scratch.close)

    def stop(self) -> None:
        """Let `run` return."""
        self._stopping.set()

    def offer(self, queue: str) -> None:
        """The bell rang for this queue. One that this node cannot serve now is handed on."""
        feed = self._feeds.get(queue)
        if feed is None or feed.closed:
            self._bells.hand_on_unserved(queue, is_draining=self._is_draining)
            return
        feed.offer()
        if feed.is_full:
            self._bells.hand_on_if_full(feed, lambda: self._is_draining)

    def has_room(self) -> bool:
        """Whether the bell may be listened to: some function could take a job that it does not know of yet."""
        active = self._registry.active
        if self._is_draining or active is None or not self._base.is_up:
            return False
        return any(not feed.closed and not feed.rung for feed in self._feeds.values())

    async def drain(self, deadline_s: float) -> bool:
        """Claim nothing more, give back what has not begun, let what runs end. False: some outlasted `deadline_s`."""
        self._is_draining = True
        self._update_room()
        for feed in self._feeds.values():
            if feed.rung:
                self._bells.hand_on(feed.queue)
            feed.close()
        return await self._until(lambda feed: feed.is_idle, deadline_s)

    async def release(self) -> None:
        """Give everything back at once: workers are killed, their jobs go back to their lanes."""
        self._is_draining = True
        self._update_room()
        for feed in self._feeds.values():
            feed.kill()
        if not await self._until(lambda feed: feed.is_idle, RELEASE_WITHIN_S):
            _log.warning(
                "supervisor.left_leases", queues=[feed.queue for feed in self._feeds.values() if not feed.is_settled]
            )

    def running(self) -> tuple[VersionId, ...]:
        """The versions that there are workers of, or jobs for now or next: their files are needed."""
        pools = [pool for feed in self._feeds.values() for pool in feed.crews.pools]
        return tuple(sorted({pool.version for pool in pools if pool.serving or not pool.is_empty}))

    @property
    def ails(self) -> tuple[str, ...]:
        """Why the active version is not run here, or not whole."""
        return self._following.ails

    def warmth(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The calls to make workers ready that are under way, and the last ones that were answered."""
        return self._warming.told

    def status(self) -> dict[str, object]:
        """What pages show of this node's workers."""
        return {
            "workers": {
                name: vitals.of(feed.crews, stands_by=self._means.level == "strict")
                for name, feed in sorted(self._feeds.items())
                if not feed.closed or not feed.is_idle
            },
            "base": self._base.pid,
            "base_starts": self._base.starts,
            "draining": self._is_draining,
            "refused": sum(feed.refused for feed in self._feeds.values()),
        }

    async def _stopped(self) -> None:
        await self._stopping.wait()

    # ---- duties -------------------------------------------------------------------------------------------------

    async def _housekeep(self) -> None:
        """Idle workers go, and feeds of functions that are no more."""
        while True:
            await asyncio.sleep(min(HOUSEKEEP_S, self._means.idle_s / 2))
            now = instant()
            for name, feed in list(self._feeds.items()):
                feed.crews.housekeep(now)
                if name not in self._following.wanted and feed.is_idle:  # another may be idle and not served yet
                    del self._feeds[name]
                    self._bells.forget(name)
                    await feed.shut()

    async def _until(self, is_done: Callable[[Feed], bool], within_s: float) -> bool:
        deadline = self._loop.time() + within_s
        while not all(is_done(feed) for feed in self._feeds.values()):
            if self._loop.time() >= deadline:
                return False
            await asyncio.sleep(LOOK_S)
        return True

    # ---- callbacks ----------------------------------------------------------------------------------------------

    def _base_changed(self) -> None:
        for feed in self._feeds.values():
            feed.moved()
        self._update_room()

    def _heard_cancel(self, queue: str, job: str) -> None:
        feed = self._feeds.get(queue)
        if feed is not None:
            feed.cancel(JobId(job))

    def _heard_warm(self, version: str, call: str) -> None:
        if not self._is_draining:
            self._spawn(self._warming.make(VersionId(version), call))

    def _look_everywhere(self, *_: object) -> None:
        """The connection is back: bells may have rung meanwhile."""
        for feed in self._feeds.values():
            feed.offer()

    def _update_room(self) -> None:
        if self.has_room():
            self.room.set()
        else:
            self.room.clear()

    def _spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """A task of ours. A defect in it ends the supervisor, loudly, instead of leaving a queue unserved."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._failed.done():
            self._failed.set_exception(error)
