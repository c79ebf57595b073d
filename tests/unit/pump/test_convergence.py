"""From what the bus holds to what a version says: a table of small histories."""

import msgspec
import pytest

from echod.bus.answers import RecurrenceRow
from echod.policy.recurring import stored
from echod.pump.convergence import Configure, Fault, Remove, Write, steps
from echofn.manifest import CronTrigger, EveryTrigger, Function, Policy, QueueTrigger, Recurring

NOON = 1_780_315_200_000  # 2026-06-01T12:00:00Z
MINUTE = 60_000
HOURLY = CronTrigger("report", "0 * * * *")
QUARTERS = CronTrigger("report", "*/15 * * * *")


def function(*triggers: Recurring, policy: Policy | None = None) -> Function:
    return Function("shop.tick", "shop", "tick", "shop.py", 1, policy or Policy(), (QueueTrigger(), *triggers))


def row(trigger: CronTrigger, *, last_ms: int | None, generation: int = 1, name: str = "report") -> RecurrenceRow:
    return RecurrenceRow(
        queue="shop.tick",
        name=name,
        rule=trigger.rule,
        tz=trigger.tz,
        revision=1,
        generation=generation,
        next_ms=NOON + 60 * MINUTE,
        due_ms=NOON + 60 * MINUTE,
        last_ms=last_ms,
        paused=False,
        missed=0,
        skipped=0,
        policy=stored(trigger),
    )


def written(trigger: Recurring, held: tuple[RecurrenceRow, ...], now_ms: int) -> Write:
    (write,) = (step for step in steps([function(trigger)], 2, held, now_ms, now_ms) if isinstance(step, Write))
    return write


@pytest.mark.parametrize(
    ("trigger", "held", "now_ms", "next_ms"),
    [
        (HOURLY, (), NOON + MINUTE, NOON + 60 * MINUTE),  # a new one begins now
        (HOURLY, (), NOON, NOON + 60 * MINUTE),  # strictly after
        (QUARTERS, (row(HOURLY, last_ms=NOON),), NOON + 20 * MINUTE, NOON + 15 * MINUTE),  # a changed one skips nothing
        (QUARTERS, (row(HOURLY, last_ms=None),), NOON + 20 * MINUTE, NOON + 30 * MINUTE),  # unless it was never due
        (EveryTrigger("report", 20_000, 5_000), (), NOON + 47_000, NOON + 65_000),
    ],
)
def test_where_a_recurrence_goes_on(
    trigger: Recurring, held: tuple[RecurrenceRow, ...], now_ms: int, next_ms: int
) -> None:
    assert written(trigger, held, now_ms).next_ms == next_ms


def test_what_the_version_does_not_have_is_removed_if_an_older_one_wrote_it() -> None:
    held = (row(HOURLY, last_ms=None, name="old"), row(HOURLY, last_ms=None, name="newer", generation=3))
    assert [step for step in steps([function()], 2, held, NOON, NOON) if isinstance(step, Remove)] == [
        Remove("shop.tick", "old")
    ]


def test_every_function_has_its_queue_configured() -> None:
    policy = Policy(retries=7)
    assert steps([function(policy=policy)], 2, (), NOON, NOON) == (Configure("shop.tick", policy),)


def test_a_recurrence_without_a_name_gets_its_rules_own() -> None:
    assert written(CronTrigger("", "0 6 * * mon", "Europe/Berlin"), (), NOON).name == "0 6 * * 1 Europe/Berlin"


def test_the_payload_names_the_lane() -> None:
    payload = msgspec.msgpack.encode({"tenant": "acme"})
    policy = Policy(lane="tenant", priority=3)
    trigger = CronTrigger("report", "0 * * * *", payload=payload)
    (_, write) = steps([function(trigger, policy=policy)], 2, (), NOON, NOON)
    assert isinstance(write, Write)
    assert (write.lane, write.priority) == ("acme", 3)
    assert written(HOURLY, (), NOON).lane == "-"


@pytest.mark.parametrize(
    "trigger",
    [
        CronTrigger("bad", "0 0 30 2 *"),
        CronTrigger("bad", "* * * * *", "Mars/Olympus"),
        EveryTrigger("bad", 5),
        CronTrigger("bad", "* * * * *", payload=b"\xc1"),
        CronTrigger("bad", "* * * * *", payload=msgspec.msgpack.encode({"tenant": {}})),
    ],
)
def test_a_faulty_recurrence_leaves_the_others_standing(trigger: Recurring) -> None:
    found = steps([function(trigger, HOURLY, policy=Policy(lane="tenant"))], 2, (), NOON, NOON)
    assert [type(step) for step in found] == [Configure, Fault, Write]
    (fault,) = (step for step in found if isinstance(step, Fault))
    assert (fault.queue, fault.name) == ("shop.tick", "bad")
    assert fault.error


def test_a_faulty_recurrence_does_not_remove_what_stands_under_its_name() -> None:
    found = steps([function(CronTrigger("report", "0 0 30 2 *"))], 2, (row(HOURLY, last_ms=None),), NOON, NOON)
    assert [type(step) for step in found] == [Configure, Fault]
