"""What starts a function and what limits it, in words: the manifest's triggers and policy as a reader asks for them."""

from __future__ import annotations

from typing import Any, assert_never

import msgspec

from echod.gateway.pages import given
from echod.gateway.pages.words import count, size, span
from echofn.manifest import Backoff, Constant, Exponential, Linear, Policy, Waits


class Trigger(msgspec.Struct, frozen=True):
    """What starts a function, in a few words; `zone` only where it matters."""

    kind: str
    text: str
    zone: str = ""


def triggers(function: given.Function) -> tuple[Trigger, ...]:
    """In the order of the annotations; "on request" last."""
    found: list[Trigger] = []
    for one in function.triggers:
        match one.get("kind"):
            case "cron":
                found.append(Trigger("cron", str(one.get("rule", "")), str(one.get("tz") or "UTC")))
            case "every":
                found.append(Trigger("every", "every " + _period(one)))
            case "webhook":
                found.append(Trigger("webhook", str(one.get("path", "webhook"))))
            case _:
                found.append(Trigger("queue", "on request"))
    return tuple(sorted(found, key=lambda trigger: trigger.kind == "queue"))


def _period(one: dict[str, Any]) -> str:
    period_ms = one.get("period_ms")
    if not isinstance(period_ms, int | float):
        return str(one.get("period", one.get("every", "")))
    return exact(period_ms)


def exact(ms: float) -> str:
    """A configured length of time, without the zeros that a measured one has."""
    if ms == 0:
        return "none"
    return span(ms).replace(" 0s", "").replace(" 0m", "").replace(" 0h", "")


def limits(policy: Policy, now: given.Limits) -> list[tuple[str, str]]:
    """The limits a reader asks for first. `now`: those that count over all nodes, whoever set them."""
    most = policy.workers_max
    lines = (
        ("Tries", f"up to {policy.retries + 1}"),
        ("Not tried again after", ", ".join(policy.fail_on)),
        ("Pause between tries", backoff(policy.backoff) if policy.retries else None),
        ("Time limit", exact(policy.timeout_ms)),
        ("Memory", size(policy.memory_bytes)),
        ("Fair share by", policy.lane),
        *_fleet(now),
        ("Workers", f"{policy.workers_min} to {'one per CPU' if most is None else most}"),
        ("Isolation", "each run in a process of its own" if policy.isolation == "job" else None),
        ("Most waiting", None if policy.max_pending is None else count(policy.max_pending)),
        (
            "Unique by",
            policy.unique if isinstance(policy.unique, str) else "the whole payload" if policy.unique else None,
        ),
        ("Kept in history", exact(policy.keep_ms)),
    )
    return [(label, value) for label, value in lines if value]


def _fleet(now: given.Limits) -> list[tuple[str, str | None]]:
    """Limits over all nodes."""
    found = (
        ("At once, on all nodes", "concurrency", now.concurrency),
        ("Starts", "rate", now.rate and f"{now.rate} at most"),
        ("At once, each share", "lane_concurrency", now.lane_concurrency),
        ("Starts, each share", "lane_rate", now.lane_rate and f"{now.lane_rate} at most"),
        ("Weight of a share", "lane_weight", now.lane_weight if now.lane_weight != 1 else None),
    )
    return [
        (label, f"{value or 'no limit'}{', set by hand' if name in now.by_hand else ''}")
        for label, name, value in found
        if value or (name in now.by_hand and name != "lane_weight")
    ]


def capped(now: given.Limits) -> str | None:
    """Why nothing of a function starts now, where a limit stands against it."""
    match now.capped:
        case "concurrency":
            return f"{now.concurrency} run at once, as many as may. The next one starts when one of them has ended."
        case "rate":
            left = f" The next one starts in {exact(now.capped_ms)}." if now.capped_ms else ""
            return f"As many have started as {now.rate} allows.{left}"
        case _:
            return None


def standing(lane: given.Lane) -> str | None:
    """Why a fair share gets no turn now, and for how long; None where it does."""
    left = f", {exact(lane.until_ms)} more" if lane.until_ms else ""
    match lane.why:
        case None:
            return None
        case "concurrency":
            return f"{lane.concurrency} at once, as many as may"
        case "rate":
            return f"{lane.rate} used up{left}"
        case "batch":
            return f"gathers a batch{left}"
        case _:
            return "paused"


def backoff(kind: Backoff) -> str:
    """How long between one try and the next."""
    match kind:
        case Exponential(base_ms, cap_ms):
            return f"{exact(base_ms)}, doubling to {exact(cap_ms)}"
        case Linear(base_ms, cap_ms):
            return f"{exact(base_ms)} more each time, up to {exact(cap_ms)}"
        case Constant(wait_ms):
            return exact(wait_ms)
        case Waits(waits_ms):
            return ", ".join(map(exact, waits_ms))
        case _:
            assert_never(kind)
