"""What a switch changes: a table of two manifests and what is told of them."""

from __future__ import annotations

from typing import Any

import pytest

from echod.policy.plan import Changed, Gone, Moved, Option, Plan, Schedule, option_text, planned
from echod.policy.recurring import Standing
from echofn.manifest import (
    Constant,
    CronTrigger,
    EveryTrigger,
    Exponential,
    Function,
    Manifest,
    Policy,
    QueueTrigger,
    Trigger,
    WebhookTrigger,
)

NOON = 1_780_315_200_000  # 2026-06-01T12:00:00Z
MINUTE = 60_000
HOURLY = CronTrigger("report", "0 * * * *", line=4)
QUARTERS = CronTrigger("report", "*/15 * * * *", line=4)
HOOK = WebhookTrigger("/hooks/a", None)


def function(*triggers: Trigger, code: str = "1", name: str = "shop.pack", **fields: Any) -> Function:
    policy = fields.pop("policy", Policy())
    return Function(name, "shop", "pack", "shop.py", 3, policy, triggers or (QueueTrigger(),), code=code, **fields)


def plan_of(before: tuple[Function, ...] | None, after: tuple[Function, ...], **known: Any) -> Plan:
    old = None if before is None else Manifest("functions", before)
    return planned(old, Manifest("functions", after), NOON + MINUTE, **known)


HELD = {"shop.pack/report": Standing(NOON + 60 * MINUTE, NOON)}
PAUSED = {"shop.pack/report": Standing(NOON + 60 * MINUTE, NOON, NOON, paused=True)}
STILL = Schedule("shop.pack/report", "0 * * * *", "UTC", None, paused=True)
NEXT = Schedule("shop.pack/report", "0 * * * *", "UTC", NOON + 60 * MINUTE)


@pytest.mark.parametrize(
    ("before", "after", "known", "expected"),
    [
        pytest.param(None, (function(),), {}, Plan(new=("shop.pack",)), id="the first of all"),
        pytest.param((function(),), (function(),), {}, Plan(), id="the same"),
        pytest.param(
            (function(HOURLY),),
            (function(CronTrigger("report", "0 * * * *", line=9)),),
            {},
            Plan(),
            id="an annotation moved",
        ),
        pytest.param((function(code=""),), (function(),), {}, Plan(), id="described before there were digests"),
        pytest.param(
            (function(),), (function(code="2"),), {}, Plan(changed=(Changed("shop.pack", ("code",)),)), id="its code"
        ),
        pytest.param(
            (function(),),
            (function(payload_schema={"type": "object"}, takes_payload=True),),
            {},
            Plan(changed=(Changed("shop.pack", ("payload",)),)),
            id="what it takes",
        ),
        pytest.param(
            (function(),),
            (function(QueueTrigger(), HOOK),),
            {},
            Plan(changed=(Changed("shop.pack", ("webhooks",)),)),
            id="a webhook",
        ),
        pytest.param(
            (function(), function(name="shop.old")),
            (function(),),
            {"waiting": {"shop.old": 3, "shop.pack": 9}},
            Plan(gone=(Gone("shop.old", 3),)),
            id="one gone with what waits for it",
        ),
        pytest.param(
            (function(),),
            (function(QueueTrigger(), HOURLY),),
            {},
            Plan(changed=(Changed("shop.pack", ("schedules",)),), start=(NEXT,)),
            id="a schedule starts, from now",
        ),
        pytest.param(
            (function(HOURLY),),
            (function(QUARTERS),),
            {"held": HELD},
            Plan(
                changed=(Changed("shop.pack", ("schedules",)),),
                change=(Moved(NEXT, Schedule("shop.pack/report", "*/15 * * * *", "UTC", NOON + 15 * MINUTE)),),
            ),
            id="a schedule changes, from its last due",
        ),
        pytest.param(
            (function(HOURLY),),
            (),
            {"held": HELD},
            Plan(gone=(Gone("shop.pack", 0),), end=(NEXT,)),
            id="a schedule ends",
        ),
        pytest.param(
            (function(),),
            (function(QueueTrigger(), HOURLY),),
            {"held": PAUSED},
            Plan(changed=(Changed("shop.pack", ("schedules",)),), start=(STILL,)),
            id="a schedule comes back paused",
        ),
        pytest.param(
            (function(HOURLY),),
            (function(QUARTERS),),
            {"held": PAUSED},
            Plan(
                changed=(Changed("shop.pack", ("schedules",)),),
                change=(Moved(STILL, Schedule("shop.pack/report", "*/15 * * * *", "UTC", None, paused=True)),),
            ),
            id="a schedule changes while it is paused",
        ),
        pytest.param(
            (function(EveryTrigger("beat", 20_000)),),
            (function(EveryTrigger("beat", 20_000, payload=b"\x01")),),
            {},
            Plan(changed=(Changed("shop.pack", ("schedules",)),)),
            id="what a schedule carries, its rule the same",
        ),
        pytest.param(
            (function(policy=Policy(timeout_ms=60_000)),),
            (function(policy=Policy(timeout_ms=30_000, backoff=Constant(500))),),
            {},
            Plan(
                changed=(Changed("shop.pack", ("limits",)),),
                limits=(
                    Option(
                        "shop.pack",
                        "backoff",
                        {"type": "exponential", "base_ms": 500, "cap_ms": 600_000},
                        {"type": "constant", "wait_ms": 500},
                    ),
                    Option("shop.pack", "timeout_ms", 60_000, 30_000),
                ),
            ),
            id="limits",
        ),
        pytest.param(
            (function(),),
            (function(policy=Policy(network=(443,), memory_bytes=1 << 20), secrets=("KEY",)),),
            {},
            Plan(
                changed=(Changed("shop.pack", ("walls",)),),
                walls=(
                    Option("shop.pack", "memory_bytes", 512 << 20, 1 << 20),
                    Option("shop.pack", "network", False, (443,)),
                    Option("shop.pack", "secrets", [], ["KEY"]),
                ),
            ),
            id="walls",
        ),
        pytest.param(
            (function(EveryTrigger("tick", MINUTE)),),
            (function(EveryTrigger("tick", MINUTE, overlap="skip", jitter_ms=5000)),),
            {},
            Plan(
                changed=(Changed("shop.pack", ("schedules",)),),
                rules=(
                    Option("shop.pack/tick", "overlap", "allow", "skip"),
                    Option("shop.pack/tick", "jitter_ms", 0, 5000),
                ),
            ),
            id="schedules",
        ),
    ],
)
def test_what_a_switch_changes(
    before: tuple[Function, ...] | None, after: tuple[Function, ...], known: dict[str, Any], expected: Plan
) -> None:
    assert plan_of(before, after, **known) == expected


def test_every_option_of_a_policy_is_a_limit_or_a_wall() -> None:
    """Whatever is added to the policy is told: nobody has to think of the plan."""
    for name in Policy.__struct_fields__:
        other = Policy(**{name: "other"})  # type: ignore[arg-type]  # no value of its kind, only another one
        if name == "backoff":
            other = Policy(backoff=Exponential(1))
        plan = plan_of((function(),), (function(policy=other),))
        assert [option.name for option in (*plan.limits, *plan.walls)] == [name]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("timeout_ms", 30_000, ("timeout", "30s")),
        ("batch_wait_ms", 0, ("batch_wait", "0s")),
        ("memory_bytes", 512 << 20, ("memory", "512MB")),
        ("tmp_bytes", 1 << 19, ("tmp", "0.5MB")),
        ("network", False, ("network", "no")),
        ("network", [443, 80], ("network", "443, 80")),
        ("network", (), ("network", "none")),
        ("max_pending", None, ("max_pending", "none")),
        ("retries", 3, ("retries", "3")),
        ("lane", "tenant", ("lane", "tenant")),
        ("backoff", {"type": "constant", "wait_ms": 500}, ("backoff", "constant wait 500ms")),
        ("backoff", {"type": "list", "waits_ms": (1000, 5000)}, ("backoff", "list waits 1s, 5s")),
    ],
)
def test_options_are_told_as_their_authors_write_them(name: str, value: object, text: tuple[str, str]) -> None:
    assert option_text(name, value) == text
