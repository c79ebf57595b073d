"""recur, occur and a recurrence's states: once per due, whatever races."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from typing import Any

import msgspec
import pytest

from audit import audit, open_books
from doing import claim_one, counted, mint, reads, watched
from echod.bus import Bus
from echod.bus.answers import Filled, Occurred, RecurrenceRow
from echod.bus.keys import escape
from echod.bus.occurring import CALL_OCCURRENCES
from echod.bus.rows import pack
from echod.bus.wire import Argument
from echod.model.ids import VersionId
from echod.model.job import Taken
from echofn.manifest import Policy
from server import PATIENCE_S, Server

FIRST_MS = 1_000_000
MIB = 1 << 20
A_CALL_MIB = 8  # of payloads, copied into jobs


async def write(
    bus: Bus, generation: int | None = 1, rule: str = "every 1000", next_ms: int | None = FIRST_MS, **more: object
) -> str:
    fields: dict[str, object] = {"tz": "UTC", "trigger": b"t", "payload": b"\x05", **more}
    return await bus.recur("f", "r", rule=rule, next_ms=next_ms, generation=generation, **fields)  # type: ignore[arg-type]


async def row(bus: Bus) -> RecurrenceRow:
    (found,) = await bus.recurrences("f")
    return found


async def occur(bus: Bus, due_ms: int, revision: int = 1, next_ms: int | None = None) -> Occurred:
    return await bus.occur(
        "f", "r", revision, due_ms, next_ms=due_ms + 1000 if next_ms is None else next_ms, job=bus.new_job_id()
    )


async def calls(bus: Bus) -> int:
    """How many scripts the server has run."""
    stats = (await bus.link.command("INFO", "commandstats")).decode()
    return int(stats.split("cmdstat_fcall:calls=")[1].split(",")[0])


async def test_a_recurrence_is_created_then_the_same_then_changed(bus: Bus) -> None:
    assert await write(bus) == "created"
    assert await write(bus) == "same"
    assert await write(bus, payload=b"\x06") == "changed"
    found = await row(bus)
    assert (found.rule, found.tz, found.revision, found.next_ms, found.policy) == (
        "every 1000",
        "UTC",
        2,
        FIRST_MS,
        b"t",
    )


async def test_a_changed_rule_takes_the_next_that_was_computed_from_the_last_due(bus: Bus) -> None:
    await write(bus)
    await write(bus, rule="every 5000", next_ms=FIRST_MS + 5000)
    assert (await row(bus)).next_ms == FIRST_MS + 5000


async def test_a_next_that_was_computed_from_another_last_due_is_refused(bus: Bus) -> None:
    """By a pump that read the row before an instant had its outcome: it would give some of them a second one."""
    assert await write(bus, last_ms=0) == "created"
    await occur(bus, FIRST_MS)
    assert await write(bus, last_ms=0) == "same"  # its due stands
    for last_ms in (0, FIRST_MS - 1000):
        assert await write(bus, rule="every 500", next_ms=FIRST_MS - 500, last_ms=last_ms) == "moved"
    assert ((await row(bus)).rule, (await row(bus)).next_ms) == ("every 1000", FIRST_MS + 1000)
    assert await write(bus, rule="every 500", next_ms=FIRST_MS + 500, last_ms=FIRST_MS) == "changed"
    assert await bus.unrecur("f", "r", 1) == "removed"
    assert await write(bus, next_ms=FIRST_MS + 1000, last_ms=0) == "moved"
    assert await write(bus, next_ms=FIRST_MS + 1000, last_ms=FIRST_MS) == "created"


async def test_another_payload_does_not_move_the_due(bus: Bus) -> None:
    await write(bus)
    await write(bus, payload=b"\x07", next_ms=FIRST_MS + 99)
    assert (await row(bus)).next_ms == FIRST_MS


@pytest.mark.parametrize("other", [{"lane": "x"}, {"priority": 3}, {"trigger": b"u"}], ids=str)
async def test_another_lane_priority_or_policy_is_a_change(bus: Bus, other: dict[str, object]) -> None:
    await write(bus)
    assert await write(bus, **other) == "changed"  # type: ignore[arg-type]
    assert await write(bus, **other) == "same"  # type: ignore[arg-type]


async def test_a_rule_that_was_parked_is_never_the_same_and_is_asked_for_at_once(bus: Bus) -> None:
    await write(bus)
    assert await bus.park_recurrence("f", "r", 1, "its zone is unknown")
    assert await write(bus) == "changed"
    assert (await row(bus)).error == ""
    assert [due.due_ms for due in (await bus.tick("f")).due] == [FIRST_MS]


async def test_a_changed_rule_that_never_comes_again_leaves_no_due(bus: Bus, server: Server) -> None:
    await write(bus)
    assert await write(bus, rule="0 0 1 1 * 2020", next_ms=None) == "changed"
    assert (await row(bus)).due_ms is None
    assert open_books(server, "f").repeat == {}


async def test_a_rule_that_code_lost_is_gone_from_the_switch_on_and_forgotten_in_a_week(
    bus: Bus, server: Server
) -> None:
    await bus.put_version(VersionId("DEP00000000001"), [b""], b"")
    await write(bus, generation=1)
    active = await bus.activate(VersionId("DEP00000000001"))
    server.clock.advance(5000)
    assert await bus.unrecur("f", "r", active.generation) == "removed"
    (gone,) = await bus.recurrences("f", gone=True)
    assert gone.gone_ms == active.since_ms
    assert open_books(server, "f").repeat == {}
    assert (await occur(bus, FIRST_MS)).outcome == "stale"
    assert not await bus.pause_recurrence("f", "r")
    assert await bus.run_now("f", "r", bus.new_job_id()) is None
    assert await bus.backfill("f", "r", [(FIRST_MS, bus.new_job_id())]) is None
    assert audit(server, "f").rows == {}
    for later_ms, kept in ((7 * 86_400_000 - 60_000, 1), (120_000, 0)):
        server.clock.advance(later_ms)
        assert await bus.unrecur("f", "r", active.generation) == "absent"
        books = open_books(server, "f")
        assert (len(books.recurrences), len(books.rules)) == (kept, kept)


async def test_a_rule_that_comes_back_is_there(bus: Bus) -> None:
    await write(bus)
    await bus.unrecur("f", "r", 1)
    assert await write(bus) == "created"
    assert (await row(bus)).next_ms == FIRST_MS


async def test_a_rule_that_was_removed_makes_older_ones_older(bus: Bus) -> None:
    await write(bus, generation=5)
    assert await bus.unrecur("f", "r", 6) == "removed"
    assert await write(bus, generation=5) == "older"


async def test_a_write_sent_again_gets_its_answer_and_undoes_nothing(bus: Bus) -> None:
    fields = {"queue": "f", "name": "r", "tz": "UTC", "trigger": b"t", "payload": b"\x05", "next_ms": FIRST_MS}
    fields |= {"last_ms": "", "generation": "", "lane": "-", "lane_name": "", "priority": 0, "overlap": "allow"}
    for _ in range(2):
        assert await bus.run("recur", "f", rule="first", call="1", **fields) == b"created"  # type: ignore[arg-type]
    await bus.run("recur", "f", rule="second", call="2", **fields)  # type: ignore[arg-type]
    assert await bus.run("recur", "f", rule="first", call="1", **fields) == b"created"  # type: ignore[arg-type]
    assert (await row(bus)).rule == "second"
    for _ in range(2):
        assert await bus.run("unrecur", "f", name="r", generation="", call="3") == b"removed"
    await write(bus, generation=None)
    assert await bus.run("unrecur", "f", name="r", generation="", call="3") == b"removed"
    assert (await row(bus)).is_own


async def test_a_pause_sent_again_leaves_what_was_resumed_since(bus: Bus) -> None:
    await write(bus)
    rest = {"revision": 0, "error": "", "next_ms": "", "skipped": 0, "last_ms": ""}
    assert await bus.run("recurrence", "f", name="r", action="pause", call="1", **rest) == b"ok"  # type: ignore[arg-type]
    await bus.resume_recurrence("f", "r", FIRST_MS)
    assert await bus.run("recurrence", "f", name="r", action="pause", call="1", **rest) == b"ok"  # type: ignore[arg-type]
    assert not (await row(bus)).paused


async def test_an_older_generation_is_refused(bus: Bus) -> None:
    await write(bus, generation=5)
    assert await write(bus, generation=4, rule="every 9") == "older"
    assert await bus.unrecur("f", "r", 4) == "older"
    assert not await bus.configure("f", Policy(), 4)
    assert (await row(bus)).rule == "every 1000"
    assert await bus.unrecur("f", "r", 5) == "removed"
    assert await bus.unrecur("f", "r", 5) == "absent"
    assert await write(bus, generation=4) == "older"
    assert await bus.recurrences() == []


async def test_an_occurrence_is_minted_once_and_answered_again(bus: Bus, server: Server) -> None:
    await write(bus)
    (due,) = (await bus.tick("f")).due
    assert (due.queue, due.recurrence, due.revision, due.due_ms) == ("f", "r", 1, FIRST_MS)
    first = await occur(bus, FIRST_MS)
    assert first.outcome == "minted"
    assert await occur(bus, FIRST_MS) == Occurred("already", first.id)
    record = await bus.job(first.id or "")
    assert record is not None
    assert record.occurrence is not None
    assert (record.occurrence.recurrence, record.occurrence.due_ms, record.occurrence.manual) == (
        "f/r",
        FIRST_MS,
        False,
    )
    assert (record.payload, record.due_ms) == (b"\x05", FIRST_MS)
    found = await row(bus)
    assert (found.last_ms, found.next_ms) == (FIRST_MS, FIRST_MS + 1000)
    assert len(audit(server, "f").rows) == 1
    assert await counted(bus, "minted") == 1


async def test_a_version_that_was_replaced_writes_nothing_back(bus: Bus, server: Server) -> None:
    """Not even where the new version has nothing of that queue: its pumps would never look at it again."""
    for version in ("DEP00000000001", "DEP00000000002"):
        await bus.put_version(VersionId(version), [b""], b"")
        active = await bus.activate(VersionId(version))
    assert await write(bus, generation=active.generation - 1) == "older"
    assert not await bus.configure("f", Policy(), active.generation - 1)
    assert await write(bus, generation=active.generation) == "created"
    assert await bus.unrecur("f", "r", active.generation - 1) == "older"


async def test_what_is_due_after_a_switch_waits_until_the_row_is_of_the_new_version(bus: Bus, server: Server) -> None:
    await bus.put_version(VersionId("DEP00000000001"), [b""], b"")
    first = await bus.activate(VersionId("DEP00000000001"))
    await write(bus, generation=first.generation)
    await bus.put_version(VersionId("DEP00000000002"), [b""], b"")
    second = await bus.activate(VersionId("DEP00000000002"))
    assert second.since_ms is not None
    later = second.since_ms + 1
    assert (await occur(bus, FIRST_MS, next_ms=later)).outcome == "minted"  # it was due by then
    many = {"drop": "missed", "dropped": 3, "job": None}
    assert (await bus.occur("f", "r", 1, later, next_ms=later + 3, **many)).outcome == "older"  # type: ignore[arg-type]
    assert (await occur(bus, later)).outcome == "older"
    assert await write(bus, generation=second.generation) == "same"
    assert (await occur(bus, later)).outcome == "minted"
    audit(server, "f")


async def test_a_drop_reaches_up_to_a_switch_and_not_past_it(bus: Bus) -> None:
    """Of instants after the switch the rule of that version says what becomes of them; the one at it was due before."""
    for version in ("DEP00000000001", "DEP00000000002"):
        await bus.put_version(VersionId(version), [b""], b"")
        active = await bus.activate(VersionId(version))
        await write(bus, generation=1)
    assert active.since_ms is not None
    at_ms = active.since_ms

    async def drop(due_ms: int, next_ms: int | None, dropped: int) -> str:
        return (await bus.occur("f", "r", 1, due_ms, next_ms=next_ms, job=None, drop="missed", dropped=dropped)).outcome

    assert await drop(FIRST_MS, at_ms + 1, 2) == "older"
    assert await drop(FIRST_MS, None, 2) == "older"
    assert (await row(bus)).missed == 0
    assert await drop(FIRST_MS, at_ms - 1, 2) == "dropped"
    assert await drop(at_ms - 1, at_ms, 2) == "dropped"
    assert (await row(bus)).missed == 4
    assert await drop(at_ms, at_ms + 1, 1) == "dropped"  # alone it has nothing with it that is the other version's
    assert await drop(at_ms + 1, at_ms + 2, 1) == "older"


async def test_an_older_due_meets_the_same_answer_after_others_followed(bus: Bus) -> None:
    await write(bus)
    ids = [(await occur(bus, FIRST_MS + step * 1000)).id for step in range(5)]
    assert [(await occur(bus, FIRST_MS + step * 1000)).id for step in range(5)] == ids


async def test_an_occurrence_under_the_id_of_another_job_leaves_that_job_and_is_asked_for_again(
    bus: Bus, server: Server
) -> None:
    """As a mint is told that its id is taken; else the row of a job would be written over."""
    await write(bus)
    (other,) = await mint(bus, payload=b"\x09")
    assert await bus.occur("f", "r", 1, FIRST_MS, next_ms=FIRST_MS + 1000, job=other) == Occurred("stale")
    assert (await row(bus)).due_ms == FIRST_MS
    assert {id: fields[b"p"] for id, fields in audit(server, "f").rows.items()} == {other: b"\x09"}
    assert (await occur(bus, FIRST_MS)).outcome == "minted"


async def test_a_rule_remembers_its_last_dues_and_jobs_and_no_more(bus: Bus, server: Server) -> None:
    await write(bus)
    ids = [(await occur(bus, FIRST_MS + step * 1000)).id for step in range(20)]
    remembered = [await occur(bus, FIRST_MS + step * 1000) for step in range(20)]
    assert remembered == [Occurred("stale")] * 12 + [Occurred("already", id) for id in ids[12:]]
    fields = open_books(server, "f").recurrences["r"]
    assert [len(msgspec.msgpack.decode(fields[field])) for field in (b"recent", b"jobs")] == [8, 16]


@pytest.mark.parametrize("wrong", ["revision", "due", "name"])
async def test_a_stale_question_mints_nothing(bus: Bus, server: Server, wrong: str) -> None:
    await write(bus)
    answer = await bus.occur(
        "f",
        "other" if wrong == "name" else "r",
        2 if wrong == "revision" else 1,
        FIRST_MS + 1 if wrong == "due" else FIRST_MS,
        next_ms=FIRST_MS + 1000,
        job=bus.new_job_id(),
    )
    assert answer == Occurred("stale")
    assert audit(server, "f").rows == {}


async def test_many_occurrences_of_one_call_have_each_its_own_verdict(bus: Bus, server: Server) -> None:
    for name in ("a", "b", "c", "damaged", "changed"):
        await bus.recur("f", name, rule="x", tz="UTC", trigger=b"", payload=b"\x05", next_ms=FIRST_MS, generation=1)
    server.command("HSET", "emq:{f}:repeat:damaged", "recent", b"\xc1")
    before = await calls(bus)

    def ask(name: str, step: int = 0, revision: int = 1, **more: object) -> Awaitable[Occurred]:
        due_ms = FIRST_MS + step * 1000
        fields: dict[str, object] = {"job": bus.new_job_id(), **more}
        return bus.occur("f", name, revision, due_ms, next_ms=due_ms + 1000, **fields)  # type: ignore[arg-type]

    answers = await asyncio.gather(
        ask("a"),
        ask("damaged"),
        ask("a", 1),
        ask("a"),
        ask("b", job=None, drop="missed", dropped=3),
        ask("changed", revision=2),
        ask("nobody"),
        ask("c"),
    )
    assert [answer.outcome for answer in answers] == [
        "minted",
        "unreadable",
        "minted",
        "already",
        "dropped",
        "stale",
        "stale",
        "minted",
    ]
    assert answers[3].id == answers[0].id
    assert await calls(bus) - before == 1
    assert len(audit(server, "f").rows) == 3
    assert {row.name: row.due_ms for row in await bus.recurrences("f")} == {
        "a": FIRST_MS + 2000,
        "b": FIRST_MS + 1000,
        "c": FIRST_MS + 1000,
        "changed": FIRST_MS,
        "damaged": FIRST_MS,
    }
    assert (await counted(bus, "minted"), await counted(bus, "missed")) == (3, 3)


async def test_who_gives_a_shared_call_of_occurrences_up_takes_nobody_along(bus: Bus) -> None:
    await write(bus)
    gone, other = [
        asyncio.create_task(bus.occur("f", "r", 1, due_ms, next_ms=due_ms + 1000, job=bus.new_job_id()))
        for due_ms in (FIRST_MS, FIRST_MS + 1000)
    ]
    await asyncio.sleep(0)
    gone.cancel()
    assert (await other).outcome == "minted"
    assert gone.cancelled()


async def test_the_newest_of_many_dues_that_were_dropped_has_its_outcome_too(bus: Bus, server: Server) -> None:
    """A rule that is changed from an outdated last due may ask for it once more."""
    await write(bus)
    newest_ms = FIRST_MS + 2000
    said = await bus.occur(
        "f", "r", 1, FIRST_MS, next_ms=newest_ms + 1000, job=None, drop="missed", dropped=3, last_ms=newest_ms
    )
    assert said.outcome == "dropped"
    assert await write(bus, rule="every 2000", next_ms=newest_ms) == "changed"
    said = await bus.occur("f", "r", 2, newest_ms, next_ms=newest_ms + 2000, job=bus.new_job_id())
    assert said == Occurred("already")
    assert (await row(bus)).due_ms == newest_ms + 2000
    assert audit(server, "f").rows == {}


async def test_a_call_of_occurrences_is_bounded_and_takes_effect_once_when_it_is_sent_again(bus: Bus) -> None:
    names = [f"r{number}" for number in range(CALL_OCCURRENCES + 1)]
    for name in names:
        await bus.recur("f", name, rule="x", tz="UTC", trigger=b"", payload=b"\x05", next_ms=FIRST_MS, generation=1)

    async def settled() -> list[Occurred]:
        asked = [bus.occur("f", each, 1, FIRST_MS, next_ms=None, job=bus.new_job_id()) for each in names]
        return await asyncio.gather(*asked)

    before = await calls(bus)
    first = await settled()
    assert await calls(bus) - before == 2
    assert {answer.outcome for answer in first} == {"minted"}
    assert await settled() == [Occurred("already", answer.id) for answer in first]


@pytest.mark.parametrize(("size_mib", "count", "calls_of_it"), [(1, A_CALL_MIB + 1, 2), (A_CALL_MIB + 1, 2, 2)])
async def test_large_payloads_fill_a_call_of_occurrences_with_fewer(
    bus: Bus, server: Server, size_mib: int, count: int, calls_of_it: int
) -> None:
    """64 of 1 MB held up the server for 90 ms. One is minted however large it is, or it would stay due for ever."""
    payload = bytes(size_mib * MIB)
    for name in ("a", "b"):
        await bus.recur("f", name, rule="x", tz="UTC", trigger=b"", payload=payload, next_ms=FIRST_MS, generation=1)
    dues = [(name, FIRST_MS + number) for number in range(count) for name in ("a", "b")][:count]
    assert await occur(bus, FIRST_MS) == Occurred("stale")  # now the server has the function
    before = await calls(bus)
    asked = [bus.occur("f", name, 1, due, next_ms=due + 1, job=bus.new_job_id()) for name, due in dues]
    answers = await asyncio.gather(*asked)
    assert [answer.outcome for answer in answers] == ["minted"] * count
    assert await calls(bus) - before == calls_of_it
    ids = [str(answer.id) for answer in answers]
    assert [server.command("HSTRLEN", f"emq:{{f}}:job:{id}", "p") for id in ids] == [len(payload)] * count


async def test_a_payload_is_read_once_a_call_for_all_jobs_that_get_it_and_for_no_other_occurrence(
    bus: Bus, server: Server
) -> None:
    for name in ("a", "b"):
        await bus.recur("f", name, rule="x", tz="UTC", trigger=b"", payload=b"\x05", next_ms=FIRST_MS, generation=1)
    ids = [bus.new_job_id() for _ in range(3)]

    async def settled() -> list[Occurred]:
        minted = [bus.occur("f", "a", 1, due, next_ms=due + 1, job=id) for due, id in enumerate(ids, start=FIRST_MS)]
        return await asyncio.gather(*minted, bus.occur("f", "b", 1, FIRST_MS, next_ms=FIRST_MS + 1, job=None))

    with watched(server) as said:
        assert [answer.outcome for answer in await settled()] == ["minted"] * 3 + ["dropped"]
    assert reads(said, ":repeat:", "payload") == 1
    with watched(server) as said:
        assert {answer.outcome for answer in await settled()} == {"already"}
    assert reads(said, ":repeat:", "payload") == 0
    assert reads(said, ":repeat:", "rev") == 4


@pytest.mark.parametrize(
    "wrong",
    [
        5,
        ["s", 1, FIRST_MS, FIRST_MS + 1000, "JOB00000000009", "-", False, "missed", 1, FIRST_MS],  # last_ms
        ["s", "1", FIRST_MS, FIRST_MS + 1000, "JOB00000000009", "-", False, "missed", 1, FIRST_MS, FIRST_MS],
        ["s", 1, FIRST_MS, 0.5, "JOB00000000009", "-", False, "missed", 1, FIRST_MS, FIRST_MS],
        ["s", 1, FIRST_MS, FIRST_MS + 1000, "JOB00000000009", False, False, "missed", 1, FIRST_MS, FIRST_MS],
        ["s", 1, FIRST_MS, FIRST_MS + 1000, "JOB00000000009", "-", False, "last", 1, FIRST_MS, FIRST_MS],
    ],
    ids=["no list", "short", "revision", "next", "lane", "drop"],
)
async def test_a_malformed_occurrence_leaves_the_others_of_its_call_alone(
    bus: Bus, server: Server, wrong: object
) -> None:
    await write(bus)
    await bus.recur("f", "s", rule="x", tz="UTC", trigger=b"", payload=b"\x05", next_ms=FIRST_MS, generation=1)
    good = ["r", 1, FIRST_MS, FIRST_MS + 1000, str(bus.new_job_id()), "-", False, "missed", 1, FIRST_MS, FIRST_MS]
    said = await bus.run("occur", "f", occurrences=msgspec.msgpack.encode([wrong, good, wrong]))
    assert [code for code, *_ in said] == [7, 1, 7]
    assert list(audit(server, "f").rows) == [good[4]]
    assert {row.name: row.due_ms for row in await bus.recurrences("f")} == {"r": FIRST_MS + 1000, "s": FIRST_MS}


@pytest.mark.parametrize("far", [{"next_ms": 1 << 70}, {"at_ms": 1 << 62}, {"last_ms": (1 << 53) + 1}], ids=str)
async def test_an_instant_past_all_counting_is_malformed_and_the_others_of_its_call_go_on(
    bus: Bus, far: dict[str, int]
) -> None:
    for name in ("a", "far", "b"):
        await bus.recur("f", name, rule="x", tz="UTC", trigger=b"", payload=b"\x05", next_ms=FIRST_MS, generation=1)
    answers = await asyncio.gather(
        *(
            bus.occur("f", name, 1, FIRST_MS, job=bus.new_job_id(), **{"next_ms": FIRST_MS + 1000, **more})
            for name, more in (("a", {}), ("far", far), ("b", {}))
        )
    )
    assert [answer.outcome for answer in answers] == ["minted", "malformed", "minted"]


async def test_a_drop_advances_with_a_counted_reason(bus: Bus, server: Server) -> None:
    await write(bus)
    for outcome in ("dropped", "already"):
        answer = await bus.occur(
            "f",
            "r",
            1,
            FIRST_MS,
            next_ms=FIRST_MS + 7000,
            job=None,
            drop="missed",
            dropped=7,
            last_ms=FIRST_MS + 6000,
        )
        assert answer == Occurred(outcome)  # type: ignore[arg-type]
    found = await row(bus)
    assert (found.missed, found.skipped, found.next_ms) == (7, 0, FIRST_MS + 7000)
    assert found.last_ms == FIRST_MS + 6000  # the newest of them: what is written later goes on after it
    await write(bus, rule="every 6000", next_ms=FIRST_MS + 6000)
    assert await occur(bus, FIRST_MS + 6000, 2) == Occurred("already")
    assert await counted(bus, "missed") == 7
    assert audit(server, "f").rows == {}


async def test_a_rule_changed_from_a_last_that_moved_on_asks_no_due_twice(bus: Bus, server: Server) -> None:
    """Its next lies at a due that had its outcome: that is told, and the rule goes on."""
    await write(bus)
    first = await occur(bus, FIRST_MS)
    await occur(bus, FIRST_MS + 1000)
    await write(bus, rule="every 500", next_ms=FIRST_MS + 500)  # between two dues that had their outcome
    assert (await occur(bus, FIRST_MS + 500, 2, next_ms=FIRST_MS + 1000)).outcome == "already"
    assert (await occur(bus, FIRST_MS + 1000, 2, next_ms=FIRST_MS + 1500)).outcome == "already"
    assert (await row(bus)).next_ms == FIRST_MS + 1500
    assert (await occur(bus, FIRST_MS + 1500, 2)).outcome == "minted"
    assert (await occur(bus, FIRST_MS)).id == first.id
    assert len(audit(server, "f").rows) == 3


async def test_thousands_of_rules_are_read(bus: Bus) -> None:
    for start in range(0, 1200, 200):
        await asyncio.gather(
            *[
                bus.recur("f", f"r{n}", rule="x", tz="UTC", trigger=b"", payload=b"", next_ms=FIRST_MS, generation=1)
                for n in range(start, start + 200)
            ]
        )
    assert len(await bus.recurrences()) == 1200


async def test_rules_of_large_payloads_are_read_some_megabytes_a_trip_and_without_the_copy_for_their_jobs(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server answers a trip as a whole: 64 rules of 1 MB kept another client waiting for 370 ms."""
    large = bytes(MIB)
    for number in range(20):
        await bus.recur("f", f"r{number}", rule="x", tz="UTC", trigger=large, payload=large, next_ms=None, generation=1)
    trips, commands = list[int](), bus.link.commands

    async def weighed(batch: list[tuple[Argument, ...]]) -> list[Any]:
        replies = await commands(batch)
        trips.append(sum(len(value or b"") for reply in replies if isinstance(reply, list) for value in reply))
        return replies

    monkeypatch.setattr(bus.link, "commands", weighed)
    assert [rule.policy for rule in await bus.recurrences("f")] == [large] * 20
    assert 20 * MIB < sum(trips) < 21 * MIB
    assert max(trips) < 9 * MIB


async def test_racing_pumps_make_one_job_per_due(server: Server) -> None:
    """Four pumps tick and occur in any order; every due has exactly one job."""
    pumps = [await Bus.open(server.address) for _ in range(4)]
    for number, pump in enumerate(pumps):
        await pump.join(f"NOD{number}")  # type: ignore[arg-type]
    await write(pumps[0])
    dues = 30

    async def pump_on(pump: Bus) -> None:
        throw = random.Random(id(pump))
        while True:
            found = (await pump.tick("f")).due
            if not found or found[0].due_ms >= FIRST_MS + dues * 1000:
                return
            for _ in range(throw.randrange(3)):
                await asyncio.sleep(0)
            await occur(pump, found[0].due_ms, found[0].revision)

    await asyncio.gather(*[pump_on(pump) for pump in pumps])
    books = audit(server, "f")
    assert len(books.rows) == dues
    assert sorted(int(fields[b"d"]) for fields in books.rows.values()) == [
        FIRST_MS + step * 1000 for step in range(dues)
    ]
    for pump in pumps:
        await pump.close()


async def test_a_rule_without_a_next_ends(bus: Bus) -> None:
    await write(bus)
    answer = await bus.occur("f", "r", 1, FIRST_MS, next_ms=None, job=bus.new_job_id())
    assert answer.outcome == "minted"
    assert (await row(bus)).next_ms is None
    assert (await bus.tick("f")).due == ()


async def test_a_rule_that_others_took_on_is_not_parked_by_who_asks_late(bus: Bus, server: Server) -> None:
    """It would be looked at before its due, again and again, and would say that it cannot be read."""
    await write(bus)
    await occur(bus, FIRST_MS, next_ms=server.clock.now_ms() + 3_600_000)
    assert not await bus.park_recurrence("f", "r", 1, "its function is gone")
    assert (await row(bus)).error == ""
    audit(server, "f")


async def test_a_parked_rule_shows_its_error_and_is_tried_again_in_a_minute(bus: Bus, server: Server) -> None:
    await write(bus)
    assert await bus.park_recurrence("f", "r", 1, "no next instant")
    assert not await bus.park_recurrence("f", "r", 9, "stale")
    assert not await bus.park_recurrence("f", "unknown", 1, "x")
    found = await row(bus)
    assert (found.error, found.next_ms) == ("no next instant", None)
    assert (await bus.tick("f")).due == ()
    server.clock.advance(60_001)
    (due,) = (await bus.tick("f")).due
    assert due.due_ms == FIRST_MS
    await occur(bus, FIRST_MS)
    assert (await row(bus)).error == ""


async def test_a_paused_rule_is_silent_and_resumes_from_the_instant_given(bus: Bus) -> None:
    await write(bus)
    assert await bus.pause_recurrence("f", "r")
    assert (await bus.tick("f")).due == ()
    assert (await occur(bus, FIRST_MS)).outcome == "stale"
    assert (await row(bus)).paused
    assert await bus.resume_recurrence("f", "r", FIRST_MS + 9000, skipped=8, last_ms=FIRST_MS + 8000) == "ok"
    found = await row(bus)
    assert (found.paused, found.next_ms, found.skipped, found.last_ms) == (False, FIRST_MS + 9000, 8, FIRST_MS + 8000)
    assert await counted(bus, "skipped") == 8
    assert await bus.resume_recurrence("f", "r", FIRST_MS + 1, skipped=1) == "ok"  # sent again: nothing more
    assert (await row(bus)).next_ms == FIRST_MS + 9000


async def test_a_rule_that_is_resumed_is_parked_no_more(bus: Bus) -> None:
    """Its next was computed just now: an error of before would hide it."""
    await write(bus)
    assert await bus.park_recurrence("f", "r", 1, "no next instant")
    assert await bus.pause_recurrence("f", "r")
    assert (await row(bus)).error == "no next instant"
    assert await bus.resume_recurrence("f", "r", FIRST_MS + 9000) == "ok"
    found = await row(bus)
    assert (found.error, found.next_ms) == ("", FIRST_MS + 9000)


async def test_a_rule_that_is_paused_while_a_pump_asks_stays_silent_although_it_is_parked(
    bus: Bus, server: Server
) -> None:
    await write(bus)
    await bus.pause_recurrence("f", "r")
    await bus.park_recurrence("f", "r", 1, "no next instant")
    assert open_books(server, "f").repeat == {}


async def test_a_resume_goes_on_from_the_newest_due_and_may_be_the_end(bus: Bus) -> None:
    await write(bus)
    await occur(bus, FIRST_MS)
    await bus.pause_recurrence("f", "r")
    assert await bus.resume_recurrence("f", "r", None, skipped=1, last_ms=FIRST_MS - 1000) == "ok"
    found = await row(bus)
    assert (found.last_ms, found.due_ms, found.paused) == (FIRST_MS, None, False)
    assert (await bus.tick("f")).due == ()


async def test_all_hear_when_a_rule_is_resumed(bus: Bus, server: Server) -> None:
    await write(bus)
    await bus.pause_recurrence("f", "r")
    heard: asyncio.Queue[str] = asyncio.Queue()
    bus.on("due", lambda queue, in_ms: heard.put_nowait((queue, in_ms > 0)))  # type: ignore[arg-type]
    await bus.resume_recurrence("f", "r", server.clock.now_ms() + 60_000)
    while await asyncio.wait_for(heard.get(), PATIENCE_S) != ("f", True):
        pass


async def test_a_resume_computed_by_a_rule_that_was_changed_writes_nothing(bus: Bus) -> None:
    await write(bus)
    await bus.pause_recurrence("f", "r")
    before = await row(bus)
    assert before.due_ms == FIRST_MS
    await write(bus, rule="another", next_ms=FIRST_MS + 3_600_000)
    said = await bus.resume_recurrence("f", "r", FIRST_MS, skipped=3, revision=before.revision)
    found = await row(bus)
    assert (said, found.paused, found.skipped, found.due_ms) == ("stale", True, 0, FIRST_MS + 3_600_000)


async def test_a_rule_changed_while_paused_stays_paused(bus: Bus) -> None:
    await write(bus)
    await bus.pause_recurrence("f", "r")
    await write(bus, rule="every 5000")
    assert (await row(bus)).paused
    assert (await bus.tick("f")).due == ()


async def test_run_now_mints_by_hand_and_does_not_move_the_due(bus: Bus, server: Server) -> None:
    await write(bus)
    id = bus.new_job_id()
    assert await bus.run_now("f", "r", id)
    job = await claim_one(bus)
    assert await bus.run_now("f", "r", id)
    assert list(audit(server, "f").active) == [id]
    assert await counted(bus, "minted") == 1
    assert job.occurrence is not None
    assert job.occurrence.manual
    assert (await row(bus)).next_ms == FIRST_MS
    assert await bus.run_now("f", "unknown", bus.new_job_id()) is None
    (another,) = await mint(bus)
    assert await bus.run_now("f", "r", another) == Taken(another)


async def test_a_backfill_mints_each_instant_once_and_of_no_unknown_rule(bus: Bus, server: Server) -> None:
    await write(bus)
    asked = [(FIRST_MS - step * 1000, bus.new_job_id()) for step in (2, 1)]
    assert await bus.backfill("f", "r", asked) == [Filled(due_ms, id, True) for due_ms, id in asked]
    more = [*((due_ms, bus.new_job_id()) for due_ms, _ in asked), (FIRST_MS - 500, bus.new_job_id())]
    filled = await bus.backfill("f", "r", more)
    assert filled == [Filled(due_ms, id, False) for due_ms, id in asked] + [Filled(*more[2], True)]
    assert await bus.backfill("f", "unknown", asked) is None
    assert len(audit(server, "f").rows) == 3
    assert (await row(bus)).next_ms == FIRST_MS
    await bus.drain("f", [asked[0][1]])
    server.clock.advance(10_001)
    await bus.purge("f", [asked[0][1]], ["cancelled"])
    audit(server, "f")
    assert await bus.backfill("f", "r", asked[:1]) == [Filled(*asked[0], True)]  # its row was not kept
    (another,) = await mint(bus)
    first, second = await bus.backfill("f", "r", [(1000, another), (2000, bus.new_job_id())]) or ()
    assert (first.due_ms, first.is_new, second.due_ms, second.is_new) == (1000, True, 2000, True)
    assert first.id != another
    audit(server, "f")
    server.command("DEL", f"emq:{{f}}:job:{asked[1][1]}")
    other = bus.new_job_id()
    assert await bus.backfill("f", "r", [(asked[1][0], other)]) == [Filled(asked[1][0], other, True)]  # or evicted


async def test_a_backfill_of_large_payloads_goes_in_calls_of_bounded_bytes_and_may_be_sent_again(
    bus: Bus, server: Server
) -> None:
    """200 of 1 MB held up the server for 170 ms. The first call went out, and its reply was lost."""
    await write(bus, payload=bytes(MIB))
    asked = [(FIRST_MS - step * 1000, bus.new_job_id()) for step in range(A_CALL_MIB + 2)]
    instants = pack([[due_ms, id, escape(f"backfill\0r\0{due_ms}")] for due_ms, id in asked[:-1]])
    made = await bus.run("backfill", "f", name=b"r", lane="-", lane_name="", instants=instants)
    assert [id.decode() for id in made] == [id for _, id in asked[:A_CALL_MIB]]
    before = await calls(bus)
    assert await bus.backfill("f", "r", asked) == [Filled(due_ms, id, True) for due_ms, id in asked]
    assert await calls(bus) - before == 1
    fresh = [(due_ms - 1, bus.new_job_id()) for due_ms, _ in asked]
    assert await bus.backfill("f", "r", fresh) == [Filled(due_ms, id, True) for due_ms, id in fresh]
    assert await calls(bus) - before == 3
    assert len(audit(server, "f").rows) == 2 * len(asked)


async def test_an_earlier_due_of_a_rule_is_told_to_all(bus: Bus, server: Server) -> None:
    heard: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
    bus.on("due", lambda queue, in_ms: heard.put_nowait((queue, in_ms)))
    await write(bus, next_ms=server.clock.now_ms() + 60_000)
    queue, in_ms = await asyncio.wait_for(heard.get(), PATIENCE_S)
    assert queue == "f"
    assert 0 < in_ms <= 60_000


async def test_many_rules_due_at_once_come_in_bounded_steps(bus: Bus) -> None:
    for number in range(250):
        await bus.recur("f", f"r{number}", rule="x", tz="UTC", trigger=b"", payload=b"", next_ms=FIRST_MS, generation=1)
    minted = 0
    more = True
    while more:
        tick = await bus.tick("f")
        assert len(tick.due) <= 200
        for due in tick.due:
            answer = await bus.occur("f", due.recurrence, 1, due.due_ms, next_ms=None, job=bus.new_job_id())
            minted += answer.outcome == "minted"
        more = tick.more
    assert minted == 250


async def test_the_next_event_is_the_first_due_that_was_not_told(bus: Bus, server: Server) -> None:
    """What was told is the caller's to settle: asked for at once again, it would be a loop."""
    await write(bus)
    in_an_hour_ms = server.clock.now_ms() + 3_600_000
    await bus.recur("f", "s", rule="x", tz="UTC", trigger=b"", payload=b"", next_ms=in_an_hour_ms, generation=1)
    tick = await bus.tick("f")
    assert [due.recurrence for due in tick.due] == ["r"]
    assert tick.next_in_ms is not None
    assert tick.next_in_ms > 3_000_000


async def test_a_damaged_row_is_parked_and_a_name_without_one_is_forgotten(bus: Bus, server: Server) -> None:
    """Else every tick would find them due."""
    await write(bus)
    server.command("HSET", "emq:{f}:repeat:r", "rev", "none")
    server.command("ZADD", "emq:{f}:repeat", 1, "nobody")
    assert (await bus.tick("f")).due == ()
    assert "cannot be read" in (await row(bus)).error
    books = open_books(server, "f")
    assert list(books.repeat) == ["r"]
    assert 50_000 < books.repeat["r"] - server.clock.now_ms() <= 60_100


async def test_what_is_registered_at_run_time_is_of_no_generation(bus: Bus) -> None:
    assert await write(bus, generation=None) == "created"
    assert (await row(bus)).is_own
    assert await write(bus, generation=9, rule="every 5") == "taken"
    assert await bus.unrecur("f", "r", 9) == "taken"
    assert (await row(bus)).rule == "every 1000"
    assert await write(bus, generation=None, rule="every 9000") == "changed"
    assert await bus.configure("f", Policy(), 1)  # no generation came of it
    assert await bus.unrecur("f", "r", None) == "removed"
    assert await bus.unrecur("f", "r", None) == "absent"
    assert await bus.recurrences() == []


async def test_one_that_comes_anew_is_no_revision_that_pumps_remember(bus: Bus, server: Server) -> None:
    await write(bus, generation=None)
    await write(bus, generation=None, rule="every 5000")
    for revision in (3, 4):
        await bus.unrecur("f", "r", None)
        assert await write(bus, generation=None) == "created"
        assert (await row(bus)).revision == revision
    await bus.unrecur("f", "r", None)
    await write(bus, generation=1)
    await bus.unrecur("f", "r", 1)
    assert await write(bus, generation=None) == "created"  # what code had is forgotten
    assert (await row(bus)).revision == 6
    audit(server, "f")


async def test_no_revision_comes_again_though_an_older_rule_went_later(bus: Bus) -> None:
    rest = {"tz": "UTC", "trigger": b"", "payload": b"", "next_ms": FIRST_MS, "generation": None}
    await bus.recur("f", "s", rule="x", **rest)  # type: ignore[arg-type]
    for rule in ("1", "2", "3"):
        await write(bus, generation=None, rule=rule)
    assert (await bus.recurrences("f", names=["r"]))[0].revision == 3
    await bus.unrecur("f", "r", None)
    await bus.unrecur("f", "s", None)
    await write(bus, generation=None)
    assert (await row(bus)).revision == 4


async def test_a_name_of_code_is_not_taken_at_run_time(bus: Bus) -> None:
    await write(bus, generation=3)
    assert await write(bus, generation=None, rule="every 5") == "taken"
    assert await bus.unrecur("f", "r", None) == "taken"
    found = await row(bus)
    assert (found.rule, found.is_own, found.generation) == ("every 1000", False, 3)
