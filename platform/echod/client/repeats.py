"""Schedules that a client registers, in values that no address knows of."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal, Required, TypedDict, get_args

import msgspec

from echod.client.orders import Duration, Target, check_text, milliseconds, packed
from echofn import codec
from echofn.quoting import quoted
from echofn.units import duration_ms, duration_text

Missed = Literal["skip", "last", "all"]
Overlap = Literal["allow", "skip", "queue", "replace"]


class Repeat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A schedule to register: the body of POST /schedules. Exactly one of `cron` and `every`."""

    function: str
    name: str
    cron: str | None = None
    every: str | None = None
    anchor: str | None = None
    tz: str | None = None
    payload: Any = None
    missed: Missed = "last"
    cap: int | None = None
    overlap: Overlap = "allow"
    jitter: str | None = None


class Schedule(msgspec.Struct, frozen=True):
    """A registered schedule; `next` is None while it is paused."""

    id: str
    function: str
    name: str
    rule: str
    tz: str
    next: datetime | None


class RuleOptions(TypedDict, total=False):
    """What becomes of a schedule's instants: `missed`, `cap`, `overlap`, `jitter` are as in the annotations."""

    missed: Missed
    cap: int | None
    overlap: Overlap
    jitter: Duration


class CronOptions(RuleOptions, total=False):
    """By a rule like "0 6 * * mon", in the zone `tz` (UTC)."""

    cron: Required[str]
    tz: str | None


class EveryOptions(RuleOptions, total=False):
    """Every so often ("20s"), counted from the epoch or from `anchor`."""

    every: Required[Duration]
    anchor: datetime | str | None


class RepeatOptions(RuleOptions, total=False):
    """A schedule's rule, which is one of `cron` and `every`, and what its jobs carry."""

    cron: str | None
    every: Duration | None
    tz: str | None
    anchor: datetime | str | None
    payload: object


def repeat_of(
    target: Target,
    function: Callable[..., Any] | str,
    name: str,
    *,
    cron: str | None = None,
    every: Duration | None = None,
    tz: str | None = None,
    anchor: datetime | str | None = None,
    payload: object = None,
    missed: Missed = "last",
    cap: int | None = None,
    overlap: Overlap = "allow",
    jitter: Duration | None = None,
) -> Repeat:
    """A schedule to register, checked as far as that needs no echod. Raises InvalidPayload, TypeError or ValueError."""
    check_text("name", name, required=True)
    check_text("cron", cron)
    check_text("tz", tz)
    if not isinstance(anchor, datetime):
        check_text("anchor", anchor)
    if cap is not None and type(cap) is not int:
        raise TypeError(f"cap=: expected a whole number, got {quoted(cap)} ({type(cap).__name__})")
    for option, word, words in (("missed", missed, get_args(Missed)), ("overlap", overlap, get_args(Overlap))):
        if word not in words:
            raise ValueError(f"{option}=: expected {', '.join(words)}, got {quoted(word)}")
    return Repeat(
        function=target.name,
        name=name,
        cron=cron,
        every=None if every is None else duration_text(milliseconds("every", every, duration_ms)),
        anchor=anchor.isoformat() if isinstance(anchor, datetime) else anchor,
        tz=tz,
        payload=codec.decode(packed(target, function, payload)),
        missed=missed,
        cap=cap,
        overlap=overlap,
        jitter=None if jitter is None else duration_text(milliseconds("jitter", jitter, duration_ms)),
    )
