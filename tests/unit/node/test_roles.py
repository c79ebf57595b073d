"""How the roles of a node end together."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from echod.gateway import server
from echod.node import roles
from echod.node.roles import Roles
from echod.supervisor import base, supervisor
from server import PATIENCE_S

GRACE_S = 30.0  # between SIGTERM and SIGKILL, as systemd and Kubernetes leave it unless they are told


async def test_nothing_is_claimed_while_the_last_requests_end() -> None:
    parts: Any = SimpleNamespace(verb="start")
    nobody: Any = None
    node = Roles(parts, nobody, quit=lambda: None)
    is_draining = asyncio.Event()

    async def forever() -> None:
        await asyncio.Event().wait()

    async def stop() -> None:
        assert metronome.cancelling()
        await is_draining.wait()  # a request that waits for a run, which ends because of the drain

    async def drain(deadline_s: float) -> None:
        is_draining.set()

    node._metronome = metronome = node.keep("metronome", forever())
    gateway: Any = SimpleNamespace(stop=stop)
    worker: Any = SimpleNamespace(drain=drain, status=lambda: {"workers": {}})
    node._server, node._supervisor = gateway, worker
    await asyncio.sleep(0)
    await asyncio.wait_for(node.drain(), PATIENCE_S)
    assert metronome.cancelled()


def test_a_node_is_down_before_it_is_killed() -> None:
    drained_s = max(roles.DRAIN_S, server.DRAIN_S)
    assert drained_s + supervisor.RELEASE_WITHIN_S + base.END_WITHIN_S < GRACE_S - 2  # the embedded bus has its share
