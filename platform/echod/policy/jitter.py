"""Jitter: a recurrence's jobs are due a little after their instants, so that not all that say "at six" start at six.

By how much is a hash of the recurrence and the instant: whichever pump asks, and however often, the answer is the same,
and nothing has to be stored. The recurrence's own instants do not move.
"""

from __future__ import annotations

import hashlib
from itertools import pairwise

from echod.errors import Refused
from echod.policy.every import EveryRule
from echod.policy.recurring import Rule
from echofn.manifest import Recurring
from echofn.units import duration_text

_SAMPLE_FROM_MS = 1_704_067_200_000  # 2024-01-01T00:00:00Z: a leap year
_SAMPLE, _SAMPLE_MS = 400, 400 * 86_400_000  # instants of a cron rule between which the shortest gap is looked for


def job_due(recurrence: str, trigger: Recurring, due_ms: int) -> int:
    """When the job of the instant `due_ms` is due itself. `recurrence` is its id, `function/name`."""
    if not trigger.jitter_ms:
        return due_ms
    digest = hashlib.blake2b(f"{recurrence}\0{due_ms}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return due_ms + int.from_bytes(digest) % trigger.jitter_ms


def check(rule: Rule, trigger: Recurring) -> None:
    """Raises Refused for a jitter in which a job could be due after that of the next instant."""
    if not trigger.jitter_ms:
        return
    gap_ms = _shortest_gap_ms(rule)
    if trigger.jitter_ms >= gap_ms:
        got, most = duration_text(trigger.jitter_ms), duration_text(gap_ms)
        raise Refused(f"jitter: expected less than {most}, the rule's shortest period, got {got}; shorten it")


def _shortest_gap_ms(rule: Rule) -> int:
    """Exact for `every`; of a cron rule that between its first instants from a certain year on, or all of that year."""
    if isinstance(rule, EveryRule):
        return rule.period_ms
    instants = [_SAMPLE_FROM_MS]
    try:
        while len(instants) < 3 or (len(instants) < _SAMPLE and instants[-1] < _SAMPLE_FROM_MS + _SAMPLE_MS):
            instants.append(rule.next_after(instants[-1]))
    except Refused:
        pass  # a rule that ends
    return min((later - sooner for sooner, later in pairwise(instants[1:])), default=_SAMPLE_FROM_MS)
