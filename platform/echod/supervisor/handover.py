"""Claimed jobs as their worker sees them, and the frames they go in. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from echod.errors import Refused
from echod.model.job import Claimed, Occurrence
from echod.policy.recurring import rule_of
from echod.policy.slots import MOST_BYTES
from echofn import frames
from echofn.codec import NIL
from echofn.manifest import CronTrigger, EveryTrigger, Function


def job_frame(job: Claimed, function: Function, first_child: int) -> frames.Job:
    """The frame's job: attempt counts charged runs, fence counts claims."""
    previous_ms, next_ms = _around(job.occurrence, function)
    return frames.Job(
        id=job.id,
        payload=job.payload,
        attempt=job.failures + 1,
        last_attempt=job.failures >= function.policy.retries,
        fence=job.attempts,
        lane=job.lane,
        # A job's own due moves with its jitter and with every retry; what an occurrence stands for does not.
        due_ms=job.occurrence.due_ms if job.occurrence else job.due_ms,
        previous_ms=previous_ms,
        next_ms=next_ms,
        timeout_ms=function.policy.timeout_ms,
        first_child=first_child,
        manual=job.occurrence is not None and job.occurrence.manual,
    )


def batch_frame(jobs: Sequence[Claimed], function: Function, first_child: int) -> frames.Job:
    """The frame's job for a whole batch, in the order in which its jobs were claimed."""
    members = tuple(job_frame(job, function, 0) for job in jobs)
    return msgspec.structs.replace(
        members[0],
        payload=NIL,
        attempt=max(member.attempt for member in members),
        last_attempt=any(member.last_attempt for member in members),
        first_child=first_child,
        members=members,
    )


def payload_bytes(job: frames.Job) -> int:
    """What a job, or a batch, adds to its frame."""
    return len(job.payload) + sum(len(member.payload) for member in job.members)


def frame_sizes(payload_bytes: Sequence[int]) -> list[tuple[int, int]]:
    """Where to cut a row of jobs into frames: few, and none with more than a MiB of payload unless it is one job."""
    cuts: list[tuple[int, int]] = []
    start, size = 0, 0
    for index, each in enumerate(payload_bytes):
        if index > start and size + each > MOST_BYTES:
            cuts.append((start, index))
            start, size = index, 0
        size += each
    return [*cuts, (start, len(payload_bytes))] if payload_bytes else []


def _around(occurrence: Occurrence | None, function: Function) -> tuple[int | None, int | None]:
    """The due instants before and after an occurrence's own; None for a job of no recurrence of this version."""
    if occurrence is None:
        return None, None
    name = occurrence.recurrence.removeprefix(f"{function.name}/")
    for trigger in function.triggers:
        if isinstance(trigger, (CronTrigger, EveryTrigger)) and trigger.name == name:
            try:
                rule = rule_of(trigger)
                return rule.previous(occurrence.due_ms), rule.next_after(occurrence.due_ms)
            except Refused:
                return None, None
    return None, None
