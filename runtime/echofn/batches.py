"""A run of a batch: one call of the handler with a list of payloads, and an end for each job of it.

What differs from the end of the run is told apart, in a `Part`: a job whose payload does not fit ends before the call,
and the others are run without it; a list that the handler returns gives each job its result, or its verdict. The run's
own `Ended` speaks for all jobs that have no part: done where the handler returned None, charged where it raised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from echofn import codec
from echofn.faults import message_of
from echofn.frames import MAX_RESULTS_BYTES, Fault, Job, Part, framed
from echofn.quoting import hidden
from echofn.run import Run

if TYPE_CHECKING:
    from echofn.worker import Session


class BatchRun(Run):
    """See the module."""

    __slots__ = ("_called", "_room")

    def __init__(self, session: Session, index: int, job: Job, now_ms: int) -> None:
        super().__init__(session, index, job, now_ms)
        self._called = tuple(enumerate(job.members or (job,)))
        self._room = MAX_RESULTS_BYTES

    @property
    def members(self) -> tuple[tuple[int, Job], ...]:
        """The jobs that the handler is called for, by their position in the batch."""
        return self._called

    def _payload(self) -> tuple[Any, dict[str, Any] | None]:
        """The payloads that fit; where none does, there is nothing to call."""
        payloads, fit, unfit = list[Any](), list[tuple[int, Job]](), list[bytes]()
        for number, job in self._called:
            payload, end = self._read(job)
            if end is None:
                payloads.append(payload)
                fit.append((number, job))
            else:
                unfit.append(framed(Part(self.index, number, **end)))
        self._called = tuple(fit)
        if unfit:
            self.session.send(b"".join(unfit))
        return payloads, None if payloads else {"outcome": "done"}

    def _done(self, value: Any) -> dict[str, Any]:
        try:
            items = results(value, len(self._called))
        except codec.Unfit as error:
            return {"outcome": "retry", "fault": Fault("ProtocolError", message_of(error, self.mask), "", "protocol")}
        parts = [self._part(number, item) for (number, _), item in zip(self._called, items, strict=True)]
        self.session.send(b"".join(map(framed, filter(self._tells, parts))))
        return {"outcome": "done", "children": self._children.of(None) if self._children else ()}

    def _part(self, number: int, item: Any) -> Part:
        end: dict[str, Any] = self._failed(item) if isinstance(item, BaseException) else self._result(item)
        data = end.get("result", b"")
        if len(data) > self._room:
            end = {"outcome": "dead", "fault": Fault("ResultError", _TOO_LARGE, "", "result")}
        elif end["outcome"] == "done":
            self._room -= len(data)
            end["children"] = self._children.of(number) if self._children else ()
        return Part(self.index, number, **end)

    def _tells(self, part: Part) -> bool:
        """Whether a part says more than the end of the run."""
        return self.saw or part.outcome != "done" or part.result != codec.NIL or bool(part.children)


_TOO_LARGE = f"expected results of at most {MAX_RESULTS_BYTES // 1024**2} MiB in one batch, got more"


def results(value: Any, count: int) -> Sequence[Any]:
    """What a batch handler returned, for each of its `count` payloads. Raises Unfit."""
    if value is None:
        return (None,) * count
    got = type(value).__name__
    if isinstance(value, (list, tuple)):
        items: list[Any] = [*value]
        if len(items) == count:
            return items
        got = f"{len(items):,}"
    raise codec.Unfit(f"expected None or a list of {count:,} results, one for each payload, got {hidden(got, 100)}")
