"""Claims and what becomes of them: claim, settle, extend, progress, and the children a settle sends.

Of each claimer one claim or settle per queue is under way. Where its reply is lost (BusAway), the call is kept and
sent again before the claimer's next one, under its old sequence: the bus rebuilds the reply, so nothing is settled or
claimed twice, and jobs leased by the lost reply reach the claimer with its next answer.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from echod.bus.answers import Blocked, ClaimAnswer, ExtendAnswer, SettleAnswer
from echod.bus.clock import monotonic_ms
from echod.bus.core import Core
from echod.bus.driving import driven_ms
from echod.bus.rows import child_of, claimed, hold_row, ids_of, pack, verdict_row
from echod.bus.wire import Argument
from echod.errors import BusAway, BusError, BusFull
from echod.model.ids import JobId
from echod.model.job import Child, Claimed, Hold, Verdict

DEFAULT_LEASE_MS = 15_000
_NOTHING = pack([])


class _Call(msgspec.Struct):
    """A claim or settle on its way."""

    verb: str
    arguments: dict[str, Argument]
    settled: frozenset[Hold]


class _Desk:
    """One claimer at one queue."""

    def __init__(self) -> None:
        self.sequence = secrets.randbits(40)  # a claimer's id may be used again by a later process
        self.unanswered: _Call | None = None
        self.owed: list[SettleAnswer] = []  # answers that arrived before a call that then failed
        self.settled: set[Hold] = set()  # by those
        self.broke = False  # the last call failed inside the script: what it had written by then stays written


class Working(Core):
    """claim, settle, extend and what goes with a run."""

    def __init__(self, app: str, *, driven: bool) -> None:
        super().__init__(app, driven=driven)
        self._desks: dict[tuple[str, str], _Desk] = {}
        self.popped: set[str] = set()  # queues whose bell this bus popped and has not answered yet

    async def claim(
        self, queue: str, claimer: str, count: int, lease_ms: int = DEFAULT_LEASE_MS, *, begun: Sequence[Hold] = ()
    ) -> ClaimAnswer:
        """Up to `count` turns under our lease, lanes in turn: a job each, or a batch where the queue has them."""
        answer = await self._exchange(queue, claimer, (), count, lease_ms, begun)
        return answer.claim

    async def settle(
        self,
        queue: str,
        claimer: str,
        verdicts: Sequence[Verdict],
        *,
        count: int = 0,
        lease_ms: int = DEFAULT_LEASE_MS,
        begun: Sequence[Hold] = (),
    ) -> SettleAnswer:
        """End claims by their verdicts, and claim `count` in the same step.

        When the server's memory is out it goes on, and archives give way (decision 0030). After BusAway call again,
        with the same verdicts or with more: those that were sent are not sent twice.
        """
        return await self._exchange(queue, claimer, verdicts, count, lease_ms, begun)

    async def _exchange(
        self, queue: str, claimer: str, verdicts: Sequence[Verdict], count: int, lease_ms: int, begun: Sequence[Hold]
    ) -> SettleAnswer:
        desk = self._desks.setdefault((claimer, queue), _Desk())
        if desk.unanswered is not None:
            settled = desk.unanswered.settled
            desk.owed.append(await self._send_call(queue, desk, desk.unanswered))
            desk.settled |= settled
        if desk.settled:
            verdicts = [verdict for verdict in verdicts if verdict.hold not in desk.settled]
        count = max(count - sum(answer.claim.turns for answer in desk.owed), 0)
        if desk.broke and count > 1:
            # What takes jobs and loses them must not take as many again: one, and the others where that goes well.
            probe = await self._send_call(queue, desk, self._new_call(queue, claimer, desk, (), 1, lease_ms, begun))
            desk.owed.append(probe)
            count -= probe.claim.turns
        if desk.owed and not verdicts and count == 0 and queue not in self.popped:
            answer = desk.owed.pop()
        else:
            answer = await self._send_call(
                queue, desk, self._new_call(queue, claimer, desk, verdicts, count, lease_ms, begun)
            )
        for owed in desk.owed:
            answer = _merged(owed, answer)
        desk.owed.clear()
        desk.settled.clear()
        return answer

    def _new_call(
        self,
        queue: str,
        claimer: str,
        desk: _Desk,
        verdicts: Sequence[Verdict],
        count: int,
        lease_ms: int,
        begun: Sequence[Hold],
    ) -> _Call:
        desk.sequence += 1
        arguments: dict[str, Argument] = {
            "claimer": claimer,
            "sequence": desk.sequence,
            "want": count,
            "lease_ms": lease_ms,
            "holder": secrets.token_urlsafe(6),
            "popped": int(queue in self.popped),
            "begun": pack([hold_row(hold) for hold in begun]) if begun else _NOTHING,
        }
        self.popped.discard(queue)
        if verdicts:
            arguments["verdicts"] = pack([verdict_row(verdict) for verdict in verdicts])
        return _Call("settle" if verdicts else "claim", arguments, frozenset(verdict.hold for verdict in verdicts))

    async def _send_call(self, queue: str, desk: _Desk, call: _Call) -> SettleAnswer:
        desk.unanswered = call
        try:
            reply = await self.run_script(self.scripts[call.verb], queue, call.arguments)
        except BusFull:
            if call.verb.endswith("!"):
                self._not_run(queue, desk, call)
                raise
            # Nothing was run, and now we know that memory is out. What ends frees: it goes on under the second head.
            return await self._send_call(queue, desk, _Call(f"{call.verb}!", call.arguments, call.settled))
        except BusAway:
            raise
        except Exception as error:
            desk.broke = type(error) is BusError  # no kind that we know: not refused
            self._not_run(queue, desk, call)
            raise
        desk.unanswered, desk.broke = None, False
        return _answer(reply, queue)

    def _not_run(self, queue: str, desk: _Desk, call: _Call) -> None:
        """The server refused the call: the next one answers the bell, or nobody would ring it until the beat."""
        desk.unanswered = None
        if call.arguments["popped"]:
            self.popped.add(queue)

    async def extend(
        self,
        queue: str,
        holds: Sequence[Hold],
        lease_ms: int = DEFAULT_LEASE_MS,
        *,
        begun: Sequence[Hold] = (),
        began_ms: Sequence[int] = (),
    ) -> ExtendAnswer:
        """Renew leases; says which are lost, and which jobs are asked to stop. `began_ms`: when each of `begun` did."""
        now_ms, lost, stopping = await self.run(
            "extend",
            queue,
            lease_ms=lease_ms,
            holds=pack([hold_row(hold) for hold in holds]),
            begun=pack([[*hold_row(hold), *began_ms[number : number + 1]] for number, hold in enumerate(begun)]),
        )
        return ExtendAnswer(now_ms, ids_of(lost), ids_of(stopping))

    async def progress(self, queue: str, hold: Hold, fraction: float, note: str = "") -> bool:
        """Note how far a run is; False where the hold is stale."""
        reply = await self.run(
            "progress",
            queue,
            id=hold.id,
            attempts=hold.attempts,
            holder=hold.holder,
            progress=pack([fraction, note]),
        )
        return bool(reply == b"ok")

    async def sweep_out(self, queue: str, *, older_ms: int = 1000, cursor: str = "") -> tuple[list[Child], str]:
        """Children whose settle is at least that long ago and that nobody cleared: a bounded part, from `cursor` on,
        and the cursor of the next; "" begins, and is behind the last.

        Those too whose settle lies ahead: the clock went back, and they would wait until it is there again.
        """
        sent_ms = monotonic_ms()
        time, setting, (following, stored) = await self.link.commands(
            [("TIME",), ("GET", self.keys.clock), ("HSCAN", f"{self.base(queue)}out", cursor or 0, "COUNT", 500)]
        )
        now_ms = driven_ms(time, setting)
        self.clock.hear(now_ms, sent_ms)
        children = [child_of(stored[index]) for index in range(1, len(stored), 2)]
        old = [child for since_ms, child in children if not 0 <= now_ms - since_ms < older_ms]
        return old, "" if following == b"0" else following.decode()

    async def clear_out(self, queue: str, ids: Sequence[JobId]) -> None:
        """These children are minted."""
        if ids:
            await self.link.command("HDEL", f"{self.base(queue)}out", *ids)


def _answer(reply: list[Any], queue: str) -> SettleAnswer:
    at_ms, refused, jobs, blocked, retry_in_ms, limited, *rebuilt_ms = reply
    return SettleAnswer(
        ids_of(refused),
        ClaimAnswer(
            rebuilt_ms[0] if rebuilt_ms else at_ms,
            tuple(claimed(job, queue, at_ms) for job in jobs),
            cast("Blocked", blocked.decode()) if blocked else None,
            retry_in_ms,
            bool(limited),
        ),
    )


def _merged(earlier: SettleAnswer, later: SettleAnswer) -> SettleAnswer:
    jobs: tuple[Claimed, ...] = earlier.claim.jobs + later.claim.jobs
    return SettleAnswer(
        earlier.refused + later.refused,
        msgspec.structs.replace(later.claim, jobs=jobs, blocked=None if jobs else later.claim.blocked),
    )
