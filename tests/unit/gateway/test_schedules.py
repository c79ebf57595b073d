"""Schedules registered at run time, over HTTP, on a real server and a real bus."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from urllib.parse import quote

import pytest

from echod.policy.jitter import job_due
from echofn.manifest import CronTrigger
from unit.gateway.kit import FUNCTIONS, Rig, function, publish

NIGHTLY = {"function": "hello.greet", "name": "nightly", "cron": "0 2 * * *", "payload": {"name": "Ada"}}


async def add(rig: Rig, **wanted: Any) -> Any:
    answer = await rig.http.post("/schedules", json={**NIGHTLY, **wanted})
    assert answer.status_code in {200, 201}, answer.text
    return answer.json()


async def listed(rig: Rig) -> dict[str, Any]:
    found = (await rig.http.get("/schedules")).json()["schedules"]
    return {each["id"]: each for each in found}


async def faults(rig: Rig, **wanted: Any) -> dict[str, str]:
    answer = await rig.http.post("/schedules", json={**NIGHTLY, **wanted})
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:echod:problem:invalid-schedule"), answer.text
    assert await listed(rig) == {}
    return {fault["path"]: fault["message"] for fault in answer.json()["faults"]}


async def test_a_schedule_is_registered_listed_and_removed(rig: Rig) -> None:
    answer = await rig.http.post("/schedules", json={**NIGHTLY, "tz": "Europe/Berlin"})
    assert answer.status_code == 201
    made = answer.json()
    assert (made["id"], made["rule"], made["tz"], made["origin"]) == (
        "hello.greet/nightly",
        "0 2 * * *",
        "Europe/Berlin",
        "runtime",
    )
    assert made["next"] is not None
    assert await listed(rig) == {"hello.greet/nightly": made}
    removed = await rig.http.delete(answer.headers["Location"])
    assert (removed.status_code, removed.json()) == (200, {"id": "hello.greet/nightly", "removed": True})
    assert await listed(rig) == {}
    assert (await rig.http.delete(answer.headers["Location"])).status_code == 404


async def test_the_same_name_changes_the_rule_and_goes_on_from_the_last_due(rig: Rig) -> None:
    first = await add(rig, cron=None, every="1h")
    again = await rig.http.post("/schedules", json={**NIGHTLY, "cron": None, "every": 3600})
    assert (again.status_code, again.json()) == (200, first)
    [row] = await rig.bus.recurrences("hello.greet")
    due_ms = row.next_ms or 0
    job = rig.bus.new_job_id()
    await rig.bus.occur("hello.greet", "nightly", row.revision, due_ms, next_ms=due_ms + 3_600_000, job=job)
    changed = await add(rig, cron=None, every="10m")
    [row] = await rig.bus.recurrences("hello.greet")
    assert row.next_ms == due_ms + 600_000  # of the last due, not of now
    assert changed["rule"] == "every 10m"
    assert len(await listed(rig)) == 1


async def test_what_its_jobs_carry_and_where_they_go_is_as_of_a_call(rig: Rig) -> None:
    await add(rig, function="shop.pack", payload={"customer": {"id": 7}}, name="daily")
    answer = await rig.http.post("/schedules/shop.pack%2Fdaily/run")
    job = (await rig.http.get(answer.json()["url"])).json()
    assert (job["payload"], job["lane"]) == ({"customer": {"id": 7}}, "7")
    assert job["occurrence"]["recurrence"] == "shop.pack/daily"


@pytest.mark.parametrize(
    ("wanted", "path", "said"),
    [
        ({"cron": "0 0 30 2 *"}, "$.cron", "never fire"),
        ({"cron": "*/90 * * * *"}, "$.cron", "step"),
        ({"cron": "* * *"}, "$.cron", "fields"),
        ({"tz": "Europe/Berlim"}, "$.tz", "Europe/Berlin"),
        ({"cron": None}, "$.cron", "got none"),
        ({"every": "1h"}, "$.cron", "got both"),
        ({"cron": None, "every": "soon"}, "$.every", "expected"),
        ({"cron": None, "every": "200ms"}, "$.every", "at least 1s"),
        ({"cron": None, "every": "1h", "tz": "UTC"}, "$.tz", "with cron alone"),
        ({"anchor": "2026-01-01T00:00:00Z"}, "$.anchor", "with every alone"),
        ({"cron": None, "every": "1h", "anchor": "2026-01-01T00:00:00"}, "$.anchor", "zone"),
        ({"name": "a/b"}, "$.name", "without /"),
        ({"name": " "}, "$.name", "expected"),
        ({"missed": "all", "cap": 0}, "$.cap", "1 to 10,000"),
        ({"cap": 5}, "$.cap", 'missed="all" beside it'),
        ({"jitter": "soon"}, "$.jitter", "expected"),
        ({"jitter": "8d"}, "$.jitter", "at most 7d"),
        ({"jitter": "24h"}, "$.jitter", "less than 1d"),
        ({"cron": None, "every": "1h", "jitter": 3600}, "$.jitter", "less than 1h"),
        ({"payload": {"name": 7}}, "$.payload.name", "string"),
        ({"payload": None}, "$.payload", "object"),
        ({"payload": {"name": "x", "tags": [1, "y"]}}, "$.payload.tags[1]", "integer"),
        ({"payload": {"name": "x", "deep": [[[]]] * 1} | {"n": eval("[" * 120 + "]" * 120)}}, "$.payload", "levels"),
    ],
)
async def test_what_an_annotation_is_refused_for_is_refused_with_its_path(
    rig: Rig, wanted: dict[str, Any], path: str, said: str
) -> None:
    found = await faults(rig, **wanted)
    assert list(found) == [path]
    assert said in found[path]


async def test_all_faults_are_told_at_once(rig: Rig) -> None:
    found = await faults(rig, cron="0 0 30 2 *", tz="Nowhere/Land", payload={}, name="x/y")
    assert set(found) == {"$.cron", "$.tz", "$.payload", "$.name"}


async def test_overlap_and_jitter_are_stored_shown_and_previewed(rig: Rig) -> None:
    made = await add(rig, overlap="queue", jitter="30m")
    assert (made["overlap"], made["jitter"]) == ("queue", "30m")
    assert rig.valkey.command("HGET", "emq:{hello.greet}:repeat:nightly", "ov") == b"queue"
    [schedule] = (await rig.http.get("/functions/hello.greet")).json()["schedules"]
    assert len(schedule["upcoming"]) == 5
    for due, start in zip(schedule["upcoming"], schedule["starts"], strict=True):
        due_ms, start_ms = (int(datetime.fromisoformat(text).timestamp() * 1000) for text in (due, start))
        assert start_ms == job_due("hello.greet/nightly", CronTrigger("", "", jitter_ms=1_800_000), due_ms)
    page = (await rig.http.get("/functions/hello.greet", headers={"Accept": "text/html"})).text
    assert f"starts {schedule['starts'][0][11:19]} UTC" in page
    for path in ("/schedules", "/functions/hello.greet"):
        page = (await rig.http.get(path, headers={"Accept": "text/html"})).text
        assert "overlap: queue" in page
        assert "jitter 30m" in page
    plain = await add(rig)
    assert (plain["overlap"], plain["jitter"], plain["next"]) == ("allow", None, made["next"])


async def test_one_row_that_cannot_be_read_hides_no_other(rig: Rig) -> None:
    await add(rig)
    await add(rig, name="bad")
    for field in ("rev", "next", "trigger", "missed"):
        rig.valkey.command("HSET", "emq:{hello.greet}:repeat:bad", field, b"\xff\xfe")
    found = await listed(rig)
    assert found["hello.greet/nightly"]["next"] is not None
    assert (found["hello.greet/bad"]["next"], found["hello.greet/bad"]["missed"]) == (None, 0)
    for path in ("/schedules", "/functions/hello.greet"):
        assert (await rig.http.get(path, headers={"Accept": "text/html"})).status_code == 200


async def test_a_payload_whose_lane_is_an_object_is_refused(rig: Rig) -> None:
    found = await faults(rig, function="shop.pack", payload={"customer": {"id": {}}})
    assert "lane" in found["$.payload"]


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({"function": "hello.gret", "cron": "0 2 * * *"}, 404, "unknown-function"),
        ({"function": "hello.greet", "crom": "0 2 * * *"}, 422, "invalid-parameter"),
        ({"function": 7}, 422, "invalid-parameter"),
        ({}, 422, "invalid-parameter"),
        ({**NIGHTLY, "missed": "never"}, 422, "invalid-parameter"),
        ({**NIGHTLY, "cap": "9"}, 422, "invalid-parameter"),
        ({**NIGHTLY, "overlap": "drop"}, 422, "invalid-parameter"),
        ([], 422, "invalid-parameter"),
    ],
)
async def test_a_body_that_is_no_schedule_is_refused(rig: Rig, body: Any, status: int, kind: str) -> None:
    answer = await rig.http.post("/schedules", json=body)
    assert (answer.status_code, answer.json()["type"]) == (status, f"urn:echod:problem:{kind}")
    assert await listed(rig) == {}


async def test_a_body_that_is_no_json_is_400(rig: Rig) -> None:
    for body in (b"", b"{", b"\xff"):
        assert (await rig.http.post("/schedules", content=body)).status_code == 400, body[:10]


async def test_a_name_of_the_functions_own_code_is_taken(rig: Rig) -> None:
    await rig.recur("tick.beat")
    before = await listed(rig)
    answer = await rig.http.post("/schedules", json={"function": "tick.beat", "name": "20s", "every": "1h"})
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:echod:problem:name-taken")
    answer = await rig.http.delete(f"/schedules/{quote('tick.beat/20s', safe='')}")
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:echod:problem:name-taken")
    assert await listed(rig) == before
    assert before["tick.beat/20s"]["origin"] == "code"


async def test_without_a_name_it_is_called_by_its_rule_as_an_annotation_is(rig: Rig) -> None:
    row = {"rule": "x", "tz": "UTC", "trigger": b"", "payload": b"\xc0", "next_ms": None}
    await rig.bus.recur("hello.greet", "0 6 * * 1 Europe/Berlin", **row, generation=1)  # type: ignore[arg-type]
    wanted = {**NIGHTLY, "name": None, "cron": "0 6 * * mon", "tz": "Europe/Berlin"}
    answer = await rig.http.post("/schedules", json=wanted)
    assert answer.status_code == 409  # the same rule in the same zone is the function's own
    assert (await add(rig, name=None))["name"] == "0 2 * * *"
    assert (await add(rig, name=None, cron=None, every="90s"))["name"] == "every 90s"


async def test_a_schedule_whose_function_is_gone_says_so_and_is_not_run(rig: Rig) -> None:
    await add(rig)
    await publish(rig.bus, tuple(each for each in FUNCTIONS if each.name != "hello.greet"), version="DEP0000000000G")
    await rig.registry.refresh()
    assert "not in the version" in (await listed(rig))["hello.greet/nightly"]["error"]
    assert (await rig.http.post("/schedules/hello.greet%2Fnightly/run")).status_code == 404
    page = await rig.http.get("/schedules", headers={"Accept": "text/html"})
    assert "not in the version" in page.text
    assert (await rig.http.delete("/schedules/hello.greet%2Fnightly")).status_code == 200


async def test_it_is_paused_and_resumed_as_any_other(rig: Rig) -> None:
    await add(rig)
    assert (await rig.http.post("/schedules/hello.greet%2Fnightly/pause")).json()["paused"] is True
    assert (await listed(rig))["hello.greet/nightly"]["next"] is None
    assert (await rig.http.post("/schedules/hello.greet%2Fnightly/resume")).json()["next"] is not None


async def test_the_instants_of_a_pause_are_counted_once(rig: Rig) -> None:
    """Before the first due too, and not again by another pause."""
    base = "/schedules/hello.greet%2Fnightly"
    minute_ms = rig.valkey.clock.now_ms() // 60_000 * 60_000 + 60_000
    rig.valkey.clock.set(minute_ms + 5_000)  # the next is far from now
    await rig.bus.beat(pump=False)  # the gateway's clock follows
    await add(rig, cron="* * * * *")
    try:
        for skipped, minutes in ((10, 10), (10, 0), (13, 3)):
            assert (await rig.http.post(f"{base}/pause")).status_code == 200
            rig.valkey.clock.advance(minutes * 60_000)
            await rig.bus.beat(pump=False)  # the gateway's clock follows
            assert (await rig.http.post(f"{base}/resume")).status_code == 200
            assert (await listed(rig))["hello.greet/nightly"]["skipped"] == skipped
    finally:
        rig.valkey.clock.advance(-rig.valkey.clock.offset_ms)


async def test_what_a_pause_skipped_stays_skipped_although_the_clock_is_set_back(rig: Rig) -> None:
    base = "/schedules/hello.greet%2Fnightly"
    hour_ms = rig.valkey.clock.now_ms() // 3_600_000 * 3_600_000 + 3_600_000
    try:
        rig.valkey.clock.set(hour_ms + 1_000)
        await rig.bus.beat(pump=False)  # the gateway's clock follows
        await add(rig, cron="0 * * * *")
        for hours, skipped in ((3, 3), (-2, 3)):
            assert (await rig.http.post(f"{base}/pause")).status_code == 200
            rig.valkey.clock.advance(hours * 3_600_000)
            await rig.bus.beat(pump=False)
            assert (await rig.http.post(f"{base}/resume")).status_code == 200
            [row] = await rig.bus.recurrences("hello.greet")
            assert (row.skipped, row.last_ms) == (skipped, hour_ms + 3 * 3_600_000)
            assert row.next_ms == hour_ms + 4 * 3_600_000
        await add(rig, cron="*/10 * * * *")  # while it is paused or not: from what was skipped last
        [row] = await rig.bus.recurrences("hello.greet")
        assert row.next_ms == hour_ms + 3 * 3_600_000 + 600_000
    finally:
        rig.valkey.clock.advance(-rig.valkey.clock.offset_ms)


async def test_a_rule_changed_in_a_second_pause_counts_nothing_of_the_first_again(rig: Rig) -> None:
    base = "/schedules/hello.greet%2Fnightly"
    hour_ms = rig.valkey.clock.now_ms() // 3_600_000 * 3_600_000 + 3_600_000
    try:
        rig.valkey.clock.set(hour_ms + 1_000)
        await rig.bus.beat(pump=False)  # the gateway's clock follows
        await add(rig, cron="0 * * * *")
        for cron in ("0 * * * *", "0,30 * * * *"):
            assert (await rig.http.post(f"{base}/pause")).status_code == 200
            rig.valkey.clock.advance(2 * 3_600_000)
            await rig.bus.beat(pump=False)
            await add(rig, cron=cron)
            assert (await rig.http.post(f"{base}/resume")).status_code == 200
        [row] = await rig.bus.recurrences("hello.greet")
        assert row.skipped == 2 + 4
    finally:
        rig.valkey.clock.advance(-rig.valkey.clock.offset_ms)


async def test_pages_show_it_where_schedules_are_shown(rig: Rig) -> None:
    await add(rig)
    whole = (await rig.http.get("/functions/hello.greet")).json()
    assert len(whole["next"]) == 5
    assert [len(each["upcoming"]) for each in whole["schedules"]] == [5]
    for path in ("/schedules", "/functions/hello.greet"):
        page = await rig.http.get(path, headers={"Accept": "text/html"})
        assert "registered at run time" in page.text, path


async def test_a_thousand_of_one_function_are_enough(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echod.registry.schedules.MOST", 3)
    for number in range(3):
        await add(rig, name=f"s{number}")
    answer = await rig.http.post("/schedules", json={**NIGHTLY, "name": "s3"})
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:echod:problem:refused")
    await add(rig, name="s1", cron="0 3 * * *")  # a change is none more


async def test_a_function_that_takes_no_payload_is_given_none(rig: Rig) -> None:
    bare = function("bare.bone")
    without = type(bare)(bare.name, bare.module, bare.attribute, bare.file, 1, bare.policy, bare.triggers)
    await publish(rig.bus, (*FUNCTIONS, without), version="DEP0000000000B")
    await rig.registry.refresh()
    assert "takes no payload" in (await faults(rig, function="bare.bone", payload=1))["$.payload"]
    assert (await add(rig, function="bare.bone", payload=None))["error"] is None


async def test_a_schedule_without_payload_carries_what_a_job_without_one_does(rig: Rig) -> None:
    made = await add(rig, function="shop.usual", name="usual", payload=None)
    ran = await rig.http.post(f"/schedules/{quote(made['id'], safe='')}/run")
    job = (await rig.http.get(ran.headers["location"])).json()
    assert job["payload"] == {"name": "Bo", "at": "eA=="}
