"""What an operator does to queues and jobs: policy, pause, weight, rest, cancel."""

from __future__ import annotations

from typing import Literal, cast

from echod.bus.core import Core
from echod.bus.keys import escape
from echod.bus.rows import pack, utf8
from echofn.manifest import Policy

Cancel = Literal["cancelled", "cancelling", "ended", "unknown"]


class Operating(Core):
    """configure, set, cancel."""

    async def configure(self, queue: str, policy: Policy, generation: int) -> bool:
        """Write a function's policy where the scripts need it; False where a newer generation wrote already."""
        reply = await self.run(
            "configure",
            queue,
            queue=utf8(queue),
            generation=generation,
            retries=policy.retries,
            backoff=pack(policy.backoff),
            keep_ms=policy.keep_ms,
            max_pending="" if policy.max_pending is None else policy.max_pending,
            batch="" if policy.batch is None else policy.batch,
            batch_wait_ms=policy.batch_wait_ms,
            redact=pack(policy.redact) if policy.redact else "",
        )
        return bool(reply == b"ok")

    async def pause(self, queue: str, *, lane: str | None = None) -> None:
        """No claim is served from the queue (or lane) until it is resumed; what runs, runs on."""
        await self._set(queue, "paused", lane, 1)

    async def resume(self, queue: str, *, lane: str | None = None) -> None:
        await self._set(queue, "paused", lane, "")

    async def weigh(self, queue: str, lane: str, weight: int) -> None:
        """A lane's share, 1 to 100."""
        if not 1 <= weight <= 100:
            raise ValueError(f"expected a weight from 1 to 100, got {weight}")
        await self._set(queue, "weight", lane, weight)

    async def rest(self, queue: str, lane: str, for_ms: int) -> None:
        """A lane is not served for so long; 0 ends its rest."""
        await self._set(queue, "rest", lane, for_ms if for_ms > 0 else "")

    async def _set(self, queue: str, what: str, lane: str | None, value: int | str) -> None:
        await self.run("set", queue, what=what, lane="" if lane is None else escape(lane), value=value)

    async def cancel(self, queue: str, id: str) -> Cancel:
        """End a job that waits; ask one that runs to stop."""
        return cast("Cancel", (await self.run("cancel", queue, id=id)).decode())

    async def ring(self, queue: str) -> None:
        """Hand the bell on: this node popped a queue that it cannot serve."""
        await self.run("ring", queue)
