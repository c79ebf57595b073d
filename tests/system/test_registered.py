"""Schedules registered at run time, under a pump: they survive deploys, and wait for a function that is gone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from echod.model.job import Job
from echod.registry import schedules
from echod.registry.schedules import GONE, Wanted
from echod.registry.schemas import Schemas
from echofn.manifest import EveryTrigger, Function, Policy, QueueTrigger
from server import Server
from system.test_pump import Node, function, joined, ms

NOON = ms("2026-06-01T12:00:00Z")
HOUR = 3_600_000


def other() -> Function:
    return Function("shop.other", "shop", "other", "shop.py", 9, Policy(), (QueueTrigger(),))


@pytest.fixture
async def node(server: Server, tmp_path: Path) -> AsyncIterator[Node]:
    server.clock.set(NOON + 500)
    async with joined(server, tmp_path) as node:
        yield node


async def add(node: Node, **wanted: str) -> None:
    asked = Wanted(function="shop.tick", every="1h", name="hourly", **wanted)  # type: ignore[arg-type]
    await schedules.register(node.bus, node.registry, Schemas(), asked)


async def test_it_is_due_by_its_rule_and_survives_any_number_of_deploys(node: Node, server: Server) -> None:
    await node.deploy(function(QueueTrigger()))
    await add(node)
    for hour in (1, 2, 3):
        server.clock.set(NOON + hour * HOUR)
        await node.settle()
        await node.deploy(function(EveryTrigger("own", 7 * 86_400_000), QueueTrigger()), other())
        await node.deploy(function(QueueTrigger()))
    assert await node.dues() == [NOON + hour * HOUR for hour in (1, 2, 3)]
    row = await node.row()
    assert (row.is_own, row.next_ms, row.missed) == (True, NOON + 4 * HOUR, 0)


async def test_one_whose_function_is_gone_waits_for_it_and_others_go_on(node: Node, server: Server) -> None:
    await node.deploy(function(QueueTrigger()), other())
    await add(node)
    await schedules.register(node.bus, node.registry, Schemas(), Wanted(function="shop.other", every="1h"))
    await node.deploy(other())
    server.clock.set(NOON + HOUR)
    await node.settle()
    row = await node.row()
    assert (row.error, row.next_ms, row.last_ms) == (GONE, None, None)
    assert await node.dues() == []
    assert await node.dues("shop.other") == [NOON + HOUR]
    server.clock.advance(61_000)  # looked at again, and still gone
    await node.settle()
    assert (await node.row()).error == GONE
    await node.deploy(function(QueueTrigger()), other())
    server.clock.advance(61_000)
    await node.settle()
    row = await node.row()
    assert (row.error, row.next_ms) == ("", NOON + 2 * HOUR)
    assert await node.dues() == [NOON + HOUR]  # the last of what was due meanwhile


async def test_one_that_is_cancelled_and_registered_anew_is_due_by_its_new_rule(node: Node, server: Server) -> None:
    await node.deploy(function(QueueTrigger()))
    await add(node)
    server.clock.set(NOON + HOUR)
    await node.settle()
    await schedules.remove(node.bus, await node.row())
    again = Wanted(function="shop.tick", every="3h", name="hourly")
    await schedules.register(node.bus, node.registry, Schemas(), again)
    for hour in (2, 3, 4, 5, 6):
        server.clock.set(NOON + hour * HOUR)
        await node.settle()
    assert await node.dues() == [NOON + hour * HOUR for hour in (1, 3, 6)]


async def test_what_was_due_while_it_was_gone_is_as_missed_says(node: Node, server: Server) -> None:
    await node.deploy(function(QueueTrigger()))
    await add(node, missed="skip")
    await node.deploy(other())
    server.clock.set(NOON + 3 * HOUR + 1000)
    await node.settle()
    server.clock.set(NOON + 3 * HOUR + 120_000)
    await node.deploy(function(QueueTrigger()))
    await node.settle()
    row = await node.row()
    assert (row.missed, row.next_ms, await node.dues()) == (3, NOON + 4 * HOUR, [])


async def test_a_pump_that_has_not_heard_of_a_deploy_asks_before_it_believes_that_a_function_is_gone(
    node: Node, server: Server, tmp_path: Path
) -> None:
    await node.deploy(other())
    async with joined(server, tmp_path / "second") as second:
        await second.deploy(function(QueueTrigger()))
        await add(second)
        server.clock.set(NOON + HOUR)
        answer = await node.bus.tick("shop.tick")
        await node.pump._occurrences.know(list(answer.due))
        settled = await node.pump._occurrences.settle(answer.due[0], answer.now_ms)
        assert settled.minted == 1
        assert await second.dues() == [NOON + HOUR]


async def test_code_that_comes_to_use_its_name_leaves_it_as_it_is_and_is_told(
    node: Node, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    await node.deploy(function(QueueTrigger()))
    await add(node)
    await node.deploy(function(EveryTrigger("hourly", 60_000), EveryTrigger("own", 60_000), QueueTrigger()))
    rows = {row.name: row for row in await node.bus.recurrences("shop.tick")}
    assert (rows["hourly"].rule, rows["hourly"].is_own) == ("every 1h", True)
    assert rows["own"].rule == "every 1m"
    assert "registered at run time has this name" in capsys.readouterr().err
    server.clock.set(NOON + HOUR)
    await node.settle()
    jobs: list[Job] = await node.jobs()
    recurrences = [job.occurrence.recurrence for job in jobs if job.occurrence]
    assert recurrences.count("shop.tick/hourly") == 1
