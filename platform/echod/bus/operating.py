"""What an operator does to queues and jobs: policy, pause, weight, limits, cancel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast

from echod.bus.answers import Limits
from echod.bus.core import Core
from echod.bus.keys import escape
from echod.bus.rows import own_word, pack, utf8
from echofn.manifest import Policy
from echofn.units import rate

QUEUE_SETTINGS = ("paused", "weight", "concurrency", "rate", "lane_concurrency", "lane_rate")
LANE_SETTINGS = ("paused", "weight", "concurrency", "rate")
NO_LIMIT: Literal["-"] = "-"
Setting = bool | int | tuple[int, int] | Literal["-"] | None
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
            limits=_coded(policy),
            redact=pack(policy.redact) if policy.redact else "",
        )
        return bool(reply == b"ok")

    async def pause(self, queue: str, *, lane: str | None = None) -> None:
        """No claim is served from the queue (or lane) until it is resumed; what runs, runs on."""
        await self.set(queue, {"paused": True}, lane=lane)

    async def resume(self, queue: str, *, lane: str | None = None) -> None:
        await self.set(queue, {"paused": None}, lane=lane)

    async def set(self, queue: str, changes: Mapping[str, Setting], *, lane: str | None = None) -> None:
        """Set a queue, or a lane of it, by hand: it holds until it is set back with None, whatever code says meanwhile.

        Of both: paused, weight (a queue's: of its lanes without one of their own), concurrency, rate; of a queue:
        lane_concurrency, lane_rate. A rate is (count, window in ms); NO_LIMIT lifts a limit. Raises
        ValueError for what a queue, or a lane, does not have.
        """
        known = LANE_SETTINGS if lane is not None else QUEUE_SETTINGS
        for what in changes:
            if what not in known:
                raise ValueError(f"expected some of {', '.join(known)}, got {what}")
        flat = [(what, False if value is None else value) for what, value in changes.items()]
        name, written = ("", b"") if lane is None else (escape(lane), utf8(lane))
        await self.run("set", queue, lane=name, written=written, changes=pack(flat), call=own_word())

    async def cancel(self, queue: str, id: str) -> Cancel:
        """End a job that waits; ask one that runs to stop."""
        return cast("Cancel", (await self.run("cancel", queue, id=id)).decode())

    async def ring(self, queue: str) -> None:
        """Hand the bell on: this node popped a queue that it cannot serve."""
        await self.run("ring", queue)


def _coded(policy: Policy) -> bytes:
    """The limits that code sets, as scripts read them; nothing where there are none."""
    by_lane = policy.lane_weight if isinstance(policy.lane_weight, dict) else {}
    limits = Limits(
        concurrency=policy.concurrency,
        rate=rate(policy.rate) if policy.rate else None,
        lane_concurrency=policy.lane_concurrency,
        lane_rate=rate(policy.lane_rate) if policy.lane_rate else None,
        lane_weight=policy.lane_weight if isinstance(policy.lane_weight, int) else 1,
        lane_weights={escape(lane): weight for lane, weight in sorted(by_lane.items())},
    )
    return b"" if limits == Limits() else pack(limits)
