"""Functions and schedules, on a real server and a real bus."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta

import pytest

from echod.model.job import Error
from unit.gateway.kit import ERRORS, FUNCTIONS, VERSION, Rig, Valkey, serving

ODD = "odd%20name%2F%7Bx%7D%3A%23%3F%25%F0%9F%A6%8A"
WEEKLY = "report.weekly/0 6 * * mon Europe/Berlin"


async def test_functions_are_listed_with_their_triggers_policy_and_counts(rig: Rig) -> None:
    await rig.mint("hello.any", 1)
    await rig.mint("hello.any", 1, Echo_Delay="1h")
    await rig.mint("shop.pack", 1)
    await rig.fail("shop.pack", Error("E", "m"))
    body = (await rig.http.get("/functions")).json()
    found = {entry["name"]: entry for entry in body["functions"]}
    assert list(found) == [function.name for function in FUNCTIONS]
    assert body["errors"] == []
    for entry in found.values():
        assert set(entry) >= {
            "name",
            "module",
            "queue",
            "triggers",
            "policy",
            "pending",
            "active",
            "scheduled",
            "dead",
            "version",
        }
        assert entry["version"] == VERSION
    assert (found["hello.any"]["pending"], found["hello.any"]["scheduled"], found["shop.pack"]["dead"]) == (1, 1, 1)
    assert found["hello.any"]["triggers"] == [{"kind": "queue"}]
    policy = found["shop.pack"]["policy"]
    assert (policy["lane"], policy["retries"], policy["timeout_ms"]) == ("customer.id", 3, 60_000)
    assert policy["backoff"] == {"type": "exponential", "base_ms": 500, "cap_ms": 600_000}
    every, queue = found["tick.beat"]["triggers"]
    assert (every["kind"], every["period_ms"], every["rule"], queue) == (
        "every",
        20_000,
        "every 20s",
        {"kind": "queue"},
    )
    [cron] = found["report.weekly"]["triggers"]
    assert (cron["kind"], cron["rule"], cron["tz"], cron["id"]) == ("cron", "0 6 * * mon", "Europe/Berlin", WEEKLY)


async def test_broken_modules_are_listed_beside_what_serves_on(server: Valkey) -> None:
    async with serving(server, errors=ERRORS) as rig:
        body = (await rig.http.get("/functions")).json()
        [error] = body["errors"]
        assert (error["module"], error["line"], error["column"], error["message"]) == ("broken", 4, 7, "invalid syntax")
        assert len(body["functions"]) == len(FUNCTIONS)


async def test_without_a_version_the_list_is_empty(server: Valkey) -> None:
    async with serving(server, deployed=False) as rig:
        assert (await rig.http.get("/functions")).json()["functions"] == []


async def test_a_function_counts_each_job_once_and_knows_its_percentiles(rig: Rig) -> None:
    for number in range(4):
        await rig.mint("hello.any", number)
    for _ in range(3):
        await rig.run("hello.any")
    await rig.fail("hello.any", Error("E", "m", cause="timeout"))
    body = (await rig.http.get("/functions/hello.any?window=3600")).json()
    metrics = body["metrics"]
    assert (metrics["window_s"], metrics["minted"], metrics["done"], metrics["dead"]) == (3600, 4, 3, 1)
    assert (metrics["failed"], metrics["timeouts"], metrics["missed"], metrics["skipped"]) == (1, 1, 0, 0)
    for name in ("duration_ms", "wait_ms", "late_ms"):
        assert set(metrics[name]) == {"p50", "p95", "p99"}
    assert metrics["duration_ms"]["p50"] == pytest.approx(20, rel=0.11)
    assert metrics["late_ms"] == {"p50": None, "p95": None, "p99": None}
    assert set(body["windows"]) == {"900", "3600", "86400"}
    assert len(body["recent"]) == 4
    assert (len(body["series"]["done"]), sum(body["series"]["done"])) == (60, 3)
    assert body["rate"] > 0


async def test_a_window_is_a_minute_to_eight_days(rig: Rig) -> None:
    for window in ("59", "691201", "x", "-1", "1.5", "9" * 1000, "%00"):
        answer = await rig.http.get(f"/functions/hello.any?window={window}")
        assert answer.status_code == 422, window
        assert "window: expected 60 to 691200" in answer.json()["detail"]
    minute_ms = rig.valkey.clock.now_ms() // 60_000 * 60_000 + 60_000
    rig.valkey.clock.set(minute_ms + 5_000)  # a minute is the one that is: the next is far from now
    await rig.bus.beat(pump=False)  # the gateway's clock follows
    await rig.mint("hello.any", 1)
    for window in ("60", "900", "691200"):
        metrics = (await rig.http.get(f"/functions/hello.any?window={window}")).json()["metrics"]
        assert (metrics["window_s"], metrics["minted"]) == (int(window), 1)


async def test_the_next_five_instants_are_in_the_rules_own_zone(rig: Rig) -> None:
    await rig.recur("report.weekly")
    body = (await rig.http.get("/functions/report.weekly")).json()
    instants = [datetime.fromisoformat(text) for text in body["next"]]
    assert len(instants) == 5
    assert all(
        later - earlier in {timedelta(days=7), timedelta(days=7, hours=1), timedelta(days=7, hours=-1)}
        for earlier, later in itertools.pairwise(instants)
    )
    assert all(instant.hour in {4, 5} and instant.weekday() == 0 for instant in instants)
    assert [row["upcoming"] for row in body["schedules"]] == [body["next"]]


async def test_a_paused_schedule_has_no_next_instants(rig: Rig) -> None:
    await rig.recur("tick.beat")
    assert len((await rig.http.get("/functions/tick.beat")).json()["next"]) == 5
    await rig.http.post("/schedules/tick.beat%2F20s/pause")
    assert (await rig.http.get("/functions/tick.beat")).json()["next"] == []


async def test_a_function_of_any_name_is_shown_and_paused(rig: Rig) -> None:
    assert (await rig.http.get(f"/functions/{ODD}")).json()["name"] == "odd name/{x}:#?%🦊"
    assert (await rig.http.post(f"/functions/{ODD}/pause")).json() == {
        "name": "odd name/{x}:#?%🦊",
        "lane": None,
        "paused": True,
    }
    assert (await rig.http.get(f"/functions/{ODD}")).json()["paused"] is True


async def test_nothing_is_claimed_from_a_paused_function_until_it_is_resumed(rig: Rig) -> None:
    await rig.mint("hello.any", 1)
    for _ in range(2):  # asking twice changes nothing
        assert (await rig.http.post("/functions/hello.any/pause")).status_code == 200
    assert (await rig.bus.claim("hello.any", "WRK1", 1, 1000)).jobs == ()
    await rig.mint("hello.any", 2)
    for _ in range(2):
        assert (await rig.http.post("/functions/hello.any/resume")).json()["paused"] is False
    await rig.run("hello.any")


@pytest.mark.parametrize(
    "action", ["functions/shop.pack/pause", "functions/shop.pack/drain", "morgue/redrive", "morgue/purge"]
)
async def test_an_action_whose_filter_is_misspelt_is_not_of_all(rig: Rig, action: str) -> None:
    await rig.mint("shop.pack", {"customer": {"id": "a"}})
    for misspelt in ({"lan": "a"}, {"lane": ""}, {"cause": ""}, {"older": ""}):
        answer = await rig.http.post(f"/{action}", params=misspelt)
        assert (answer.status_code, answer.json()["detail"].partition(":")[0]) == (422, next(iter(misspelt)))
    answer = await rig.http.post(f"/{action}", data={"lane": "b"})  # a form's, or of `curl -d`
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:echod:problem:invalid-body")
    answer = await rig.http.post(f"/{action}", params={"lane": ["b", "c"]})
    assert (answer.status_code, answer.json()["detail"][:21]) == (422, "lane: expected it onc")
    assert (await rig.run("shop.pack")).lane == "a"


async def test_one_lane_is_paused_alone(rig: Rig) -> None:
    for customer in ("a", "b"):
        await rig.mint("shop.pack", {"customer": {"id": customer}})
    await rig.http.post("/functions/shop.pack/pause", params={"lane": "a"})
    assert (await rig.run("shop.pack")).lane == "b"
    assert (await rig.bus.claim("shop.pack", "WRK1", 1, 1000)).jobs == ()
    await rig.http.post("/functions/shop.pack/resume", params={"lane": "a"})
    assert (await rig.run("shop.pack")).lane == "a"


async def test_an_unknown_function_is_404(rig: Rig) -> None:
    for method, verb in (("GET", ""), ("POST", "/pause"), ("POST", "/resume")):
        for name in ("hello.gret", "%7B%7D%3A", "a%0Ab", "..%2F..", "%F0%9F%A6%8A", "x" * 10_000):
            answer = await rig.http.request(method, f"/functions/{name}{verb}")
            assert answer.status_code == 404, (method, name)
            assert answer.json()["type"].endswith("unknown-function")
            assert (answer.json().get("suggestions") or [""])[0] == ("hello.greet" if name == "hello.gret" else "")


# ---- schedules ----------------------------------------------------------------------------------------------------


async def test_schedules_are_listed(rig: Rig) -> None:
    await rig.recur("tick.beat")
    await rig.recur("report.weekly")
    weekly, beat = (await rig.http.get("/schedules")).json()["schedules"]
    for row in (weekly, beat):
        assert set(row) >= {"id", "function", "rule", "tz", "next", "last", "missed", "skipped", "paused", "error"}
    assert (weekly["id"], weekly["rule"], weekly["tz"]) == (WEEKLY, "0 6 * * mon", "Europe/Berlin")
    assert (beat["id"], beat["function"], beat["rule"]) == ("tick.beat/20s", "tick.beat", "every 20s")
    assert (beat["missed"], beat["skipped"], beat["paused"], beat["error"], beat["last"]) == (0, 0, False, None, None)
    datetime.fromisoformat(beat["next"])


@pytest.mark.parametrize(
    "id",
    [
        "tick.beat/20s",
        "tick.beat%2F20s",
        "report.weekly%2F0%206%20*%20*%20mon%20Europe%2FBerlin",
        "report.weekly/0%206%20*%20*%20mon%20Europe/Berlin",
    ],
)
async def test_a_schedule_is_run_now_by_its_id_in_either_spelling(rig: Rig, id: str) -> None:
    for name in ("tick.beat", "report.weekly"):
        await rig.recur(name)
    function = id.partition("%2F")[0].partition("/")[0]
    before = (await rig.http.get("/schedules")).json()
    answer = await rig.http.post(f"/schedules/{id}/run")
    assert answer.status_code == 202
    assert answer.headers["Location"] == f"/jobs/{answer.json()['id']}"
    job = (await rig.http.get(answer.headers["Location"])).json()
    assert (job["function"], job["occurrence"]["manual"]) == (function, True)
    assert (await rig.http.get("/schedules")).json() == before


async def test_a_pause_skips_what_falls_due_in_it_and_counts(rig: Rig) -> None:
    due_ms = rig.valkey.clock.now_ms() // 20_000 * 20_000 + 20_000
    rig.valkey.clock.set(due_ms)
    await rig.recur("tick.beat", next_ms=due_ms)
    [due] = (await rig.bus.tick("tick.beat")).due
    job = rig.bus.new_job_id()
    await rig.bus.occur("tick.beat", due.recurrence, due.revision, due.due_ms, next_ms=due.due_ms + 20_000, job=job)
    assert (await rig.http.post("/schedules/tick.beat/20s/pause")).json()["paused"] is True
    rig.valkey.clock.set(due_ms + 62_000)  # the next is far from now
    await rig.bus.tick("tick.beat")  # the bus's clock is heard anew
    answer = (await rig.http.post("/schedules/tick.beat/20s/resume")).json()
    assert answer["paused"] is False
    next_ms = int(datetime.fromisoformat(answer["next"]).timestamp() * 1000)
    assert next_ms % 20_000 == 0
    assert 0 < next_ms - rig.bus.clock.now_ms() <= 20_000
    [row] = (await rig.http.get("/schedules")).json()["schedules"]
    assert row["skipped"] == (next_ms - due.due_ms) // 20_000 - 1 > 0
    assert row["next"] == answer["next"]


async def test_resuming_what_is_not_paused_moves_nothing(rig: Rig) -> None:
    await rig.recur("tick.beat")
    before = (await rig.http.get("/schedules")).json()["schedules"][0]
    answer = (await rig.http.post("/schedules/tick.beat/20s/resume")).json()
    assert answer["next"] == before["next"]
    assert (await rig.http.get("/schedules")).json()["schedules"][0] == before


async def test_an_unknown_schedule_is_404(rig: Rig) -> None:
    await rig.recur("tick.beat")
    for verb in ("run", "pause", "resume"):
        for id in ("x", "tick.beat", "tick.beat/21s", "tick.beat%2F20s%2F", "%7B%7D/%0A", "x" * 10_000, "..%2F.."):
            answer = await rig.http.post(f"/schedules/{id}/{verb}")
            assert answer.status_code == 404, (verb, id)
            if id == "tick.beat/21s":
                assert answer.json()["suggestions"] == ["tick.beat/20s"]
