"""Minting: callers of one turn of the loop share a call, and a mint that is sent again makes no second job."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import msgspec

from echod import log
from echod.bus.core import Core
from echod.bus.durable import Durable
from echod.bus.rows import mint_row, pack, utf8
from echod.bus.wire import Argument
from echod.errors import BusFull, Refused
from echod.model.ids import JobId
from echod.model.job import Conflict, Full, Mint, MintAnswer, Minted, Stale, Taken

CALL_JOBS, CALL_BYTES = 256, 512 * 1024


class _Batch:
    def __init__(self) -> None:
        self.mints: list[Mint] = []
        self.answers: asyncio.Future[list[MintAnswer]] = asyncio.get_running_loop().create_future()


_log = log.get("bus")


class Minting(Core):
    """mint."""

    durable: Durable

    def __init__(self, app: str, *, driven: bool) -> None:
        super().__init__(app, driven=driven)
        self._batches: dict[tuple[str, bool, bool], _Batch] = {}
        self._sending: set[asyncio.Task[None]] = set()

    async def mint(
        self, queue: str, mints: Sequence[Mint], *, outside: bool = False, fsync: bool = False
    ) -> list[MintAnswer]:
        """Create jobs, answers in order. `outside`: these may be refused as Full. `fsync`: answered when they are on
        disk, or not confirmed; NotDurable before anything is minted where the server keeps no append-only file.

        Sent again on a lost reply while the call's time lasts, then BusAway: whether it took effect is unknown, and
        minting the same ids again (by this process, within 5 s) answers with the same jobs.
        """
        if not mints:
            return []
        key = (queue, outside, fsync)
        batch = self._batches.get(key)
        if batch is None:
            batch = self._batches[key] = _Batch()
            asyncio.get_running_loop().call_soon(self._flush, key)
        start = len(batch.mints)
        batch.mints.extend(mints)
        answers = await asyncio.shield(batch.answers)
        return answers[start : start + len(mints)]

    async def mint_children(self, queue: str, mints: Sequence[Mint]) -> list[JobId]:
        """Mint children of runs that have settled; the ids of those that may leave `out`.

        Not among them are children of which it cannot be known whether they were minted: they are swept again, since
        one that runs twice is within what is promised, and one that is lost is not. One that no bus would take, whoever
        put it there, leaves with an error in the log: waiting would not make it better. Raises BusError.
        """
        try:
            answers = await self.mint(queue, mints)
        except Refused as error:
            if len(mints) > 1:  # not all of them; each by itself
                return [id for mint in mints for id in await self.mint_children(queue, [mint])]
            _log.error("child.unfit", queue=queue, job=mints[0].id, parent=mints[0].parent, error=str(error))
            return [mints[0].id]
        for mint, answer in zip(mints, answers, strict=True):
            if not isinstance(answer, Minted):
                _log.warning("child.refused", queue=queue, job=mint.id, answer=type(answer).__name__)
        return [mint.id for mint, answer in zip(mints, answers, strict=True) if not isinstance(answer, Stale)]

    def _flush(self, key: tuple[str, bool, bool]) -> None:
        task = asyncio.create_task(self._send_batch(*key, self._batches.pop(key)))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send_batch(self, queue: str, outside: bool, fsync: bool, batch: _Batch) -> None:
        try:
            parts = [self._send_mints(queue, outside, fsync, part) for part in _parts(batch.mints)]
            answers = await parts[0] if len(parts) == 1 else [a for part in await asyncio.gather(*parts) for a in part]
        except Exception as error:
            batch.answers.set_exception(error)
            batch.answers.exception()  # the callers raise it
        else:
            batch.answers.set_result(answers)

    async def _send_mints(self, queue: str, outside: bool, fsync: bool, mints: list[Mint]) -> list[MintAnswer]:
        arguments: dict[str, Argument] = {
            "queue": utf8(queue),
            "outside": int(outside),
            "resend": 0,
            "first_ms": self.clock.now_ms(),
            "mints": pack([mint_row(mint, self.token) for mint in mints]),
        }
        script, again = self.scripts["mint"], {**arguments, "resend": 1}
        is_confirmed = True
        if fsync:
            keys, first, second = self.keys_of(queue), script.bound(arguments), script.bound(again)
            try:
                outcome = await self.durable.script(script, keys, first, second)
            except BusFull:
                self.relieve()
                raise
            replies, is_confirmed = outcome.reply, outcome.is_confirmed
        else:
            replies = await self.run_script(script, queue, arguments, again)
        answers = [_answer(mint, reply) for mint, reply in zip(mints, replies, strict=True)]
        if not is_confirmed:
            answers = [_unconfirmed(answer) for answer in answers]
        for answer in answers:
            if isinstance(answer, Minted):
                self.remember_place(answer.id, queue)
        return answers


def _parts(mints: list[Mint]) -> Iterator[list[Mint]]:
    part: list[Mint] = []
    size = 0
    for mint in mints:
        if part and (len(part) == CALL_JOBS or size + len(mint.payload) > CALL_BYTES):
            yield part
            part, size = [], 0
        part.append(mint)
        size += len(mint.payload)
    yield part


def _unconfirmed(answer: MintAnswer) -> MintAnswer:
    return msgspec.structs.replace(answer, is_confirmed=False) if isinstance(answer, Minted) else answer


def _answer(mint: Mint, reply: int | list[int | bytes]) -> MintAnswer:
    match reply:
        case 1:
            return Minted(mint.id)
        case [2, bytes(owner)]:
            return Minted(JobId(owner.decode()), duplicate=True)
        case [3, bytes(owner)]:
            return Conflict(JobId(owner.decode()))
        case [4, int(pending)]:
            return Full(pending)
        case 5:
            return Taken(mint.id)
        case _:
            return Stale(mint.id)
