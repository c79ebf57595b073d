"""What becomes of due instants: each is minted or dropped with a count, the oldest first.

An instant up to the grace late is on time and always minted; `missed` governs the older ones. Whatever is dropped is
older than whatever is minted, so a plan is one drop of the oldest and then mints in order. A plan is bounded: a longer
backlog comes out in pieces, and asking again from `next_ms` goes on where the last piece ended.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from echod.errors import Refused
from echod.policy.recurring import Rule

Missed = Literal["skip", "last", "all"]
GRACE_MS = 10_000
LIMIT = 500  # instants in one plan: a few milliseconds of computing


class Plan(msgspec.Struct, frozen=True):
    """First the `drop` oldest instants are counted as missed, then `mint` are minted in order.

    `next_ms` is due after them. `more`: it has come already, ask again from there. `dropped_ms`: the newest that is
    dropped, None where none is.
    """

    drop: int
    mint: tuple[int, ...]
    next_ms: int
    more: bool
    dropped_ms: int | None = None


def plan(
    rule: Rule,
    due_ms: int,
    now_ms: int,
    *,
    missed: Missed = "last",
    cap: int = 100,
    grace_ms: int = GRACE_MS,
    limit: int = LIMIT,
) -> Plan:
    """What to do at `now_ms` about a rule that is next due at `due_ms`. Raises Refused where the rule has no next."""
    first_ms = _first_minted(rule, due_ms, now_ms, missed, cap, grace_ms)
    drop, dropped_ms = 0, None
    while due_ms < first_ms and due_ms <= now_ms and drop < limit:
        dropped_ms = due_ms
        due_ms = rule.next_after(due_ms)
        drop += 1
    mint: list[int] = []
    while first_ms <= due_ms <= now_ms and drop + len(mint) < limit:
        mint.append(due_ms)
        due_ms = rule.next_after(due_ms)
    return Plan(drop, tuple(mint), due_ms, more=due_ms <= now_ms, dropped_ms=dropped_ms)


def _first_minted(rule: Rule, due_ms: int, now_ms: int, missed: Missed, cap: int, grace_ms: int) -> int:
    """The oldest instant to mint; older ones are missed. May lie in the future: then all that are due are missed."""
    on_time_ms = now_ms - grace_ms
    if due_ms >= on_time_ms:
        return due_ms
    first_on_time_ms = rule.next_after(on_time_ms - 1)
    match missed:
        case "skip":
            return first_on_time_ms
        case "last":
            return first_on_time_ms if first_on_time_ms <= now_ms else _newest(rule, due_ms, on_time_ms, 1)
        case "all":
            return _newest(rule, due_ms, on_time_ms, cap)


def _newest(rule: Rule, due_ms: int, before_ms: int, count: int) -> int:
    """The oldest of the newest `count` instants from `due_ms` to before `before_ms`; `before_ms` where count is 0."""
    oldest_ms = before_ms
    for _ in range(count):
        if oldest_ms <= due_ms:
            break
        try:
            oldest_ms = rule.previous(oldest_ms)
        except Refused:
            return due_ms
    return max(oldest_ms, due_ms)
