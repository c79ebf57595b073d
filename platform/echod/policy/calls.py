"""A call from outside as a mint: what may be called, and where the job goes, whichever door the call comes by. Pure."""

from __future__ import annotations

import msgspec

from echod.errors import InvalidPayload, NotCallable, Refused
from echod.model.ids import JobId, VersionId
from echod.model.job import NO_LANE, Mint, Unique
from echod.policy import places
from echofn import children
from echofn.manifest import Function, WebhookTrigger
from echofn.units import duration_text

KEY_MS = 24 * 3_600_000  # how long an idempotency key names its first job, unless its caller needs it for less

WHY_NO_JOB = "it was never minted (a child whose unique key was taken), or its function's keep has trimmed it"


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller asks for. `value` is the payload as paths walk it, `packed` as it is stored.

    None: as the function's policy says. `key` is the caller's own idempotency key, `digest` of what it stands for,
    `key_ms` how long it names its job. At most one of `in_ms` and `at_ms`.
    """

    value: object
    packed: bytes
    lane: str | None = None
    in_ms: int | None = None
    at_ms: int | None = None
    priority: int | None = None
    unique: str | None = None
    key: str | None = None
    key_ms: int = KEY_MS
    digest: str = ""
    version: str | None = None


def key_ms(wanted_ms: int) -> int:
    """For how long a caller wants its key known. Raises ValueError for no time at all, or for more than a day."""
    if not 0 < wanted_ms <= KEY_MS:
        raise ValueError(f"expected more than 0s and at most 24h, got {duration_text(wanted_ms)}")
    return wanted_ms


def check_callable(function: Function) -> None:
    """Raise NotCallable for a function that only verified requests may start: it cannot be started around them."""
    addresses = [trigger.path for trigger in function.triggers if isinstance(trigger, WebhookTrigger)]
    if addresses and len(addresses) == len(function.triggers):
        raise NotCallable(str(children.NotCallable(function.name, addresses)))


def mint_of(function: Function, call: Call, id: JobId, *, wait: str = "") -> Mint:
    """The mint of a call. Raises InvalidPayload where a path of the policy finds an object or a list."""
    policy = function.policy
    return Mint(
        id=id,
        payload=call.packed,
        lane=_lane(function, call),
        in_ms=call.in_ms,
        at_ms=call.at_ms,
        priority=policy.priority if call.priority is None else call.priority,
        unique=_unique(function, call),
        once=None if call.key is None else Unique(f"http:{call.key}", call.key_ms, call.digest),
        version=VersionId(call.version) if call.version else None,
        wait=wait,
    )


def _lane(function: Function, call: Call) -> str:
    if call.lane is not None:
        return call.lane or NO_LANE
    try:
        return places.lane_of(function.policy, call.value)
    except Refused as error:
        raise _misfit("lane", function.policy.lane, error) from None


def _unique(function: Function, call: Call) -> Unique | None:
    if call.unique is not None:
        return Unique(call.unique, function.policy.until)
    try:
        return places.unique_of(function.policy, call.value, call.packed)
    except Refused as error:
        raise _misfit("unique", function.policy.unique, error) from None


def _misfit(option: str, path: str | bool | None, error: Refused) -> InvalidPayload:
    """What a policy's path cannot take in the payload is told like a schema's fault."""
    return InvalidPayload(f"{option} {error}", [{"path": f"$.{path}", "message": str(error)}])
