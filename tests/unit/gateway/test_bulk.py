"""Drain, move, purge, redrive by filter: many jobs at once over HTTP, on a real server and a real bus."""

from __future__ import annotations

import itertools
from typing import Any
from urllib.parse import quote

import pytest

from doing import bury, claim, dead, mint, settle
from echod.bus.bulk import STEP
from echod.gateway.bulk import PARTS
from echod.model.job import Error, Unique
from unit.gateway.kit import Rig, Valkey


async def post(rig: Rig, path: str, **query: str | int) -> Any:
    """The answer's JSON; a problem fails the test."""
    answer = await rig.http.post(path, params={name: str(value) for name, value in query.items()})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def sweep(rig: Rig, path: str, count: str, **query: str | int) -> tuple[int, int]:
    """Until there is no cursor: how much was changed, and in how many calls."""
    changed, calls, cursor = 0, 0, ""
    while True:
        part = await post(rig, path, **query, cursor=cursor)
        changed, calls, cursor = changed + part[count], calls + 1, part["cursor"]
        if cursor is None:
            return changed, calls


async def state_of(rig: Rig, id: str) -> str:
    return str((await rig.http.get(f"/jobs/{id}")).json()["state"])


# ---- drain ----


async def test_a_drain_cancels_what_waits_and_the_running_job_ends(rig: Rig) -> None:
    running = await rig.mint("hello.any", 1)
    job = await rig.claim("hello.any")
    waiting = await rig.mint("hello.any", 2)
    later = await rig.mint("hello.any", 3, Echo_Delay="5m")
    answer = await post(rig, "/functions/hello.any/drain")
    assert answer == {"name": "hello.any", "lane": None, "matched": 1, "cancelled": 1, "cursor": None}
    assert [await state_of(rig, id) for id in (running, waiting, later)] == ["active", "cancelled", "scheduled"]
    assert (await post(rig, "/functions/hello.any/drain", scheduled=1))["cancelled"] == 1
    assert await state_of(rig, later) == "cancelled"
    assert job.id == running


async def test_a_drain_of_a_lane_leaves_the_others(rig: Rig) -> None:
    bo = await rig.mint("shop.pack", {"customer": {"id": "Bo"}})
    al = await rig.mint("shop.pack", {"customer": {"id": "Al"}})
    assert (await post(rig, "/functions/shop.pack/drain", lane="Bo"))["cancelled"] == 1
    assert [await state_of(rig, id) for id in (bo, al)] == ["cancelled", "pending"]


async def test_a_dry_run_counts_and_changes_nothing(rig: Rig) -> None:
    await bury(rig.bus, "hello.any")
    id = await rig.mint("hello.any", 1)
    for path, count in (
        ("/functions/hello.any/drain", "cancelled"),
        ("/functions/hello.any/move?lane=-&to=b", "moved"),
        ("/functions/hello.any/purge?state=dead", "purged"),
        ("/morgue/redrive", "redriven"),
        ("/morgue/purge", "purged"),
    ):
        answer = (await rig.http.post(f"{path}{'&' if '?' in path else '?'}dry_run=1")).json()
        assert (answer["matched"], answer[count]) == (1, 0), path
    record = (await rig.http.get(f"/jobs/{id}")).json()
    assert (record["state"], record["lane"]) == ("pending", "-")
    assert (await rig.bus.stats(["hello.any"]))["hello.any"].dead == 1


async def test_jobs_of_a_function_that_is_gone_are_drained(rig: Rig) -> None:
    """The way to get rid of what waits for a version that never comes."""
    await mint(rig.bus, "gone.fn", count=3)
    (record,) = (await rig.http.get("/jobs?function=gone.fn&limit=1")).json()["jobs"]
    assert record["orphaned"]
    assert (await post(rig, "/functions/gone.fn/drain"))["cancelled"] == 3
    assert (await post(rig, "/functions/gone.fn/purge", state="cancelled"))["purged"] == 3
    assert (await rig.http.get("/jobs?function=gone.fn")).json()["jobs"] == []


async def test_a_drain_of_many_is_bounded_and_goes_on_at_its_cursor(rig: Rig) -> None:
    count = PARTS * STEP + 7
    for start in range(0, count, 500):
        await mint(rig.bus, "hello.any", count=min(500, count - start))
    first = await post(rig, "/functions/hello.any/drain")
    assert (first["cancelled"], first["cursor"] is None) == (PARTS * STEP, False)
    await mint(rig.bus, "hello.any", count=2)
    rest = await post(rig, "/functions/hello.any/drain", cursor=first["cursor"])
    assert (rest["cancelled"], rest["cursor"]) == (7, None)
    assert (await rig.bus.stats(["hello.any"]))["hello.any"].pending == 2, "what came since is not of this drain"


# ---- move ----


async def test_a_lane_is_moved_as_a_whole(rig: Rig) -> None:
    ids = [await rig.mint("shop.pack", {"customer": {"id": "Bo"}}) for _ in range(2)]
    later = await rig.mint("shop.pack", {"customer": {"id": "Bo"}}, Echo_Delay="5m")
    answer = await post(rig, "/functions/shop.pack/move", lane="Bo", to="späť: {x}")
    assert answer == {"name": "shop.pack", "to": "späť: {x}", "matched": 2, "moved": 2, "cursor": None}
    assert (await post(rig, "/functions/shop.pack/move", lane="Bo", to="späť: {x}", scheduled=1))["moved"] == 1
    for id in (*ids, later):
        assert (await rig.http.get(f"/jobs/{id}")).json()["lane"] == "späť: {x}"


async def test_one_job_is_moved_while_it_waits(rig: Rig) -> None:
    id = await rig.mint("hello.any", 1)
    for _ in range(2):
        answer = await rig.http.post(f"/jobs/{id}/move?to=b")
        assert (answer.status_code, answer.json()["state"]) == (200, "pending")
    assert (await rig.claim("hello.any")).lane == "b"
    answer = await rig.http.post(f"/jobs/{id}/move?to=c")
    assert (answer.status_code, answer.json()["state"]) == (409, "active")


# ---- redrive ----


async def test_the_morgue_is_redriven_by_function_cause_text_and_age(rig: Rig, server: Valkey) -> None:
    for name, cause, message in (
        ("hello.any", "timeout", "too slow"),
        ("hello.any", "error", "no such table"),
        ("shop.small", "timeout", "too slow"),
    ):
        await rig.mint(name, 1)
        await rig.fail(name, Error("E", message, cause=cause))
    server.clock.advance(3_600_000)
    assert (await post(rig, "/morgue/redrive", function="hello.any", cause="timeout", dry_run=1))["matched"] == 1
    assert (await post(rig, "/morgue/redrive", newer="30m"))["redriven"] == 0
    assert (await post(rig, "/morgue/redrive", function="hello.any", match="NO SUCH"))["redriven"] == 1
    assert (await post(rig, "/morgue/redrive", cause="timeout", older="1h"))["redriven"] == 2, "of all functions"
    assert (await rig.http.get("/morgue")).json()["jobs"] == []


async def test_a_rate_spreads_what_is_redriven_over_the_servers_time(rig: Rig) -> None:
    """Two a minute over the calls of a sweep: the n-th is due n half-minutes after its begin."""
    for _ in range(3):
        await bury(rig.bus, "hello.any")
    await bury(rig.bus, "shop.small")
    answer = await post(rig, "/morgue/redrive", rate="2/m")
    assert (answer["redriven"], answer["cursor"]) == (4, None)
    jobs = (await rig.http.get("/jobs?state=scheduled")).json()["jobs"]
    assert {job["reason"] for job in jobs} == {"delay"}
    dues = sorted([(await rig.bus.job(job["id"])).due_ms for job in jobs])  # type: ignore[union-attr]
    assert [later - dues[0] for later in dues] == [0, 30_000, 60_000]
    stats = await rig.bus.stats(["hello.any", "shop.small"])
    assert (stats["hello.any"].pending, stats["shop.small"].scheduled) == (1, 1), "the first is due at once"


async def test_a_sweep_goes_on_with_its_rate_at_its_cursor(rig: Rig) -> None:
    count = PARTS * STEP + 1
    for start in range(0, count, 500):
        size = min(500, count - start)
        await mint(rig.bus, "hello.any", count=size)
        await settle(rig.bus, [dead(job) for job in await claim(rig.bus, size, "hello.any")], "hello.any")
    changed, calls = await sweep(rig, "/morgue/redrive", "redriven", rate="1/s")
    assert (changed, calls) == (count, 2)
    rows = await rig.bus.link.command("ZRANGE", "emq:{hello.any}:schedule", 0, -1, "WITHSCORES")
    dues = [int(score) for score in rows[1::2]]
    assert {later - sooner for sooner, later in itertools.pairwise(dues)} == {1000}


async def test_a_job_whose_unique_key_is_anothers_by_now_is_refused_and_named(rig: Rig) -> None:
    (first,) = await mint(rig.bus, "hello.any", unique=Unique("k"))
    await rig.fail("hello.any", Error("E", "m"))
    (owner,) = await mint(rig.bus, "hello.any", unique=Unique("k"))
    answer = await rig.http.post(f"/jobs/{first}/redrive")
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:echod:problem:key-taken")
    assert (answer.json()["job"], answer.json()["url"]) == (owner, f"/jobs/{owner}")
    answer = await post(rig, "/morgue/redrive")
    assert (answer["matched"], answer["redriven"]) == (1, 0)
    assert answer["refused"] == [{"id": first, "owner": owner}]


# ---- purge ----


@pytest.mark.parametrize(
    "path", ["/functions/hello.any/purge?state=dead", "/morgue/purge?", "/morgue/purge?function=hello.any"]
)
async def test_dead_jobs_are_purged_by_filter(rig: Rig, path: str) -> None:
    ids = [await rig.mint("hello.any", 1) for _ in range(2)]
    await rig.fail("hello.any", Error("E", "one"))
    await rig.fail("hello.any", Error("E", "other"))
    answer = await rig.http.post(f"{path}&match=other")
    assert answer.json()["purged"] == 1
    assert (await rig.http.get(f"/jobs/{ids[1]}")).status_code == 404
    assert await state_of(rig, ids[0]) == "dead"


async def test_the_archive_is_purged_by_age(rig: Rig, server: Valkey) -> None:
    old = await rig.mint("hello.any", 1)
    await rig.run("hello.any")
    server.clock.advance(3_600_000)
    new = await rig.mint("hello.any", 1)
    await rig.run("hello.any")
    assert (await post(rig, "/functions/hello.any/purge", state="done", older="1h"))["purged"] == 1
    assert (await rig.http.get(f"/jobs/{old}")).status_code == 404
    assert await state_of(rig, new) == "done"


# ---- what is refused ----


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/functions/hello.any/move?to=b", "lane: expected the lane to move from"),
        ("/functions/hello.any/move?lane=a", "to: expected the lane to move to"),
        ("/functions/hello.any/purge", "state: expected one of done, dead, cancelled"),
        ("/functions/hello.any/purge?state=pending", "state: expected one of"),
        ("/functions/hello.any/drain?scheduled=yes", "scheduled: expected one of 0, 1"),
        ("/functions/hello.any/drain?lane=a&lane=b", "lane: expected it once"),
        ("/functions/hello.any/drain?cursor=JOB", "cursor: expected one that this call answered"),
        ("/morgue/redrive?older=soon", "older: expected a duration"),
        ("/morgue/redrive?rate=fast", "rate: expected one such as 100/s"),
        ("/morgue/redrive?rate=0/s", "rate: expected one such as 100/s"),
        (f"/morgue/redrive?match={'x' * 201}", "match: expected at most 200 characters"),
        ("/morgue/redrive?dry_run=2", "dry_run: expected one of 0, 1"),
    ],
)
async def test_a_parameter_that_cannot_be_taken_is_named(rig: Rig, path: str, says: str) -> None:
    answer = await rig.http.post(path)
    assert (answer.status_code, says in answer.json()["detail"]) == (422, True), answer.text


async def test_an_unknown_function_is_404_with_suggestions(rig: Rig) -> None:
    for path in (
        "/functions/hello.an/drain",
        "/functions/hello.an/purge?state=dead",
        "/morgue/redrive?function=hello.an",
    ):
        answer = await rig.http.post(path)
        assert (answer.status_code, "hello.any" in answer.json()["suggestions"]) == (404, True), path


@pytest.mark.parametrize(
    "cursor", ["1.1.-..", "1.1.5.7:JOB00000000001.f", "1.1.JOB00000000001.7:JOB00000000001.hello.any"]
)
async def test_a_cursor_of_any_value_is_no_fault_of_ours(rig: Rig, cursor: str) -> None:
    await bury(rig.bus, "hello.any")
    assert (await rig.http.post(f"/morgue/redrive?cursor={quote(cursor)}")).status_code == 200
    assert (await rig.http.post(f"/functions/hello.any/drain?cursor={quote(cursor)}")).status_code == 200
