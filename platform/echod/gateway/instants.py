"""The next due instants of a function's schedules, for people's eyes; the pump decides by itself."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from echod.bus.answers import RecurrenceRow
from echod.errors import Refused
from echod.gateway.views import View, instant
from echod.policy.every import EveryRule
from echod.policy.jitter import job_due
from echod.policy.recurring import Rule, rule_of
from echofn.manifest import CronTrigger, EveryTrigger, Function, Recurring

SHOWN = 5
MOST_PASSED = 100_000  # a second or two of counting


def preview(row: RecurrenceRow, now_ms: int) -> View:
    """The next five instants of a stored rule, and when their jobs are due themselves, which a jitter makes later."""
    trigger = row.trigger
    dues = list(islice(_dues(trigger, now_ms), SHOWN)) if trigger else []
    starts = [job_due(f"{row.queue}/{row.name}", trigger, ms) for ms in dues] if trigger else []
    return {"upcoming": [instant(ms) for ms in dues], "starts": [instant(ms) for ms in starts]}


def upcoming_of(function: Function, rows: Sequence[RecurrenceRow], now_ms: int) -> list[str]:
    """The next five instants over all schedules of a function that are not paused, soonest first. `rows`: as the bus
    has them."""
    paused = {row.name for row in rows if row.paused}
    triggers = [*recurring(function), *(trigger for row in rows if row.is_own and (trigger := row.trigger))]
    dues = (_dues(trigger, now_ms) for trigger in triggers if trigger.name not in paused)
    return [instant(ms) for ms in islice(heapq.merge(*dues), SHOWN)]


def passed(rule: Rule, due_ms: int | None, now_ms: int) -> int:
    """How many instants fell from `due_ms`, the first without an outcome, to now: those that a pause skipped.

    At most MOST_PASSED are counted.
    """
    if due_ms is None or due_ms > now_ms:
        return 0
    if isinstance(rule, EveryRule):
        return 1 + (now_ms - rule.anchor_ms) // rule.period_ms - (due_ms - rule.anchor_ms) // rule.period_ms
    count = 1
    try:
        while count < MOST_PASSED and (due_ms := rule.next_after(due_ms)) <= now_ms:
            count += 1
    except Refused:
        pass
    return count


class Resumed(NamedTuple):
    """Where a rule goes on after a pause, how many instants fell into it, and the newest of them (None: none did)."""

    next_ms: int
    skipped: int
    last_ms: int | None


def resumed(rule: Rule, due_ms: int | None, now_ms: int) -> Resumed:
    """The end of a pause: what has come by now is skipped. `due_ms`: the first without an outcome.

    Raises Refused where no instant is to come.
    """
    if due_ms is not None and due_ms > now_ms:  # the clock may have been set back: what was before it has its outcome
        return Resumed(due_ms, 0, None)
    next_ms = rule.next_after(now_ms)
    skipped = passed(rule, due_ms, now_ms)
    return Resumed(next_ms, skipped, rule.previous(next_ms) if skipped else None)


def within(rule: Rule, from_ms: int, to_ms: int, most: int) -> list[int]:
    """The instants from `from_ms` to `to_ms`, both included; one more than `most` where there are more."""
    found: list[int] = []
    after_ms = from_ms - 1
    try:
        while len(found) <= most and (after_ms := rule.next_after(after_ms)) <= to_ms:
            found.append(after_ms)
    except Refused:
        pass  # a rule that ends
    return found


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
