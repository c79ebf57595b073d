"""What a run asked for with ctx.enqueue, turned into mints; and the blocks of ids that runs may use for it. Pure.

The ids of a block are handed out with the run, so that enqueue answers an id without asking anybody. A run that used
none gives its block back: most runs use none, and blocks would otherwise run ahead of the clock that their ids are
made of.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import msgspec

from echod.errors import Refused
from echod.model.ids import JobId, branded
from echod.model.job import NO_LANE, Child, Mint, Unique
from echod.policy import calls, nesting, places
from echod.registry.schemas import Schemas
from echod.supervisor.channel import Fault
from echofn import frames
from echofn.codec import NIL
from echofn.manifest import Function, Policy

BLOCK = frames.MAX_CHILDREN
MAX_BYTES = 1024 * 1024  # of payload, all children of a run together
MOST_MS = 2**53 - 1  # as the bus takes it
_schemas = Schemas()  # compiled once, by what they say
BLOCK_AGE_S = 2.0  # an older block would make ids that look older than their jobs


class Blocks:
    """Blocks of ids, reserved as needed, used again while they are fresh."""

    def __init__(self, reserve: Callable[[int], int]) -> None:
        self._reserve = reserve
        self._spare: list[tuple[float, int]] = []
        self._lent: dict[int, float] = {}

    def take(self, now: float) -> int:
        """The first id of a block nobody uses. Raises LeaseGone when this node may not make ids."""
        while self._spare:
            reserved, first = self._spare.pop()
            if now - reserved <= BLOCK_AGE_S:
                self._lent[first] = reserved
                return first
        first = self._reserve(BLOCK)
        self._lent[first] = now
        return first

    def give_back(self, first: int, *, used: bool) -> None:
        """The run is over; unless ids were used, the next run may have them."""
        reserved = self._lent.pop(first, None)
        if reserved is not None and not used:
            self._spare.append((reserved, first))


def mints_of(
    parent: JobId,
    first_child: int,
    children: Sequence[frames.Child],
    function_of: Callable[[str], Function | None],
) -> tuple[Child, ...]:
    """The jobs to mint when the run settles as done.

    Raises Fault for what no honest worker sends, and Refused for an enqueue that cannot be done: an unknown function,
    one that its webhook alone may start, a payload that it does not take, a lane that is an object.
    """
    if children and not first_child:
        raise Fault("expected no children of a run that was given no ids for them")
    if len(children) > frames.MAX_CHILDREN:
        raise Fault(f"expected at most {frames.MAX_CHILDREN} children, got {len(children)}")
    if sum(_size(child) for child in children) > MAX_BYTES:
        raise Fault(f"expected at most {MAX_BYTES} bytes of children")
    for child in children:
        # What the bus would refuse may not get into `out`: there it would stand for ever.
        most = frames.FURTHEST_PRIORITY
        if child.priority is not None and abs(child.priority) > most:
            raise Fault(f"expected a child's priority from -{most} to {most}, got another")
        if not 0 <= (child.delay_ms or 0) <= frames.FURTHEST_MS or not 0 <= (child.at_ms or 0) <= MOST_MS:
            raise Fault("expected a child's delay or instant in milliseconds, got none that there is")
        if child.unique is not None and not 0 < len(child.unique) <= frames.MAX_KEY:
            raise Fault(f"expected a child's unique key of 1 to {frames.MAX_KEY} characters, got {len(child.unique)}")
    numbers = {child.number for child in children}
    if len(numbers) != len(children) or not all(0 <= number - first_child < BLOCK for number in numbers):
        raise Fault("expected each child under an id of its own, out of the block that came with the run")
    return tuple(_mint(parent, child, function_of(child.function)) for child in children)


def _size(child: frames.Child) -> int:
    """Bytes of what is its author's."""
    return len(child.payload) + len(child.lane or "") + len(child.unique or "")


def _mint(parent: JobId, child: frames.Child, function: Function | None) -> Child:
    if function is None:
        raise Refused(f"enqueue: expected a function of this version that is not off, got {child.function!r}")
    policy = function.policy
    try:
        calls.check_callable(function)
        if child.payload == NIL:
            child = msgspec.structs.replace(child, payload=function.default_payload)
        _check(child.payload, function)
        lane, unique = _lane(child, policy), _unique(child, policy)
    except Refused as error:
        raise Refused(f"enqueue: {function.name}: {error}") from None
    return Child(
        queue=function.name,
        mint=Mint(
            id=JobId(branded("JOB", child.number)),
            payload=child.payload,
            lane=lane,
            in_ms=child.delay_ms,
            at_ms=child.at_ms if child.delay_ms is None else None,
            priority=policy.priority if child.priority is None else child.priority,
            unique=unique,
            parent=parent,
        ),
    )


def _check(payload: bytes, function: Function) -> None:
    """A payload as the gateway holds it against the function's schema: a run may know it by its name alone."""
    value = _decoded(payload)
    if not nesting.is_carried(value):
        raise Fault("expected a child's payload of text keys, finite numbers and no extensions, got another")
    if function.payload_schema is not None:
        digest = hashlib.sha256(msgspec.json.encode(function.payload_schema)).hexdigest()
        _schemas.check(digest, function, msgspec.to_builtins(value), len(payload), value)


def _lane(child: frames.Child, policy: Policy) -> str:
    if child.lane is not None:
        return child.lane or NO_LANE
    return NO_LANE if policy.lane is None else places.lane_of(policy, _decoded(child.payload))


def _unique(child: frames.Child, policy: Policy) -> Unique | None:
    """The key the run gave, else the function's own."""
    if child.unique is not None:
        return Unique(child.unique, policy.until)
    if not policy.unique:
        return None
    return places.unique_of(policy, _decoded(child.payload), child.payload)


def _decoded(payload: bytes) -> object:
    try:
        return msgspec.msgpack.decode(payload)
    except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError) as error:
        raise Fault(f"expected a child's payload in msgpack, got {type(error).__name__}") from None
