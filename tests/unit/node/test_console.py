"""The keys of a dev node's terminal."""

from typing import Any, cast

from echod.bus import Bus
from echod.node.console import Console
from echod.policy.recurring import stored, text_of, zone_of
from echofn.manifest import EveryTrigger
from server import Server


async def test_instants_that_pass_while_cron_is_off_are_counted_as_skipped(bus: Bus, server: Server) -> None:
    every = EveryTrigger("tick", 60_000)
    due_ms = server.clock.now_ms() // 60_000 * 60_000
    await bus.recur(
        "f",
        "tick",
        rule=text_of(every),
        tz=zone_of(every),
        trigger=stored(every),
        payload=b"\xc0",
        next_ms=due_ms,
        generation=1,
    )
    await bus.occur("f", "tick", 1, due_ms, next_ms=due_ms + 60_000, job=bus.new_job_id())
    console = Console(bus, cast("Any", None), "http://127.0.0.1", None, lambda: None)
    await console._cron()
    server.clock.advance(600_000)
    await bus.beat(pump=True)  # the host's picture of the bus's clock
    await console._cron()
    (row,) = await bus.recurrences("f")
    assert not row.paused
    assert 9 <= row.skipped <= 12
