"""The way straight to the bus, where a server would have to fail at the right moment."""

from __future__ import annotations

import pytest

import echod
from echod.bus import Bus
from echod.client.bus import AT_ONCE, BusDoor
from echod.client.orders import Order, Ticket
from echod.errors import BusAway, OrdersRefused, QueueFull, TimedOut
from echod.model.job import Mint
from server import Server

ORDERS = [Order(function="f.f", payload=b"\xc0", key=str(number)) for number in range(3 * AT_ONCE)]


class Door(BusDoor):
    """Its bus is away from one order on, and one before that is refused."""

    def __init__(self, away_from: int) -> None:
        super().__init__("unix:///nowhere", "", 30.0)
        self.away_from = away_from
        self.asked = 0

    async def enqueue(self, order: Order) -> Ticket:
        self.asked += 1
        if int(order.key) >= self.away_from:
            raise BusAway("no answer")
        if order.key == "7":
            raise QueueFull("it is full")
        return Ticket(f"JOB{order.key}", order.function, "pending")


async def test_of_many_orders_those_that_got_no_answer_are_told_apart_and_the_rest_is_not_tried() -> None:
    door = Door(away_from=AT_ONCE)
    told = await door.enqueue_many(ORDERS)
    assert door.asked == 2 * AT_ONCE  # the patience of the second part was all there was
    assert [isinstance(each, BusAway) for each in told] == [False] * AT_ONCE + [True] * 2 * AT_ONCE
    errors = {number: each for number, each in enumerate(told) if not isinstance(each, Ticket)}
    said = str(OrdersRefused(errors, [each if isinstance(each, Ticket) else None for each in told]))
    assert (
        said
        == "1 of 768 orders were refused and 512 of 768 orders got no answer, the others stand; order 7: it is full"
    )


async def test_a_bus_that_is_away_for_all_of_many_is_no_refusal() -> None:
    with pytest.raises(BusAway, match="no answer"):
        await Door(away_from=0).enqueue_many(ORDERS)


@pytest.mark.parametrize("is_met", [True, False], ids=["met before", "never met"])
async def test_a_result_is_waited_for_no_longer_than_its_timeout_says(
    bus: Bus, server: Server, is_met: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However patient the client is otherwise: the bus stands still, and answers again."""
    monkeypatch.setattr("echod.client.asynchronous.LOOK_S", 0.1)
    id = bus.new_job_id()
    await bus.mint("f.f", [Mint(id=id, payload=b"\xc0")])
    async with echod.AsyncClient(server.address, timeout="20s") as client:
        job = client.job(id)
        if is_met:
            await job.refresh()
        with server.paused(), pytest.raises(TimedOut, match=f"{id} has not ended within 200ms: nothing was heard"):
            await job.result("200ms")
        assert (await job.refresh()).state == "pending"


async def test_a_result_is_not_waited_for_where_there_is_no_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echod.client.asynchronous.LOOK_S", 0.1)
    async with echod.AsyncClient("unix:///nowhere/valkey.sock") as client:
        with pytest.raises(TimedOut, match="has not ended within 100ms: nothing was heard"):
            await client.job("JOB00000000000").result("100ms")
