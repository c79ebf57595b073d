"""A manifest's trigger as a rule that can be asked for instants, and as the columns of its row on the bus."""

from __future__ import annotations

from typing import Protocol, assert_never

import msgspec

from echod.policy import cron
from echod.policy.every import EveryRule
from echofn.manifest import CronTrigger, EveryTrigger, Recurring


class Rule(Protocol):
    """What catch-up, pump and pages ask of a rule. Both questions raise Refused where no instant is left."""

    tz: str

    @property
    def canonical(self) -> str:
        """The one spelling that equal rules share."""
        ...

    def next_after(self, after_ms: int, /) -> int:
        """The first due instant strictly after."""
        ...

    def previous(self, before_ms: int, /) -> int:
        """The last due instant strictly before."""
        ...


def rule_of(trigger: Recurring) -> Rule:
    """The rule of a trigger. Raises Refused, saying what was expected."""
    match trigger:
        case CronTrigger():
            return cron.parse(trigger.rule, trigger.tz)
        case EveryTrigger():
            return EveryRule(trigger.period_ms, trigger.anchor_ms)
        case _:
            assert_never(trigger)


def identified(trigger: Recurring) -> Recurring:
    """The trigger under its recurrence's name: the author's, else canonical rule and zone. Raises Refused."""
    rule = rule_of(trigger)
    if trigger.name:
        return trigger
    return msgspec.structs.replace(trigger, name=rule.canonical if rule.tz == "UTC" else f"{rule.canonical} {rule.tz}")


def text_of(trigger: Recurring) -> str:
    """The rule as its author wrote it, for pages: "0 6 * * mon", "every 20s"."""
    match trigger:
        case CronTrigger():
            return trigger.rule
        case EveryTrigger():
            return EveryRule(trigger.period_ms, trigger.anchor_ms).canonical  # its anchor is part of the rule
        case _:
            assert_never(trigger)


def zone_of(trigger: Recurring) -> str:
    """The zone's name; `every` has none and counts in UTC."""
    return trigger.tz if isinstance(trigger, CronTrigger) else "UTC"


class Standing(msgspec.Struct, frozen=True):
    """A recurrence as it stands on the bus."""

    due_ms: int | None  # the due that has no outcome yet, of a paused or parked one too
    last_ms: int | None  # the newest that has one, whether minted, missed or skipped
    gone_ms: int | None = None  # of one that the version being served lacks: since when it does
    paused: bool = False


def next_due(rule: Rule, since_ms: int, held: Standing | None = None) -> int:
    """When a rule that is written is due first. A new one begins with its version, at `since_ms`.

    `held` is what stands there. A changed one goes on from its last due, so that no change skips an instant, nor gives
    one a second outcome. One that comes back begins with its version too, but where an instant was due before it went:
    that one had no outcome yet. (One that is the same keeps its due, and is not asked for.) Raises Refused.
    """
    if held is None:
        return rule.next_after(since_ms)
    is_back = held.gone_ms is not None
    waits = held.due_ms is not None and held.due_ms <= (held.gone_ms if held.gone_ms is not None else since_ms)
    if held.last_ms is None:  # so `due_ms` is its first of all
        return rule.next_after(held.due_ms - 1 if waits and held.due_ms is not None else since_ms)
    return rule.next_after(max(held.last_ms, since_ms) if is_back and not waits else held.last_ms)


def stored(trigger: Recurring) -> bytes:
    """What the row keeps of a trigger. The line of the annotation is left out: moving it changes no rule."""
    return _encode(msgspec.structs.replace(trigger, line=0))


def restored(row: bytes) -> Recurring:
    """The trigger of a row. Raises msgspec.ValidationError or DecodeError for bytes that are none."""
    return _decode(row)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Recurring).decode
