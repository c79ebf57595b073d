"""Health, metrics, the bus, nodes, versions, and the live stream, on a real server and a real bus."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from doing import impatient
from echod.errors import Refused
from echod.gateway import exposition
from echod.model.ids import VersionId
from echod.model.job import Error
from server import PATIENCE_S
from unit.gateway.kit import FUNCTIONS, VERSION, Rig, Valkey, serving, until
from unit.gateway.test_jobs import following

Samples = dict[tuple[str, str], float]


async def scraped(rig: Rig) -> Samples:
    """Every sample by name and its labels' values; the text must parse."""
    answer = await rig.http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


async def test_healthz_is_liveness_alone(server: Valkey) -> None:
    async with serving(server, deployed=False) as rig:
        with rig.valkey.paused():
            assert (await rig.http.get("/healthz")).status_code == 200


async def test_readyz_tells_version_sandbox_and_what_is_degraded(rig: Rig) -> None:
    rig.status["degraded"] = ["sandbox: no Landlock here"]
    answer = await rig.http.get("/readyz")
    assert answer.status_code == 200
    assert answer.json() == {
        "ready": True,
        "bus": True,
        "version": VERSION,
        "sandbox": "minimal",
        "degraded": ["sandbox: no Landlock here"],
        "reasons": [],
    }
    assert answer.headers["Echo-Version"] == VERSION


async def test_not_ready_without_a_version_and_says_what_to_run(server: Valkey) -> None:
    async with serving(server, deployed=False) as rig:
        answer = await rig.http.get("/readyz")
        assert (answer.status_code, answer.json()["ready"], answer.json()["bus"]) == (503, False, True)
        assert answer.json()["reasons"] == ["no version deployed; run `echod deploy FOLDER`"]


async def test_a_version_that_cannot_be_read_is_the_reason_where_it_is_active(server: Valkey, rig: Rig) -> None:
    async with serving(server, deployed=False) as other:
        damaged = VersionId("DEP00000000002")
        await other.bus.put_version(damaged, [], b"\xc1")
        await other.bus.activate(damaged)
        for each in (other, rig):
            with pytest.raises(Refused):
                await each.desk.registry.refresh()
        answer = await other.http.get("/readyz")
        assert answer.status_code == 503
        [reason] = answer.json()["reasons"]
        assert f"version {damaged}: its description cannot be read" in reason
        answer = await rig.http.get("/readyz")
        assert (answer.status_code, answer.json()["version"]) == (200, VERSION)
        assert f"serving the version before: {reason}" in answer.json()["degraded"]


async def test_metrics_count_states_jobs_and_runs_under_prometheus_names(rig: Rig) -> None:
    await scraped(rig)
    for number in range(3):
        await rig.mint("hello.any", number)
    await rig.run("hello.any")
    await rig.fail("hello.any", Error("E", "m", cause="timeout"))
    await rig.http.post("/functions/shop.pack/pause")
    samples = await scraped(rig)
    assert samples["echod_bus_up", ""] == 1
    assert samples["echod_version_info", VERSION] == 1
    assert samples["echod_jobs", "hello.any,pending"] == 1
    assert samples["echod_jobs", "hello.any,dead"] == 1
    assert samples["echod_jobs_minted_total", "hello.any"] == 3
    assert samples["echod_jobs_done_total", "hello.any"] == 1
    assert samples["echod_runs_failed_total", "hello.any"] == 1
    assert samples["echod_runs_timed_out_total", "hello.any"] == 1
    assert samples["echod_queue_paused", "shop.pack"] == 1
    assert samples["echod_run_duration_seconds_count", "hello.any"] == 2
    assert samples["echod_run_duration_seconds_sum", "hello.any"] == pytest.approx(0.04, rel=0.11)
    assert samples["echod_run_duration_seconds_bucket", "hello.any,0.01"] == 0
    assert samples["echod_run_duration_seconds_bucket", "hello.any,0.025"] == 2
    assert samples["echod_run_duration_seconds_bucket", "hello.any,+Inf"] == 2
    assert all(name.startswith("echod_") for name, _ in samples)


async def test_an_odd_name_does_not_break_the_text(rig: Rig) -> None:
    assert ("echod_jobs", "odd name/{x}:#?%🦊,pending") in await scraped(rig)


async def test_counters_only_grow_and_count_each_job_once_over_hours(rig: Rig) -> None:
    total = 0
    await scraped(rig)
    for runs, minutes in enumerate((0, 1, 1, 59, 61, 30, 1, 120, 0, 5), 1):
        rig.valkey.clock.advance(minutes * 60_000)
        await rig.bus.tick("hello.any")  # the bus's clock is heard anew
        for _ in range(3):
            await rig.mint("hello.any")
        total += 3
        samples = await scraped(rig)
        assert samples["echod_jobs_minted_total", "hello.any"] == total
        await rig.run("hello.any")
        samples = await scraped(rig)
        assert samples["echod_jobs_done_total", "hello.any"] == runs
        assert samples["echod_run_duration_seconds_count", "hello.any"] == runs


async def test_metrics_of_a_bus_that_is_away_say_so(rig: Rig) -> None:
    with impatient(rig.bus), rig.valkey.paused():
        assert await scraped(rig) == {("echod_bus_up", ""): 0}


def test_a_sparse_histogram_keeps_every_count_and_its_scale() -> None:
    cumulative, total_s = exposition.histogram({0: 5, 24: 2, 72: 1, 400: 1})  # up to 1.1 ms, 10.3 ms, 1.003 s, aeons
    of = dict(cumulative)
    assert [of[edge] for edge in ("0.001", "0.01", "0.025", "1.0", "2.5", "3600.0")] == [5.0, 5.0, 7.0, 7.0, 8.0, 8.0]
    assert cumulative[-1] == ("+Inf", 9.0)
    values = [value for _, value in cumulative]
    assert values == sorted(values)
    assert total_s > 1


async def test_the_bus_nodes_and_versions_are_shown(rig: Rig) -> None:
    bus = (await rig.http.get("/bus")).json()
    assert set(bus) >= {"address", "version", "memory_bytes", "policy", "append_only", "clients"}
    [node] = (await rig.http.get("/nodes")).json()["nodes"]
    assert (node["id"], node["number"]) == ("NOD00000000001", 0)
    [version] = (await rig.http.get("/versions")).json()["versions"]
    assert (version["id"], version["active"]) == (VERSION, True)


async def test_lanes_with_work_are_listed_as_people_write_them(rig: Rig) -> None:
    odd = "🦊 {}:#/%?*\n../"
    for customer in ("a", "a", odd):
        await rig.mint("shop.pack", {"customer": {"id": customer}})
    await rig.mint("hello.any", 1)
    await rig.http.post("/functions/shop.pack/pause", params={"lane": "a"})
    rows = (await rig.http.get("/lanes")).json()["lanes"]
    assert {(row["function"], row["lane"], row["pending"], row["paused"]) for row in rows} == {
        ("shop.pack", "a", 2, True),
        ("shop.pack", odd, 1, False),
        ("hello.any", "-", 1, False),
    }
    of_one = (await rig.http.get("/lanes?function=shop.pack")).json()["lanes"]
    assert of_one == [row for row in rows if row["function"] == "shop.pack"]
    assert (await rig.http.get("/functions/shop.pack")).json()["lanes"] == of_one
    assert (await rig.http.get("/lanes?function=no.such")).status_code == 404


async def test_the_address_of_the_bus_is_shown_without_its_password(server: Valkey) -> None:
    async with serving(server, bus="valkey://user:hunter2@db.example:6379") as rig:
        for path in ("/bus", "/readyz", "/metrics"):
            assert "hunter2" not in (await rig.http.get(path)).text


# ---- the live stream ----------------------------------------------------------------------------------------------


async def test_open_pages_see_the_functions_object_and_its_changes(rig: Rig) -> None:
    async with rig.http.stream("GET", "/events") as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        events = following(answer)
        name, _, data = await anext(events)
        assert name == "functions"
        assert [entry["name"] for entry in data["functions"]] == [function.name for function in FUNCTIONS]
        assert set(data) >= {"functions", "errors", "occurrences", "now"}
        await rig.mint("hello.any", 1)
        async with asyncio.timeout(PATIENCE_S):
            while pending(data, "hello.any") != 1:
                _, _, data = await anext(events)


async def test_an_occurrence_is_told_as_soon_as_it_is_a_job(rig: Rig) -> None:
    await rig.recur("tick.beat")
    async with rig.http.stream("GET", "/events") as answer:
        events = following(answer)
        await anext(events)
        job = (await rig.http.post("/schedules/tick.beat/20s/run")).json()["id"]
        async with asyncio.timeout(PATIENCE_S):
            while True:
                name, _, data = await anext(events)
                if name == "occurrence":
                    break
        assert (data["job"], data["function"], data["recurrence"], data["manual"]) == (
            job,
            "tick.beat",
            "tick.beat/20s",
            True,
        )


async def test_reading_begins_with_the_first_page_and_ends_with_the_last(rig: Rig) -> None:
    assert rig.desk.live._reader is None
    async with rig.http.stream("GET", "/events") as one, rig.http.stream("GET", "/events") as other:
        await anext(following(one))
        await anext(following(other))
        assert rig.desk.live._reader is not None
    await until(lambda: rig.desk.live._reader is None)


async def test_a_head_of_the_stream_does_not_hang(rig: Rig) -> None:
    assert (await rig.http.head("/events")).status_code == 200
    assert rig.desk.live._reader is None


def pending(data: Any, name: str) -> int:
    return next(
        entry["pending"] for entry in msgspec.convert(data["functions"], list[dict[str, Any]]) if entry["name"] == name
    )
