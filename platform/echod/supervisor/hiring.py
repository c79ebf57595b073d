"""How one worker of a (function, version) is started: its id, its folder, its secrets, its order to the base."""

from __future__ import annotations

from pathlib import Path

import msgspec

from echod import scratch
from echod.model.ids import VersionId, WorkerId, branded
from echod.supervisor import quota, watch
from echod.supervisor.events import JobEvents, LifeEvents
from echod.supervisor.means import Means
from echod.supervisor.worker import Worker
from echofn import frames
from echofn.manifest import Function, QueueTrigger, WebhookTrigger


class Hiring:
    """Everything of a spawn that is the same for all workers of a pool."""

    def __init__(
        self,
        means: Means,
        jobs: JobEvents,
        function: Function,
        version: VersionId,
        generation: int,
        *,
        package: str,
        root: Path,
    ) -> None:
        self._means, self._jobs, self._function = means, jobs, function
        self._version, self._generation = version, generation
        self._package, self._root = package, root
        # A worker needs no schemas, and of triggers only which kinds there are; a datagram has its limit.
        kinds = {type(each): each for each in function.triggers if isinstance(each, QueueTrigger | WebhookTrigger)}
        triggers = tuple(kinds.values())
        self._lean = msgspec.structs.replace(
            function, triggers=triggers, payload_schema=None, result_schema=None, doc=""
        )

    def hire(self, owner: LifeEvents) -> Worker:
        """A worker on its way. Raises OSError when this machine has no room for it, LeaseGone without a node number."""
        means, policy = self._means, self._function.policy
        worker_id = WorkerId(branded("WRK", means.bus.reserve(1)))
        folder = means.scratch.fresh(worker_id)
        share = policy.recycle_jobs * (0.8 + 0.4 * means.roll()) if policy.isolation == "worker" else 1
        worker = Worker(
            worker_id,
            means.base,
            self._jobs,
            owner,
            folder=folder,
            limit=max(round(share), 1),
            function=self._function,
            looks=self._looks,
        )
        try:
            worker.start(lambda number: self._order(number, folder), self._secrets())
        except OSError:
            scratch.wipe(folder)
            raise
        return worker

    def _looks(self, worker: Worker) -> watch.Looks:
        """What no wall of this level bounds."""
        function, level = self._function, self._means.level
        can_start = function.policy.processes > 0 or level in {"off", "minimal"}
        strays = watch.Strays(lambda: worker.pid, level) if can_start else None
        if level == "off":
            return watch.Looks((), strays)
        looks = [watch.body(lambda: worker.pid, function.policy, f"{function.file}:{function.line}")]
        if level != "strict":
            looks.append(quota.room(worker.folder, function.policy.tmp_bytes, lambda: worker.pid))
        return watch.Looks(looks, strays)

    def _secrets(self) -> dict[str, str]:
        environ = self._means.environ
        return {name: environ[name] for name in self._function.secrets if name in environ}

    def _order(self, number: int, folder: Path) -> frames.Spawn:
        means = self._means
        return frames.Spawn(
            number=number,
            function=self._lean,
            package=self._package,
            root=str(self._root),
            version=self._version,
            generation=self._generation,
            tmp=str(folder),
            env=means.env,
            level=means.level,
        )
