"""Batches on their way through a worker: which claimed jobs run together, and what each of them gets of the one answer.

A batch is handed over, begun, timed and ended as its first lease; the others hang on it (`Lease.others`). Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from echod.model.job import RunRecord, Verdict
from echod.supervisor import outcomes
from echod.supervisor.events import Departure
from echod.supervisor.leases import Lease
from echofn import frames
from echofn.manifest import Function

FunctionOf = Callable[[str], Function | None]


def joined(leases: Iterable[Lease], size: int | None) -> list[Lease]:
    """The leases that are handed over, each with those that run beside it: what was claimed in one turn.

    `size`: at most so many, as the function takes; the bus may have gone by the policy of a version before or after.
    None: it takes one by one.
    """
    if size is None:
        return list(leases)
    turns: dict[tuple[str, int | str], list[Lease]] = {}
    for lease in leases:
        turns.setdefault((lease.job.holder, lease.job.turn or lease.job.id), []).append(lease)
    found: list[Lease] = []
    for turn in turns.values():
        for start in range(0, len(turn), size):
            first, *others = turn[start : start + size]
            first.others = tuple(others)
            for other in others:
                other.lead = first
            found.append(first)
    return found


def answered(
    lead: Lease, run: RunRecord, ended: frames.Ended, function_of: FunctionOf, *, roll: float
) -> list[tuple[Lease, Verdict]]:
    """The verdict of each job: by its part, else by the end of the run. All that are tried again wait equally long.

    What the run enqueued goes with the first job that is done. Raises Fault for what no honest worker sends.
    """
    share = _share(run, lead)
    runs, said = ended.children, list[tuple[Lease, Verdict]]()
    for number, member in enumerate(lead.members):
        part = lead.parts.get(number)
        end = msgspec.structs.replace(ended, children=()) if part is None else _end_of(part)
        if end.outcome == "done" and runs:
            end, runs = msgspec.structs.replace(end, children=end.children + runs), ()
        said.append((member, outcomes.of(member, share, end, function_of, roll=roll)))
    return said


def crashed(
    lead: Lease, run: RunRecord, departure: Departure, function_of: FunctionOf, *, roll: float
) -> list[tuple[Lease, Verdict]]:
    """The verdicts of a batch whose worker died: each job is charged but those whose end was told before.

    Raises Fault as `answered` does.
    """
    share = _share(run, lead)
    said: list[tuple[Lease, Verdict]] = []
    for number, member in enumerate(lead.members):
        if (part := lead.parts.get(number)) is None:
            verdict = outcomes.crashed(member, share, departure.cause, departure.detail, roll=roll)
        else:
            verdict = outcomes.of(member, share, _end_of(part), function_of, roll=roll)
        said.append((member, verdict))
    return said


def _share(run: RunRecord, lead: Lease) -> RunRecord:
    """The bill of one of them: the time is the run's, its CPU is shared, so that bills add up."""
    return msgspec.structs.replace(run, cpu_us=run.cpu_us // len(lead.members))


def _end_of(part: frames.Part) -> frames.Ended:
    return frames.Ended(
        part.index, part.outcome, 0, 0, 0, part.result, part.fault, part.after_ms, part.reason, part.children
    )
