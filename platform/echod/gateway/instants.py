"""The next due instants of a function's schedules, for people's eyes; the pump decides by itself."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from echod.bus.answers import RecurrenceRow
from echod.errors import Refused
from echod.gateway.views import instant
from echod.policy.every import EveryRule
from echod.policy.recurring import Rule, restored, rule_of
from echofn.manifest import CronTrigger, EveryTrigger, Function, Recurring

SHOWN = 5
MOST_PASSED = 100_000  # a second or two of counting


def upcoming(trigger: Recurring, now_ms: int) -> list[str]:
    """The next five instants of one trigger."""
    return [instant(ms) for ms in islice(_dues(trigger, now_ms), SHOWN)]


def upcoming_of(function: Function, rows: Sequence[RecurrenceRow], now_ms: int) -> list[str]:
    """The next five instants over all schedules of a function that are not paused, soonest first. `rows`: as the bus
    has them."""
    paused = {row.name for row in rows if row.paused}
    triggers = [*recurring(function), *(trigger for row in rows if row.is_own and (trigger := trigger_of(row)))]
    dues = (_dues(trigger, now_ms) for trigger in triggers if trigger.name not in paused)
    return [instant(ms) for ms in islice(heapq.merge(*dues), SHOWN)]


def passed(rule: Rule, last_ms: int | None, now_ms: int) -> int:
    """How many instants fell between the last that had an outcome and now: those that a pause skipped.

    None where nothing is known of a last one. At most MOST_PASSED are counted.
    """
    if last_ms is None:
        return 0
    if isinstance(rule, EveryRule):
        return (now_ms - rule.anchor_ms) // rule.period_ms - (last_ms - rule.anchor_ms) // rule.period_ms
    count = 0
    try:
        while count < MOST_PASSED and (last_ms := rule.next_after(last_ms)) <= now_ms:
            count += 1
    except Refused:
        pass
    return count


def trigger_of(row: RecurrenceRow) -> Recurring | None:
    """What a row holds; None where it cannot be read."""
    try:
        return restored(row.policy)
    except msgspec.MsgspecError:
        return None


def recurring(function: Function) -> list[Recurring]:
    """The schedules among a function's triggers."""
    return [trigger for trigger in function.triggers if isinstance(trigger, CronTrigger | EveryTrigger)]


def _dues(trigger: Recurring, now_ms: int) -> Iterator[int]:
    """All of them; none where the rule has none left, or cannot be read (its row on the bus shows the error)."""
    try:
        rule = rule_of(trigger)
        while True:
            now_ms = rule.next_after(now_ms)
            yield now_ms
    except Refused:
        return
