"""POST /schedules/{id}/backfill: a job by hand for each past instant, once while it is kept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from audit import audit
from echod.gateway.views import instant
from unit.gateway.kit import FUNCTIONS, Rig, publish

HOUR_MS = 3_600_000
PLACE = "/schedules/shop.pack%2Fhourly"


@pytest.fixture
async def hour_ms(rig: Rig) -> int:
    """The last full hour; a schedule of each hour is registered."""
    wanted = {"function": "shop.pack", "name": "hourly", "every": "1h", "payload": {"customer": {"id": 7}}}
    hour_ms = rig.valkey.clock.now_ms() // HOUR_MS * HOUR_MS + HOUR_MS
    rig.valkey.clock.set(hour_ms + HOUR_MS // 2)  # the next is far from now
    await rig.bus.beat(pump=False)  # the gateway's clock follows
    assert (await rig.http.post("/schedules", json=wanted)).status_code == 201
    return hour_ms


async def fill(rig: Rig, status: int = 202, **body: Any) -> dict[str, Any]:
    answer = await rig.http.post(f"{PLACE}/backfill", json=body)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_each_past_instant_of_the_window_gets_a_job_in_its_lane(rig: Rig, hour_ms: int) -> None:
    before = (await rig.http.get("/schedules")).json()
    made = await fill(rig, **{"from": instant(hour_ms - 2 * HOUR_MS), "to": instant(hour_ms)})
    assert (made["instants"], made["minted"], made["already"]) == (3, 3, 0)
    assert (made["first"], made["last"]) == (instant(hour_ms - 2 * HOUR_MS), instant(hour_ms))
    jobs = [(await rig.http.get(f"/jobs/{id}")).json() for id in made["jobs"]]
    assert [job["occurrence"] for job in jobs] == [
        {"recurrence": "shop.pack/hourly", "due": instant(hour_ms - n * HOUR_MS), "manual": True} for n in (2, 1, 0)
    ]
    assert {(job["lane"], job["state"], job["payload"]["customer"]["id"]) for job in jobs} == {("7", "pending", 7)}
    assert (await rig.http.get("/schedules")).json() == before  # the due stands
    assert len(audit(rig.valkey, "shop.pack").rows) == 3


async def test_the_handler_is_told_the_instant_and_nothing_is_measured_as_late(rig: Rig, hour_ms: int) -> None:
    await fill(rig, **{"from": instant(hour_ms)})
    claimed = await rig.run("shop.pack")
    assert claimed.occurrence is not None
    assert (claimed.occurrence.due_ms, claimed.occurrence.manual) == (hour_ms, True)
    assert (await rig.bus.metrics("shop.pack", HOUR_MS)).late == {}


async def test_a_second_backfill_makes_none_twice_while_the_first_is_kept(rig: Rig, hour_ms: int) -> None:
    first = await fill(rig, **{"from": instant(hour_ms - HOUR_MS)})
    for _ in range(2):
        await rig.run("shop.pack")
    again = await fill(rig, 200, **{"from": instant(hour_ms - HOUR_MS)})
    assert (again["minted"], again["already"], again["jobs"]) == (0, 2, [])
    wider = await fill(rig, **{"from": instant(hour_ms - 3 * HOUR_MS)})
    assert (wider["minted"], wider["already"]) == (2, 2)
    rig.valkey.command("HSET", "emq:{shop.pack}:meta", "keep_count", 0)
    rig.valkey.clock.advance(60_000)
    await rig.bus.beat(pump=True)  # the two that ended are trimmed, and what says that they were made
    after = await fill(rig, **{"from": instant(hour_ms - 3 * HOUR_MS)})
    assert (after["minted"], after["already"]) == (2, 2)
    assert not set(first["jobs"]) & set(after["jobs"])
    assert len(audit(rig.valkey, "shop.pack").rows) == 4


async def test_no_key_remains_of_a_job_that_is_gone(rig: Rig, hour_ms: int) -> None:
    await fill(rig, **{"from": instant(hour_ms - HOUR_MS)})
    assert len(rig.valkey.command("KEYS", "*unique:*")) == 2  # type: ignore[arg-type]
    for _ in range(2):
        await rig.run("shop.pack")
    rig.valkey.command("HSET", "emq:{shop.pack}:meta", "keep_count", 0)
    rig.valkey.clock.advance(60_000)
    await rig.bus.beat(pump=True)
    assert rig.valkey.command("KEYS", "*unique:*") == []


async def test_a_call_sent_again_makes_none_twice(rig: Rig, hour_ms: int) -> None:
    jobs = [(hour_ms - n * HOUR_MS, rig.bus.new_job_id()) for n in (1, 0)]
    first = await rig.bus.backfill("shop.pack", "hourly", jobs)
    again = await rig.bus.backfill("shop.pack", "hourly", jobs)
    assert first == again
    assert first is not None
    assert [(each.due_ms, each.id, each.is_new) for each in first] == [(due_ms, id, True) for due_ms, id in jobs]
    assert await rig.bus.backfill("shop.pack", "unknown", jobs) is None
    assert len(audit(rig.valkey, "shop.pack").rows) == 2


async def test_many_instants_come_in_bounded_calls(rig: Rig, hour_ms: int) -> None:
    made = await fill(rig, **{"from": instant(hour_ms - 449 * HOUR_MS)})
    assert made["minted"] == 450
    assert len(audit(rig.valkey, "shop.pack").rows) == 450


async def test_a_plan_only_counts(rig: Rig, hour_ms: int) -> None:
    told = await fill(rig, 200, **{"from": instant(hour_ms - 9 * HOUR_MS), "plan": True})
    assert (told["plan"], told["instants"], told["minted"]) == (True, 10, 0)
    assert audit(rig.valkey, "shop.pack").rows == {}


async def test_what_is_still_to_come_is_left_to_the_schedule(rig: Rig, hour_ms: int) -> None:
    made = await fill(rig, **{"from": instant(hour_ms), "to": instant(hour_ms + 9 * HOUR_MS)})
    assert (made["instants"], made["last"]) == (1, instant(hour_ms))
    none = await fill(rig, 200, **{"from": instant(hour_ms + 2 * HOUR_MS)})
    assert (none["instants"], none["first"]) == (0, None)


async def test_a_pause_and_an_overlap_do_not_hold_it_up(rig: Rig, hour_ms: int) -> None:
    wanted = {"function": "shop.pack", "name": "hourly", "every": "1h", "overlap": "skip", "payload": {}}
    assert (await rig.http.post("/schedules", json=wanted)).json()["overlap"] == "skip"
    await rig.http.post(f"{PLACE}/pause")
    assert (await fill(rig, **{"from": instant(hour_ms - 4 * HOUR_MS)}))["minted"] == 5


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "from"),
        ({"from": "yesterday"}, "from: expected"),
        ({"from": "2026-03-01T00:00:00"}, "from: expected"),
        ({"from": "2026-03-01T00:00:00Z", "to": "later"}, "to: expected"),
        ({"from": "2026-03-01T00:00:00Z", "to": "2026-02-01T00:00:00Z"}, "from: expected an instant not after to"),
        ({"from": "2026-03-01T00:00:00Z", "limit": 0}, "limit"),
        ({"from": "2026-03-01T00:00:00Z", "limit": 10_001}, "limit"),
        ({"from": "2026-03-01T00:00:00Z", "until": "x"}, "until"),
        ([], "object"),
    ],
)
async def test_a_window_that_cannot_be_read_is_refused(rig: Rig, hour_ms: int, body: Any, said: str) -> None:
    answer = await rig.http.post(f"{PLACE}/backfill", json=body)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:echod:problem:invalid-parameter")
    assert said in answer.json()["detail"]


async def test_a_window_with_more_than_the_limit_is_refused_whole(rig: Rig, hour_ms: int) -> None:
    answer = await rig.http.post(f"{PLACE}/backfill", json={"from": instant(hour_ms - 5 * HOUR_MS), "limit": 5})
    assert answer.status_code == 422
    assert "at most 5 instants" in answer.json()["detail"]
    assert "narrow the window" in answer.json()["detail"]
    assert audit(rig.valkey, "shop.pack").rows == {}


async def test_an_unknown_schedule_and_one_whose_function_is_gone_are_404(rig: Rig, hour_ms: int) -> None:
    body = {"from": (datetime.now(UTC) - timedelta(hours=2)).isoformat()}
    assert (await rig.http.post("/schedules/shop.pack%2Fhurly/backfill", json=body)).status_code == 404
    await publish(rig.bus, tuple(each for each in FUNCTIONS if each.name != "shop.pack"), version="DEP0000000000G")
    await rig.registry.refresh()
    assert (await rig.http.post(f"{PLACE}/backfill", json=body)).status_code == 404
